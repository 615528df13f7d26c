"""Weights from a published folder into Orbax form and back, a batch at a time.

Memory: about one batch, or one stacked tensor of one layer where that is larger.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jddtree.checkpoint import arrays, manifest, published, skeleton
from jddtree.checkpoint.gguf import GgufFile
from jddtree.checkpoint.mapping import Entry, Plan, make_plan
from jddtree.checkpoint.place import partial_of
from jddtree.checkpoint.published import DTYPES, INDEX, Tensor
from jddtree.errors import InputError

Advance = Callable[[int], None]  # called with the bytes done since the last call

SHARD_BYTES = 5 * 10**9
_PROGRESS = "progress.json"
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


def to_orbax(plan: Plan, source: Mapping[str, Tensor], folder: Path, advance: Advance) -> None:
    """Fill ``folder``'s partial folder with the weights in Orbax form and the manifest.

    A partial folder of the same source files that an earlier run left is continued.
    """
    partial = partial_of(folder)
    weights = partial / manifest.WEIGHTS
    groups = list(arrays.batches(((entry.nbytes, entry) for entry in _with_arrays(plan)), arrays.BATCH_BYTES))
    done = _resume(partial, source)
    for number, group in enumerate(groups):
        if number >= done:
            batch = {path: array for entry in group for path, array in entry.pack(source).items()}
            try:
                arrays.append(weights, batch)
            except Exception:
                # Orbax refuses arrays that it has: an earlier run was stopped between this batch and the note
                # of it. Any other cause shows in the comparison below.
                if number != done or done == 0:
                    raise
            _note_progress(partial, source, number + 1)
        advance(sum(entry.nbytes for entry in group))
    arrays.finish(weights)
    shapes = {path: shape for entry in plan.entries for path, shape in entry.arrays.items()}
    if arrays.stored(weights) != shapes:
        shutil.rmtree(partial)
        raise InputError(f"{partial} could not be continued and was removed; start the conversion again")
    (partial / _PROGRESS).unlink()
    manifest.write_manifest(partial, plan)


def to_published(plan: Plan, source: Path | Mapping[str, Tensor], folder: Path, advance: Advance) -> None:
    """Fill ``folder``'s partial folder with safetensors files, from an Orbax folder or from tensors."""
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shards = list(arrays.batches(((entry.nbytes, entry) for entry in plan.entries), SHARD_BYTES))
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        layout = [(tensor, entry.dtype, entry.shape) for entry in shard for tensor in entry.names]
        places |= {tensor: name for tensor, _, _ in layout}
        data = (
            _unpacked(shard, source / manifest.WEIGHTS, plan, advance)
            if isinstance(source, Path)
            else _read(shard, source, advance)
        )
        published.write(partial / name, layout, data)
    if len(shards) > 1:
        total = sum(entry.nbytes for entry in plan.entries)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (partial / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


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
        and file.name != manifest.NAME
    ]


def _with_arrays(plan: Plan) -> list[Entry]:
    return [entry for entry in plan.entries if entry.arrays]


def _read(entries: list[Entry], source: Mapping[str, Tensor], advance: Advance) -> Iterator[np.ndarray]:
    for entry in entries:
        yield from (source[name].read() for name in entry.names)
        advance(entry.nbytes)


def _unpacked(entries: list[Entry], weights: Path, plan: Plan, advance: Advance) -> Iterator[np.ndarray]:
    stored = plan.arrays
    for group in arrays.batches(((entry.nbytes, entry) for entry in entries), arrays.BATCH_BYTES):
        wanted = {
            path: np.empty(stored[path].arrays[path], DTYPES[stored[path].dtype])
            for entry in group
            if entry.op != "note"
            for path in entry.paths
        }
        loaded = arrays.load(weights, wanted) if wanted else {}
        for entry in group:
            yield from entry.unpack(loaded)
            advance(entry.nbytes)


def _signature(source: Mapping[str, Tensor]) -> list[list]:
    files = sorted({tensor.file for tensor in source.values()})
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _resume(partial: Path, source: Mapping[str, Tensor]) -> int:
    """How many batches an earlier run left; a partial folder that is of no use is removed."""
    try:
        progress = json.loads((partial / _PROGRESS).read_text())
        if progress["source"] == _signature(source):
            return int(progress["done"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return 0


def _note_progress(partial: Path, source: Mapping[str, Tensor], done: int) -> None:
    temporary = partial / (_PROGRESS + ".new")
    temporary.write_text(json.dumps({"source": _signature(source), "done": done}))
    temporary.replace(partial / _PROGRESS)
