"""Conversions that are cut off or refused, and the split into files. Round trips: tests/test_convert.py."""

import json
import resource
import shutil
import signal
import subprocess
import sys

import pytest
import safetensors

from jddtree.checkpoint import arrays, journal, manifest, published, transfer
from jddtree.checkpoint.open import open_checkpoint, read_configs
from jddtree.checkpoint.place import partial_of, put_in_place
from jddtree.errors import InputError


class Killed(BaseException):
    """Stands for a process that ends at once: nothing in the code may catch it."""


@pytest.fixture(autouse=True, scope="module")
def small():
    """Several files an array, several published files; one thread, so that the order is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "SLAB_BYTES", 20_000)
        patch.setattr(published, "SHARD_BYTES", 300_000)
        patch.setattr(published, "_BLOCK_BYTES", 5_000)
        patch.setattr(published, "BACK_BYTES", 5_000)
        patch.setattr(transfer, "_THREADS", 1)
        yield


def to_orbax(source, folder):
    config = read_configs(source)[0]
    plan, tensors = transfer.plan_published(source, config)
    transfer.to_orbax(plan, tensors, folder, config, None)
    put_in_place(folder)


def to_published(source, folder):
    transfer.to_published(manifest.read_manifest(source).plan, source, folder)
    put_in_place(folder)


def counted(monkeypatch, owner, name):
    original, calls = getattr(owner, name), []
    monkeypatch.setattr(owner, name, lambda *arguments: (calls.append(arguments), original(*arguments))[1])
    return calls


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory, kimi_folder):
    """A model in Orbax form and in published form, converted at once. Only to be read."""
    folder = tmp_path_factory.mktemp("whole")
    to_orbax(kimi_folder, folder / "orbax")
    to_published(folder / "orbax", folder / "hf")
    return folder


@pytest.fixture
def orbax(whole, tmp_path):
    """A copy of it, to be damaged."""
    shutil.copytree(whole / "orbax", tmp_path / "orbax")
    return tmp_path / "orbax"


@pytest.fixture
def kill(monkeypatch):
    """The process ends in a call of a function, before or after its work. Returns what undoes this."""

    def arm(owner, name, number, before):
        original, calls = getattr(owner, name), []

        def dying(*arguments):
            calls.append(arguments)
            if len(calls) == number and before:
                raise Killed
            result = original(*arguments)
            if len(calls) == number:
                raise Killed
            return result

        monkeypatch.setattr(owner, name, dying)
        return lambda: monkeypatch.setattr(owner, name, original)

    return arm


def files(folder):
    """Every file's content but for those that hold times, sizes and places."""
    others = {"_CHECKPOINT_METADATA", "commit_success.txt", manifest.NAME, journal.NAME}
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name not in others
    }


@pytest.mark.parametrize(
    ("owner", "name", "number", "before"),
    [
        (arrays, "write", 9, True),
        (journal.Journal, "add", 9, True),
        (journal.Journal, "add", 9, False),
        (arrays, "finish", 1, True),
        (arrays, "finish", 1, False),
        (manifest, "write_manifest", 1, False),
    ],
)
def test_a_conversion_that_was_cut_off_loads_nothing_and_is_continued(
    tmp_path, kimi_folder, whole, monkeypatch, kill, owner, name, number, before
):
    folder = tmp_path / "model"
    calls = counted(monkeypatch, arrays, "write")
    disarm = kill(owner, name, number, before)
    with pytest.raises(Killed):
        to_orbax(kimi_folder, folder)
    disarm()
    first = len(calls)
    assert not folder.exists()
    partial = partial_of(folder)
    for path in (partial, *partial.rglob("*")):
        if path.is_dir():
            with pytest.raises(InputError):  # config.json comes last, after the manifest
                open_checkpoint(path, tmp_path / "cache", print)

    calls.clear()
    needed = counted(monkeypatch, transfer, "require_room")
    to_orbax(kimi_folder, folder)
    total = sum(entry.nbytes for entry in manifest.read_manifest(folder).plan.entries)
    blocks = sum(1 for file in folder.rglob("c/**/*") if file.is_file())
    assert 0 <= first + len(calls) - blocks <= 5  # only the tensor that was under way is made again
    assert (needed[0][1] == 0) == (not calls) and needed[0][1] < total
    assert files(folder) == files(whole / "orbax")


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [(published, "store", 9), (journal.Journal, "add", 9), (published, "write_index", 1)],
)
def test_the_way_back_is_continued_too(tmp_path, whole, monkeypatch, kill, owner, name, number):
    calls = counted(monkeypatch, published, "store")
    written = lambda: {(tensors[0].name, start) for tensors, _, start in calls}  # noqa: E731
    disarm = kill(owner, name, number, before=True)
    with pytest.raises(Killed):
        to_published(whole / "orbax", tmp_path / "hf")
    disarm()
    assert not (tmp_path / "hf").exists()
    first = written()
    calls.clear()
    to_published(whole / "orbax", tmp_path / "hf")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) == 5
    assert len(first) > 7 and len(first & written()) <= 5  # only the tensor that was under way
    assert files(tmp_path / "hf") == files(whole / "hf")


def test_a_killed_process_is_continued(tmp_path, kimi_folder, whole):
    script = """
import os, signal, sys
from jddtree.checkpoint import arrays, journal, transfer
from jddtree.convert import main
add, calls = journal.Journal.add, []
arrays.SLAB_BYTES = 20_000
transfer._THREADS = 1
def dying(self, hashes):
    calls.append(hashes)
    if len(calls) == 20:
        with self._file.open("a") as file:
            file.write("0123 half a l")
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, hashes)
journal.Journal.add = dying
main(sys.argv[1:])
"""
    arguments = [sys.executable, "-c", script, str(kimi_folder), str(tmp_path / "model")]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "model").exists()
    noted = (partial_of(tmp_path / "model") / journal.NAME).read_text().splitlines()
    assert len(noted) > 19 and noted[-1] == "0123 half a l"
    to_orbax(kimi_folder, tmp_path / "model")
    assert files(tmp_path / "model") == files(whole / "orbax")
    assert journal.read_hashes(tmp_path / "model") == {
        name: tensor.digest()
        for name, tensor in published.tensors(kimi_folder).items()
        if not name.startswith(("vision_tower.", "mm_projector.")) and not name.endswith("_shape")
    }


def test_a_cut_off_conversion_of_other_files_is_started_again(tmp_path, qwen3_folder, drafter_folder):
    partial = partial_of(tmp_path / "model")
    shutil.copytree(drafter_folder, partial)
    (partial / journal.NAME).write_text('{"source": [["elsewhere", 1, 2]]}\n')
    to_orbax(qwen3_folder, tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {manifest.NAME, manifest.WEIGHTS, journal.NAME}


@pytest.fixture
def largest_file():
    """Sets a limit in bytes: the system refuses the rest, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def test_a_disk_that_refuses_is_one_line_and_goes_on_later(tmp_path, kimi_folder, whole, largest_file):
    def refused(step, source, place, pattern):
        with pytest.raises(InputError, match=pattern + r" cannot be written: File too large$") as caught:
            step(source, place)
        largest_file(resource.RLIM_INFINITY)
        assert "\n" not in str(caught.value) and not place.exists()
        step(source, place)

    largest_file(15_000)
    tensor = r"tensor language_model\.\S+: \S+/weights/arrays/\S+"
    refused(to_orbax, kimi_folder, tmp_path / "orbax", tensor)
    largest_file(100_000)
    tensor = r"/model-00001-of-00005\.safetensors: tensor language_model\.\S+"
    refused(to_published, whole / "orbax", tmp_path / "hf", tensor)


def test_altered_weights_are_found_and_named(tmp_path, orbax):
    plan = manifest.read_manifest(orbax).plan
    [file] = (orbax / manifest.WEIGHTS).glob("*/layers.1.mlp.experts.up_proj.weight_packed/c/2/0/0")
    name = r"language_model\.model\.layers\.1\.mlp\.experts\.{}\.up_proj\.weight_packed"

    def refused(match):
        for step in (
            lambda: transfer.verify(plan, orbax),
            lambda: transfer.to_published(plan, orbax, tmp_path / "hf"),
        ):
            with pytest.raises(InputError, match=match) as caught:
                step()
            assert "\n" not in str(caught.value)

    good = file.read_bytes()
    # By the disk: the checksum beside the bytes tells.
    file.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    refused(rf"tensor {name.format(8)}: {file} cannot be read: a checksum does not match")
    file.write_bytes(good)
    # By a program that writes checksums too: the tensor's hash tells.
    array = arrays._open(file.parents[3])
    array[9, 0, 0].write(array[9, 0, 0].read().result() ^ 1).result()
    refused(rf"tensor {name.format(9)} is not what was converted")
    lines = (orbax / journal.NAME).read_text().splitlines(keepends=True)
    (orbax / journal.NAME).write_text("".join(line for line in lines if "experts.7.up" not in line))
    refused(rf"{journal.NAME} has no hash of tensor {name.format(7)}")
    (orbax / journal.NAME).unlink()
    refused(rf"{journal.NAME} is missing")


def test_large_checkpoints_are_split_with_an_index(whole, kimi_folder, published_tensors):
    plan = manifest.read_manifest(whole / "orbax").plan
    index = json.loads((whole / "hf" / published.INDEX).read_text())
    shards = sorted((whole / "hf").glob("*.safetensors"))
    assert len(shards) > 2 and shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
    for file in shards:
        names = [name for name, _ in safetensors.deserialize(file.read_bytes())]
        assert all(index["weight_map"].pop(name) == file.name for name in names)
    assert not index["weight_map"]
    assert index["metadata"]["total_size"] == sum(entry.nbytes for entry in plan.entries)
    found, original = published_tensors(whole / "hf"), published_tensors(kimi_folder)
    assert found == {name: tensor for name, tensor in original.items() if name not in plan.skipped}


def test_a_published_file_that_gives_other_bytes_back_is_noticed(tmp_path, whole, monkeypatch):
    write = published._write
    wrong = lambda out, data: write(out, bytes(len(data)))  # noqa: E731
    monkeypatch.setattr(published, "_write", wrong)
    with pytest.raises(InputError, match=r"00001-of-00005\.safetensors: tensor \S+ gave other bytes back"):
        to_published(whole / "orbax", tmp_path / "hf")
