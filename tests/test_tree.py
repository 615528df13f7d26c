"""Trees against the heap oracle. The golden trees run through `jddtree.compare.goldens`, tested beside it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jddtree.tree import Tree, build, build_from_top, first_child_next_sibling, root, spine
from pallas_kernels.tree_attention.reference import unpack_mask
from tests.oracles.heap_tree import ancestors, child_links, heap_tree

ROWS, DEPTH, WIDTH, VOCAB = 3, 3, 4, 9

jitted_build = partial(jax.jit, static_argnames="budget")(build)
jitted_from_top = partial(jax.jit, static_argnames="budget")(build_from_top)
jitted_spine = jax.jit(spine)


@partial(jax.jit, static_argnames="budget")
def swept_from_top(*args, **limits) -> Tree:
    """As large trees are built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jddtree.tree.listed", lambda *sizes: None)
        return build_from_top(*args, **limits)


@partial(jax.jit, static_argnames="budget")
def gpus_from_top(*args, **limits) -> Tree:
    """As trees are built on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        return build_from_top(*args, **limits)


jitted_unpack = jax.jit(unpack_mask, static_argnums=1)
jitted_links = jax.jit(first_child_next_sibling)


def rows_of(*values: int) -> jax.Array:
    return jnp.array(values, jnp.int32)


def limits_of(*rows: tuple[int, int, int]) -> dict[str, jax.Array]:
    """Each row's budget, topk and deepest depth."""
    return dict(zip(("row_budget", "topk", "depth_limit"), map(rows_of, *rows), strict=True))


def check_row(
    tree: Tree, row: int, token_ids: np.ndarray, log_probs: np.ndarray, anchor: int, budget: int
) -> None:
    """One row equals the heap's tree; the slots after it are unused."""
    slots = tree.tokens.shape[1]
    heap = heap_tree(token_ids, log_probs, min(budget, slots - 1))
    count, unused = len(heap.tokens), slots - 1 - len(heap.tokens)
    assert int(tree.count[row]) == count
    assert tree.tokens[row].tolist() == [anchor, *heap.tokens.tolist(), *[0] * unused]
    assert tree.parents[row].tolist() == heap.parents.tolist() + [-1] * unused
    assert tree.depths[row].tolist() == [0, *heap.depths.tolist(), *[0] * unused]
    visible = np.eye(slots, dtype=bool)
    visible[: count + 1, : count + 1] = ancestors(heap.parents)
    np.testing.assert_array_equal(jitted_unpack(tree.ancestors[row], slots), visible)
    first, sibling = jitted_links(tree.parents[row : row + 1])
    oracle_first, oracle_sibling = child_links(heap.parents)
    assert first[0].tolist() == oracle_first.tolist() + [-1] * unused
    assert sibling[0].tolist() == oracle_sibling.tolist() + [-1] * unused


# A coarse grid makes score ties common, and float64 sums of it are exact. -inf: tokens that cannot follow.
steps = st.integers(-6, 0).map(lambda quarter: quarter / 4) | st.just(-np.inf)


@given(
    log_probs=hnp.arrays(np.float32, (ROWS, DEPTH, WIDTH), elements=steps.map(np.float32)),
    budget=st.sampled_from((1, 4, 20, 100)),  # 100 is more than the 84 nodes that there can be
    sweep=st.booleans(),
    row_budget=hnp.arrays(np.int32, ROWS, elements=st.sampled_from((0, 1, 3, 50, 100))),
    topk=hnp.arrays(np.int32, ROWS, elements=st.integers(1, WIDTH + 1)),
    depth_limit=hnp.arrays(np.int32, ROWS, elements=st.integers(-1, DEPTH + 1)),
    seed=st.integers(0, 9),
)
def test_every_row_is_the_heaps_tree_ties_caps_and_limits_included(
    log_probs, budget, sweep, row_budget, topk, depth_limit, seed
):
    log_probs = -np.sort(-log_probs, axis=-1)
    random = np.random.default_rng(seed)
    tokens = random.permuted(np.tile(np.arange(VOCAB, dtype=np.int32), (ROWS, DEPTH, 1)), axis=-1)
    tokens, anchor = tokens[..., :WIDTH], rows_of(0, 5, VOCAB - 1)
    limits = {"row_budget": row_budget, "topk": topk, "depth_limit": depth_limit}
    build = swept_from_top if sweep else jitted_from_top
    tree = build(tokens, log_probs, anchor, budget=budget, **limits)
    for row in range(ROWS):
        depths, width = max(int(depth_limit[row]), 0), int(topk[row])
        own_tokens, own_log_probs = tokens[row, :depths, :width], log_probs[row, :depths, :width]
        check_row(tree, row, own_tokens, own_log_probs, int(anchor[row]), int(row_budget[row]))


@pytest.mark.parametrize("grid", [0.25, 2.0**-20])  # many ties, or few
def test_on_a_gpu_a_long_list_gives_the_heaps_trees_too(grid):
    draws = np.random.default_rng(3).normal(size=(ROWS, 15, 64)) ** 2 * 3
    log_probs = np.sort(np.floor(-draws / grid) * grid)[..., ::-1].astype(np.float32)
    log_probs[1, 2:, 3:] = -np.inf
    tokens = np.random.default_rng(4).permuted(np.tile(np.arange(64, dtype=np.int32), (ROWS, 15, 1)), axis=-1)
    tree = gpus_from_top(
        tokens, log_probs, rows_of(7, 8, 9), budget=64, **limits_of((64, 64, 15), (64, 64, 15), (50, 64, 15))
    )
    for row, budget in enumerate((64, 64, 50)):
        check_row(tree, row, tokens[row], log_probs[row], 7 + row, budget)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = wide - wide.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@given(
    seed=st.integers(0, 1000),
    budget=st.sampled_from((3, 40)),
    bad=st.lists(
        st.tuples(
            st.integers(0, ROWS - 1),
            st.integers(0, DEPTH - 1),
            st.integers(0, VOCAB - 1),
            st.sampled_from((-np.inf, -np.inf, -np.inf, np.nan, np.inf)),
        ),
        max_size=12,
    ),
)
def test_from_logits_over_the_whole_row_and_never_through_what_is_not_finite(seed, budget, bad):
    logits = np.random.default_rng(seed).normal(size=(ROWS, DEPTH, VOCAB)).astype(np.float32) * 2
    for row, depth, token, value in bad:
        logits[row, depth, token] = value
    limits = limits_of(*[(100, VOCAB, DEPTH)] * ROWS)
    tree = jitted_build(logits, rows_of(1, 2, 3), budget=budget, **limits)
    for row in range(ROWS):
        log_probs = log_softmax(logits[row])
        order = np.argsort(-log_probs, axis=-1, kind="stable")
        check_row(tree, row, order, np.take_along_axis(log_probs, order, axis=-1), row + 1, budget)


def test_equal_logits_of_a_row_go_by_token_id():
    logits = jnp.zeros((1, 1, 6)).at[0, 0, 4].set(1.0)
    tree = jitted_build(logits, rows_of(0), budget=4, **limits_of((4, 6, 1)))
    assert tree.tokens.tolist() == [[0, 4, 0, 1, 2]]


def test_the_vocabulary_is_selected_from_and_not_sorted():
    logits = jax.ShapeDtypeStruct((1, DEPTH, 5000), jnp.float32)
    limits = limits_of((8, 8, DEPTH))
    text = jitted_build.lower(logits, rows_of(0), budget=8, **limits).compile().as_text()
    assert "TopK" in text
    assert not [line for line in text.splitlines() if " sort(" in line and "5000" in line]


@pytest.mark.parametrize("limit", [0, 2, 5])
def test_the_spine_is_the_tree_of_one_child_a_node(limit):
    logits = jax.random.normal(jax.random.key(limit), (2, 5, VOCAB))
    chain = jitted_spine(logits, rows_of(3, 0), depth_limit=rows_of(limit, 5))
    tree = jitted_build(logits, rows_of(3, 0), budget=5, **limits_of((5, 1, limit), (5, 1, 5)))
    assert tree.count.tolist() == [limit, 5]
    jax.tree.map(np.testing.assert_array_equal, chain, tree)


def test_a_spine_of_another_width_is_cut_or_has_slots_that_are_not_in_use():
    logits = jax.random.normal(jax.random.key(1), (2, 5, VOCAB))
    limits = {"depth_limit": rows_of(2, 5)}
    chain = jitted_spine(logits, rows_of(3, 0), **limits)
    wide = spine(logits, rows_of(3, 0), budget=9, **limits)
    assert wide.count.tolist() == [2, 5]
    for name in ("tokens", "parents", "depths"):
        assert getattr(wide, name)[:, :6].tolist() == getattr(chain, name).tolist()
    assert (wide.parents[:, 6:] == -1).all()
    visible = unpack_mask(wide.ancestors, 10)
    assert (visible[:, :6, :6] == unpack_mask(chain.ancestors, 6)).all()
    assert (visible[:, 6:] == jnp.eye(10, dtype=bool)[6:]).all() and not visible[:, :6, 6:].any()
    cut = spine(logits, rows_of(3, 0), budget=3, **limits)
    assert cut.count.tolist() == [2, 3] and (cut.tokens == chain.tokens[:, :4]).all()


def test_without_a_budget_or_a_depth_there_is_the_root_alone():
    wanted = root(rows_of(7, 0), 4)
    assert wanted.count.tolist() == [0, 0] and wanted.tokens.tolist() == [[7, 0, 0, 0, 0], [0] * 5]
    limits = limits_of((4, 1, 9), (4, 1, 9))
    none = build(jnp.zeros((2, 3, 6)), rows_of(7, 0), budget=0, **limits)
    jax.tree.map(np.testing.assert_array_equal, none, root(rows_of(7, 0)))
    flat = build(jnp.zeros((2, 0, 6)), rows_of(7, 0), budget=4, **limits)
    jax.tree.map(np.testing.assert_array_equal, flat, wanted)
