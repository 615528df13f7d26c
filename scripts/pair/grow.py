"""Makes a drafter larger without changing what it computes.

The old weights keep their place: layers, heads and MLP units are appended. What the new ones would add is
multiplied by zeros, which training then moves: in o_proj, in down_proj, and in fc for new taps.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jddtree.config import DFlashConfig
from scripts.pair.drafter import Params, init_drafter


def grown_json(raw: Mapping[str, Any], config: DFlashConfig) -> dict[str, Any]:
    """The config.json ``raw`` with the sizes and taps of ``config``; all its layers see everything."""
    nested = (raw.get("dflash_config") or {}) | {"target_layer_ids": list(config.target_layers)}
    return {key: value for key, value in raw.items() if key != "target_layer_ids"} | {
        "dflash_config": nested,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "layer_types": ["full_attention"] * config.num_layers,
        "max_window_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_kv_heads,
    }


def grow(params: Params, old: DFlashConfig, new: DFlashConfig, seed: int) -> Params:
    """The drafter ``params`` of ``old`` as one of ``new``, which computes the same; float32.

    ``new`` has no fewer layers, MLP units, heads or taps than ``old``, as many heads a kv head, and the same
    width and head size. New weights that no zeros are for are those of `init_drafter`.
    """
    # There o_proj and down_proj are zero, so the old part alone is to be put into its corner.
    found = init_drafter(new, seed)
    for name, value in params.items():
        if name != "fc.weight":
            found[name] = found[name].at[tuple(map(slice, value.shape))].set(value)
    width, fc = new.hidden_size, jnp.zeros_like(found["fc.weight"])
    for i, tap in enumerate(old.target_layers):
        at = width * new.target_layers.index(tap)
        fc = fc.at[:, at : at + width].add(params["fc.weight"][:, width * i : width * (i + 1)])
    return found | {"fc.weight": fc}
