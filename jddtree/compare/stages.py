"""Our side of `compare torch`: every stage of a draft-and-verify round, by the names that
`torch_stages.py` gives them.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from jddtree.cache import append
from jddtree.compare import faults
from jddtree.config import KimiK2Config
from jddtree.load import Pair
from jddtree.models import kimi_k2
from jddtree.models.dense import Dense
from jddtree.models.dflash import DFlash
from jddtree.models.kimi_k2 import KimiK2
from jddtree.models.layers import rope_tables
from jddtree.models.moe import MoE
from jddtree.models.target import Cache, Pass, Target
from jddtree.tree import Tree, build
from pallas_kernels.tree_attention.api import causal_mask, pack_mask

Stages = dict[str, np.ndarray]


def run_prompt(
    pair: Pair,
    prompt: Sequence[int],
    anchor: int,
    tokens: Sequence[int],
    parents: Sequence[int],
    *,
    budget: int,
    topk: int | None,
    fault: faults.Fault | None,
) -> Stages:
    """All stages but the text, float32 (tree: int32).

    Args:
      prompt: token ids.
      anchor: the token after the prompt, so that both sides draft from the same one.
      tokens, parents: of the nodes to verify, the root (slot 0) left out: one tree for both sides.
      budget, topk: of the tree that is built here.
      fault: a fault in the stages themselves; those in weights or code are in ``pair`` or in force already.
    """
    target, drafter, size = pair.target, pair.drafter, len(prompt)
    assert isinstance(target, Dense | KimiK2)
    assert drafter is None or isinstance(drafter, DFlash)
    dtype, nothing = jnp.dtype(pair.dtype), jnp.zeros((1,), jnp.int32)
    cache = target.new_cache(1, size, dtype)
    positions = jnp.arange(size, dtype=jnp.int32)[None]
    passed, stages = _target(
        target, jnp.array([prompt], jnp.int32), positions, causal_mask(size), cache, nothing
    )
    if drafter is not None:
        taps = drafter.target_layers
        if fault == "taps-off-by-one":
            taps = faults.shifted(taps)
        stages["taps"] = jnp.concatenate([stages[f"layer {tap}"] for tap in taps], axis=-1)
        stages |= _drafter(drafter, target, stages["taps"], positions, jnp.array([anchor], jnp.int32))
        tree = _tree(stages["draft logits"], jnp.array([anchor], jnp.int32), budget, topk)
        used = 1 + int(tree.count[0])
        stages["tree tokens"], stages["tree parents"] = tree.tokens[:, 1:used], tree.parents[:, 1:used]
        cache = append(cache, passed.fresh, nothing + size, nothing)
        visible, depths = ancestors(parents)
        if fault == "mask-stride":
            visible = faults.misread(visible, pair.block_size)
        ids, slots = jnp.array([[anchor, *tokens]], jnp.int32), jnp.asarray(size + depths)[None]
        _, verified = _target(target, ids, slots, pack_mask(visible[None]), cache, nothing + size)
        stages["verify logits"] = verified["logits"]
    return {
        name: np.asarray(stages[name][0].astype(jnp.float32))
        for name in _order(target, drafter)
        if name in stages
    }


def _order(target: Target, drafter: DFlash | None) -> Iterator[str]:
    """Stages in the order of the pipeline; compiled programs return dicts in the order of the alphabet."""
    yield "embed"
    for index in range(target.config.num_layers):
        yield from (f"layer {index} router bias", f"layer {index} router choice", f"layer {index}")
    yield from ("norm", "logits", "taps", "drafter context")
    if drafter is not None:
        yield from (f"drafter layer {index}" for index in range(drafter.config.num_layers))
    yield from ("drafter norm", "draft logits", "tree tokens", "tree parents", "verify logits")


@jax.jit
def _target(
    target: Dense | KimiK2,
    ids: Int[Array, "1 N"],
    positions: Int[Array, "1 N"],
    mask: UInt32[Array, "1 N W"],
    cache: Cache,
    lengths: Int[Array, " 1"],
) -> tuple[Pass, dict[str, Array]]:
    """One pass: embedding, router of every MoE layer, every layer, final norm, logits."""
    config = target.config
    stages = {"embed": target.embed(ids)}
    valid = jnp.ones(ids.shape, bool)
    passed = target(ids, positions, valid, mask, cache, lengths, tuple(range(config.num_layers)))
    outputs = jnp.split(passed.features, config.num_layers, axis=-1)
    before = stages["embed"]
    for index, (layer, output) in enumerate(zip(target.layers, outputs, strict=True)):
        if isinstance(layer, kimi_k2.Layer) and isinstance(layer.mlp, MoE):
            assert isinstance(config, KimiK2Config)
            rope = rope_tables(config.rope, config.rope_head_dim, positions)
            attended, _ = layer.self_attn(layer.input_layernorm(before), rope, mask, cache[index], lengths)
            attended = layer.self_attn.o_proj.joined(attended)
            normed = layer.post_attention_layernorm(before + attended)[0]
            bias = layer.mlp.gate.e_score_correction_bias[...]
            stages[f"layer {index} router bias"] = bias[None]
            scores = jax.nn.sigmoid(layer.mlp.gate.logits(normed))
            stages[f"layer {index} router choice"] = (scores + bias)[None]
        stages[f"layer {index}"] = before = output
    stages["norm"], stages["logits"] = passed.hidden, target.logits(passed.hidden)
    return passed, stages


@jax.jit
def _drafter(
    drafter: DFlash, target: Target, taps: Array, positions: Int[Array, "1 T"], anchor: Int[Array, " 1"]
) -> dict[str, Array]:
    """One block after a context that fills the cache."""
    lengths = jnp.full((1,), positions.shape[1], jnp.int32)
    stages = {"drafter context": drafter.context_feature(taps)}
    cache = drafter.context(taps, positions)
    hidden, outputs = drafter.block(*drafter.inputs(target, anchor, lengths), cache, lengths)
    stages |= {f"drafter layer {index}": output for index, output in enumerate(outputs)}
    return stages | {"drafter norm": hidden, "draft logits": drafter.logits(target, hidden)}


def _tree(logits: Array, anchor: Array, budget: int, topk: int | None) -> Tree:
    depth = logits.shape[1]
    widest = np.full((1,), budget if topk is None else topk, np.int32)
    limit = np.full((1,), depth, np.int32)
    built = jax.jit(partial(build, budget=budget))
    return built(logits, anchor, row_budget=np.full((1,), budget, np.int32), topk=widest, depth_limit=limit)


def ancestors(parents: Sequence[int]) -> tuple[Bool[np.ndarray, "N N"], Int[np.ndarray, " N"]]:
    """Which slot sees which (its ancestors and itself), and depths; slot 0 is the root, which has no parent
    in ``parents``.
    """
    visible = np.eye(1 + len(parents), dtype=bool)
    depths = np.zeros(1 + len(parents), np.int32)
    for slot, parent in enumerate(parents, 1):
        visible[slot] |= visible[parent]
        depths[slot] = depths[parent] + 1
    return visible, depths
