"""Arrays in an Orbax checkpoint: appended a batch at a time, loaded whole or in part."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from jddtree.errors import InputError

# A batch is one Orbax write or read. One array can be larger; then it is a batch alone.
BATCH_BYTES = 256 << 20
# What one read fetches, so that a device can read its own part of an array.
_CHUNK_BYTES = 32 << 20


def batches[T](sized: Iterable[tuple[int, T]], limit: int) -> Iterator[list[T]]:
    """Group (bytes, item) pairs, in order; only a group of one item may be over ``limit`` bytes."""
    group: list[T] = []
    total = 0
    for size, item in sized:
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


def append(weights: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Add arrays, by dotted path, to a checkpoint that `finish` has not closed.

    Each call is atomic. Orbax raises its own error when an array is there already.
    """
    context = ocp.Context()
    context.array.saving.use_compression = False  # weights do not compress
    context.array.saving.storage_options.chunk_byte_size = _CHUNK_BYTES
    with context:
        ocp.partial.save(str(weights.absolute()), _tree(arrays))


def finish(weights: Path) -> None:
    """Close a checkpoint that `append` filled; before this it does not load."""
    ocp.partial.finalize(str(weights.absolute()))


def load(weights: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Load some arrays, by dotted path.

    Args:
        weights: the Orbax checkpoint.
        wanted: path -> `jax.ShapeDtypeStruct` with a sharding (gives a jax.Array of that dtype and
            sharding), or a numpy array of the stored dtype (gives a numpy array; its content is not used).

    Raises:
        InputError: the checkpoint is damaged.
    """
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    try:
        with context:
            loaded = flatten(ocp.load(str(weights.absolute()), _tree(wanted)))
    except (ValueError, OSError, KeyError) as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"{weights} is damaged ({reason}); convert the published folder again") from error
    for path, wish in wanted.items():
        if loaded.get(path) is wish:  # what Orbax does with a path that it does not have
            raise InputError(f"{weights} is damaged: it lacks {path}; convert the published folder again")
    return loaded


def stored(weights: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays in a finished checkpoint, by dotted path."""
    return {
        path: tuple(leaf.shape)
        for path, leaf in flatten(ocp.metadata(str(weights.absolute())).metadata).items()
    }


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": x}`` as ``{"a": {"b": x}}``."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def flatten(tree: Any) -> dict[str, Any]:
    """The reverse of `nest`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _tree(flat: Mapping[str, Any]) -> Any:
    """`nest`, as loosely typed as Orbax's own tree types."""
    return nest(flat)
