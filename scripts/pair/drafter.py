"""The drafter as a plain function, for training: many blocks of one row at once (specs: DFlash, sections 1
and 7).

Keys are the published names of DFlash files. Embedding, features and head are the frozen target's, which may
be any model of `jddtree.models`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jddtree.checkpoint.skeleton import array_paths
from jddtree.config import DFlashConfig
from jddtree.models.dflash import DFlash
from jddtree.models.drafter import Drafter
from jddtree.models.layers import rope_tables, rotate_halves
from jddtree.models.target import Pass, Target
from pallas_kernels.norm import rms_norm
from pallas_kernels.tree_attention.api import pack_mask
from scripts.pair.target import attend, same_document

Params = dict[str, jax.Array]

TOGETHER = 128
"""Slots that attend at once, at most: in one attention over all blocks most scores are of blocks that do not
see each other.
"""


def init_drafter(config: DFlashConfig, seed: int) -> Params:
    """Random float32 parameters; what writes to the residual stream starts at zero."""
    c, params, rng = config, {}, np.random.default_rng(seed)

    def matrix(name: str, out: int, width: int, scale: float = 1.0) -> None:
        values = rng.standard_normal((out, width), np.float32)
        params[name] = jnp.asarray(values * np.float32(scale * width**-0.5))

    matrix("fc.weight", c.hidden_size, c.hidden_size * len(c.target_layers))
    for name in ("hidden_norm.weight", "norm.weight"):
        params[name] = jnp.ones((c.hidden_size,))
    for i in range(c.num_layers):
        path = f"layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            params[f"{path}.{name}.weight"] = jnp.ones((c.hidden_size,))
        matrix(f"{path}.self_attn.q_proj.weight", c.num_heads * c.head_dim, c.hidden_size)
        matrix(f"{path}.self_attn.k_proj.weight", c.num_kv_heads * c.head_dim, c.hidden_size)
        matrix(f"{path}.self_attn.v_proj.weight", c.num_kv_heads * c.head_dim, c.hidden_size)
        matrix(f"{path}.self_attn.o_proj.weight", c.hidden_size, c.num_heads * c.head_dim, scale=0.0)
        for name in ("q_norm", "k_norm"):
            params[f"{path}.self_attn.{name}.weight"] = jnp.ones((c.head_dim,))
        matrix(f"{path}.mlp.gate_proj.weight", c.intermediate_size, c.hidden_size)
        matrix(f"{path}.mlp.up_proj.weight", c.intermediate_size, c.hidden_size)
        matrix(f"{path}.mlp.down_proj.weight", c.hidden_size, c.intermediate_size, scale=0.0)
    return params


def as_model(config: DFlashConfig, params: Params) -> Drafter:
    """The same drafter as the decoder's module, in the parameters' types."""
    model = nnx.eval_shape(lambda: DFlash(config, rngs=nnx.Rngs(0)))
    return jax.tree.unflatten(jax.tree.structure(model), [params[path] for path, _ in array_paths(model)])


def target_pass(
    target: Target, tokens: Int[Array, "B T"], positions: Int[Array, "B T"], taps: tuple[int, ...]
) -> Pass:
    """The target over packed rows; every document sees itself alone."""
    rows, width = tokens.shape
    mask = pack_mask(same_document(positions) & jnp.tri(width, dtype=bool))
    dtype = jax.eval_shape(target.embed, tokens).dtype
    empty, nothing = target.new_cache(rows, 1, dtype), jnp.zeros(rows, jnp.int32)
    return target(tokens, positions, jnp.ones(tokens.shape, bool), mask, empty, nothing, taps)


def choose_anchors(
    answer: Bool[Array, "B T"], positions: Int[Array, "B T"], count: int, key: jax.Array
) -> tuple[Int[Array, "B A"], Bool[Array, "B A"]]:
    """Random different anchors a row, and which are real: answer tokens with a token of their document after
    them.
    """
    follows = jnp.pad(positions[:, 1:] > 0, ((0, 0), (0, 1)))
    score = jnp.where(answer & follows, jax.random.uniform(key, answer.shape), -1.0)
    best, anchors = jax.lax.top_k(score, count)
    return anchors, best >= 0


def block_hidden(
    config: DFlashConfig,
    params: Params,
    target: Target,
    features: Float[Array, "B T FM"],
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    anchors: Int[Array, "B A"],
    cudnn: bool,
) -> Float[Array, "B A D M"]:
    """What the target's head reads at the D slots after every anchor.

    A block sees the features of its own document at positions strictly before its anchor, and its own slots.
    Slot 0 embeds the anchor, the others the mask token.
    """
    c = config
    (rows, count), block = anchors.shape, c.block_size
    each = max(n for n in range(1, count + 1) if count % n == 0 and (n == 1 or n * block <= TOGETHER))
    groups, slots = count // each, each * block
    document = jnp.cumsum(positions == 0, axis=1)
    anchor_position = jnp.take_along_axis(positions, anchors, axis=1)
    anchor_document = jnp.take_along_axis(document, anchors, axis=1)
    before = (document[:, None] == anchor_document[..., None]) & (
        positions[:, None] < anchor_position[..., None]
    )
    before = jnp.repeat(before, block, axis=1).reshape(rows * groups, slots, -1)
    own = jnp.repeat(jnp.repeat(jnp.eye(each, dtype=bool), block, axis=0), block, axis=1)
    sees = jnp.concatenate([before, jnp.broadcast_to(own, (len(before), slots, slots))], axis=-1)[:, None]
    ctx = rms_norm(features @ params["fc.weight"].T, params["hidden_norm.weight"], c.rms_norm_eps)

    first = target.embed(jnp.take_along_axis(tokens, anchors, axis=1))[:, :, None]
    masks = target.embed(jnp.full((1, 1), c.mask_token_id, jnp.int32))[:, :, None]
    masks = jnp.broadcast_to(masks, (rows, count, block - 1, c.hidden_size))
    x = jnp.concatenate([first, masks], axis=2).reshape(rows * groups, slots, -1)
    block_positions = (anchor_position[..., None] + jnp.arange(block)).reshape(rows * groups, slots)
    block_rope = rope_tables(c.rope, c.head_dim, block_positions)
    ctx_rope = rope_tables(c.rope, c.head_dim, positions)

    for i in range(c.num_layers):
        path = f"layers.{i}.self_attn"

        def heads(name: str, y: Array, path: str = path) -> Array:
            return (y @ params[f"{path}.{name}.weight"].T).reshape(*y.shape[:2], -1, c.head_dim)

        def normed(name: str, y: Array, path: str = path) -> Array:
            return rms_norm(y, params[f"{path}.{name}.weight"], c.rms_norm_eps)

        h = rms_norm(x, params[f"layers.{i}.input_layernorm.weight"], c.rms_norm_eps)
        q = rotate_halves(normed("q_norm", heads("q_proj", h)), *block_rope)
        k_ctx = rotate_halves(normed("k_norm", heads("k_proj", ctx)), *ctx_rope)
        k_own = rotate_halves(normed("k_norm", heads("k_proj", h)), *block_rope)
        v_ctx, v_own = heads("v_proj", ctx), heads("v_proj", h)
        k, v = (
            jnp.concatenate([jnp.repeat(of_ctx, groups, axis=0), of_own], axis=1)
            for of_ctx, of_own in ((k_ctx, k_own), (v_ctx, v_own))
        )
        out = attend(q, k, v, sees, c.head_dim**-0.5, cudnn)
        x = x + out.reshape(*x.shape[:2], -1) @ params[f"{path}.o_proj.weight"].T
        h = rms_norm(x, params[f"layers.{i}.post_attention_layernorm.weight"], c.rms_norm_eps)
        mlp = f"layers.{i}.mlp"
        gate = jax.nn.silu(h @ params[f"{mlp}.gate_proj.weight"].T)
        x = x + (gate * (h @ params[f"{mlp}.up_proj.weight"].T)) @ params[f"{mlp}.down_proj.weight"].T
    return rms_norm(x.reshape(rows, count, block, -1)[:, :, 1:], params["norm.weight"], c.rms_norm_eps)


def labels(
    tokens: Int[Array, "B T"], positions: Int[Array, "B T"], anchors: Int[Array, "B A"], depth: int
) -> tuple[Int[Array, "B A D"], Bool[Array, "B A D"]]:
    """The tokens at the blocks' own positions after the anchor, and which exist in the anchor's document."""
    at = anchors[..., None] + jnp.arange(1, depth + 1)
    inside = at < tokens.shape[1]
    at = jnp.minimum(at, tokens.shape[1] - 1)
    rows = jnp.arange(tokens.shape[0])[:, None, None]
    anchor_position = jnp.take_along_axis(positions, anchors, axis=1)[..., None]
    # A later document starts again at 0, so only the anchor's own document goes on counting.
    return tokens[rows, at], inside & (positions[rows, at] == anchor_position + jnp.arange(1, depth + 1))


def told(hidden: Float[Array, "B T M"], anchors: Int[Array, "B A"], depth: int) -> Float[Array, "B A D M"]:
    """What the target's head reads where it predicts the D tokens after every anchor."""
    at = jnp.minimum(anchors[..., None] + jnp.arange(depth), hidden.shape[1] - 1)
    return hidden[jnp.arange(hidden.shape[0])[:, None, None], at]
