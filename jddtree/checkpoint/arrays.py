"""Arrays in an Orbax checkpoint: written and read in blocks, or loaded to the shards of devices.

On disk, in Orbax's zarr3 form without OCDBT and compression, an array is a folder of files of up to
`SLAB_BYTES`. A file holds chunks, each with its CRC-32C that every read checks; a device's part of an array
is read by chunks.
"""

import gc
import logging
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore
from orbax.checkpoint import v1 as ocp

from jddtree.checkpoint import published
from jddtree.checkpoint.place import require_room
from jddtree.errors import InputError

Region = tuple[slice, ...]

SLAB_BYTES = 64 << 20
# The axis that tensor parallelism cuts is stored in up to so many parts, none of them smaller than this.
_PARTS, _PART_BYTES = 16, 32 << 10
# What Orbax may hold on its way to the devices of this host.
_LOADING_BYTES = 4 << 30
# What Orbax's files for an array of no dimensions take at most on a disk, and a share of those for all.
_SCALAR_BYTES = 16 << 10
_SETTLE_SECONDS = 0.3
_UNFINISHED = "arrays"  # the folder of the arrays until `finish`
_METADATA = "_METADATA"  # Orbax's file beside them after it


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


def slab(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The shape of one file's part of an array: whole last axes, a power of two of the axis before them."""
    sizes = list(shape)
    for axis, size in enumerate(shape):
        fits = SLAB_BYTES // (itemsize * math.prod(shape[axis + 1 :]))
        if fits:
            sizes[axis] = min(size, 1 << (fits.bit_length() - 1))
            break
        sizes[axis] = 1
    return tuple(sizes)


def chunk(path: str, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The shape of what is read at once: a slab of one expert, cut where tensor parallelism cuts."""
    sizes = list(slab(shape, itemsize))
    if len(sizes) < 2:
        return tuple(sizes)
    *_, module, name = ("", *path.split("."))
    if name in ("k_up", "v_up"):
        axis = 0  # heads
    elif module in ("o_proj", "down_proj"):
        axis = len(sizes) - 1  # inputs
    else:
        axis = len(sizes) - 2  # outputs, vocabulary
    if axis and len(sizes) == 3:
        sizes[0] = 1
    parts, nbytes = _PARTS, itemsize * math.prod(sizes)
    while parts > 1 and (sizes[axis] % parts or nbytes < parts * _PART_BYTES):
        parts //= 2
    sizes[axis] //= parts
    return tuple(sizes)


def write(weights: Path, path: str, shape: tuple[int, ...], region: Region, values: np.ndarray) -> None:
    """Write a region of an array into a checkpoint that `finish` has not closed, read it back and compare.

    The region must be whole slabs. When this returns, the file system has the bytes.

    Args:
        weights: the checkpoint.
        path: dotted path of the array.
        shape: of the whole array.
        region: a slice for each of its first axes.
        values: of the region's shape and the array's dtype.

    Raises:
        InputError: the disk is full, refuses, or gives other bytes back; names the file.
    """
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    metadata = {
        "shape": shape,
        "data_type": values.dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": slab(shape, values.dtype.itemsize)},
        },
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": chunk(path, shape, values.dtype.itemsize),
                    "codecs": codecs,
                    "index_codecs": codecs,
                },
            }
        ],
    }
    place = weights / _UNFINISHED / path
    first, *others = region
    rows = max(1, published.BACK_BYTES * len(values) // values.nbytes)
    same = True
    with _named(place, "cannot be written"):
        array = _open(place, create=True, metadata=metadata)
        array[region].write(values).result()
        for start in range(0, len(values), rows):
            part = values[start : start + rows]
            at = slice(first.start + start, first.start + start + len(part))
            back = array[(at, *others)].read().result()
            same &= np.array_equal(back.view(np.uint8), part.view(np.uint8))
    if not same:
        raise InputError(f"{place} gave other bytes back than were written: the disk or the memory is faulty")


def read(weights: Path, path: str, region: Region, out: np.ndarray) -> None:
    """Fill ``out`` with a region of an array from a finished checkpoint.

    Raises:
        InputError: it is not there or damaged; names the array's folder.
    """
    place = _home(weights) / path
    with _named(place, "cannot be read"):
        # Into memory that is used again: fresh pages cost more than copying.
        tensorstore.array(out, copy=False).write(_open(place)[region]).result()


def finish(weights: Path, dtypes: Mapping[str, np.dtype]) -> None:
    """Close a checkpoint whose arrays were written: before this it does not load. May be repeated.

    Orbax's own files come from Orbax: it saves a checkpoint of scalars with the same paths.

    Raises:
        InputError: the disk is full or refuses.
    """
    scratch = weights.with_name(weights.name + ".scalars")
    shutil.rmtree(scratch, ignore_errors=True)
    context = ocp.Context()
    context.array.saving.use_ocdbt = False
    context.array.saving.use_zarr3 = True
    problem = None
    require_room(weights.parent, _SCALAR_BYTES * len(dtypes))
    with _quiet():
        try:
            with context:
                ocp.save(str(scratch), _tree({path: np.zeros((), dtype) for path, dtype in dtypes.items()}))
        except Exception as error:  # Orbax raises Exception itself
            problem = _reason(error)
        if problem:
            _abandon()
            raise InputError(f"{weights}: Orbax's own files cannot be written: {problem}")
    home = _home(scratch).relative_to(scratch)
    if (weights / _UNFINISHED).is_dir():
        (weights / _UNFINISHED).rename(weights / home)
    for file in sorted(scratch.rglob("*")):
        place = file.relative_to(scratch)
        if file.is_file() and place.parent in (Path(), home):
            shutil.copyfile(file, weights / place)
    shutil.rmtree(scratch)


def load(weights: Path, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Load some arrays, by dotted path, each in the dtype and the sharding that are wanted.

    A process reads what its devices need. Host memory beside the arrays: a few GB.

    Raises:
        InputError: the checkpoint is damaged.
    """
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    context.memory.read_concurrent_bytes = _LOADING_BYTES
    loaded: dict[str, Any] = {}
    problem = None
    with _quiet():
        try:
            with context:
                loaded = flatten(ocp.load(str(weights.absolute()), _tree(wanted)))
        except Exception as error:  # Orbax raises Exception itself
            problem = _damage(weights, error.__cause__ or error)
        if problem:
            _abandon()
            raise InputError(f"{problem}; convert the published folder again")
    for path, wish in wanted.items():
        if loaded.get(path) is wish:  # what Orbax does with a path that it does not have
            raise InputError(f"{weights} is damaged: it lacks {path}; convert the published folder again")
    return loaded


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


def _open(place: Path, **create: Any) -> Any:
    spec = {
        "driver": "zarr3",
        "kvstore": {
            "driver": "file",
            "path": str(place.absolute()),
            # What is read back lies in memory still. Else a disk that fails must be an error, not a signal.
            "file_io_mode": {"mode": "memmap" if create else "default"},
        },
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }
    return tensorstore.open(spec | create, open=True, create=bool(create)).result()


def _home(weights: Path) -> Path:
    """Where Orbax keeps the arrays; the name depends on its version."""
    for file in weights.glob(f"*/{_METADATA}"):
        return file.parent
    raise InputError(f"{weights} is damaged: it has no {_METADATA}; convert the published folder again")


def _abandon() -> None:
    """What Orbax gave up complains when it is collected, and its reads and writes when they end, in
    TensorStore's own threads: both are to happen while it is quiet. Nobody can be asked whether they have.
    """
    gc.collect()
    time.sleep(_SETTLE_SECONDS)
    gc.collect()


@contextmanager
def _quiet() -> Generator[None]:
    """Without Orbax's remarks that OCDBT is not used, and without what its abandoned reads and writes raise,
    which TensorStore's threads hand to the hooks.
    """
    hooks, levels = (sys.unraisablehook, sys.excepthook), {}
    for logger in (logging.getLogger("absl"), logging.getLogger("asyncio")):
        levels[logger] = logger.level
        logger.setLevel(logging.CRITICAL)
    sys.unraisablehook = lambda unraisable: None
    sys.excepthook = lambda *raised: None
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        sys.unraisablehook, sys.excepthook = hooks


@contextmanager
def _named(place: Path, what: str) -> Generator[None]:
    """TensorStore's errors as one line about ``place``."""
    try:
        yield
    except (ValueError, OSError, KeyError) as error:
        raise InputError(f"{_place(error) or place} {what}: {_reason(error)}") from error


def _damage(weights: Path, error: BaseException) -> str:
    return f"{_place(error) or weights} is damaged ({_reason(error)})"


def _place(error: BaseException) -> str | None:
    """The file or the folder that an error of TensorStore names."""
    found = re.search(r"""'path': '([^']+)'|local file "([^"]+)\"""", str(error))
    return (found[1] or found[2]).rstrip("/") if found else None


def _reason(error: BaseException) -> str:
    text = str(error)
    number = re.search(r"os_error_code='(\d+)'", text)
    if number:
        return os.strerror(int(number[1]))
    if "NOT_FOUND" in text or isinstance(error, FileNotFoundError):
        return "it is missing"
    if re.search(r"CRC|checksum|[Dd]igest", text):
        return "a checksum does not match its bytes"
    return " ".join(text.split())[:200]
