"""Qwen3 and Llama: published names <-> `jddtree.models.dense`."""

from jddtree.checkpoint.mapping import Rule
from jddtree.config import DenseConfig


def rules(config: DenseConfig) -> tuple[Rule, ...]:
    """Names without ``model.``; a tied checkpoint may hold the embedding a second time as its head."""
    return (
        Rule("skip", r".*\.rotary_emb\.inv_freq"),  # computed from the config
        Rule("note", r".*\.weight_shape"),
        *((Rule("tied", r"lm_head\.weight", to=("embed_tokens.weight",)),) if config.tied else ()),
        Rule("copy", r"(?:model\.)?(.+)", to=(r"\1",)),
    )
