"""The model that a config describes, without weights: what a checkpoint must fill, no more and no less."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jddtree.checkpoint import dense, dflash, kimi_k2
from jddtree.checkpoint.mapping import Entry, Plan, Rule
from jddtree.checkpoint.published import Tensor
from jddtree.config import KimiK2Config, drafter_config, family, target_config
from jddtree.errors import InputError
from jddtree.models.dense import Dense
from jddtree.models.dflash import DFlash
from jddtree.models.kimi_k2 import KimiK2
from jddtree.pytree import dotted

FLOAT32 = jnp.dtype(jnp.float32)


def rules(raw: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The mapping table of the family that a config.json describes."""
    if family(raw) == "dflash":
        return dflash.RULES
    config = target_config(raw)
    return kimi_k2.rules(config) if isinstance(config, KimiK2Config) else dense.rules(config)


def abstract_model(raw: Mapping[str, Any], packed: frozenset[str]) -> nnx.Module:
    """The model with shapes for arrays.

    Args:
        raw: config.json.
        packed: dotted paths of the modules with INT4 weights.

    Raises:
        InputError: the config is not usable.
    """
    if family(raw) == "dflash":
        drafter = drafter_config(raw)
        return _shapes(lambda: DFlash(drafter, packed=packed, dtype=FLOAT32, rngs=nnx.Rngs(0)))
    config = target_config(raw)
    if isinstance(config, KimiK2Config):
        return _shapes(lambda: KimiK2(config, packed=packed, dtype=FLOAT32, rngs=nnx.Rngs(0)))
    return _shapes(lambda: Dense(config, packed=packed, dtype=FLOAT32, rngs=nnx.Rngs(0)))


def array_paths(tree: Any) -> list[tuple[str, Any]]:
    """(dotted path, leaf) of a model or its state, in tree order. Paths are as in the mapping tables."""
    return [(dotted(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def check(plan: Plan, raw: Mapping[str, Any], source: Mapping[str, Tensor]) -> None:
    """Compare a plan with the model that the config describes.

    Raises:
        InputError: an array is not filled, a tensor fills none, or a shape or dtype differs; the line names
            the tensor.
    """
    wanted = dict(array_paths(abstract_model(raw, plan.packed)))
    arrays = plan.arrays
    folder = next(iter(source.values())).file.parent if source else None
    for path, leaf in wanted.items():
        if path not in arrays:
            raise InputError(f"{folder}: no tensor for {path}, which its config.json calls for")
        entry = arrays[path]
        file, name = source[entry.names[0]].file, entry.names[0]
        if entry.arrays[path] != leaf.shape:
            raise InputError(f"{file}: tensor {name} is {list(entry.shape)}{_wish(entry, path, leaf.shape)}")
        allowed = _dtypes(path)
        if entry.dtype not in allowed:
            raise InputError(f"{file}: tensor {name} is {entry.dtype}; it must be {' or '.join(allowed)}")
    for path, entry in arrays.items():
        if path not in wanted:
            file = source[entry.names[0]].file
            raise InputError(f"{file}: tensor {entry.names[0]} has no place in the model of config.json")
    _check_notes(plan, source)
    _check_tied(plan, source)


def _shapes(build: Any) -> nnx.Module:
    try:
        return nnx.eval_shape(build)
    except InputError:
        raise
    except (TypeError, ValueError, ZeroDivisionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"config.json describes a model that cannot be built: {reason}") from error


def _dtypes(path: str) -> tuple[str, ...]:
    """What an array may be stored as."""
    if path.endswith(".weight_packed"):
        return ("I32",)
    return ("BF16",) if path.endswith(".weight_scale") else ("BF16", "F16", "F32")


def _wish(entry: Entry, path: str, shape: tuple[int, ...]) -> str:
    if entry.op == "copy":
        return f"; config.json calls for {list(shape)}"
    if entry.op == "stack" and shape[0] == entry.count:
        return f"; config.json calls for {list(shape[1:])}"
    return f", so {path} would be {list(entry.arrays[path])}; config.json calls for {list(shape)}"


def _check_notes(plan: Plan, source: Mapping[str, Tensor]) -> None:
    """``weight_shape`` must be what the packed words hold: padded rows are not supported."""
    suffix = ".weight_shape"
    for entry in plan.entries:
        if entry.op != "note":
            continue
        values = entry.value if entry.count is not None else [entry.value]
        for name, value in zip(entry.names, values or [], strict=True):
            packed = source.get(name.removesuffix(suffix) + ".weight_packed")
            if packed is None:
                raise InputError(f"{source[name].file}: tensor {name} has no weight_packed beside it")
            if value != [packed.shape[0], 8 * packed.shape[-1]]:
                raise InputError(
                    f"{source[name].file}: tensor {name} says {value}, but weight_packed holds "
                    f"{[packed.shape[0], 8 * packed.shape[-1]]}"
                )


def _check_tied(plan: Plan, source: Mapping[str, Tensor]) -> None:
    for entry in plan.entries:
        if entry.op != "tied":
            continue
        twin = plan.arrays[entry.paths[0]]
        if (entry.dtype, entry.shape) != (twin.dtype, twin.shape) or (
            source[entry.name].digest() != source[twin.name].digest()
        ):
            raise InputError(
                f"{source[entry.name].file}: config.json ties {entry.name} to {twin.name}, but the two differ"
            )
