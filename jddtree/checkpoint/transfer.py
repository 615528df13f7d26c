"""Weights from a published folder into Orbax form and back, in blocks of rows.

Both ways a few threads take one piece after another: they read, hash, write, sync, read back, compare and
note it in the journal. Memory: a block of at most `arrays.SLAB_BYTES` each, whatever the size of a tensor.
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
    pieces = [piece for entry in plan.entries if entry.arrays for piece in _pieces(entry, entry)]
    left = [piece for piece in pieces if not journal.hashes.keys() >= set(piece.names)]
    total, rest = (sum(piece.nbytes for piece in some) for some in (pieces, left))
    require_room(folder.parent, rest)
    journal.start()
    left.sort(key=lambda piece: (source[piece.names[0]].file, source[piece.names[0]].offset))
    with bar("converting", total, total - rest) as advance:

        def copy(piece: Piece, stop: threading.Event) -> None:
            entry, shapes = piece.entry, piece.entry.arrays

            def put(block: np.ndarray, rows: slice) -> None:
                places = entry.places(piece.tensors, rows)
                with _of_tensor(piece.names[0]):
                    for path, part in entry.split(block).items():
                        arrays.write(weights, path, shapes[path], places[path], part)

            hashes = _take(piece, source, put, advance, stop)
            if not stop.is_set():
                journal.add(hashes)

        _all(copy, left, _THREADS)
    arrays.finish(weights, {path: DTYPES[entry.dtype] for path, entry in plan.arrays.items()})
    manifest.write_manifest(partial, manifest.Manifest(plan, config, revision))
    return total - rest


def to_published(plan: Plan, source: Path | Mapping[str, Tensor], folder: Path) -> int:
    """Fill ``folder``'s partial folder with safetensors files, from an Orbax folder or from tensors. What an
    earlier run left of the same source is continued.

    Returns:
        The bytes of tensors that an earlier run had written.

    Raises:
        InputError: a tensor cannot be read, is not as it was when it was converted, or cannot be written, or
            there is too little room; names it and the file.
    """
    partial = partial_of(folder)
    expected = _expected(plan, source) if isinstance(source, Path) else {}
    origin = (
        _facts([source / manifest.NAME, source / JOURNAL]) if isinstance(source, Path) else _signature(source)
    )
    journal = Journal(partial, {"to": "hf", "version": 3, "source": origin})
    stored = plan.arrays
    # A tied tensor lies in the array of its twin.
    pieces = [piece for e in plan.entries for piece in _pieces(e, stored[e.paths[0]] if e.paths else e)]
    left = [piece for piece in pieces if not journal.hashes.keys() >= set(piece.names)]
    total, rest = (sum(piece.nbytes for piece in some) for some in (pieces, left))
    require_room(folder.parent, rest)
    journal.start()
    shards = list(arrays.batches(((entry.nbytes, entry) for entry in plan.entries), published.SHARD_BYTES))
    tensors: dict[str, Tensor] = {}
    for number, shard in enumerate(shards, start=1):
        layout = [(name, entry.dtype, entry.shape) for entry in shard for name in entry.names]
        file = partial / published.shard_name(number, len(shards))
        found = published.begin(file, layout, kept=any(name in journal.hashes for name, _, _ in layout))
        tensors |= {tensor.name: tensor for tensor in found}
    left.sort(key=lambda piece: piece.nbytes <= arrays.SLAB_BYTES)  # no thread is left alone with a large one
    with bar("converting", total, total - rest) as advance:

        def copy(piece: Piece, stop: threading.Event) -> None:
            places = [tensors[name] for name in piece.names]
            hashes = _take(
                piece, source, lambda block, rows: published.store(places, block, rows.start), advance, stop
            )
            if not stop.is_set():
                _compare(hashes, expected, source)
                journal.add(hashes)

        _all(copy, left, _THREADS)
    if len(shards) > 1:
        published.write_index(partial, tensors.values())
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

        _all(check, list(files), _THREADS)
    return len(files), total


def verify(plan: Plan, folder: Path) -> tuple[int, int]:
    """Read an Orbax folder and compare every tensor with the hash of its published bytes. Returns how many
    tensors and bytes there are.

    Raises:
        InputError: a tensor cannot be read or differs; names it and the file.
    """
    expected = _expected(plan, folder)
    pieces = [piece for entry in plan.entries if entry.arrays for piece in _pieces(entry, entry)]
    with bar("checking", sum(piece.nbytes for piece in pieces), 0) as advance:

        def check(piece: Piece, stop: threading.Event) -> None:
            hashes = _take(piece, folder, lambda block, rows: None, advance, stop)
            if not stop.is_set():
                _compare(hashes, expected, folder)

        _all(check, pieces, _THREADS)
    return sum(len(piece.names) for piece in pieces), sum(piece.nbytes for piece in pieces)


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


def _pieces(entry: Entry, twin: Entry) -> list[Piece]:
    """An entry in pieces whose steps are whole slabs of the arrays of ``twin``: itself, if it fills any."""
    itemsize, names = DTYPES[entry.dtype].itemsize, entry.names
    slabs = [arrays.slab(shape, itemsize) for shape in twin.arrays.values()]
    if entry.op == "note":
        return [Piece(entry, slice(0, len(names)), names, max(1, *entry.shape[:1]))]
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


def _take(
    piece: Piece,
    source: Path | Mapping[str, Tensor],
    put: Callable[[np.ndarray, slice], None],
    advance: Advance,
    stop: threading.Event,
) -> dict[str, str]:
    """Read a piece's tensors from an Orbax folder or from tensors, unless ``stop`` is set.

    ``put`` takes blocks [tensors, rows, ...], which do not last, and their rows. Returns the tensors' hashes.
    """
    entry, names = piece.entry, piece.names
    hashes = [hashlib.sha256() for _ in names]
    for rows in _steps(entry.shape, piece.rows):
        if stop.is_set():
            break
        block = _block((len(names), rows.stop - rows.start, *entry.shape[1:]), DTYPES[entry.dtype])
        for index, (name, digest) in enumerate(zip(names, hashes, strict=True)):
            out = block[index : index + 1]
            if entry.op == "note":
                out[:] = entry.note(piece.tensors.start + index)
            elif isinstance(source, Path):
                at = piece.tensors.start + index
                places = entry.places(slice(at, at + 1), rows)
                with _of_tensor(name):
                    for path, part in entry.split(out).items():
                        arrays.read(source / manifest.WEIGHTS, path, places[path], part)
            else:
                source[name].read_into(out[0], rows.start)
            digest.update(out.reshape(-1).view(np.uint8))
        put(block, rows)
        advance(block.nbytes)
    return {name: digest.hexdigest() for name, digest in zip(names, hashes, strict=True)}


def _expected(plan: Plan, folder: Path) -> dict[str, str]:
    """The hashes of an Orbax folder. Raises InputError where a tensor that fills an array has none."""
    hashes = read_hashes(folder)
    for name in (name for entry in plan.entries if entry.arrays for name in entry.names):
        if name not in hashes:
            raise InputError(
                f"{folder / JOURNAL} has no hash of tensor {name}; convert the published folder again"
            )
    return hashes


def _compare(
    hashes: Mapping[str, str], expected: Mapping[str, str], source: Path | Mapping[str, Tensor]
) -> None:
    """Raises InputError when a tensor has another hash than it had when it was converted."""
    for name, digest in hashes.items():
        if expected.get(name, digest) != digest:
            raise InputError(
                f"{source}: tensor {name} is not what was converted: its bytes were altered; "
                "convert the published folder again"
            )


def _block(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of any content in this thread's memory, which the next one overwrites."""
    nbytes = dtype.itemsize * math.prod(shape)
    if not hasattr(_scratch, "memory") or _scratch.memory.nbytes < nbytes:
        _scratch.memory = np.empty(nbytes, np.uint8)
    return _scratch.memory[:nbytes].view(dtype).reshape(shape)


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
