"""Models of reference folders, in float32."""

import tempfile
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from jddtree.checkpoint import Checkpoint, open_checkpoint, restore
from jddtree.checkpoint.skeleton import abstract_model
from jddtree.config import KimiK2Config, target_config
from jddtree.errors import InputError
from jddtree.load import Pair, load_pair
from jddtree.models.dflash import DFlash
from jddtree.models.kimi_k2 import KimiK2

FLOAT32 = jnp.dtype(jnp.float32)


def reference_pair(folder: Path) -> Pair:
    """The target and drafter of ``folder``."""
    with tempfile.TemporaryDirectory() as cache_dir:
        return load_pair(
            folder / "target",
            folder / "drafter",
            dtype="float32",
            cache_dir=Path(cache_dir),
            say=_say_nothing,
        )


def reference_drafter(folder: Path) -> DFlash:
    """The drafter in ``folder``, without a target."""
    with tempfile.TemporaryDirectory() as cache_dir:
        checkpoint = _open(folder, cache_dir)
        return restore(checkpoint, abstract_model(checkpoint.config, checkpoint.packed), FLOAT32)


def reference_kimi(folder: Path, *, rounding: str = "bfloat16", lora_norm_eps: float | None = None) -> KimiK2:
    """The Kimi K2 model in ``folder``.

    ``rounding`` says how INT4 becomes a number; ``lora_norm_eps`` replaces the epsilon of MLA's two low-rank
    norms. Raises InputError for another family.
    """
    with tempfile.TemporaryDirectory() as cache_dir:
        checkpoint = _open(folder, cache_dir)
        config = target_config(checkpoint.config)
        if not isinstance(config, KimiK2Config):
            raise InputError(f"{folder} holds no Kimi K2 model")
        if lora_norm_eps is not None:
            config = replace(config, lora_norm_eps=lora_norm_eps)
        shapes = nnx.eval_shape(
            lambda: KimiK2(config, packed=checkpoint.packed, rounding=rounding, rngs=nnx.Rngs(0))
        )
        return restore(checkpoint, shapes, FLOAT32)


def _open(folder: Path, cache_dir: str) -> Checkpoint:
    return open_checkpoint(folder, Path(cache_dir), _say_nothing)


def _say_nothing(line: str) -> None:
    """Conversion into a temporary folder is no news."""
