"""Mixture of experts as Kimi K2 has it: sigmoid router with a selection bias, routed experts, a shared
expert.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jddtree import sharding
from jddtree.config import KimiK2Config
from jddtree.models.layers import MLP, Linears
from jddtree.quantization import quantize
from pallas_kernels.grouped_matmul import api, mosaic, tiles
from pallas_kernels.grouped_matmul.api import Int4
from pallas_kernels.routing.api import Rule, route


class Router(nnx.Module):
    """Chooses experts (spec kimi 2.5). Logits, scores and bias are float32 throughout."""

    def __init__(self, config: KimiK2Config, linears: Linears):
        shape = (config.num_experts, config.hidden_size)
        self.weight = nnx.Param(
            jax.random.normal(linears.rngs.params(), shape, linears.dtype) * config.hidden_size**-0.5
        )
        self.e_score_correction_bias = nnx.Param(jnp.zeros((config.num_experts,), jnp.float32))
        self.config = config

    def logits(self, x: Float[Array, "T M"]) -> Float[Array, "T E"]:
        """Of all experts, float32, without the bias."""
        weight, precision = self.weight[...], None
        if x.dtype != jnp.bfloat16 or weight.dtype != jnp.bfloat16:
            # Where both are bfloat16 every product is exact in float32 as it is, without a wider copy.
            x, weight = x.astype(jnp.float32), weight.astype(jnp.float32)
            precision = jax.lax.Precision.HIGHEST
        return jnp.matmul(x, weight.T, precision=precision, preferred_element_type=jnp.float32)

    def __call__(
        self, x: Float[Array, "_ M"], valid: Bool[Array, " T"]
    ) -> tuple[Int[Array, "T K"], Float[Array, "T K"]]:
        """Expert ids of the first T tokens of x, -1 where not valid, and weights: sigmoid scores, normalised,
        then scaled.
        """
        c = self.config
        rule = Rule(
            chosen=c.experts_per_token,
            groups=c.num_groups,
            kept_groups=c.topk_groups,
            normalised=c.norm_topk_prob,
            scale=c.routed_scaling_factor,
        )
        return route(self.logits(x)[: len(valid)], self.e_score_correction_bias[...], valid, rule)


class ExpertWeights(nnx.Module):
    """One projection of all experts, [E, out, in]: INT4 as published, or plain."""

    def __init__(self, experts: int, out_size: int, in_size: int, packed: bool, linears: Linears):
        weight = jax.random.normal(linears.rngs.params(), (experts, out_size, in_size), linears.dtype)
        weight = weight * in_size**-0.5
        if packed:
            int4 = quantize(weight)
            self.weight_packed, self.weight_scale = nnx.Param(int4.packed), nnx.Param(int4.scale)
        else:
            self.weight = nnx.Param(weight)

    def stored(self) -> Int4 | Float[Array, "E out in"]:
        """The weights in the form the kernel takes."""
        if hasattr(self, "weight"):
            return self.weight[...]
        return Int4(self.weight_packed[...], self.weight_scale[...])


class Experts(nnx.Module):
    """The routed experts of a layer, stacked: ``gate_proj``, ``up_proj`` and ``down_proj`` as published, or
    ``gate_up_tiles`` and ``down_tiles`` in the order that a kernel reads (`tile`).
    """

    gate_proj: ExpertWeights
    up_proj: ExpertWeights
    down_proj: ExpertWeights

    def __init__(self, config: KimiK2Config, path: str, linears: Linears):
        sizes = {
            "gate_proj": (config.moe_intermediate_size, config.hidden_size),
            "up_proj": (config.moe_intermediate_size, config.hidden_size),
            "down_proj": (config.hidden_size, config.moe_intermediate_size),
        }
        for name, (out_size, in_size) in sizes.items():
            packed = f"{path}.{name}" in linears.packed
            setattr(self, name, ExpertWeights(config.num_experts, out_size, in_size, packed, linears))
        self.rounding = linears.rounding

    def __call__(
        self, x: Float[Array, "_ M"], ids: Int[Array, "T K"], weights: Float[Array, "T K"]
    ) -> Float[Array, "T M"]:
        """The sum over this device's experts, or its part of each, of the first T tokens of x."""
        experts = self.stored()
        own = sharding.own_experts(ids, jax.tree.leaves(experts)[0].shape[0])
        return api.expert_mlp(x, own, weights, experts, rounding=self.rounding)

    def stored(self) -> api.Experts | tiles.ExpertTiles:
        """The weights in the form the kernels take."""
        if hasattr(self, "gate_up_tiles"):
            return tiles.ExpertTiles(self.gate_up_tiles[...], self.down_tiles[...])
        return api.Experts(self.gate_proj.stored(), self.up_proj.stored(), self.down_proj.stored())

    def tile(self, place: Callable[[str], NamedSharding] | None) -> None:
        """Hold the weights as tiles from now on, every device its own; ``place`` as in `tile_experts`.

        Raises NotImplementedError for sizes that tiles do not divide.
        """
        gate, up, down = (weight.stored() for weight in (self.gate_proj, self.up_proj, self.down_proj))
        pack = jax.jit(tiles.pack)
        if place is not None:
            read = [place(f"{name}.weight_packed") for name in ("gate_proj", "up_proj", "down_proj")]
            written = [place(name).spec for name in ("gate_up_tiles", "down_tiles")]
            pack = _pack_on_mesh(read[0].mesh, tuple(where.spec for where in read), tuple(written))
        # Waited for: weights of layers to come, packed before these are let go, would fill the device.
        packed = jax.block_until_ready(pack(gate, up, down))
        del self.gate_proj, self.up_proj, self.down_proj
        self.gate_up_tiles, self.down_tiles = nnx.Param(packed.gate_up), nnx.Param(packed.down)


@cache
def _pack_on_mesh(mesh: Mesh, read: tuple[PartitionSpec, ...], written: tuple[Any, ...]) -> Callable:
    """`tiles.pack` of every device's own parts; layers alike share one program."""
    out_specs = tiles.ExpertTiles(*written)
    return jax.jit(jax.shard_map(tiles.pack, mesh=mesh, in_specs=read, out_specs=out_specs, check_vma=False))


def tile_experts(
    model: nnx.Module, dtype: jnp.dtype, place: Callable[[str], NamedSharding] | None = None
) -> None:
    """Repack the INT4 experts of a model that computes in ``dtype``, a layer at a time, where a kernel for
    this device reads tiles. ``place`` gives, over a mesh, where the array at a dotted path lies.
    """
    # Only these are kept while the loop runs: a list of all modules would keep the weights that are let go.
    found = [(path, module) for path, module in nnx.iter_modules(model) if isinstance(module, Experts)]
    for path, module in found:
        if not mosaic.supports(dtype, module.rounding):
            continue
        if not all(isinstance(weight, Int4) for weight in module.stored()):
            continue
        at = ".".join(map(str, path))
        try:
            module.tile(place and (lambda name, at=at: place(f"{at}.{name}")))
        except NotImplementedError:
            continue


class MoE(nnx.Module):
    """Routed experts plus the shared expert, which is neither gated nor scaled."""

    def __init__(self, config: KimiK2Config, path: str, linears: Linears):
        self.gate = Router(config, linears)
        self.experts = Experts(config, f"{path}.experts", linears)
        if config.num_shared_experts:
            width = config.moe_intermediate_size * config.num_shared_experts
            self.shared_experts = MLP(f"{path}.shared_experts", config.hidden_size, width, linears)

    def __call__(
        self, x: Float[Array, "B N M"], valid: Bool[Array, "B R"]
    ) -> tuple[Float[Array, "B N M"], Int[Array, "B R K"]]:
        """Output, and the experts that each row's first R slots went to; slots that are not valid, and those
        behind, go to none (-1).
        """
        # See `jddtree.models.layers.MLP`.
        x = jax.lax.optimization_barrier(x)
        rows, slots = valid.shape
        # A single row's first slots come first, and need no copying.
        tokens = x[0] if rows == 1 else x[:, :slots].reshape(valid.size, -1)
        ids, weights = self.gate(tokens, valid.reshape(-1))
        y = self.experts(tokens, ids, weights).reshape(rows, slots, -1)
        y = jnp.pad(y, ((0, 0), (0, x.shape[1] - slots), (0, 0)))
        if hasattr(self, "shared_experts"):
            shared = self.shared_experts
            # Float32 as the router's logits are, or XLA would not make one product of all three.
            gate, up = (
                jnp.matmul(x, each.dense(x.dtype).T, preferred_element_type=jnp.float32).astype(x.dtype)
                for each in (shared.gate_proj, shared.up_proj)
            )
            y = y + shared.down_proj(jax.nn.silu(gate) * up)
        return sharding.total(y), ids.reshape(*valid.shape, -1)
