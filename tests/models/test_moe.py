"""Routing. Groups are judged by golden data, which `jddtree.compare.goldens` runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jddtree import sharding
from jddtree.checkpoint.skeleton import array_paths
from jddtree.config import target_config
from jddtree.models.layers import FLOAT32, Linears
from jddtree.models.moe import MoE, Router, tile_experts
from pallas_kernels.grouped_matmul import mosaic
from tests.tiny import EXPERTS, KIMI

jitted = jax.jit(lambda module, *arguments: module(*arguments))


def tokens(count: int) -> jax.Array:
    return jax.random.normal(jax.random.key(3), (count, 32))


@pytest.mark.parametrize("normalised", [True, False])
def test_the_bias_chooses_but_does_not_weigh(normalised):
    config = target_config(KIMI | {"norm_topk_prob": normalised})
    router = Router(config, Linears(frozenset(), "bfloat16", FLOAT32, nnx.Rngs(0)))
    bias = np.array([0.0, 5.0, -5.0, 0.0], np.float32)
    router.e_score_correction_bias.set_value(jnp.asarray(bias))
    ids, weights = jitted(router, tokens(20), jnp.ones(20, bool))
    scores = 1 / (1 + np.exp(-np.asarray(tokens(20), np.float64) @ np.asarray(router.weight[...]).T))
    wanted = np.argsort(-(scores + bias), axis=-1)[:, :2]
    np.testing.assert_array_equal(np.sort(ids), np.sort(wanted))
    assert (np.asarray(ids) == 1).any(-1).all() and not (np.asarray(ids) == 2).any()
    shares = np.take_along_axis(scores, np.asarray(ids), axis=-1)
    shares = shares / shares.sum(-1, keepdims=True) if normalised else shares
    np.testing.assert_allclose(weights, 2.5 * shares, atol=1e-5)


def test_logits_of_bfloat16_tokens_are_those_of_float32():
    router = Router(
        target_config(KIMI), Linears(frozenset(), "bfloat16", jnp.dtype(jnp.bfloat16), nnx.Rngs(0))
    )
    x = tokens(20).astype(jnp.bfloat16)
    logits = np.asarray(x, np.float64) @ np.asarray(router.weight[...], np.float64).T
    found = jax.jit(lambda module, x: module.logits(x))(router, x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, logits, atol=1e-5)


def test_slots_that_are_not_valid_go_to_no_expert_and_change_nothing():
    moe = MoE(target_config(KIMI), "layers.1.mlp", Linears(EXPERTS, "bfloat16", FLOAT32, nnx.Rngs(0)))
    x = tokens(6).reshape(2, 3, 32)
    valid = jnp.array([[True, True, False], [True, False, False]])
    y, experts = jitted(moe, x, valid)
    everything, chosen = jitted(moe, x, jnp.ones_like(valid))
    assert (experts[~valid] == -1).all()
    np.testing.assert_array_equal(experts[valid], chosen[valid])
    np.testing.assert_allclose(y[valid], everything[valid], atol=1e-6)
    np.testing.assert_allclose(y[~valid], moe.shared_experts(x)[~valid], atol=1e-6)
    assert np.abs(y[~valid] - everything[~valid]).max() > 0.1


def test_a_model_may_have_no_shared_expert():
    config = target_config(KIMI | {"n_shared_experts": 0})
    moe = MoE(config, "layers.1.mlp", Linears(EXPERTS, "bfloat16", FLOAT32, nnx.Rngs(0)))
    y, _ = jitted(moe, tokens(2)[None], jnp.zeros((1, 2), bool))
    assert np.asarray(y).tolist() == np.zeros((1, 2, 32)).tolist()


@pytest.mark.parametrize("layout", ["tp1", "ep2xtp2"])
def test_experts_as_tiles_give_the_same(layout, monkeypatch):
    wide = {"hidden_size": 64, "moe_intermediate_size": 128, "n_shared_experts": 0}
    config = target_config(KIMI | wide)

    def new() -> nnx.Module:
        return nnx.Dict(mlp=MoE(config, "layers.1.mlp", Linears(EXPERTS, "bfloat16", FLOAT32, nnx.Rngs(0))))

    layout, published, tiled = sharding.Layout.parse(layout), new(), new()
    mesh = layout.mesh()

    def place(name: str) -> NamedSharding:
        return NamedSharding(mesh, sharding.parameter_spec(layout, config, f"layers.1.{name}"))

    tile_experts(tiled, FLOAT32, place)
    assert hasattr(tiled.mlp.experts, "gate_proj")  # no kernel for tiles here
    with monkeypatch.context() as there:
        there.setattr(mosaic, "supports", lambda *_: True)
        tile_experts(tiled, FLOAT32, None if layout.size == 1 else place)
    x, valid = jax.random.normal(jax.random.key(1), (1, 5, 64)), jnp.ones((1, 5), bool)
    wanted, experts = jitted(published.mlp, x, valid)
    weights, form = jax.tree.flatten(tiled)
    down = (4, 1, 1, 9, 128) if layout.size == 1 else (4, 1, 2, 9, 64)
    assert {leaf.shape for leaf in weights if leaf.ndim == 5} == {(4, 2, 1, 18, 64), down}
    run = lambda parts, *arguments: jax.tree.unflatten(form, parts).mlp(*arguments)  # noqa: E731
    if layout.size > 1:
        specs = [place(name).spec for name, _ in array_paths(nnx.eval_shape(lambda: tiled))]
        specs = (specs, PartitionSpec(), PartitionSpec())
        run = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    found, chosen = jax.jit(run)(weights, x, valid)
    np.testing.assert_array_equal(chosen, experts)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
