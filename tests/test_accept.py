"""The walk against its oracle. The golden walks run through `jddtree.compare.goldens`, tested beside it."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jddtree.accept import follow
from jddtree.tree import Tree
from pallas_kernels.tree_attention.api import pack_mask
from tests.oracles.heap_tree import ancestors
from tests.oracles.walk import walk

SLOTS, DEPTH, VOCAB = 14, 4, 5

jitted_follow = jax.jit(follow, static_argnames="depth")


@st.composite
def trees(draw) -> tuple[list[int], list[int], list[int]]:
    """(parents, tokens, depths) of a tree in at most SLOTS slots: siblings carry distinct tokens."""
    parents, tokens, depths = [-1], [draw(st.integers(0, VOCAB - 1))], [0]
    for _ in range(draw(st.integers(0, SLOTS - 1))):
        open_slots = [
            slot for slot in range(len(parents)) if depths[slot] < DEPTH and parents.count(slot) < VOCAB
        ]
        parent = draw(st.sampled_from(open_slots))
        taken = {tokens[slot] for slot in range(1, len(parents)) if parents[slot] == parent}
        tokens.append(draw(st.sampled_from(sorted(set(range(VOCAB)) - taken))))
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return parents, tokens, depths


@given(
    rows=st.lists(trees(), min_size=2, max_size=2),
    seed=st.integers(0, 99),
    agree=st.sampled_from((0.0, 0.5, 1.0)),
)
def test_every_row_goes_where_the_oracle_goes(rows, seed, agree):
    random = np.random.default_rng(seed)
    # Unused slots hold token 0, which the target also likes: they must not be taken for it.
    target = random.integers(0, VOCAB, (2, SLOTS)).astype(np.int32)
    padded = []
    for row, columns in enumerate(rows):
        parents, tokens, _ = columns
        for slot in range(1, len(parents)):
            if random.random() < agree:
                target[row, parents[slot]] = tokens[slot]
        fills = (-1, 0, 0)
        padded.append(
            [column + [fill] * (SLOTS - len(column)) for column, fill in zip(columns, fills, strict=True)]
        )
    parents, tokens, depths = (jnp.array(column, jnp.int32) for column in zip(*padded, strict=True))
    count = jnp.array([len(columns[0]) - 1 for columns in rows], jnp.int32)
    visible = np.tile(np.eye(SLOTS, dtype=bool), (2, 1, 1))
    for row, (own_parents, _, _) in enumerate(rows):
        used = len(own_parents)
        visible[row, :used, :used] = ancestors(np.array(own_parents))
    path = jitted_follow(Tree(tokens, parents, depths, count, pack_mask(visible)), target, depth=DEPTH)
    for row, (own_parents, own_tokens, _) in enumerate(rows):
        slots, bonus = walk(np.array(own_tokens[1:]), np.array(own_parents), target[row])
        unused = [0] * (DEPTH + 1 - len(slots))
        assert int(path.count[row]) == len(slots)
        assert path.slots[row].tolist() == slots + unused
        assert path.tokens[row].tolist() == [own_tokens[slot] for slot in slots[1:]] + [bonus] + unused


def test_the_path_may_jump_over_slots():
    parents = np.array([[-1, 0, 0, 0, 1, 1, 3, 3, 3, 6, 6]], np.int32)
    tokens = jnp.arange(11, dtype=jnp.int32)[None] + 20
    depths = jnp.array([[0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]], jnp.int32)
    mask = pack_mask(ancestors(parents[0])[None])
    tree = Tree(tokens, jnp.asarray(parents), depths, jnp.array([10], jnp.int32), mask)
    target = jnp.zeros((1, 11), jnp.int32).at[0, jnp.array([0, 3, 6, 10])].set(jnp.array([23, 26, 30, 40]))
    path = follow(tree, target, depth=5)
    assert path.slots.tolist() == [[0, 3, 6, 10, 0, 0]]
    assert path.tokens.tolist() == [[23, 26, 30, 40, 0, 0]]
    assert path.count.tolist() == [4]
