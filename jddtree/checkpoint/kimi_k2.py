"""Kimi K2.x: published names <-> `jddtree.models.kimi_k2` (names: spec kimi, section 4)."""

from jddtree.checkpoint.mapping import Rule
from jddtree.config import KimiK2Config

# Flat folders: model.layers; nested ones: language_model.model.layers or model.language_model.layers.
_PREFIX = r"(?:model\.)?(?:language_model\.)?(?:model\.)?"


def rules(config: KimiK2Config) -> tuple[Rule, ...]:
    """Routed experts are stacked, kv_b_proj is split into its key and value parts, vision is left out."""
    expert = _PREFIX + r"(layers\.\d+\.mlp\.experts)\.(?P<index>\d+)\.(\w+)\."
    heads = config.nope_head_dim, config.v_head_dim
    return (
        Rule("skip", r"(?:model\.)?(?:vision_tower|mm_projector|multi_modal_projector)\..+"),
        Rule("skip", r".*\.rotary_emb\.inv_freq"),  # computed from the config
        Rule("note", expert + "weight_shape", count=config.num_experts),
        Rule("note", r".*\.weight_shape"),
        Rule(
            "stack",
            expert + r"(weight|weight_packed|weight_scale)",
            to=(r"\1.\3.\4",),
            count=config.num_experts,
        ),
        Rule(
            "heads",
            _PREFIX + r"(layers\.\d+\.self_attn)\.kv_b_proj\.weight",
            to=(r"\1.k_up", r"\1.v_up"),
            rows=heads,
        ),
        *((Rule("tied", _PREFIX + r"lm_head\.weight", to=("embed_tokens.weight",)),) if config.tied else ()),
        Rule("copy", _PREFIX + r"(.+)", to=(r"\1",)),
    )
