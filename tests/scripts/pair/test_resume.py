"""A stopped run's state comes back to that run alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.errors import InputError
from scripts.pair import muon
from scripts.pair.resume import fingerprint, load, save


def test_a_tree_comes_back_bit_for_bit(tmp_path):
    params = {"a.weight": jax.random.normal(jax.random.key(0), (3, 4)), "b": jnp.ones(2, jnp.bfloat16)}
    tree = params, muon.start(params)
    assert load(tmp_path / "run", "x", tree) is None
    save(tmp_path / "run", "x", 7, tree)
    found = load(tmp_path / "run", "x", jax.tree.map(jnp.zeros_like, tree))
    assert found is not None
    step, again = found
    assert step == 7
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(tree), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_another_runs_state_and_a_damaged_file_are_refused(tmp_path):
    tree = {"a": jnp.ones(3)}
    save(tmp_path / "run", "x", 1, tree)
    with pytest.raises(InputError, match="other flags or data"):
        load(tmp_path / "run", "y", tree)
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "run", "x", {"b": jnp.ones(3)})
    (tmp_path / "run").write_bytes(b"none of ours")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "run", "x", tree)


def test_fingerprints_see_flags_and_data():
    data = np.arange(6, dtype=np.uint16)
    marks = [
        fingerprint({"steps": 1, "rate": 0.1}, data),
        fingerprint({"steps": 2, "rate": 0.1}, data),
        fingerprint({"steps": 1, "rate": 0.1}, data + 1),
        fingerprint({"steps": 1, "rate": 0.1}, data.reshape(2, 3)),
    ]
    assert len(set(marks)) == 4
    assert marks[0] == fingerprint({"rate": 0.1, "steps": 1}, data.copy())
