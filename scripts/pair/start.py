"""A published drafter from whose weights training begins."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jddtree.checkpoint import open_checkpoint, published
from jddtree.checkpoint.open import read_configs
from jddtree.checkpoint.skeleton import array_paths
from jddtree.config import DFlashConfig, drafter_config
from jddtree.errors import InputError, about
from jddtree.load import Pair, check_fit, load_drafter
from scripts.pair.drafter import Params


@dataclass(frozen=True)
class Start:
    """``raw``: config.json, less what it says about the weights' form. ``params``: float32, INT4 matrices
    dequantised. ``files``: SHA-256 of every weight file, by its name.
    """

    raw: dict[str, Any]
    params: Params
    files: dict[str, str]


def read_start(
    folder: Path, asked: Mapping[str, Any], pair: Pair, cache_dir: Path, say: Callable[[str], None]
) -> Start:
    """The drafter in a published folder, INT4 or not, to train on for the target of ``pair``.

    ``asked``: what flags say about it, by the names of `DFlashConfig`; None where they say nothing. Raises
    InputError when the folder holds another drafter than that, or one that cannot be trained here.
    """
    raw = read_configs(folder)[0]
    if not published.is_published(folder):
        raise InputError(f"{folder} is no published folder: training starts from safetensors files")
    with about(folder):
        found = drafter_config(raw)
    check_fit(found, pair.target.config, folder)
    _check(found, _wanted(found, asked), folder)
    drafter = load_drafter(open_checkpoint(folder, cache_dir, say), pair.target, jnp.dtype(jnp.float32))
    files = published.weight_files(folder)
    form = ("quantization_config", "torch_dtype")
    return Start(
        {key: value for key, value in raw.items() if key not in form} | {"dtype": "bfloat16"},
        dict(array_paths(drafter)),
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
    )


def _wanted(found: DFlashConfig, asked: Mapping[str, Any]) -> DFlashConfig:
    """What would be trained: ``found``, but as flags say, and without what the trained form does not have."""
    told = {name: value for name, value in asked.items() if value is not None}
    return replace(
        found,
        **told,
        windows=(None,) * found.num_layers,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        final_logit_softcapping=None,
    )


def _check(found: DFlashConfig, wanted: DFlashConfig, folder: Path) -> None:
    differ = [
        f"{name} is {value} and not {getattr(wanted, name)}"
        for name, value in vars(found).items()
        if value != getattr(wanted, name)
    ]
    if differ:
        raise InputError(
            f"training cannot start from the drafter in {folder}: its {', its '.join(differ)}: leave out "
            "flags for its size, or name another folder"
        )
