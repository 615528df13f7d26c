"""Every fault that can be injected is caught, and located at its stage."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.checkpoint import Checkpoint
from jddtree.checkpoint.mapping import Plan
from jddtree.compare import faults, stages
from jddtree.compare.against_torch import compared, verdict
from jddtree.errors import InputError
from jddtree.load import Pair
from jddtree.models import gqa, mla
from jddtree.pytree import dotted
from tests import tiny

PROMPT, BUDGET = [3, 10, 0, 7, 22, 9], 6
TREE = [5, 6, 7, 8, 9, 11], [0, 1, 0, 3, 2, 1]
TEXT = {"greedy ids": np.arange(3, dtype=np.int32), "greedy gaps": np.ones(3, np.float32)}
DRAFTER = tiny.DFLASH | {"dflash_config": {"mask_token_id": 49, "target_layer_ids": [1]}}


@cache
def pair(kind: str) -> Pair:
    target = tiny.target({"kimi": tiny.KIMI, "qwen3": tiny.QWEN3}[kind])

    def biased(path, leaf):
        if not dotted(path).endswith("e_score_correction_bias"):
            return leaf
        return jax.random.normal(jax.random.key(0), leaf.shape) * 0.1

    target = jax.tree_util.tree_map_with_path(biased, target)
    nowhere = Checkpoint(Path(), {}, None, Path(), Plan([]))
    return Pair(target, tiny.drafter(DRAFTER), None, nowhere, "float32")


def run(kind: str, fault: str | None) -> stages.Stages:
    with faults.injected(pair(kind), fault, 1 + BUDGET) as changed:
        found = stages.run_prompt(changed, PROMPT, 4, *TREE, budget=BUDGET, topk=None, fault=fault)
    return found | TEXT


right = cache(lambda kind: run(kind, None))


@pytest.mark.parametrize(
    ("kind", "fault", "stage"),
    [
        ("kimi", "mask-stride", "verify logits"),
        ("qwen3", "mask-stride", "verify logits"),
        ("kimi", "rope-layout", "layer 0"),
        ("qwen3", "rope-layout", "layer 0"),
        ("kimi", "router-bias-bf16", "layer 1 router bias"),
        ("kimi", "taps-off-by-one", "taps"),
        ("qwen3", "taps-off-by-one", "taps"),
        ("kimi", "nibble-order", "layer 1"),
    ],
)
def test_a_fault_is_located(kind: str, fault: str, stage: str) -> None:
    assert verdict(list(compared([right(kind)], [run(kind, fault)], "float32"))) == f"bug at stage {stage!r}"


def test_exchanged_pairings_are_of_queries_and_of_keys() -> None:
    def unturned() -> list[list[float]]:
        channels = jnp.arange(4.0)
        cos, sin, ones = jnp.ones((1, 1, 2)), jnp.zeros((1, 1, 2)), jnp.ones(4)
        heads = channels[None, None, None]
        dense, _ = gqa.rotate((heads,), heads, (None,), cos, sin, eps=0.0)
        joined = jnp.concatenate([ones, channels])[None, None]
        _, latent = mla.prepare(ones[None, None], joined, ones, ones, cos, sin, eps=0.0)
        query = mla.rotate_pairs(heads, cos, sin)
        return [each.reshape(-1)[-4:].tolist() for each in (dense, query, latent)]

    halves, pairs = [0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 1.0, 3.0]
    assert unturned() == [halves, pairs, pairs]
    with faults.injected(pair("kimi"), "rope-layout", 1 + BUDGET):
        assert unturned() == [pairs, halves, halves]
    assert unturned() == [halves, pairs, pairs]


def test_after_a_fault_everything_is_as_before() -> None:
    before = right("kimi")
    run("kimi", "rope-layout")
    assert verdict(list(compared([before], [run("kimi", None)], "float32"))) == "equal"


def test_a_fault_that_changes_nothing_is_refused() -> None:
    for fault in ("router-bias-bf16", "nibble-order"):
        with pytest.raises(InputError, match=f"--inject {fault} changes nothing"):
            run("qwen3", fault)
    block = pair("qwen3").block_size
    with (
        pytest.raises(InputError, match=f"changes nothing at --budget {block - 1}"),
        faults.injected(pair("qwen3"), "mask-stride", block),
    ):
        pass


def test_a_misread_mask_is_right_only_where_tree_and_block_are_as_wide() -> None:
    visible, _ = stages.ancestors([0, 0, 1, 1])
    np.testing.assert_array_equal(faults.misread(visible, 5), visible)
    assert (faults.misread(visible, 4) != visible).any()


def test_the_tree_pass_reads_the_cache_as_one_pass_would() -> None:
    """The verify logits of a spine are those of the same tokens after the prompt."""
    target = pair("kimi").target
    text = [*PROMPT, 4, *TREE[0]]
    spine = list(range(len(TREE[0])))
    found = stages.run_prompt(pair("kimi"), PROMPT, 4, TREE[0], spine, budget=BUDGET, topk=None, fault=None)
    whole = tiny.forward(target, np.array(text, np.int32))
    np.testing.assert_allclose(found["verify logits"], whole[len(PROMPT) :], atol=1e-4)
