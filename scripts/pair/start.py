"""A published drafter from whose weights training begins, as it is or grown.

Flags may ask for more layers, MLP units, heads and taps than it has (`scripts.pair.grow`): what it computes
at the start stays the same. Everything else must agree.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jddtree.checkpoint import open_checkpoint, published, restore
from jddtree.checkpoint.open import read_configs
from jddtree.checkpoint.skeleton import abstract_model, array_paths
from jddtree.config import DFlashConfig, drafter_config
from jddtree.errors import InputError, about
from jddtree.load import Pair, check_fit
from jddtree.models.layers import FLOAT32, unpack_linears
from scripts.pair.drafter import Params
from scripts.pair.grow import grow, grown_json

MAY_GROW = ("num_layers", "num_heads", "num_kv_heads", "intermediate_size")


@dataclass(frozen=True)
class Start:
    """``raw``: config.json, less what it says about the weights' form. ``params``: float32, INT4 matrices
    dequantised. Both are of the grown drafter. ``files``: SHA-256 of every weight file, by its name.
    """

    raw: dict[str, Any]
    params: Params
    files: dict[str, str]


def read_start(
    folder: Path,
    asked: Mapping[str, Any],
    seed: int,
    pair: Pair,
    cache_dir: Path,
    say: Callable[[str], None],
) -> Start:
    """The drafter in a published folder, INT4 or not, to train on for the target of ``pair``.

    ``asked``: what flags say about it, by the names of `DFlashConfig`; None where they say nothing. ``seed``:
    of the weights that it grows. Raises InputError when the folder holds a drafter that is larger or of
    another kind, or one that cannot be trained here.
    """
    raw = read_configs(folder)[0]
    if not published.is_published(folder):
        raise InputError(f"{folder} is no published folder: training starts from safetensors files")
    with about(folder):
        found = drafter_config(raw)
    check_fit(found, pair.target.config, folder)
    wanted = _wanted(found, asked)
    _check(found, wanted, folder)
    if wanted != found:
        raw = grown_json(raw, wanted)
        wanted = drafter_config(raw)
    # Not as it is loaded to run: by its published names.
    opened = open_checkpoint(folder, cache_dir, say)
    drafter = restore(opened, abstract_model(opened.config, opened.packed), FLOAT32)
    unpack_linears(drafter, FLOAT32, lambda _, weight: weight)
    params = dict(array_paths(drafter))
    if wanted != found:
        params = grow(params, found, wanted, seed)
    files = published.weight_files(folder)
    form = ("quantization_config", "torch_dtype")
    return Start(
        {key: value for key, value in raw.items() if key not in form} | {"dtype": "bfloat16"},
        params,
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
    differ = []
    for name, value in vars(found).items():
        asked = getattr(wanted, name)
        larger = name in MAY_GROW and asked > value
        more = name == "target_layers" and set(asked) >= set(value)
        if value != asked and not larger and not more:
            differ.append(f"{name} is {value} and not {asked}")
    if differ:
        raise InputError(
            f"training cannot start from the drafter in {folder}: its {', its '.join(differ)}: leave out "
            "flags for its size (layers, MLP width, heads and taps may grow), or name another folder"
        )
    # A query head must go on reading its own kv head.
    if wanted.num_heads * found.num_kv_heads != wanted.num_kv_heads * found.num_heads:
        raise InputError(
            f"training cannot start from the drafter in {folder}: its {found.num_heads} heads share "
            f"{found.num_kv_heads} kv heads, so {wanted.num_heads} cannot share {wanted.num_kv_heads}: let "
            "--heads and --kv-heads grow by the same factor"
        )
