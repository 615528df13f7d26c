import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors

from jddtree.checkpoint import published as files
from jddtree.checkpoint.published import DTYPES, INDEX
from jddtree.errors import InputError


def test_every_tensor_is_read_as_the_library_reads_it(kimi_folder, published_tensors):
    expected = published_tensors(kimi_folder)
    found = files.tensors(kimi_folder)
    assert found.keys() == expected.keys()
    for name, (dtype, shape, data) in expected.items():
        tensor = found[name]
        assert (tensor.dtype, list(tensor.shape), tensor.read().tobytes()) == (dtype, shape, data)


def test_the_library_reads_what_is_written(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "empty": np.zeros((0, 4), np.int32),
        "scalar": np.array(-0.0, ml_dtypes.bfloat16),
        "é": np.arange(24, dtype=np.int64).reshape(4, 6)[:, ::2],
    }
    codes = {dtype: code for code, dtype in DTYPES.items()}
    layout = [(name, codes[array.dtype], array.shape) for name, array in arrays.items()]
    files.store(files.begin(tmp_path / "x.safetensors", layout), arrays.values())
    read = dict(safetensors.deserialize((tmp_path / "x.safetensors").read_bytes()))
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert bytes(read[name]["data"]) == array.tobytes()
        assert (read[name]["dtype"], tuple(read[name]["shape"])) == (codes[array.dtype], array.shape)


def _header(change: Callable[[dict], None]) -> Callable[[Path], None]:
    """Damage: change the header of the third file, which holds lm_head, embed_tokens and norm."""

    def damage(folder: Path) -> None:
        file = folder / "model-00003-of-000004.safetensors"
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return damage


def _cut(size: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / "model-00003-of-000004.safetensors"
        file.write_bytes(file.read_bytes()[:size])

    return damage


def _index(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return damage


HEAD, NORM = "language_model.lm_head.weight", "language_model.model.norm.weight"
SHARD, OTHER = "model-00003-of-000004.safetensors", "model-00001-of-000004.safetensors"


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (_cut(4), (SHARD, "header")),
        (_cut(100), (SHARD, "header")),
        (_cut(200_000), (SHARD, "language_model.model.embed_tokens.weight", "truncated")),
        (_header(lambda h: h[NORM].update(shape=[64])), (SHARD, NORM, "256 bytes")),
        (_header(lambda h: h[NORM].update(shape=[-128])), (SHARD, NORM, "malformed")),
        (_header(lambda h: h[NORM].update(dtype="Q4")), (SHARD, NORM, "Q4")),
        (_header(lambda h: h[NORM].pop("data_offsets")), (SHARD, NORM, "malformed")),
        (_header(lambda h: h[NORM].update(data_offsets=[0, 256])), (SHARD, "does not start")),
        (_header(lambda h: h.pop(HEAD)), (SHARD, "embed_tokens.weight", "does not start")),
        (_header(lambda h: h.pop(NORM)), (SHARD, "no tensor")),
        (_header(lambda h: h.update({"extra": h.pop(NORM)})), (SHARD, "extra", INDEX)),
        (
            lambda folder: (folder / SHARD).write_bytes((9).to_bytes(8, "little") + b"not json!"),
            (SHARD, "header"),
        ),
        (lambda folder: (folder / SHARD).unlink(), (SHARD, "does not exist")),
        (_index(lambda m: m.pop(NORM)), (SHARD, NORM, INDEX)),
        (_index(lambda m: m.update({NORM: OTHER})), (SHARD, NORM, INDEX)),
        (_index(lambda m: m.update({"extra": SHARD})), (SHARD, "extra")),
        (_index(lambda m: m.update({NORM: f"../{SHARD}"})), (NORM, "not a file name")),
        (lambda folder: (folder / INDEX).write_text("{}"), (INDEX, "weight_map")),
        (lambda folder: (folder / INDEX).unlink(), ("4 safetensors files", INDEX)),
    ],
)
def test_damage_is_named_in_one_line(tmp_path, kimi_folder, damage, parts):
    folder = tmp_path / "damaged"
    shutil.copytree(kimi_folder, folder)
    damage(folder)
    with pytest.raises(InputError) as caught:
        files.tensors(folder)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "\n" not in str(caught.value)


def test_a_file_that_shrinks_later_is_noticed(tmp_path, qwen3_folder):
    shutil.copytree(qwen3_folder, tmp_path / "model")
    found = files.tensors(tmp_path / "model")
    last = max(found.values(), key=lambda tensor: tensor.offset)
    last.file.write_bytes(last.file.read_bytes()[:-1])
    with pytest.raises(InputError, match=last.name):
        last.read()
