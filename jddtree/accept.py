"""What the target says after every slot of a verified tree, and the path that it takes (spec ddtree_dflash
3.3 to 5).

Both rules for sampled rows give exactly the target's distribution. "follow" samples at every slot and goes
where the samples lead, so that its texts do not depend on the tree. "target-only" spends one coin a slot on
the children's probabilities, laid end to end, and samples from what they leave if the coin falls past them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jddtree import sampling as policy
from jddtree import vocabulary
from jddtree.pytree import pytree_dataclass
from jddtree.sampling import Mode, Sampling
from jddtree.tree import Tree
from pallas_kernels.tree_attention.reference import unpack_mask

RULES = ("follow", "target-only")


@pytree_dataclass
class Path:
    """The accepted path of every row, G = depth + 1 wide.

    slots: the root's slot 0, then accepted slots, strictly increasing; unused places hold 0. count: slots on
    the path, the root included, and so the number of new tokens. tokens: what each path slot is followed by:
    the accepted nodes' tokens, then the bonus token; unused places hold 0.
    """

    slots: Int[Array, "B G"]
    count: Int[Array, " B"]
    tokens: Int[Array, "B G"]


def choose(
    logits: Float[Array, "B N V"],
    tree: Tree,
    lengths: Int[Array, " B"],
    sampling: Sampling,
    *,
    depth: int,
    mode: Mode,
    rule: str,
) -> tuple[Int[Array, "B N"], Float[Array, "B N"]]:
    """The target's token after every slot, and by how much it won.

    ``logits`` may be this device's part of the vocabulary. ``lengths`` is the root's position. Greedy rows
    take the likeliest token. The margin is the winner's lead over the next token, in logits, or in logits /
    temperature plus noise for rows that sample.
    """
    greedy, margins = vocabulary.likeliest(logits)
    if not mode.sampled:
        return greedy, margins
    # Noise and cuts are those of the whole vocabulary, so that texts do not depend on how it is cut.
    logits = vocabulary.whole(logits)
    scores = policy.scores(logits, sampling, mode)
    positions = lengths[:, None] + 1 + jnp.arange(depth + 1, dtype=jnp.int32)
    noise = policy.noise(sampling, positions, logits.shape[-1])
    noise = jnp.take_along_axis(noise, tree.depths[:, :, None], axis=1)
    if rule == "target-only":
        coins = jnp.take_along_axis(policy.coins(sampling, positions), tree.depths, axis=1)
        drawn, sampled = _target_only(scores, tree, coins, noise)
    else:
        drawn = scores + noise
        sampled = jnp.argmax(drawn, axis=-1).astype(jnp.int32)
    plain = policy.is_greedy(sampling)[:, None]
    picked = jnp.where(plain, greedy, sampled)
    return picked, jnp.where(plain, margins, _margins(drawn, sampled))


def _target_only(
    scores: Array, tree: Tree, coins: Float[Array, "B N"], noise: Array
) -> tuple[Float[Array, "B N V"], Int[Array, "B N"]]:
    """One coin a slot: the child whose interval it hits, else a sample of what the children leave."""
    probabilities = jax.nn.softmax(scores, axis=-1)
    parents = jnp.maximum(tree.parents, 0)
    rows = jnp.arange(parents.shape[0])[:, None]
    is_child = tree.parents >= 0
    share = jnp.where(is_child, probabilities[rows, parents, tree.tokens], 0.0)
    slots = jnp.arange(parents.shape[1], dtype=jnp.int32)
    same_parent = (tree.parents[:, :, None] == tree.parents[:, None, :]) & is_child[:, :, None]
    up_to = jnp.sum(jnp.where(same_parent & (slots <= slots[:, None]), share[:, None, :], 0.0), axis=-1)
    coin = jnp.take_along_axis(coins, parents, axis=1)
    # The first child whose upper end reaches the coin; a child of probability 0 never has the coin to itself.
    reached = is_child & (coin <= up_to) & (share > 0)
    offered = reached[:, None, :] & (tree.parents[:, None, :] == slots[:, None])
    hit = jnp.any(offered, axis=-1)
    child = jnp.argmax(offered, axis=-1)
    blocked = jnp.zeros(scores.shape, bool).at[rows, parents, tree.tokens].max(is_child)
    left = jnp.where(blocked, -jnp.inf, scores) + noise
    # If the children hold all of the mass, rounding alone can have put the coin past them.
    left = jnp.where(jnp.any(left > -jnp.inf, axis=-1, keepdims=True), left, scores + noise)
    rest = jnp.argmax(left, axis=-1).astype(jnp.int32)
    return left, jnp.where(hit, jnp.take_along_axis(tree.tokens, child, axis=1), rest)


def follow(tree: Tree, target_tokens: Int[Array, "B N"], depth: int) -> Path:
    """From the root, to the child that carries the target's token for as long as there is one.

    ``target_tokens`` is the target's choice after every slot; ``depth`` (static) bounds the path. The
    target's token at the last slot of the path is the bonus token.
    """
    wanted = jnp.take_along_axis(target_tokens, jnp.maximum(tree.parents, 0), axis=1)
    number = jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)
    agrees = (number == 0) | ((tree.parents >= 0) & (tree.tokens == wanted))
    # Children of a node hold different tokens, so those who agree up to the root are one path.
    on_path = jnp.all(agrees[:, None, :] | ~unpack_mask(tree.ancestors, number.size), axis=-1)
    at = jnp.arange(depth + 1, dtype=jnp.int32)
    here = on_path[:, None, :] & (tree.depths[:, None, :] == at[:, None])
    slots = jnp.sum(jnp.where(here, number, 0), axis=-1, dtype=jnp.int32)
    count = jnp.sum(here, axis=(1, 2), dtype=jnp.int32)
    tokens = jnp.where(at < count[:, None], jnp.take_along_axis(target_tokens, slots, axis=1), 0)
    return Path(slots, count, tokens)


def _margins(scores: Array, picked: Array) -> Array:
    """The picked score minus the best other, [B, N]."""
    others = jnp.where(jnp.arange(scores.shape[-1]) == picked[..., None], -jnp.inf, scores)
    return jnp.take_along_axis(scores, picked[..., None], axis=-1)[..., 0] - jnp.max(others, axis=-1)
