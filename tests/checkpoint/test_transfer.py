"""Conversions that are cut off, and the split into files. Whole round trips are in tests/test_convert.py."""

import json
import shutil

import numpy as np
import pytest
import safetensors

from jddtree.checkpoint import arrays, manifest, published, transfer
from jddtree.checkpoint.open import open_checkpoint, read_configs
from jddtree.checkpoint.place import partial_of, put_in_place
from jddtree.errors import InputError


class Killed(BaseException):
    """Stands for a process that ends at once: nothing in the code may catch it."""


def contents(folder):
    """Every stored array's bytes, by path."""
    plan = manifest.read_manifest(folder)
    wanted = {
        path: np.empty(shape, published.DTYPES[entry.dtype])
        for entry in plan.entries
        for path, shape in entry.arrays.items()
    }
    return {path: array.tobytes() for path, array in arrays.load(folder / manifest.WEIGHTS, wanted).items()}


def convert(source, destination):
    plan, tensors = transfer.plan_published(source, read_configs(source)[0])
    done = []
    transfer.to_orbax(plan, tensors, destination, done.append)
    put_in_place(destination)
    assert sum(done) == sum(entry.nbytes for entry in plan.entries if entry.arrays)


@pytest.mark.parametrize("noted", [True, False])
def test_a_conversion_that_was_cut_off_loads_nothing_and_is_continued(
    tmp_path, kimi_folder, monkeypatch, noted
):
    monkeypatch.setattr(arrays, "BATCH_BYTES", 200_000)  # several batches
    folder = tmp_path / "model"
    append, note = arrays.append, transfer._note_progress
    calls = []

    def count(weights, batch):
        calls.append(batch)
        append(weights, batch)

    def die(partial, source, done):
        if done == 3 and not noted:
            raise Killed
        note(partial, source, done)
        if done == 3:
            raise Killed

    monkeypatch.setattr(arrays, "append", count)
    monkeypatch.setattr(transfer, "_note_progress", die)
    with pytest.raises(Killed):
        convert(kimi_folder, folder)
    assert not folder.exists()
    partial = partial_of(folder)
    for path in (partial, *partial.rglob("*")):
        if path.is_dir():
            with pytest.raises(InputError):
                open_checkpoint(path, tmp_path / "cache", print)

    monkeypatch.setattr(transfer, "_note_progress", note)
    calls.clear()
    convert(kimi_folder, folder)
    continued = len(calls)
    calls.clear()
    convert(kimi_folder, tmp_path / "at_once")
    repeated = 0 if noted else 1
    assert continued == len(calls) - 3 + repeated
    assert contents(folder) == contents(tmp_path / "at_once")


def test_a_cut_off_conversion_of_other_files_is_started_again(tmp_path, qwen3_folder, drafter_folder):
    partial = partial_of(tmp_path / "model")
    shutil.copytree(drafter_folder, partial)
    (partial / "progress.json").write_text(json.dumps({"source": [["elsewhere", 1, 2]], "done": 1}))
    convert(qwen3_folder, tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {manifest.NAME, manifest.WEIGHTS}


def test_a_continuation_that_does_not_fit_is_refused(tmp_path, qwen3_folder, monkeypatch):
    monkeypatch.setattr(arrays, "BATCH_BYTES", 100_000)
    note = transfer._note_progress
    # Batches that are noted but are not there.
    monkeypatch.setattr(
        transfer, "_note_progress", lambda partial, source, done: note(partial, source, done + 1)
    )
    monkeypatch.setattr(arrays, "finish", lambda weights: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        convert(qwen3_folder, tmp_path / "model")
    monkeypatch.undo()
    shutil.rmtree(partial_of(tmp_path / "model") / "weights.partial_save")
    arrays.append(partial_of(tmp_path / "model") / "weights", {"x": np.zeros(1, np.float32)})
    with pytest.raises(InputError, match="could not be continued"):
        convert(qwen3_folder, tmp_path / "model")
    convert(qwen3_folder, tmp_path / "model")


def test_large_checkpoints_are_split_with_an_index(tmp_path, kimi_folder, monkeypatch, published_tensors):
    monkeypatch.setattr(transfer, "SHARD_BYTES", 300_000)
    convert(kimi_folder, tmp_path / "orbax")
    plan = manifest.read_manifest(tmp_path / "orbax")
    transfer.to_published(plan, tmp_path / "orbax", tmp_path / "hf", lambda done: None)
    put_in_place(tmp_path / "hf")
    index = json.loads((tmp_path / "hf" / published.INDEX).read_text())
    files = sorted((tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 2 and files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    for file in files:
        names = [name for name, _ in safetensors.deserialize(file.read_bytes())]
        assert all(index["weight_map"].pop(name) == file.name for name in names)
    assert not index["weight_map"]
    assert index["metadata"]["total_size"] == sum(entry.nbytes for entry in plan.entries)
    assert published.tensors(tmp_path / "hf").keys() == published_tensors(kimi_folder).keys() - set(
        plan.skipped
    )
