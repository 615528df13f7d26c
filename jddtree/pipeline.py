"""The layers of a target, one after another, and stages: layers shared out over devices.

A program is the same on every device, so the k-th layers of all stages are one set of arrays: [first, ...]
of a layer becomes [stages x first, ...], whose parts over the axis ``stage`` are the layers' own. Rows go
through in as many parts as there are stages, where they can be divided so, and a stage works on one part
while the next stage works on the part before. A part needs a turn a stage, so P parts take P + stages - 1
turns, in each of which every stage reads its weights; a turn without work is as long as any other. A single
row waits for all stages in turn: stages are for capacity, and for many rows.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, UInt32

from jddtree.models.layers import norm_of
from jddtree.models.target import Pass
from jddtree.pytree import pytree_dataclass
from jddtree.sharding import (
    Config,
    Layout,
    first_staged,
    here,
    inside_stage,
    parameter_specs,
    stage_place,
    stage_sizes,
)

Norm = Callable[[Array], Array]
"""Of the residual stream, [B, N, M] to [B, N, M]."""


@pytree_dataclass
class Slots:
    """What layers know of a pass besides its activations. See `jddtree.models.target.Target`.

    N slots, of which those after the first R, those that ``valid`` has, are there for kernels' sake alone.
    """

    rope: tuple[Float[Array, "B N half"], Float[Array, "B N half"]]
    positions: Int[Array, "B N"]
    valid: Bool[Array, "B R"]
    mask: UInt32[Array, "_ N W"]
    lengths: Int[Array, " B"]


def run_layers(
    config: Config,
    layers: Sequence[Any],
    norm: Norm,
    x: Float[Array, "B N M"],
    slots: Slots,
    cache: Any,
    taps: tuple[int, ...],
) -> Pass:
    """Every layer in turn, then ``norm``.

    ``layer(x, normed, following, slots, cache)`` takes x beside its norm by the layer's own input_layernorm,
    and gives x beside its norm by ``following``, its fresh keys and values, and the experts that it chose or
    None. So one kernel may add to x and normalise it, or leave the norm to the next (`Unnormed`).
    """
    first, outputs, fresh, experts = first_staged(here(), config), {}, [], []
    unstaged = list(layers[: min(first, len(layers))])
    norms = [*(layer.input_layernorm for layer in unstaged), norm]
    normed = norms[0](x)
    for index, layer in enumerate(unstaged):
        x, normed, layer_fresh, chosen = layer(x, normed, norms[index + 1], slots, cache[index])
        outputs[index] = x
        fresh.append(layer_fresh)
        experts += [] if chosen is None else [chosen]
    if first < config.num_layers:
        sizes = stage_sizes(config.num_layers - first, here().stage)
        wanted = [tap - first for tap in taps if tap >= first]
        x, tapped, staged_fresh, chosen = _run_stages(layers[first:], sizes, x, slots, cache[first:], wanted)
        outputs |= {first + tap: output for tap, output in zip(wanted, tapped, strict=True)}
        normed = norm(x)
        fresh += staged_fresh
        experts += chosen
    features = jnp.concatenate([outputs[tap] for tap in taps], axis=-1) if taps else x[..., :0]
    asked = slots.valid.shape[1]
    return Pass(norm_of(normed)[:, :asked], features[:, :asked], tuple(fresh), tuple(experts))


def rows_at_once(rows: int) -> int:
    """Rows that a layer works on together, of so many that this device has."""
    return rows // math.gcd(rows, here().stage)


def new_caches(config: Config, layers: Sequence[Any], make: Callable[[], Any]) -> tuple[Any, ...]:
    """``make()`` for every layer."""
    first = min(first_staged(here(), config), len(layers))
    caches = [make() for _ in range(first)]
    with inside_stage():
        return tuple(caches + [make() for _ in range(first, len(layers))])


def _run_stages(
    layers: Sequence[Any],
    sizes: tuple[int, ...],
    x: Float[Array, "B N M"],
    slots: Slots,
    cache: Sequence[Any],
    taps: Sequence[int],
) -> tuple[Array, list[Array], list[Any], list[Array]]:
    """x, the outputs of the layers ``taps``, the fresh keys and values of this stage's own layers, and every
    layer's experts.
    """
    stages, rows = len(sizes), x.shape[0]
    stage = jax.lax.axis_index("stage")
    parts = rows // rows_at_once(rows)
    slots = Slots(
        slots.rope,
        slots.positions,
        slots.valid,
        jnp.broadcast_to(slots.mask, (rows, *slots.mask.shape[1:])),
        slots.lengths,
    )

    def part_of(tree: Any, begin: Array) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, rows // parts), tree)

    def own_layers(x: Array, slots: Slots, cache: Sequence[Any]) -> tuple[Array, list, list, list]:
        outputs, fresh, experts = [], [], []
        for index, (layer, layer_cache) in enumerate(zip(layers, cache, strict=True)):
            # Which norm follows depends on the stage: every layer makes its own.
            own = layer.input_layernorm
            y, _, layer_fresh, chosen = layer(x, own(x), own, slots, layer_cache)
            # Stages at the end may lack the last layer.
            x = y if index < sizes[-1] else jnp.where(stage < sizes.count(sizes[0]), y, x)
            outputs.append(x)
            fresh.append(layer_fresh)
            experts.append(chosen)
        return x, [outputs[place[1]] for place in places], fresh, experts

    def turn(number: Array, carry: tuple) -> tuple:
        passed_on, results = carry
        part = number - stage
        working = (part >= 0) & (part < parts)
        begin = jnp.clip(part, 0, parts - 1) * (rows // parts)
        own = part_of(slots, begin)
        own = Slots(own.rope, own.positions, own.valid & working, own.mask, own.lengths)
        came = jnp.where(stage == 0, part_of(x, begin), passed_on)
        found = own_layers(came, own, part_of(cache, begin))

        def put(all_rows: Array, new: Array) -> Array:
            kept = jnp.where(working, new, part_of(all_rows, begin))
            return jax.lax.dynamic_update_slice_in_dim(all_rows, kept, begin, axis=0)

        results = jax.tree.map(put, results, found)
        return jax.lax.ppermute(found[0], "stage", [(i, i + 1) for i in range(stages - 1)]), results

    places = [stage_place(tap, sizes) for tap in taps]
    with inside_stage():
        shapes = jax.eval_shape(own_layers, x, slots, cache)
        results = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        carry = jnp.zeros_like(x[: rows // parts]), results
        _, (last, tapped, fresh, experts) = jax.lax.fori_loop(0, parts + stages - 1, turn, carry)
    # What one stage alone knows goes to all of them.
    from_stages = [(last, stages - 1), *zip(tapped, (place[0] for place in places), strict=True)]
    held = jnp.stack([jnp.where(stage == owner, value, 0) for value, owner in from_stages])
    last, *tapped = jax.lax.psum(held, "stage")
    chosen: list[Array] = []
    if experts[0] is not None:
        every = jax.lax.all_gather(experts, "stage")
        chosen = [every[index][owner] for owner, size in enumerate(sizes) for index in range(size)]
    return last, tapped, fresh, chosen


def stacked(model: Any, layout: Layout) -> Any:
    """The form in which an abstract target is cut into stages: its layers are those that stages do not share
    out, then one for every layer of the longest stage. Shorter stages leave the last of these unused (zeros).
    """
    first, stages = first_staged(layout, model.config), layout.stage
    slots = stage_sizes(model.config.num_layers - first, stages)[0]

    def widen(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((stages * leaf.shape[0], *leaf.shape[1:]), leaf.dtype)

    layers = list(model.layers)
    staged = [jax.tree.map(widen, layer) for layer in layers[first : first + slots]]
    copy = jax.tree.map(lambda leaf: leaf, model)
    copy.layers = nnx.List([*layers[:first], *staged])
    return copy


def assembled(model: Any, layout: Layout, mesh: Mesh) -> Any:
    """A target in the form of `stacked` from one whose arrays lie as `jddtree.sharding.placement` says.
    Nothing is copied.
    """
    config, first = model.config, first_staged(layout, model.config)
    form = stacked(nnx.eval_shape(lambda: model), layout)
    specs = parameter_specs(layout, form)
    sizes = stage_sizes(config.num_layers - first, layout.stage)
    missing = [stage for stage, size in enumerate(sizes) if size < sizes[0]]

    def join(shape: jax.ShapeDtypeStruct, spec: PartitionSpec, *parts: Array) -> Array:
        sharding = NamedSharding(mesh, spec)
        shards = [shard.data for part in parts for shard in part.addressable_shards]
        if len(parts) < layout.stage:
            nothing = np.zeros(sharding.shard_shape(shape.shape), shape.dtype)
            idle = mesh.devices[:, missing].flatten()
            local = [device for device in idle if device.process_index == jax.process_index()]
            shards += [jax.device_put(nothing, device) for device in local]
        return jax.make_array_from_single_device_arrays(shape.shape, sharding, shards)

    joined = list(model.layers[:first])
    for slot in range(sizes[0]):
        of_stages = [
            model.layers[first + sum(sizes[:stage]) + slot]
            for stage in range(layout.stage)
            if slot < sizes[stage]
        ]
        joined.append(jax.tree.map(join, form.layers[first + slot], specs.layers[first + slot], *of_stages))
    model.layers = nnx.List(joined)
    return model
