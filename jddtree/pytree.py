"""Frozen dataclasses that are JAX pytrees, and the names of places in a tree."""

import dataclasses
from typing import Any, dataclass_transform

import jax


@dataclass_transform(frozen_default=True)
def pytree_dataclass[T: type](cls: T) -> T:
    """Make ``cls`` a frozen dataclass whose fields are all pytree children.

    Rebuilding bypasses ``__init__``: JAX puts tracers, shapes and bare objects into fields while it maps
    trees, and shape-type checks that run in ``__init__`` would refuse those.
    """
    made: Any = dataclasses.dataclass(frozen=True)(cls)
    names = tuple(field.name for field in dataclasses.fields(made))

    def flatten(node):
        return tuple((jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in names), None

    def unflatten(_, children):
        node = object.__new__(made)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(node, name, child)
        return node

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return made


def dotted(path: tuple[Any, ...]) -> str:
    """A tree path as ``layers.0.mlp.weight``; the variable's own ``value`` is left out."""
    keys = [jax.tree_util.keystr((key,), simple=True) for key in path]
    return ".".join(keys[:-1] if keys[-1] == "value" else keys)
