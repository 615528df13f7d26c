"""The target and drafter that are planned for: shapes and dtypes without weights, from config.json alone."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jddtree.checkpoint.gguf import is_gguf, read_gguf
from jddtree.checkpoint.skeleton import abstract_model, array_paths
from jddtree.config import KimiK2Config, drafter_config, read_json, target_config, text_config
from jddtree.errors import InputError, about
from jddtree.load import SMOLLM2, check_fit, is_named, pair_places
from jddtree.models.drafter import Drafter
from jddtree.models.target import Target
from jddtree.pytree import dotted

KIMI, KIMI_DRAFTER, NO_DRAFTER = "kimi-k2.6", "kimi-k2.6-dflash", "none"
"""Names that need no folder."""

CONFIGS = Path(__file__).parent / "configs"
"""What these models' config.json says of their sizes."""


def abstract_pair(
    target: Path, drafter: Path | None, dtype: jnp.dtype
) -> tuple[Target, Drafter | None, str | None]:
    """The two models with `jax.ShapeDtypeStruct` leaves, as loading them would give, and the drafter's name.

    ``dtype``: of weights that are not INT4. Without ``drafter``, a named target has its own, another none.

    Raises:
      InputError: no config.json, one that is not usable, or a drafter for another target.
    """
    if drafter is None and _is_named(target, KIMI):
        drafter = Path(KIMI_DRAFTER)
    elif is_named(target):
        target, drafter = pair_places(target, drafter)
    with about(target):
        raw = _config(target)
        target_config(raw)
        made: Any = _model(raw, dtype)
    if drafter is None or _is_named(drafter, NO_DRAFTER):
        return made, None, None
    with about(drafter):
        raw = _config(drafter)
        check_fit(drafter_config(raw), made.config, drafter)
        return made, _model(raw, dtype), str(drafter)


def packed_modules(model: Target) -> frozenset[str]:
    """Dotted paths of a model's INT4 modules."""
    suffix = ".weight_packed"
    return frozenset(path.removesuffix(suffix) for path, _ in array_paths(model) if path.endswith(suffix))


def _is_named(place: Path, name: str) -> bool:
    """Whether ``name`` is meant; a folder of that name goes first."""
    return place == Path(name) and not place.exists()


def _config(place: Path) -> dict[str, Any]:
    if any(_is_named(place, name) for name in (KIMI, KIMI_DRAFTER)):
        return read_json(CONFIGS / f"{place}.json")
    if is_gguf(place):
        return read_gguf(place).config
    if not (place / "config.json").is_file():
        raise InputError(f"{place} holds no config.json: give a model's folder, {SMOLLM2} or {KIMI}")
    return read_json(place / "config.json")


def _model(raw: dict[str, Any], dtype: jnp.dtype) -> Any:
    # INT4 layers that are not experts are dequantised when they are loaded.
    config = target_config(raw) if "dflash_config" not in raw else None
    packed = frozenset()
    if isinstance(config, KimiK2Config) and _is_int4(raw):
        packed = frozenset(
            f"layers.{layer}.mlp.experts.{name}"
            for layer in range(config.num_layers)
            for name in ("gate_proj", "up_proj", "down_proj")
        )

    def cast(path, leaf):
        # As `jddtree.checkpoint.open.restore` does.
        kept = leaf.dtype != jnp.float32 or dotted(path).endswith("e_score_correction_bias")
        return leaf if kept else jax.ShapeDtypeStruct(leaf.shape, dtype)

    return jax.tree_util.tree_map_with_path(cast, abstract_model(raw, packed))


def _is_int4(raw: dict[str, Any]) -> bool:
    found = text_config(raw).get("quantization_config") or raw.get("quantization_config") or {}
    stored = found.get("format", found.get("quant_method", "")) if isinstance(found, dict) else str(found)
    if found and stored != "pack-quantized":
        raise InputError(f"config.json: weights in the form {stored!r} are not supported; pack-quantized are")
    return bool(found)
