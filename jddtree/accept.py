"""Following the target through a verified tree (spec ddtree_dflash 3.3)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jddtree.pytree import pytree_dataclass
from jddtree.tree import Tree


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


def follow(tree: Tree, target_tokens: Int[Array, "B N"], depth: int) -> Path:
    """From the root, go to the child that carries the target's token for as long as there is one.

    ``target_tokens`` is the target's choice after every slot; ``depth`` (static) bounds the walk. The
    target's token at the last slot of the path is the bonus token.
    """
    parents = jnp.maximum(tree.parents, 0)
    wanted = jnp.take_along_axis(target_tokens, parents, axis=1)
    agrees = (tree.parents >= 0) & (tree.tokens == wanted)

    def step(at, _):
        child = agrees & (tree.parents == at[:, None])
        found = jnp.any(child, axis=1)
        # -2 is nobody's parent, so a walk that has stopped stays stopped.
        following = jnp.where(found, jnp.argmax(child, axis=1).astype(jnp.int32), -2)
        return following, following

    start = jnp.zeros(tree.count.shape, jnp.int32)
    _, walked = jax.lax.scan(step, start, None, length=depth)
    slots = jnp.concatenate([start[:, None], walked.T], axis=1)
    on_path = slots >= 0
    slots = jnp.where(on_path, slots, 0)
    tokens = jnp.where(on_path, jnp.take_along_axis(target_tokens, slots, axis=1), 0)
    return Path(slots, jnp.sum(on_path, axis=1, dtype=jnp.int32), tokens)
