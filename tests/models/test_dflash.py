"""The drafter's inputs and outputs around its layers, which golden data judges."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jddtree.cache import append
from jddtree.config import drafter_config
from jddtree.models.dflash import DFlash
from jddtree.models.layers import Linear, PackedLinear
from tests import tiny

FLOAT32 = jnp.dtype(jnp.float32)
NESTED = tiny.DFLASH["dflash_config"]
ANCHOR, LENGTHS = jnp.array([7, 0], jnp.int32), jnp.array([5, 2], jnp.int32)


def context(drafter: DFlash, features: jax.Array, start: int, cache=None):
    """The cache after features of positions ``start`` and up, the same for both rows."""
    count = features.shape[1]
    positions = jnp.broadcast_to(start + jnp.arange(count, dtype=jnp.int32), features.shape[:2])
    cache = drafter.new_cache(2, 8, FLOAT32) if cache is None else cache
    at, many = (jnp.full((2,), value, jnp.int32) for value in (start, count))
    return append(cache, drafter.context(features, positions), many, at)


@jax.jit
def drafted(target, drafter, features, lengths=LENGTHS):
    return drafter.draft(target, ANCHOR, lengths, context(drafter, features, 0))


def features() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (2, 5, 64))


@dataclass(frozen=True)
class Recorder:
    """A target that remembers what it is asked to embed; its head changes nothing."""

    seen: dict

    config = None

    def new_cache(self, rows, slots, dtype):
        raise AssertionError

    def __call__(self, ids, positions, valid, mask, cache, lengths, taps):
        raise AssertionError

    def embed(self, ids):
        self.seen["ids"] = ids
        return jax.nn.one_hot(ids, 32)

    def logits(self, hidden):
        return hidden


@jax.jit
def watched(drafter, features):
    """What the drafter embeds and drafts, and what its block makes of the same embeddings."""
    target, cache = Recorder({}), context(drafter, features, 0)
    logits = drafter.draft(target, ANCHOR, LENGTHS, cache)
    positions = LENGTHS[:, None] + jnp.arange(4, dtype=jnp.int32)
    hidden, outputs = drafter.block(jax.nn.one_hot(target.seen["ids"], 32), positions, cache, LENGTHS)
    return target.seen["ids"], logits, hidden, outputs


def test_the_block_is_the_anchor_then_masks_and_the_anchors_slot_is_not_scored():
    ids, logits, hidden, outputs = watched(tiny.drafter(), features())
    assert ids.tolist() == [[7, 49, 49, 49], [0, 49, 49, 49]]
    assert len(outputs) == 2
    np.testing.assert_allclose(logits, hidden[:, 1:], atol=1e-6)


def test_what_is_past_the_length_does_not_count_and_what_is_before_does():
    target, drafter = tiny.target(tiny.QWEN3), tiny.drafter()
    usual = drafted(target, drafter, features())
    late = drafted(target, drafter, features().at[:, 2:].add(3.0))
    # The second row has two committed tokens, the first has five.
    np.testing.assert_allclose(late[1], usual[1], atol=1e-5)
    assert np.abs(late[0] - usual[0]).max() > 0.01
    early = drafted(target, drafter, features().at[:, 0].add(3.0))
    assert np.abs(early[1] - usual[1]).max() > 0.01


def test_context_in_pieces_is_context_at_once():
    drafter, jitted = tiny.drafter(), jax.jit(context, static_argnums=2)
    whole = jitted(drafter, features(), 0)
    pieces = jitted(drafter, features()[:, 3:], 3, jitted(drafter, features()[:, :3], 0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), pieces, whole)


def test_scale_multiplier_and_cap():
    target, plain = tiny.target(tiny.QWEN3), tiny.drafter()
    changed = {"output_multiplier": 0.5, "final_logit_softcapping": 2.0}
    head_only = tiny.drafter(tiny.DFLASH | {"dflash_config": NESTED | changed})
    logits = drafted(target, plain, features())
    assert np.abs(logits).max() > 2
    wanted = 2.0 * np.tanh(np.asarray(logits) * 0.5 / 2.0)
    np.testing.assert_allclose(drafted(target, head_only, features()), wanted, atol=1e-4)
    scaled = tiny.drafter(tiny.DFLASH | {"dflash_config": NESTED | {"input_embedding_scale": 3.0}})
    loud = tiny.target(tiny.QWEN3 | {"tie_word_embeddings": False})
    loud.embed_tokens.weight.set_value(loud.embed_tokens.weight[...] * 3.0)
    np.testing.assert_allclose(
        drafted(target, scaled, features()), drafted(loud, plain, features()), atol=1e-4
    )
    assert np.abs(drafted(loud, plain, features()) - logits).max() > 0.01


def test_at_the_last_positions_earlier_slots_stay_as_they_were():
    """Slots past the end do not leave the range; the ones that may be used keep their positions."""
    target = tiny.target(tiny.QWEN3)
    windows = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 6}
    far = tiny.drafter(tiny.DFLASH | windows)
    near = tiny.drafter(tiny.DFLASH | windows | {"max_position_embeddings": 7})
    # Five committed tokens: the anchor at 5, a draft at 6, and two slots past the end of seven.
    full, cut = (np.asarray(drafted(target, drafter, features())) for drafter in (far, near))
    np.testing.assert_allclose(cut[0, 0], full[0, 0], atol=1e-5)  # causal: later slots are not seen
    np.testing.assert_allclose(cut[1], full[1], atol=1e-5)
    assert np.isfinite(cut).all()


@pytest.mark.parametrize("rounding", ["bfloat16", "float32"])
def test_packed_linears_are_their_dequantised_twins(rounding):
    names = frozenset({"fc", "layers.0.self_attn.q_proj", "layers.1.mlp.down_proj"})
    config = drafter_config(tiny.DFLASH)
    packed = DFlash(config, packed=names, rounding=rounding, rngs=nnx.Rngs(1))
    twin = DFlash(config, rngs=nnx.Rngs(1))
    linears = [
        (packed.fc, twin.fc),
        (packed.layers[0].self_attn.q_proj, twin.layers[0].self_attn.q_proj),
        (packed.layers[1].mlp.down_proj, twin.layers[1].mlp.down_proj),
    ]
    for own, other in linears:
        assert isinstance(own, PackedLinear) and isinstance(other, Linear)
        other.weight.set_value(own.dense(FLOAT32))
    # The other weights of the two are made from the same draws.
    target = tiny.target(tiny.QWEN3)
    np.testing.assert_allclose(
        drafted(target, packed, features()), drafted(target, twin, features()), atol=1e-5
    )


def test_what_the_decoder_asks_of_a_drafter():
    drafter = tiny.drafter(tiny.DFLASH | {"dflash_config": NESTED | {"target_layer_ids": [1, 0, 1]}})
    assert (drafter.block_size, drafter.target_layers, drafter.max_position) == (4, (1, 0, 1), 400)
    assert drafter.fc.weight[...].shape == (32, 96)
