"""Layouts: how weights, caches and rows are cut over devices. Only this file names mesh axes.

A layout is a product of four sizes: ``dp`` copies of the weights that share out the rows, ``pp`` stages of
layers, ``ep`` groups of experts, ``tp`` parts of everything else. Attention heads, the vocabulary and the
width of dense and shared MLPs are cut over the stages, experts and tensor axes together, so ``ep8`` cuts
attention as ``tp8`` does; only the layers that stages share out are cut by the last two alone.

Programs run inside one `jax.shard_map` over all axes: model code sees its own device's part of every array
and says itself where parts are put together. So no choice is left to the compiler, and kernels, which it
could not cut, see plain arrays. Without a mesh the same calls do nothing.
"""

import math
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int

from jddtree.config import DenseConfig, DFlashConfig, KimiK2Config
from jddtree.errors import InputError
from jddtree.pytree import dotted
from jddtree.quantization import GROUP

Config = KimiK2Config | DenseConfig | DFlashConfig

AXES = ("data", "stage", "expert", "tensor")
_SHORT = ("dp", "pp", "ep", "tp")
_WIDTH = ("stage", "expert", "tensor")
"""What heads, vocabulary and MLP widths are cut over; inside a stage without the first."""

# What each dimension of an array is cut by, by the end of the array's path; the rest is on every device.
# INT4 words outside of experts are dequantised when they are loaded: only rows of them are cut before.
_CUTS: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"(embed_tokens|lm_head)\.weight", ("width",)),
    (r"experts\.(gate_proj|up_proj)\.weight\w*", ("expert", "tensor")),
    (r"experts\.gate_up_tiles", ("expert", "tensor")),
    (r"experts\.(down_proj\.weight\w*|down_tiles)", ("expert", None, "tensor")),
    (r"(q_b_proj|q_proj|gate_proj|up_proj)\.(weight\w*|bias)", ("width",)),
    (r"gate_up", (None, "width")),
    (r"(k_proj|v_proj)\.(weight\w*|bias)", ("kv heads",)),
    (r"k_up|v_up", ("width",)),
    (r"(o_proj|down_proj)\.weight", (None, "width")),
)


@dataclass(frozen=True)
class Layout:
    """Sizes of the mesh axes."""

    data: int = 1
    stage: int = 1
    expert: int = 1
    tensor: int = 1

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """``tp8``, ``ep4xtp2``, ``dp2xtp4`` and the like, in any order. Raises InputError."""
        sizes: dict[str, int] = {}
        for part in text.split("x"):
            found = re.fullmatch(r"([a-z]*)(\d*)", part)
            name, number = found.groups() if found else (part, "")
            if name not in _SHORT:
                raise InputError(
                    f"layout {text}: no axis is named {name!r}; use dp, pp, ep and tp with numbers, "
                    "as in tp8 or ep4xtp2"
                )
            if not number or int(number) < 1:
                raise InputError(f"layout {text}: {name} needs a number of 1 or more, as in {name}2")
            if name in sizes:
                raise InputError(f"layout {text}: {name} is there twice")
            sizes[name] = int(number)
        return cls(*(sizes.get(name, 1) for name in _SHORT))

    def __str__(self) -> str:
        """What `parse` reads, without sizes of 1 (``tp1`` for a single device)."""
        sizes = zip(_SHORT, astuple(self), strict=True)
        return "x".join(f"{name}{size}" for name, size in sizes if size > 1) or "tp1"

    @property
    def size(self) -> int:
        """How many devices it takes."""
        return math.prod(astuple(self))

    def mesh(self, devices: Sequence[jax.Device] | None = None) -> Mesh:
        """A mesh of the first devices (default: all there are). Raises InputError if they are too few."""
        devices = jax.devices() if devices is None else devices
        if len(devices) < self.size:
            there = f"there {'is' if len(devices) == 1 else 'are'} {len(devices)}"
            raise InputError(f"layout {self} needs {self.size} devices; {there}")
        # `jax.make_mesh` refuses layouts whose axes are not whole sides of a TPU's torus.
        placed = create_device_mesh(astuple(self), devices[: self.size], allow_split_physical_axes=True)
        return Mesh(placed, AXES, axis_types=(AxisType.Auto,) * 4)

    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without devices, for shapes and bytes."""
        return AbstractMesh(astuple(self), AXES, axis_types=(AxisType.Auto,) * 4)

    def axes(self, *names: str) -> tuple[str, ...] | str | None:
        """An entry of a PartitionSpec: those of the axes that cut anything."""
        kept = tuple(name for name in names if getattr(self, name) > 1)
        return kept[0] if len(kept) == 1 else kept or None

    def ways(self, *names: str) -> int:
        """Into how many parts some axes cut together."""
        return math.prod(getattr(self, name) for name in names)


ONE_DEVICE = Layout()


def kv_axes(layout: Layout, heads: int, width: tuple[str, ...] = _WIDTH) -> tuple[str, ...]:
    """Those of the axes ``width``, which cut query heads, that also cut ``heads`` key-value heads: as many
    from the left as divide them. Over the rest every device holds the same group of key-value heads.
    """
    axes: tuple[str, ...] = ()
    for name in width:
        if heads % layout.ways(*axes, name):
            break
        axes = (*axes, name)
    return axes


def first_staged(layout: Layout, config: Config) -> int:
    """The first of the layers that stages share out, all of one kind: those with experts where there are any.
    A drafter has none, and without stages there are none.
    """
    if layout.stage == 1 or isinstance(config, DFlashConfig):
        return config.num_layers
    return config.first_dense_layers if isinstance(config, KimiK2Config) else 0


def is_staged(layout: Layout, config: Config) -> bool:
    """Whether stages share out layers of a model."""
    return first_staged(layout, config) < config.num_layers


def stage_sizes(layers: int, stages: int) -> tuple[int, ...]:
    """Layers a stage, the first stages one more where they cannot be equal."""
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


def stage_place(layer: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Stage of a layer, and its place there; ``layer`` counts from the first that stages share out."""
    stage = 0
    while layer >= sizes[stage]:
        layer -= sizes[stage]
        stage += 1
    return stage, layer


def check(layout: Layout, config: Config, packed: frozenset[str] = frozenset()) -> None:
    """Whether a model can be cut so; ``packed``: its INT4 modules.

    Raises:
        InputError: the line names the dimension that cannot be cut.
    """
    target, inside = not isinstance(config, DFlashConfig), layout.ways(*_WIDTH[1:])
    # Of a target whose layers are all shared out by stages none is cut over stages.
    width = layout.ways(*_WIDTH) if first_staged(layout, config) else inside
    who = "target" if target else "drafter"
    cuts = [("attention heads", config.num_heads, width), ("MLP width", config.intermediate_size, width)]
    if target:
        cuts.append(("vocabulary", config.vocab_size, layout.ways(*_WIDTH)))
    if isinstance(config, KimiK2Config):
        shared = config.moe_intermediate_size * config.num_shared_experts
        cuts += [("experts", config.num_experts, layout.expert)]
        cuts += [("expert width", config.moe_intermediate_size, layout.tensor)]
        cuts += [("width of the shared expert", shared, inside)]
    elif target and layout.expert > 1:
        raise InputError(f"layout {layout}: the target has no experts to cut; use tp in place of ep")
    for what, size, ways in cuts:
        if size % ways:
            raise InputError(f"layout {layout}: the {who}'s {what} ({size}) cannot be cut {ways} ways")
    if isinstance(config, KimiK2Config) and any(".experts." in path for path in packed):
        each = config.moe_intermediate_size // layout.tensor
        if each % GROUP:
            raise InputError(
                f"layout {layout}: the expert width ({config.moe_intermediate_size}) cut {layout.tensor} "
                f"ways gives {each}, which breaks INT4 groups of {GROUP}"
            )
    if not isinstance(config, KimiK2Config):
        own, each = config.num_heads // width, config.num_heads // config.num_kv_heads
        if max(own, each) % min(own, each):
            raise InputError(
                f"layout {layout}: the {who}'s {config.num_kv_heads} key-value heads cannot be shared by "
                f"{width} devices of {own} attention heads each"
            )
    if target and layout.stage > 1:
        _check_stages(layout, config, packed)


def _check_stages(layout: Layout, config: Config, packed: frozenset[str]) -> None:
    first = first_staged(layout, config)
    staged = config.num_layers - first
    if layout.stage > staged:
        raise InputError(f"layout {layout}: {layout.stage} stages for {staged} layers that can be shared out")
    alike = config.moe_layer_freq == 1 if isinstance(config, KimiK2Config) else len(set(config.windows)) == 1
    packings = {
        frozenset(path.split(".", 2)[2] for path in packed if path.startswith(f"layers.{layer}."))
        for layer in range(first, config.num_layers)
    }
    if not alike or len(packings) > 1:
        raise InputError(f"layout {layout}: stages need layers of one kind")


def parameter_spec(layout: Layout, config: Config, name: str) -> PartitionSpec:
    """How the array at the dotted path ``name`` of a target or drafter is cut.

    With more than one stage a target is in the form of `jddtree.pipeline.stacked`.
    """
    layer = re.match(r"layers\.(\d+)\.", name)
    staged = layer is not None and int(layer[1]) >= first_staged(layout, config)
    cuts = next((cuts for ending, cuts in _CUTS if re.search(rf"(^|\.)({ending})$", name)), ())
    width = _WIDTH[1:] if staged else _WIDTH
    axes: dict[str | None, tuple[str, ...]] = {None: (), "expert": ("expert",), "tensor": ("tensor",)}
    axes["width"] = width
    if "kv heads" in cuts and not isinstance(config, KimiK2Config):
        axes["kv heads"] = kv_axes(layout, config.num_kv_heads, width)
    entries = [axes[cut] for cut in cuts] or [()]
    if staged:
        entries[0] = ("stage", *entries[0])
    return _spec(layout, entries)


def parameter_specs(layout: Layout, model: Any) -> Any:
    """`parameter_spec` of every array, in the tree of the model, which may be abstract."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: parameter_spec(layout, model.config, dotted(path)), model
    )


def placement(layout: Layout, mesh: Mesh, config: Config, name: str) -> NamedSharding:
    """Where the array at ``name`` of a model goes that is not yet in the form of `jddtree.pipeline.stacked`:
    layers that stages share out lie on their own stage's devices.
    """
    layer, first = re.match(r"layers\.(\d+)\.", name), first_staged(layout, config)
    if layer is not None and int(layer[1]) >= first:
        stage, _ = stage_place(int(layer[1]) - first, stage_sizes(config.num_layers - first, layout.stage))
        mesh = Mesh(mesh.devices[:, stage : stage + 1], AXES, axis_types=mesh.axis_types)
    return NamedSharding(mesh, parameter_spec(layout, config, name))


def cache_specs(layout: Layout, config: Config, cache: Any) -> Any:
    """A PartitionSpec for every leaf [B, S, J, ...] of a model's cache, one entry a layer. Latent caches have
    one head, which every device holds.
    """
    specs = []
    for index, layer in enumerate(cache):
        staged = index >= first_staged(layout, config)
        heads: tuple[str, ...] = ()
        if not isinstance(config, KimiK2Config):
            heads = kv_axes(layout, config.num_kv_heads, _WIDTH[1:] if staged else _WIDTH)
        spec = _spec(layout, [("stage", "data") if staged else ("data",), (), heads])
        specs.append(jax.tree.map(lambda _, spec=spec: spec, layer))
    return tuple(specs)


def row_specs(layout: Layout, tree: Any) -> Any:
    """For arrays whose first axis is rows."""
    return jax.tree.map(lambda _: _spec(layout, [("data",)]), tree)


def mesh_of(weights: Sequence[Any]) -> Mesh | AbstractMesh | None:
    """The mesh that arrays (or shapes with shardings) are spread over; None: a single device."""
    placed = weights[0].sharding if weights else None
    return placed.mesh if isinstance(placed, NamedSharding) else None


def layout_of(mesh: Mesh | AbstractMesh | None) -> Layout:
    """The sizes of a mesh's axes."""
    return ONE_DEVICE if mesh is None else Layout(*(mesh.shape[axis] for axis in AXES))


def _spec(layout: Layout, entries: Sequence[tuple[str, ...]]) -> PartitionSpec:
    named = [layout.axes(*entry) for entry in entries]
    while named and named[-1] is None:
        named.pop()
    return PartitionSpec(*named)


# What programs call. Outside of a mesh these do nothing.

_inside_stage: ContextVar[bool] = ContextVar("inside_stage", default=False)


@contextmanager
def inside_stage() -> Generator[None]:
    """What is traced in here are layers of one stage: their width is not cut over stages."""
    token = _inside_stage.set(True)
    try:
        yield
    finally:
        _inside_stage.reset(token)


def here() -> Layout:
    """The layout of the program that is traced; one device outside of a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return layout_of(mesh if mesh.manual_axes else None)


def width_axes() -> tuple[str, ...]:
    """The axes that cut heads, vocabulary and MLP width here, without those of size 1."""
    layout = here()
    axes = _WIDTH[1:] if _inside_stage.get() else _WIDTH
    return tuple(axis for axis in axes if getattr(layout, axis) > 1)


def total(x: Array) -> Array:
    """The sum of every device's part of x, where width is cut."""
    axes = width_axes()
    return jax.lax.psum(x, axes) if axes else x


def own_part(ids: Int[Array, "..."], size: int, axes: tuple[str, ...]) -> Int[Array, "..."]:
    """Ids as places in this device's part, ``size`` long, of what ``axes`` cut; -1 for those of others."""
    if not axes:
        return ids
    own = ids - size * jax.lax.axis_index(axes)
    return jnp.where((own >= 0) & (own < size), own, -1)


def own_experts(ids: Int[Array, "T K"], size: int) -> Int[Array, "T K"]:
    """`own_part` of expert ids."""
    return own_part(ids, size, ("expert",) if here().expert > 1 else ())


def own_kv_heads(heads: int) -> int:
    """How many of a model's key-value heads this device holds."""
    layout = here()
    return heads // layout.ways(*kv_axes(layout, heads, width_axes()))


def first_kv_head(query_heads: int, group: int, heads: int) -> Int[Array, ""] | int:
    """The place, among the key-value heads on this device, of the one that its first query head reads.

    query_heads: on this device. group: query heads a key-value head. heads: the model's key-value heads.
    """
    axes = width_axes()
    if not axes:
        return 0
    kv = kv_axes(here(), heads, axes)
    before = own_kv_heads(heads) * jax.lax.axis_index(kv) if kv else 0
    return query_heads * jax.lax.axis_index(axes) // group - before


def every_row[T](tree: T) -> T:
    """Arrays [B, ...] of this device's rows as arrays of all rows."""
    if here().data == 1:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, "data", axis=0, tiled=True), tree)


def anywhere(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether a flag is set for the rows of any device."""
    return flag if here().data == 1 else jax.lax.pmax(flag.astype(jnp.int32), "data") > 0
