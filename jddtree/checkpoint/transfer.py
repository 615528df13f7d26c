"""Weights from a published folder into Orbax form and back, in blocks of rows.

Memory: a few blocks of at most `arrays.SLAB_BYTES`, whatever the size of a tensor.
"""

import hashlib
import math
import shutil
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jddtree.checkpoint import arrays, manifest, published, skeleton
from jddtree.checkpoint.gguf import GgufFile
from jddtree.checkpoint.journal import NAME as JOURNAL
from jddtree.checkpoint.journal import Journal, read_hashes
from jddtree.checkpoint.mapping import Entry, Plan, make_plan
from jddtree.checkpoint.place import partial_of, require_room
from jddtree.checkpoint.progress import Advance, bar
from jddtree.checkpoint.published import DTYPES, Tensor
from jddtree.errors import InputError

_THREADS = 6  # most of them wait for the disk
_FILES = 3  # published ones that are written at a time: what is not finished is made again after a kill
_scratch = threading.local()  # a thread's block, which is used again: fresh pages cost more than copying
_OTHER_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


def plan_published(folder: Path, raw: Mapping[str, Any]) -> tuple[Plan, dict[str, Tensor]]:
    """How a published folder's tensors fill the model of its config.

    Raises:
        InputError: files are damaged, or tensors and model do not match; names the tensor and its file.
    """
    source = published.tensors(folder)
    return plan_tensors(source, raw), source


def plan_tensors(source: Mapping[str, Tensor], raw: Mapping[str, Any]) -> Plan:
    """How tensors fill the model of a config. Raises InputError as `plan_published`."""
    plan = make_plan(source, skeleton.rules(raw))
    skeleton.check(plan, raw, source)
    return plan


def to_orbax(
    plan: Plan, source: Mapping[str, Tensor], folder: Path, config: dict[str, Any], revision: str | None
) -> int:
    """Fill ``folder``'s partial folder with the weights in Orbax form, the hashes of their tensors and the
    manifest. A partial folder of the same source files that an earlier run left is continued.

    Args:
        plan: of ``source``.
        source: published name -> tensor.
        folder: in the end; its parent exists.
        config: config.json of the source.
        revision: the commit of the source, if it is known.

    Returns:
        The bytes of tensors that an earlier run had written.

    Raises:
        InputError: a tensor cannot be read or written, or there is too little room; names it and the file.
    """
    partial = partial_of(folder)
    weights = partial / manifest.WEIGHTS
    journal = Journal(partial, {"to": "orbax", "version": 2, "source": _signature(source)})
    pieces = [piece for entry in plan.entries if entry.arrays for piece in _pieces(entry)]
    left = [piece for piece in pieces if not journal.hashes.keys() >= set(piece.names)]
    total, rest = (sum(piece.nbytes for piece in some) for some in (pieces, left))
    require_room(folder.parent, rest)
    journal.start()
    left.sort(key=lambda piece: (source[piece.names[0]].file, source[piece.names[0]].offset))
    with bar("converting", total, total - rest) as advance:

        def copy(piece: Piece, stop: threading.Event) -> None:
            hashes = _store(piece, source, weights, advance, stop)
            if not stop.is_set():
                journal.add(hashes)

        _all(copy, left, _THREADS)
    arrays.finish(weights, {path: DTYPES[entry.dtype] for path, entry in plan.arrays.items()})
    manifest.write_manifest(partial, manifest.Manifest(plan, config, revision))
    return total - rest


def to_published(plan: Plan, source: Path | Mapping[str, Tensor], folder: Path) -> int:
    """Fill ``folder``'s partial folder with safetensors files, from an Orbax folder or from tensors. What an
    earlier run left of the same source is continued: files that were not finished are made again.

    Returns:
        The bytes of tensors that an earlier run had written.

    Raises:
        InputError: a tensor cannot be read, is not as it was when it was converted, or cannot be written, or
            there is too little room; names it and the file.
    """
    partial = partial_of(folder)
    hashes = read_hashes(source) if isinstance(source, Path) else {}
    origin = (
        _facts([source / manifest.NAME, source / JOURNAL]) if isinstance(source, Path) else _signature(source)
    )
    journal = Journal(partial, {"to": "hf", "version": 2, "source": origin})
    shards = list(arrays.batches(((entry.nbytes, entry) for entry in plan.entries), published.SHARD_BYTES))
    names = [published.shard_name(number, len(shards)) for number in range(1, len(shards) + 1)]
    left = {
        name: shard
        for name, shard in zip(names, shards, strict=True)
        if not journal.hashes.keys() >= {tensor for entry in shard for tensor in entry.names}
    }
    total = sum(entry.nbytes for entry in plan.entries)
    rest = sum(entry.nbytes for shard in left.values() for entry in shard)
    require_room(folder.parent, rest)
    journal.start()

    def make(name: str, stop: threading.Event) -> None:
        shard, found = left[name], dict[str, str]()
        layout = [(tensor, entry.dtype, entry.shape) for entry in shard for tensor in entry.names]
        published.write(partial / name, layout, _rows(shard, source, plan, hashes, found, advance, stop))
        for tensor in published.header(partial / name):
            if tensor.digest() != found[tensor.name]:
                raise InputError(
                    f"{tensor.file}: tensor {tensor.name} gave other bytes back than were written: "
                    "the disk or the memory is faulty"
                )
        journal.add(found)

    with bar("converting", total, total - rest) as advance:
        _all(make, list(left), _FILES)
    if len(shards) > 1:
        tensors = [[tensor for entry in shard for tensor in entry.names] for shard in shards]
        published.write_index(partial, dict(zip(names, tensors, strict=True)), total)
    return total - rest


def verify_download(folder: Path) -> tuple[int, int]:
    """Compare a published folder's weight files with the hashes that its download kept. Returns how many
    files and bytes there are.

    Raises:
        InputError: a file differs or cannot be read, or there is no hash for it; names it.
    """
    files = {file: published.downloaded_digest(file) for file in published.weight_files(folder)}
    for file, digest in files.items():
        if digest is None:
            raise InputError(f"{file}: its download kept no hash to check it with")
    total = sum(file.stat().st_size for file in files)
    with bar("checking", total, 0) as advance:

        def check(file: Path, stop: threading.Event) -> None:
            with file.open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            if found != files[file]:
                raise InputError(f"{file} is not the file that was published; download it again")
            advance(file.stat().st_size)

        _all(check, list(files), _FILES)
    return len(files), total


def verify(plan: Plan, folder: Path) -> tuple[int, int]:
    """Read an Orbax folder and compare every tensor with the hash of its published bytes. Returns how many
    tensors and bytes there are.

    Raises:
        InputError: a tensor cannot be read or differs; names it and the file.
    """
    hashes = read_hashes(folder)
    entries = [entry for entry in plan.entries if entry.arrays]
    with bar("checking", sum(entry.nbytes for entry in entries), 0) as advance:

        def check(entry: Entry, stop: threading.Event) -> None:
            for _ in _rows([entry], folder, plan, hashes, {}, advance, stop):
                pass

        _all(check, entries, _THREADS)
    return sum(len(entry.names) for entry in entries), sum(entry.nbytes for entry in entries)


def write_companions(source: GgufFile | Path, folder: Path) -> None:
    """Put what lies beside the weights of a folder or in the header of a GGUF file into ``folder``."""
    if isinstance(source, Path):
        for file in companions(source):
            shutil.copyfile(file, folder / file.name)
        return
    for name in sorted(source.files, key=lambda name: name == "config.json"):
        (folder / name).write_text(source.files[name], encoding="utf-8")


def companions(folder: Path) -> list[Path]:
    """The files beside the weights: tokenizer, template, licence and so on. Not folders, not hidden files.

    config.json comes last, so that a copy that was interrupted does not load."""
    return [
        file
        for file in sorted(folder.iterdir(), key=lambda file: (file.name == "config.json", file.name))
        if file.is_file()
        and not file.name.startswith(".")
        and file.suffix not in _OTHER_WEIGHTS
        and not file.name.endswith(".index.json")
        and file.name not in (manifest.NAME, JOURNAL)
    ]


@dataclass(frozen=True)
class Piece:
    """What is written and noted at once: some tensors of an entry, in steps of so many rows of each."""

    entry: Entry
    tensors: slice
    names: list[str]
    rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return len(self.names) * math.prod(self.entry.shape) * DTYPES[self.entry.dtype].itemsize


def _pieces(entry: Entry) -> list[Piece]:
    """An entry in pieces whose steps are whole slabs of its arrays."""
    itemsize = DTYPES[entry.dtype].itemsize
    slabs = [arrays.slab(shape, itemsize) for shape in entry.arrays.values()]
    names = entry.names
    if entry.op == "stack":
        [(height, *rest)], count = slabs, len(names)
        rows = rest[0] if rest else 1
        parts = [slice(start, min(start + height, count)) for start in range(0, count, height)]
        return [Piece(entry, part, names[part], rows) for part in parts]
    # Of heads' two arrays one may have longer slabs: both are powers of two, or all of them.
    rows = max(sizes[0] for sizes in slabs) * (sum(entry.rows) if entry.op == "heads" else 1)
    return [Piece(entry, slice(0, 1), names, rows)]


def _steps(shape: tuple[int, ...], rows: int) -> Iterator[slice]:
    height = shape[0] if shape else 1
    return (slice(start, min(start + rows, height)) for start in range(0, height, rows))


def _store(
    piece: Piece, source: Mapping[str, Tensor], weights: Path, advance: Advance, stop: threading.Event
) -> dict[str, str]:
    """Copy a piece's tensors into the arrays, unless ``stop`` is set. Returns their hashes."""
    entry, names = piece.entry, piece.names
    hashes = [hashlib.sha256() for _ in names]
    shapes = entry.arrays
    for rows in _steps(entry.shape, piece.rows):
        if stop.is_set():
            break
        block = _block((len(names), rows.stop - rows.start, *entry.shape[1:]), DTYPES[entry.dtype])
        for name, out, digest in zip(names, block, hashes, strict=True):
            source[name].read_into(out, rows.start)
            digest.update(out.reshape(-1).view(np.uint8))
        places = entry.places(piece.tensors, rows)
        with _of_tensor(names[0]):
            for path, part in entry.split(block).items():
                arrays.write(weights, path, shapes[path], places[path], part)
        advance(block.nbytes)
    return {name: digest.hexdigest() for name, digest in zip(names, hashes, strict=True)}


def _block(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of any content in this thread's memory, which the next one overwrites."""
    nbytes = dtype.itemsize * math.prod(shape)
    if not hasattr(_scratch, "memory") or _scratch.memory.nbytes < nbytes:
        _scratch.memory = np.empty(nbytes, np.uint8)
    return _scratch.memory[:nbytes].view(dtype).reshape(shape)


def _rows(
    entries: list[Entry],
    source: Path | Mapping[str, Tensor],
    plan: Plan,
    expected: Mapping[str, str],
    found: dict[str, str],
    advance: Advance,
    stop: threading.Event,
) -> Iterator[np.ndarray]:
    """The tensors of entries, in order, in blocks of rows, until ``stop`` is set.

    ``expected``: hashes that they must have, where there is one. ``found`` takes their hashes.
    """
    stored = plan.arrays
    for entry in entries:
        # A tied tensor lies in the array of its twin.
        rows = 1 if entry.op == "note" else _pieces(stored[entry.paths[0]])[0].rows
        for index, name in enumerate(entry.names):
            digest = hashlib.sha256()
            for block in _blocks(entry, index, name, rows, source):
                digest.update(np.ascontiguousarray(block).reshape(-1).view(np.uint8))
                yield block
                advance(block.nbytes)
                if stop.is_set():
                    raise InputError("the conversion was stopped")  # by what is told instead of this
            found[name] = digest.hexdigest()
            if expected.get(name, found[name]) != found[name]:
                raise InputError(
                    f"{source}: tensor {name} is not what was converted: its bytes were altered; "
                    "convert the published folder again"
                )


def _blocks(
    entry: Entry, index: int, name: str, rows: int, source: Path | Mapping[str, Tensor]
) -> Iterator[np.ndarray]:
    """Tensor ``index`` of an entry, so many rows at a time, from an Orbax folder or from tensors."""
    if entry.op == "note":
        yield entry.note(index)
        return
    for step in _steps(entry.shape, rows):
        if isinstance(source, Path):
            places = entry.places(slice(index, index + 1), step)
            with _of_tensor(name):
                parts = {
                    path: arrays.read(source / manifest.WEIGHTS, path, region)
                    for path, region in places.items()
                }
            yield entry.join(parts)[0]
        else:
            block = np.empty((step.stop - step.start, *entry.shape[1:]), DTYPES[entry.dtype])
            source[name].read_into(block, step.start)
            yield block


def _all[T](work: Callable[[T, threading.Event], object], items: Sequence[T], threads: int) -> None:
    """Do some work on every item, so many at a time. The first error or an interrupt ends it: then the event
    is set, and the work need not be finished.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for done in as_completed([pool.submit(work, item, stop) for item in items]):
                done.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _of_tensor(name: str) -> Generator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"tensor {name}: {error}") from error


def _signature(source: Mapping[str, Tensor]) -> list[list]:
    return _facts(sorted({tensor.file for tensor in source.values()}))


def _facts(files: Sequence[Path]) -> list[list]:
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
