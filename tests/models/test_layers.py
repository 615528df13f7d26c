"""Shared parts. YaRN tables are judged by the golden ones, which `jddtree.compare.goldens` runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jddtree import sharding
from jddtree.checkpoint.skeleton import array_paths
from jddtree.config import Rope, target_config
from jddtree.models.layers import (
    FLOAT32,
    MLP,
    Linear,
    Linears,
    PackedLinear,
    RMSNorm,
    join_mlps,
    rope_tables,
    rotate_halves,
    rotate_pairs,
    unpack_linears,
)
from jddtree.models.moe import MoE
from pallas_kernels import device
from pallas_kernels.norm import rms_norm
from tests import tiny


def test_plain_positions_rotate_by_theta_to_the_minus_2j_over_dim():
    positions = np.array([[0, 1, 70]], np.int32)
    cos, sin = rope_tables(Rope(100.0, None), 4, jnp.asarray(positions))
    angles = positions[..., None] * np.array([1.0, 0.1])
    np.testing.assert_allclose(cos, np.cos(angles), atol=2e-6)
    np.testing.assert_allclose(sin, np.sin(angles), atol=2e-6)


@pytest.mark.parametrize("rotate", [rotate_halves, rotate_pairs])
def test_pairs_turn_as_complex_numbers(rotate):
    x = np.random.default_rng(0).normal(size=(1, 3, 2, 8)).astype(np.float32)
    angles = np.random.default_rng(1).uniform(0, 6, (1, 3, 4)).astype(np.float32)
    result = np.asarray(rotate(jnp.asarray(x), jnp.cos(angles), jnp.sin(angles)))
    low, high = (x[..., :4], x[..., 4:]) if rotate is rotate_halves else (x[..., 0::2], x[..., 1::2])
    turned = (low + 1j * high) * np.exp(1j * angles)[:, :, None]
    np.testing.assert_allclose(result, np.concatenate([turned.real, turned.imag], axis=-1), atol=1e-5)


def test_norm_statistics_are_float32_and_the_weight_comes_after_the_cast():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 64)) * 30, jnp.bfloat16)
    weight = jnp.asarray(np.random.default_rng(1).normal(size=64), jnp.bfloat16)
    result = rms_norm(x, weight, 1e-6)
    wide = np.asarray(x, np.float32)
    scaled = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    assert result.dtype == jnp.bfloat16
    wanted = weight * jnp.asarray(scaled, jnp.bfloat16)
    # One step of bfloat16: float32 statistics may round an element the other way.
    np.testing.assert_allclose(np.asarray(result, np.float32), np.asarray(wanted, np.float32), rtol=2**-7)
    assert np.mean(np.asarray(result) == np.asarray(wanted)) > 0.98
    np.testing.assert_allclose(RMSNorm(4, 3.0, FLOAT32)(jnp.ones((1, 4))), 0.5)


@pytest.mark.parametrize("rounding", ["bfloat16", "float32"])
def test_a_packed_linear_is_its_dequantised_twin(rounding):
    packed = PackedLinear(24, 64, rounding, nnx.Rngs(0))
    twin = Linear(24, 64, FLOAT32, nnx.Rngs(1))
    twin.weight.set_value(packed.dense(FLOAT32))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 64)), jnp.float32)
    np.testing.assert_array_equal(packed(x), twin(x))
    assert packed(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", [FLOAT32, jnp.dtype(jnp.bfloat16)])
def test_packed_linears_of_a_model_are_unpacked_once(dtype):
    linears = Linears(frozenset({"mlp.up_proj", "mlp.down_proj"}), "bfloat16", dtype, nnx.Rngs(0))
    mlp = MLP("mlp", 32, 64, linears, bias=True)
    for number, linear in enumerate((mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        linear.bias.set_value(jnp.full_like(linear.bias[...], number + 1))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32)), dtype)
    wanted = mlp(x)
    unpack_linears(mlp, dtype, lambda _, weight: weight)
    assert {type(linear) for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)} == {Linear}
    assert mlp.up_proj.weight[...].dtype == dtype
    np.testing.assert_array_equal(mlp(x), wanted)


def test_the_mlp_gates_with_silu_and_packs_the_layers_that_are_named():
    linears = Linears(frozenset({"layers.0.mlp.up_proj"}), "bfloat16", FLOAT32, nnx.Rngs(0))
    mlp = MLP("layers.0.mlp", 32, 64, linears)
    assert isinstance(mlp.up_proj, PackedLinear) and isinstance(mlp.gate_proj, Linear)
    x = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32)
    gate, up, down = (np.asarray(part.dense(FLOAT32)) for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    opened = x @ gate.T
    wanted = (opened / (1 + np.exp(-opened)) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(mlp(jnp.asarray(x)), wanted, atol=1e-5)


@pytest.mark.parametrize("layout", ["tp1", "ep2xtp2"])
def test_a_joined_mlp_gives_the_same(layout, monkeypatch):
    layout, config = sharding.Layout.parse(layout), target_config(tiny.KIMI)
    linears = Linears(frozenset(), "bfloat16", FLOAT32, nnx.Rngs(0))
    model = nnx.Dict(mlp=MLP("mlp", 32, 64, linears))
    gate, up = (each.weight[...] for each in (model.mlp.gate_proj, model.mlp.up_proj))
    x = jax.random.normal(jax.random.key(1), (2, 3, 32))
    wanted = model.mlp(x)
    mesh = layout.mesh()

    def place(name: str) -> NamedSharding:
        return NamedSharding(mesh, sharding.parameter_spec(layout, config, name))

    join_mlps(model, place)
    assert hasattr(model.mlp, "gate_proj")  # not for a CPU
    monkeypatch.setattr(device, "is_gpu", lambda: True)
    join_mlps(model, None if layout.size == 1 else place)
    specs = {name: place(name).spec for name, _ in array_paths(nnx.eval_shape(lambda: model))}
    assert list(specs) == ["mlp.down_proj.weight", "mlp.gate_up"]
    joined = model.mlp.gate_up[...]
    np.testing.assert_array_equal(joined, jnp.stack([gate, up]))
    weights, form = jax.tree.flatten(model)
    run = lambda parts, x: jax.tree.unflatten(form, parts).mlp(x)  # noqa: E731
    if layout.size > 1:
        assert joined.sharding.spec == specs["mlp.gate_up"] == PartitionSpec(None, ("expert", "tensor"))
        specs = (list(specs.values()), PartitionSpec())
        run = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    np.testing.assert_allclose(jax.jit(run)(weights, x), wanted, rtol=1e-5, atol=1e-6)


def test_mlps_with_biases_or_int4_and_shared_experts_are_not_joined(monkeypatch):
    monkeypatch.setattr(device, "is_gpu", lambda: True)
    linears = Linears(frozenset({"int4.up_proj"}), "bfloat16", FLOAT32, nnx.Rngs(0))
    moe = MoE(target_config(tiny.KIMI), "moe", linears)
    model = nnx.Dict(
        biased=MLP("biased", 32, 64, linears, bias=True), int4=MLP("int4", 32, 64, linears), moe=moe
    )
    names = [name for name, _ in array_paths(nnx.eval_shape(lambda: model))]
    join_mlps(model)
    assert [name for name, _ in array_paths(nnx.eval_shape(lambda: model))] == names
