"""The target as a plain function of a flat dict of arrays, for training and for writing answers.

Keys are the published names without the `language_model.` prefix; routed experts are stacked under
`...mlp.experts.{gate,up,down}_proj.weight` [E, out, in]. Experts are computed densely and masked, and
attention is in its naive form, so that gradients are simple; `jddtree.models.kimi_k2` is the same function
for decoding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jddtree.config import KimiK2Config
from jddtree.models.layers import rope_tables, rotate_pairs
from pallas_kernels.norm import rms_norm

Params = dict[str, jax.Array]
FLOAT32 = ("e_score_correction_bias", "mlp.gate.weight")  # never rounded in training


def init_target(config: KimiK2Config, seed: int) -> Params:
    """Random float32 parameters; what writes to the residual stream starts at zero."""
    c, params, rng = config, {}, np.random.default_rng(seed)

    def matrix(name: str, *shape: int, scale: float | None = None) -> None:
        scale = shape[-1] ** -0.5 if scale is None else scale
        params[name] = jnp.asarray(rng.standard_normal(shape, np.float32) * np.float32(scale))

    def norm(name: str, width: int) -> None:
        params[name] = jnp.ones(width)

    def mlp(path: str, width: int, experts: tuple[int, ...] = ()) -> None:
        matrix(f"{path}.gate_proj.weight", *experts, width, c.hidden_size)
        matrix(f"{path}.up_proj.weight", *experts, width, c.hidden_size)
        matrix(f"{path}.down_proj.weight", *experts, c.hidden_size, width, scale=0.0)

    matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size, scale=0.5)
    matrix("lm_head.weight", c.vocab_size, c.hidden_size, scale=0.02)
    norm("model.norm.weight", c.hidden_size)
    for i in range(c.num_layers):
        path = f"model.layers.{i}"
        norm(f"{path}.input_layernorm.weight", c.hidden_size)
        norm(f"{path}.post_attention_layernorm.weight", c.hidden_size)
        attention = f"{path}.self_attn"
        matrix(f"{attention}.q_a_proj.weight", c.q_lora_rank, c.hidden_size)
        norm(f"{attention}.q_a_layernorm.weight", c.q_lora_rank)
        matrix(
            f"{attention}.q_b_proj.weight", c.num_heads * (c.nope_head_dim + c.rope_head_dim), c.q_lora_rank
        )
        matrix(f"{attention}.kv_a_proj_with_mqa.weight", c.kv_lora_rank + c.rope_head_dim, c.hidden_size)
        norm(f"{attention}.kv_a_layernorm.weight", c.kv_lora_rank)
        matrix(
            f"{attention}.kv_b_proj.weight", c.num_heads * (c.nope_head_dim + c.v_head_dim), c.kv_lora_rank
        )
        matrix(f"{attention}.o_proj.weight", c.hidden_size, c.num_heads * c.v_head_dim, scale=0.0)
        if c.is_moe(i):
            matrix(f"{path}.mlp.gate.weight", c.num_experts, c.hidden_size)
            params[f"{path}.mlp.gate.e_score_correction_bias"] = jnp.zeros((c.num_experts,))
            mlp(f"{path}.mlp.experts", c.moe_intermediate_size, (c.num_experts,))
            mlp(f"{path}.mlp.shared_experts", c.moe_intermediate_size * c.num_shared_experts)
        else:
            mlp(f"{path}.mlp", c.intermediate_size)
    return params


def rounded(params: Params, dtype: jnp.dtype) -> Params:
    """The parameters in the type of the computation; the router stays float32."""
    return {name: value if name.endswith(FLOAT32) else value.astype(dtype) for name, value in params.items()}


def same_document(positions: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
    """Query row, key column: whether both belong to one document of the packed row (see `documents.Rows`)."""
    document = jnp.cumsum(positions == 0, axis=1)
    return document[:, :, None] == document[:, None, :]


def attend(
    q: Float[Array, "B T H d"],
    k: Float[Array, "B S J d"],
    v: Float[Array, "B S J v"],
    mask: Bool[Array, "B 1 T S"],
    scale: float,
    cudnn: bool,
) -> Float[Array, "B T H v"]:
    """Masked attention; H is a multiple of the J key heads. The library wants values as wide as keys: they
    are padded and cut again.
    """
    width = v.shape[-1]
    v = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, k.shape[-1] - width)))
    out = jax.nn.dot_product_attention(
        q, k, v, mask=mask, scale=scale, implementation="cudnn" if cudnn else "xla"
    )
    return out[..., :width]


def _swiglu(params: Params, path: str, x: Array) -> Array:
    gate = x @ params[f"{path}.gate_proj.weight"].T
    return (jax.nn.silu(gate) * (x @ params[f"{path}.up_proj.weight"].T)) @ params[
        f"{path}.down_proj.weight"
    ].T


def _latent(config: KimiK2Config, params: Params, path: str, x: Array, rope: tuple[Array, Array]):
    """Queries without and with position, the normed latent, and the shared rotated key (spec kimi 2.2)."""
    c = config
    eps = c.lora_norm_eps
    q = rms_norm(x @ params[f"{path}.q_a_proj.weight"].T, params[f"{path}.q_a_layernorm.weight"], eps)
    q = (q @ params[f"{path}.q_b_proj.weight"].T).reshape(*x.shape[:2], c.num_heads, -1)
    kv = x @ params[f"{path}.kv_a_proj_with_mqa.weight"].T
    latent = rms_norm(kv[..., : c.kv_lora_rank], params[f"{path}.kv_a_layernorm.weight"], eps)
    k_rope = rotate_pairs(kv[:, :, None, c.kv_lora_rank :], *rope)
    return q[..., : c.nope_head_dim], rotate_pairs(q[..., c.nope_head_dim :], *rope), latent, k_rope


def _attention(config, params: Params, path: str, x: Array, rope, mask: Array, cudnn: bool) -> Array:
    c = config
    q_nope, q_rope, latent, k_rope = _latent(c, params, path, x, rope)
    up = (latent @ params[f"{path}.kv_b_proj.weight"].T).reshape(*x.shape[:2], c.num_heads, -1)
    k = jnp.concatenate(
        [up[..., : c.nope_head_dim], jnp.broadcast_to(k_rope, (*x.shape[:2], c.num_heads, c.rope_head_dim))],
        axis=-1,
    )
    q = jnp.concatenate([q_nope, q_rope], axis=-1)
    out = attend(q, k, up[..., c.nope_head_dim :], mask, c.softmax_scale, cudnn)
    return out.reshape(*x.shape[:2], -1) @ params[f"{path}.o_proj.weight"].T


def _experts(config: KimiK2Config, params: Params, path: str, x: Array) -> tuple[Array, Array]:
    """Output, and how many slots chose each expert [E]."""
    c = config
    logits = jnp.matmul(
        x.astype(jnp.float32), params[f"{path}.gate.weight"].T, precision=jax.lax.Precision.HIGHEST
    )
    scores = jax.nn.sigmoid(logits)
    chosen = jax.lax.top_k(scores + params[f"{path}.gate.e_score_correction_bias"], c.experts_per_token)[1]
    chosen = jnp.sum(jax.nn.one_hot(chosen, c.num_experts), axis=-2)
    weights = scores * chosen
    weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20) * c.routed_scaling_factor
    gate, up, down = (params[f"{path}.experts.{name}_proj.weight"] for name in ("gate", "up", "down"))
    inner = jax.nn.silu(jnp.einsum("btm,eim->btei", x, gate)) * jnp.einsum("btm,eim->btei", x, up)
    inner = inner * weights[..., None].astype(x.dtype)
    y = jnp.einsum("btei,emi->btm", inner, down)
    return y + _swiglu(params, f"{path}.shared_experts", x), jnp.sum(chosen, axis=(0, 1))


class Output(NamedTuple):
    """``hidden``: after the final norm. ``layers``: the residual stream after every layer. ``loads`` [moe
    layers, E]: slots that chose each expert.
    """

    hidden: Float[Array, "B T M"]
    layers: list[Float[Array, "B T M"]]
    loads: Float[Array, "L E"]


def forward(
    config: KimiK2Config, params: Params, tokens: Int[Array, "B T"], positions: Int[Array, "B T"], cudnn: bool
) -> Output:
    """Run packed rows; every document sees itself alone. ``params`` as from `rounded`, in the type to compute
    in.
    """
    c = config
    rope = rope_tables(c.rope, c.rope_head_dim, positions)
    length = tokens.shape[1]
    mask = (same_document(positions) & jnp.tril(jnp.ones((length, length), bool)))[:, None]
    x = params["model.embed_tokens.weight"][tokens]
    layers, loads = [], []
    for i in range(c.num_layers):
        path = f"model.layers.{i}"
        normed = rms_norm(x, params[f"{path}.input_layernorm.weight"], c.rms_norm_eps)
        x = x + _attention(c, params, f"{path}.self_attn", normed, rope, mask, cudnn)
        normed = rms_norm(x, params[f"{path}.post_attention_layernorm.weight"], c.rms_norm_eps)
        if c.is_moe(i):
            y, load = _experts(c, params, f"{path}.mlp", normed)
            loads.append(load)
        else:
            y = _swiglu(params, f"{path}.mlp", normed)
        x = x + y
        layers.append(x)
    return Output(rms_norm(x, params["model.norm.weight"], c.rms_norm_eps), layers, jnp.stack(loads))


def head_logits(params: Params, hidden: Float[Array, "... M"]) -> Float[Array, "... V"]:
    """Float32 logits of the head."""
    return jnp.einsum("...m,vm->...v", hidden, params["lm_head.weight"], preferred_element_type=jnp.float32)


def next_logits(
    config: KimiK2Config, params: Params, tokens: Int[Array, "B T"], positions: Int[Array, "B T"], cudnn: bool
) -> tuple[Float[Array, "B T-1 V"], Bool[Array, "B T-1"], Float[Array, "L E"]]:
    """Logits of every next token, which of them are inside one document, and expert loads."""
    out = forward(config, params, tokens, positions, cudnn)
    return head_logits(params, out.hidden[:, :-1]), positions[:, 1:] > 0, out.loads


def cross_entropy(logits: Float[Array, "B T V"], right: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """-log p of the right token, in nats."""
    chosen = jnp.take_along_axis(logits, right[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def unlikelihood(logits: Float[Array, "B T V"], wrong: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """-log(1 - p) of the wrong token, in nats; exact near p = 1 too, where a loop sits."""
    chosen = jnp.take_along_axis(logits, wrong[..., None], axis=-1)[..., 0]
    is_wrong = jnp.arange(logits.shape[-1]) == wrong[..., None]
    others = jax.nn.logsumexp(jnp.where(is_wrong, -jnp.inf, logits), axis=-1)
    return jax.nn.softplus(chosen - others)


def new_cache(config: KimiK2Config, rows: int, slots: int, dtype: jnp.dtype) -> list[tuple[Array, Array]]:
    """Latents [rows, slots, R] and rotated keys [rows, slots, P] a layer."""
    c = config
    return [
        (jnp.zeros((rows, slots, c.kv_lora_rank), dtype), jnp.zeros((rows, slots, c.rope_head_dim), dtype))
        for _ in range(c.num_layers)
    ]


def step(
    config: KimiK2Config,
    params: Params,
    cache: list[tuple[Array, Array]],
    tokens: Int[Array, " B"],
    position: Array,
) -> tuple[Float[Array, "B V"], list[tuple[Array, Array]]]:
    """One token a row, all rows at the same position, attention absorbed (spec kimi 2.3). Returns float32
    logits.
    """
    c = config
    rows = tokens.shape[0]
    rope = rope_tables(c.rope, c.rope_head_dim, jnp.broadcast_to(position, (rows, 1)))
    slots = cache[0][0].shape[1]
    seen = jnp.arange(slots) <= position
    x = params["model.embed_tokens.weight"][tokens][:, None]
    grown = []
    for i, (latents, keys) in enumerate(cache):
        path = f"model.layers.{i}"
        attention = f"{path}.self_attn"
        normed = rms_norm(x, params[f"{path}.input_layernorm.weight"], c.rms_norm_eps)
        q_nope, q_rope, latent, k_rope = _latent(c, params, attention, normed, rope)
        latents = jax.lax.dynamic_update_slice_in_dim(latents, latent, position, axis=1)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, k_rope[:, :, 0], position, axis=1)
        grown.append((latents, keys))
        up = params[f"{attention}.kv_b_proj.weight"].reshape(c.num_heads, -1, c.kv_lora_rank)
        k_up, v_up = up[:, : c.nope_head_dim], up[:, c.nope_head_dim :]
        query = jnp.einsum("bhn,hnr->bhr", q_nope[:, 0], k_up)
        scores = jnp.einsum("bhr,bsr->bhs", query, latents, preferred_element_type=jnp.float32)
        scores += jnp.einsum("bhp,bsp->bhs", q_rope[:, 0], keys, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(jnp.where(seen, scores * c.softmax_scale, -jnp.inf), axis=-1).astype(x.dtype)
        out = jnp.einsum("bhr,hvr->bhv", jnp.einsum("bhs,bsr->bhr", weights, latents), v_up)
        x = x + out.reshape(rows, 1, -1) @ params[f"{attention}.o_proj.weight"].T
        normed = rms_norm(x, params[f"{path}.post_attention_layernorm.weight"], c.rms_norm_eps)
        x = x + (
            _experts(c, params, f"{path}.mlp", normed)[0]
            if c.is_moe(i)
            else _swiglu(params, f"{path}.mlp", normed)
        )
    hidden = rms_norm(x, params["model.norm.weight"], c.rms_norm_eps)
    return head_logits(params, hidden[:, 0]), grown
