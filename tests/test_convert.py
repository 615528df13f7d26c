import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors

from jddtree.checkpoint import manifest
from jddtree.checkpoint.journal import Journal
from jddtree.checkpoint.published import DTYPES, INDEX, begin, store
from jddtree.convert import main

Tensors = dict[str, tuple[str, list[int], bytes]]  # name -> dtype, shape, data


def read(folder: Path) -> Tensors:
    """All tensors of a published folder, with the safetensors library."""
    return {
        name: (entry["dtype"], entry["shape"], bytes(entry["data"]))
        for file in sorted(folder.glob("*.safetensors"))
        for name, entry in safetensors.deserialize(file.read_bytes())
    }


def copy(source: Path, destination: Path, edit: Callable[[dict, Tensors], None]) -> Path:
    """``source`` as one file, after ``edit(config, tensors)`` changed it in place."""
    config, tensors = json.loads((source / "config.json").read_text()), read(source)
    edit(config, tensors)
    destination.mkdir()
    (destination / "config.json").write_text(json.dumps(config))
    layout = [(name, dtype, tuple(shape)) for name, (dtype, shape, _) in tensors.items()]
    arrays = (np.frombuffer(data, DTYPES[dtype]).reshape(shape) for dtype, shape, data in tensors.values())
    store(begin(destination / "model.safetensors", layout), arrays)
    return destination


def nothing(config: dict, tensors: Tensors) -> None:
    """As it is."""


def long_shapes(config: dict, tensors: Tensors) -> None:
    """weight_shape as int64, which newer writers use."""
    for name, (_, _, data) in tensors.items():
        if name.endswith("weight_shape"):
            tensors[name] = "I64", [2], np.frombuffer(data, np.int32).astype(np.int64).tobytes()


def plain(config: dict, tensors: Tensors) -> None:
    """Flat layout with bfloat16 experts."""
    random = np.random.default_rng(0)
    config.update(config.pop("text_config"))
    for name in list(tensors):
        dtype, shape, data = tensors.pop(name)
        if name.startswith("language_model.") and not name.endswith(("weight_scale", "weight_shape")):
            if name.endswith("weight_packed"):
                shape = [shape[0], shape[1] * 8]
                dtype, data = "BF16", random.standard_normal(shape).astype(ml_dtypes.bfloat16).tobytes()
            tensors[name.removeprefix("language_model.").removesuffix("_packed")] = dtype, shape, data


def tied(config: dict, tensors: Tensors) -> None:
    config["tie_word_embeddings"] = True
    del tensors["lm_head.weight"]


def tied_twice(config: dict, tensors: Tensors) -> None:
    config["tie_word_embeddings"] = True
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]


def prefixed(config: dict, tensors: Tensors) -> None:
    for name in list(tensors):
        tensors["model." + name] = tensors.pop(name)


def int4_mlp(config: dict, tensors: Tensors) -> None:
    """Pack-quantized linears in a drafter."""
    random = np.random.default_rng(0)
    for name in [name for name in tensors if name.endswith("up_proj.weight")]:
        _, (rows, width), _ = tensors.pop(name)
        words = random.integers(-(2**31), 2**31, (rows, width // 8), dtype=np.int32)
        scale = random.standard_normal((rows, width // 32)).astype(ml_dtypes.bfloat16)
        tensors[name + "_packed"] = "I32", list(words.shape), words.tobytes()
        tensors[name + "_scale"] = "BF16", list(scale.shape), scale.tobytes()
        tensors[name + "_shape"] = "I32", [2], np.array([rows, width], np.int32).tobytes()


KIMI, QWEN3, DRAFTER = "kimi/int4", "e2e/tiny_a/target", "e2e/tiny_a/drafter"
COMPANIONS = {
    "generation_config.json": b'{"eos_token_id":[1]}',
    "tokenizer_config.json": b"{ }\r\n",
    "tiktoken.model": bytes(range(256)),
    "chat_template.jinja": "{{ é }}".encode(),
    "LICENSE": b"terms",
}


@pytest.mark.parametrize(
    ("folder", "edit"),
    [
        (KIMI, nothing),
        (KIMI, long_shapes),
        (KIMI, plain),
        (QWEN3, nothing),
        (QWEN3, tied),
        (QWEN3, tied_twice),
        (DRAFTER, nothing),
        (DRAFTER, prefixed),
        (DRAFTER, int4_mlp),
    ],
)
def test_every_text_tensor_and_file_comes_back(tmp_path, golden_folders, capsys, folder, edit):
    source = copy(golden_folders[0] / folder, tmp_path / "source", edit)
    for name, content in COMPANIONS.items():
        (source / name).write_bytes(content)
    (source / ".hidden").touch()
    (source / "pytorch_model.bin").touch()

    assert main([str(source), str(tmp_path / "orbax")]) == 0
    said = capsys.readouterr().out
    assert main([str(tmp_path / "orbax"), str(tmp_path / "back")]) == 0
    assert main([str(tmp_path / "back"), str(tmp_path / "again"), "--to", "orbax"]) == 0
    assert main([str(tmp_path / "again"), str(tmp_path / "last"), "--to", "hf"]) == 0

    original = read(source)
    skipped = {name for name in original if name.startswith(("vision_tower.", "mm_projector."))}
    text = {name: tensor for name, tensor in original.items() if name not in skipped}
    assert (folder == KIMI and edit is not plain) == bool(skipped)
    assert all(name in said for name in skipped)
    assert f"{len(text)} tensors, {sum(len(data) for _, _, data in text.values())} bytes" in said
    for result in ("back", "last"):
        assert read(tmp_path / result) == text
        names = {path.name for path in (tmp_path / result).iterdir()}
        assert names == {"config.json", "model.safetensors", *COMPANIONS}
    config = (source / "config.json").read_bytes()
    for result in ("orbax", "back", "again", "last"):
        for name, content in (COMPANIONS | {"config.json": config}).items():
            assert (tmp_path / result / name).read_bytes() == content
    assert not list(tmp_path.glob("*.partial"))


def test_published_folders_of_every_golden_model_come_back(tmp_path, golden_folders):
    patterns = ("kimi/*/config.json", "e2e/*/*/config.json", "drafter_forward/*/config.json")
    models = [
        file.parent for folder in golden_folders for pattern in patterns for file in folder.glob(pattern)
    ]
    for number, model in enumerate(models):
        assert main([str(model), str(tmp_path / f"{number}")]) == 0
        assert main([str(tmp_path / f"{number}"), str(tmp_path / f"{number}-back")]) == 0
        text = {
            name: tensor
            for name, tensor in read(model).items()
            if not name.startswith(("vision_tower.", "mm_projector."))
        }
        assert read(tmp_path / f"{number}-back") == text, model


def test_what_lies_in_the_destination_is_safe(tmp_path, golden_folders, capsys):
    source, place = str(golden_folders[0] / DRAFTER), tmp_path / "place"

    def refused(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        return error

    place.mkdir()
    assert main([source, str(place)]) == 0  # empty
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert "not empty" in refused(source, str(place))
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    other = str(golden_folders[0] / QWEN3)
    assert main([other, str(place), "--force"]) == 0
    assert json.loads((place / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    assert [path.name for path in tmp_path.iterdir()] == ["place"]

    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "letter").touch()
    assert "holds no checkpoint" in refused(source, str(precious), "--force")
    assert "is a file" in refused(source, str(precious / "letter"))
    assert "lie in each other" in refused(str(place), str(place / "inside"))
    assert "is the source itself" in refused(str(place), str(place))
    (tmp_path / "round").symlink_to(tmp_path / "round")
    assert "leads to itself" in refused(source, str(tmp_path / "round"))
    (tmp_path / "disk").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "is_mount", lambda path: path == tmp_path / "disk")
        assert "choose a folder inside of it" in refused(source, str(tmp_path / "disk"))
    assert "in this form already" in refused(source, str(tmp_path / "new"), "--to", "hf")
    assert "in this form already" in refused(str(place), str(tmp_path / "new"), "--to", "orbax")
    assert "does not exist" in refused(str(tmp_path / "nowhere"), str(tmp_path / "new"))
    assert "holds no checkpoint" in refused(str(precious), str(tmp_path / "new"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(10, 5, 5))
        assert "5e-09 GB free" in refused(source, str(tmp_path / "new"))
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize("there", [False, True])
def test_a_link_as_destination_stays_a_link(tmp_path, golden_folders, there):
    source, place, link = str(golden_folders[0] / DRAFTER), tmp_path / "place", tmp_path / "link"
    link.symlink_to(place)
    if there:
        assert main([source, str(place)]) == 0
        (place / "before").touch()
    assert main([source, str(link), "--force"]) == 0
    assert link.is_symlink() and manifest.is_converted(place) and not (place / "before").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"place", "link"}


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_source_that_turns_out_bad_leaves_the_destination_alone(tmp_path, golden_folders, capsys, force):
    source, place = tmp_path / "source", tmp_path / "place"
    shutil.copytree(golden_folders[0] / KIMI, source)
    if force:
        assert main([str(golden_folders[0] / DRAFTER), str(place)]) == 0
    index = json.loads((source / INDEX).read_text())
    del index["weight_map"]["language_model.model.norm.weight"]
    (source / INDEX).write_text(json.dumps(index))
    assert main([str(source), str(place), *force]) == 2
    assert "language_model.model.norm.weight" in capsys.readouterr().err
    assert (place / manifest.NAME).is_file() == bool(force)
    assert main([str(source)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "DST" in line


def test_a_converted_folder_is_checked_by_its_hashes(tmp_path, golden_folders, capsys):
    source, place = golden_folders[0] / DRAFTER, tmp_path / "place"
    assert main([str(source), str(place)]) == 0
    capsys.readouterr()
    assert main(["--check", str(place)]) == 0
    assert capsys.readouterr().out.endswith("bytes are as they were converted\n")
    file = next((place / manifest.WEIGHTS).glob("*/norm.weight/c/0"))
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    for arguments in (["--check", str(place)], [str(place), str(tmp_path / "back")]):
        assert main(arguments) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "tensor norm.weight: " in line and str(file) in line
    assert not (tmp_path / "back").exists()
    for arguments, message in (
        (["--check", str(source)], "its download kept no hash"),
        (["--check", str(place), str(tmp_path / "back")], "--check takes no DST"),
    ):
        assert main(arguments) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert message in line


@pytest.mark.parametrize("place", ["cache", "folder"])
def test_a_download_is_checked_by_the_hashes_that_the_client_kept(tmp_path, golden_folders, capsys, place):
    source = tmp_path / "snapshots" / "commit"
    shutil.copytree(golden_folders[0] / KIMI, source)
    for file in source.glob("*.safetensors"):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if place == "cache":
            file.symlink_to(file.rename(tmp_path / digest))
        else:
            notes = source / ".cache/huggingface/download" / f"{file.name}.metadata"
            notes.parent.mkdir(parents=True, exist_ok=True)
            notes.write_text(f"commit\n{digest}\n1.5\n")
    assert main(["--check", str(source)]) == 0
    assert ": 4 files, " in capsys.readouterr().out
    file = source / "model-00002-of-000004.safetensors"
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    assert main(["--check", str(source)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{file} is not the file that was published" in line


@pytest.mark.parametrize("to", ["orbax", "published"])
def test_an_interrupt_is_one_line_and_the_same_command_goes_on(
    tmp_path, golden_folders, capsys, monkeypatch, to
):
    source, place = str(golden_folders[0] / DRAFTER), tmp_path / "place"
    if to == "published":
        assert main([source, str(tmp_path / "orbax")]) == 0
        source = str(tmp_path / "orbax")

    added, add = [], Journal.add

    def interrupt(*arguments):
        added.append(add(*arguments))
        if len(added) == 3:
            raise KeyboardInterrupt

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", interrupt)
        assert main([source, str(place)]) == 130
    assert capsys.readouterr() == ("", "interrupted; the same command goes on\n")
    assert not place.exists()
    assert main([source, str(place)]) == 0
    told = capsys.readouterr().out
    # The published form keeps no hashes to check with.
    assert "bytes are of an earlier run" in told and ("--check" in told) == (to == "orbax")
