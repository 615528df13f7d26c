"""Published checkpoint folders: safetensors files and their index, read and written tensor by tensor.

Format: header length in 8 little-endian bytes, JSON header (name -> dtype, shape, byte range), data.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path

import ml_dtypes
import numpy as np

from jddtree.checkpoint.place import writing
from jddtree.config import read_json
from jddtree.errors import InputError

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # of the files that are written
_BLOCK_BYTES = 64 << 20  # of a tensor at once, where it need not be whole
# What is read back at once: small, so that its memory is used again; fresh pages cost more than copying.
BACK_BYTES = 8 << 20

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies. ``offset`` counts bytes from the start of ``file``."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size of the data."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def row(self, index: int) -> int:
        """Where a row begins, in bytes from the start of the file."""
        return self.offset + (index * (self.nbytes // self.shape[0]) if index else 0)

    def read_into(self, out: np.ndarray, start: int = 0) -> None:
        """Fill ``out``, a contiguous array of this dtype and of so many rows, from row ``start`` on.

        Raises:
            InputError: the file ends early or cannot be read.
        """
        try:
            with self.file.open("rb") as file:
                file.seek(self.row(start))
                count = file.readinto(memoryview(out.reshape(-1).view(np.uint8))) if out.nbytes else 0
        except OSError as error:
            raise InputError(f"{self.file}: tensor {self.name} cannot be read: {error.strerror}") from error
        if count != out.nbytes:
            raise InputError(f"{self.file} is truncated inside tensor {self.name}; download it again")

    def read(self) -> np.ndarray:
        """The tensor, in its own dtype."""
        out = np.empty(self.shape, DTYPES[self.dtype])
        self.read_into(out)
        return out

    def digest(self) -> str:
        """SHA-256 of its bytes, in hex. Raises InputError as `read_into`."""
        found = hashlib.sha256()
        height = self.shape[0] if self.shape else 1
        rows = max(1, _BLOCK_BYTES * height // max(1, self.nbytes))
        whole = np.empty((min(rows, height), *self.shape[1:]), DTYPES[self.dtype])
        for start in range(0, height, rows):
            block = whole[: height - start]
            self.read_into(block, start)
            found.update(block.reshape(-1).view(np.uint8))
        return found.hexdigest()


def is_published(folder: Path) -> bool:
    """Whether ``folder`` holds safetensors weights."""
    return (folder / INDEX).is_file() or any(folder.glob("*.safetensors"))


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: those its index names, or its only one."""
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(_index(folder).values()))]
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        raise InputError(
            f"{folder} holds {len(files)} safetensors files but no {INDEX} that says which to use"
        )
    return files


def revision(folder: Path) -> str | None:
    """The commit that a folder was downloaded from, as the hub's client keeps it; None where it did not."""
    if folder.absolute().parent.name == "snapshots":  # the client's own cache
        return folder.absolute().name
    return next(iter(_download(folder, "config.json")), None)


def downloaded_digest(file: Path) -> str | None:
    """The SHA-256 that a weight file had where it was downloaded, as the hub's client keeps it, or None."""
    # In the client's cache a file is a link to one that is named by its hash.
    known = [file.resolve().name, *_download(file.parent, file.name)[1:2]]
    return next((name for name in reversed(known) if re.fullmatch("[0-9a-f]{64}", name)), None)


def _download(folder: Path, name: str) -> list[str]:
    """What the client keeps beside a download into a folder: commit, hash, time; empty where it did not."""
    try:
        return (folder / f".cache/huggingface/download/{name}.metadata").read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a published folder, from the files' headers alone.

    Raises:
        InputError: a file is missing, truncated or altered, or disagrees with the index; the line names the
            file and, where one is concerned, the tensor.
    """
    found: dict[str, Tensor] = {}
    index = _index(folder) if (folder / INDEX).is_file() else {}
    for file in weight_files(folder):
        for tensor in header(file):
            if index and index.get(tensor.name) != file.name:
                raise InputError(
                    f"{folder / INDEX} does not list tensor {tensor.name}, which is in {file.name}"
                )
            found[tensor.name] = tensor
    for name, place in index.items():
        if name not in found:
            raise InputError(f"{folder / place} lacks tensor {name}, which {INDEX} places there")
    return found


def begin(file: Path, layout: Sequence[tuple[str, str, tuple[int, ...]]], kept: bool = False) -> list[Tensor]:
    """Write a safetensors file without its data, which `store` puts there.

    Args:
        layout: (name, dtype, shape) of every tensor, in order.
        kept: the file is there already, with this layout; it is left as it is.

    Returns:
        Where the tensors will lie.

    Raises:
        InputError: the disk is full or refuses; names the file.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts, end = [], 0
    for name, dtype, shape in layout:
        starts.append(end)
        end += math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [starts[-1], end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # data starts aligned
    if not kept:
        with writing(file), file.open("wb", buffering=0) as out:
            _write(out, len(text).to_bytes(8, "little") + text)
            os.fsync(out.fileno())
    return [
        Tensor(name, file, dtype, shape, 8 + len(text) + start)
        for (name, dtype, shape), start in zip(layout, starts, strict=True)
    ]


def store(tensors: Sequence[Tensor], blocks: Iterable[np.ndarray], start: int = 0) -> None:
    """Write as many rows of each of some tensors of one file, read them back and compare.

    When this returns, the file system has the bytes.

    Args:
        tensors: of `begin`.
        blocks: of their dtype and row shape, in their order.
        start: the first row.

    Raises:
        InputError: the disk is full, refuses, or gives other bytes back; names the file and the tensor.
    """
    file = tensors[0].file
    parts = [
        (tensor, tensor.row(start), np.ascontiguousarray(block).reshape(-1).view(np.uint8))
        for tensor, block in zip(tensors, blocks, strict=True)
    ]
    with writing(file), file.open("r+b", buffering=0) as opened:
        for tensor, offset, data in parts:
            with writing(f"{file}: tensor {tensor.name}"):
                opened.seek(offset)
                _write(opened, data.data)
        os.fdatasync(opened.fileno())
        for tensor, offset, data in parts:
            opened.seek(offset)
            for piece in np.array_split(data, -(-data.nbytes // BACK_BYTES) or 1):
                back = np.empty_like(piece)
                count = opened.readinto(back.data)
                if count != piece.nbytes or not np.array_equal(back, piece):
                    raise InputError(
                        f"{file}: tensor {tensor.name} gave other bytes back than were written: "
                        "the disk or the memory is faulty"
                    )


def _index(folder: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise InputError(f"{folder / INDEX} has no weight_map object")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(f"{folder / INDEX} places tensor {name} in {file!r}, which is not a file name")
        if not (folder / file).is_file():
            raise InputError(f"{folder / file} does not exist, but {INDEX} places tensor {name} there")
    return weight_map


def _write(out: RawIOBase, data: bytes | memoryview) -> None:
    """All of ``data``: one call may take a part. Without a buffer, so that a refusal comes at once."""
    left = memoryview(data)
    while left:
        left = left[out.write(left) or 0 :]


def write_index(folder: Path, tensors: Iterable[Tensor]) -> None:
    """Write the index of several weight files that hold some tensors.

    Raises:
        InputError: the disk is full or refuses.
    """
    places = {tensor.name: tensor for tensor in tensors}
    total = sum(tensor.nbytes for tensor in places.values())
    weight_map = {name: tensor.file.name for name, tensor in places.items()}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    with writing(folder / INDEX):
        (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def shard_name(number: int, count: int) -> str:
    """The name of weight file ``number``, from 1, of ``count``."""
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def header(file: Path) -> Iterator[Tensor]:
    """The tensors of one file, in its order. Raises InputError as `tensors`."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            text = opened.read(length) if length <= size - 8 else b""
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    if size < 8 or len(text) != length:
        raise InputError(f"{file} is truncated inside its header; download it again")
    try:
        header = json.loads(text)
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, AttributeError) as error:
        raise InputError(f"{file} has a damaged header ({error}); download it again") from error
    used = 0
    for name, entry in sorted(entries, key=_range_start):
        tensor, start, end = _entry(file, name, entry, 8 + length)
        if start != used:
            raise InputError(f"{file}: tensor {name} does not start where the one before it ends")
        if 8 + length + end > size:
            raise InputError(
                f"{file} is truncated: tensor {name} ends {8 + length + end - size} bytes past its end"
            )
        used = end
        yield tensor
    if 8 + length + used != size:
        raise InputError(f"{file} has {size - 8 - length - used} bytes that belong to no tensor")


def _range_start(item: tuple[str, object]) -> int:
    """Sort key: the first byte. Malformed entries come first and are refused there."""
    try:
        return int(item[1]["data_offsets"][0])  # type: ignore[index]
    except (KeyError, IndexError, TypeError, ValueError):
        return -1


def _entry(file: Path, name: str, entry: object, data_start: int) -> tuple[Tensor, int, int]:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])  # type: ignore[index]
        start, end = entry["data_offsets"]  # type: ignore[index]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: the header's entry for tensor {name} is malformed") from error
    if dtype not in DTYPES:
        raise InputError(f"{file}: tensor {name} has dtype {dtype}, which is not supported")
    tensor = Tensor(name, file, dtype, shape, data_start + start)
    if tensor.nbytes != end - start:
        raise InputError(f"{file}: tensor {name} is {dtype} {list(shape)} but has {end - start} bytes")
    return tensor, start, end
