"""Against the published sizes of Kimi K2.6 (spec kimi sections 4, 5 and 7)."""

from functools import cache
from pathlib import Path

import jax.numpy as jnp
import pytest

from jddtree.plan.floor import busiest_rank, distinct_experts
from jddtree.plan.memory import Holdings
from jddtree.plan.pair import abstract_pair
from jddtree.sharding import Layout

BF16 = jnp.dtype("bfloat16")


CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
pair = cache(abstract_pair)


@cache
def kimi(layout: str) -> Holdings:
    target, drafter, _ = pair(Path("kimi-k2.6"), None, BF16)
    return Holdings(target, drafter, Layout.parse(layout), 1, 4096, BF16)


def mini(layout: str, batch: int) -> Holdings:
    target, drafter, _ = pair(CHECKPOINTS / "k2-mini", CHECKPOINTS / "k2-mini-dflash", BF16)
    return Holdings(target, drafter, Layout.parse(layout), batch, 1024, BF16)


def weights(holdings: Holdings, drafter: bool = False) -> int:
    return sum(share.bytes for share in holdings.weights if (share.kind == "drafter") == drafter)


def test_whole_weights_are_the_published_bytes() -> None:
    held = kimi("tp1").by_class()
    # 69,120 notes of 8 bytes and the vision tower are not loaded.
    assert weights(kimi("tp1")) == 595_148_192_736 - 69_120 * 8 - 942_287_840
    assert held["experts"] + held["scales of the experts"] == 46_080 * 8_257_536 + 23_040 * 8_257_536
    assert held["attention"] == pytest.approx(12.337e9, rel=1e-4)
    assert held["head"] == held["embedding"] == 2_348_810_240
    assert weights(kimi("tp1"), drafter=True) == 6_958_554_112


@pytest.mark.parametrize("layout", ["tp8", "ep8", "ep4xtp2"])
def test_eight_devices_hold_what_the_spec_says(layout: str) -> None:
    assert weights(kimi(layout)) == pytest.approx(76.2e9, rel=1e-3)


def test_stages_hold_the_layers_of_the_longest() -> None:
    # 60 layers of experts over 8 stages are 8 on a device; the first layer, embedding and head are cut.
    expected = 8 * 9.809e9 + (0.995e9 + 2 * 2.349e9) / 8
    assert weights(kimi("pp8")) == pytest.approx(expected, rel=3e-3)
    assert kimi("pp8").by_class()["cache"] == 9 * 4096 * 576 * 2


def test_copies_hold_the_same_and_share_out_rows() -> None:
    assert weights(mini("dp2xtp4", 4)) == weights(mini("tp4", 4))
    assert mini("dp2xtp4", 4).by_class()["cache"] == mini("tp4", 2).by_class()["cache"]


def test_caches_a_token() -> None:
    held = kimi("tp8").by_class()
    assert held["cache"] == 4096 * 70_272
    assert held["cache of the drafter"] == 4096 * 24_576 // 8
    assert kimi("tp8").verify(1, 1000).cache == 1000 * 70_272


@pytest.mark.parametrize(("slots", "hit"), [(1, 8), (9, 66.28), (17, 115.53), (129, 358.60)])
def test_distinct_experts(slots: int, hit: float) -> None:
    assert distinct_experts(384, 8, slots) == pytest.approx(hit, abs=0.005)


@pytest.mark.parametrize(("slots", "ranks", "hit"), [(1, 8, 2.6), (9, 8, 12.0), (9, 4, 20.5), (65, 8, 40.3)])
def test_the_busiest_rank_is_that_of_simulated_routing(slots: int, ranks: int, hit: float) -> None:
    assert busiest_rank(384, 8, slots, ranks) == pytest.approx(hit, rel=0.02)


@pytest.mark.parametrize(
    ("layout", "slots", "gb"),
    [("tp8", 1, 6.03), ("tp8", 9, 16.86), ("tp8", 33, 40.27), ("ep8", 9, 22.45), ("ep4xtp2", 9, 19.78)],
)
def test_a_pass_reads_what_the_spec_says(layout: str, slots: int, gb: float) -> None:
    assert kimi(layout).verify(slots, 0).weights == pytest.approx(gb * 1e9, rel=0.01)


def test_a_draft_reads_the_head_too() -> None:
    assert kimi("tp8").draft(0).weights == pytest.approx(1.70e9, rel=0.01)


def test_stages_take_turns() -> None:
    # One row waits for 8 turns, of 8 layers each.
    experts = 64 * distinct_experts(384, 8, 9) * 24_772_608
    attention_and_rest = 64 * (12.337e9 / 61 + 44.0e6 * 2 + 5.5e6)
    cut = (0.995e9 + 2.349e9) / 8
    expected = experts + attention_and_rest + cut
    assert kimi("pp8").verify(9, 0).weights == pytest.approx(expected, rel=5e-3)
    assert kimi("pp8").verify(1, 1000).cache == (64 + 1) * 1000 * 576 * 2


def test_sums_between_devices() -> None:
    assert kimi("tp8").sums(9) == {"count": 2 * 61 + 1, "bytes": 14_336 * 9}
    assert kimi("pp8").sums(9)["count"] == 3
    assert kimi("tp1").sums(9)["count"] == 0
