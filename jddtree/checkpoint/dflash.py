"""DFlash drafters: published names <-> `jddtree.models.dflash` (names: spec ddtree_dflash, 1.6)."""

from jddtree.checkpoint.mapping import Rule

RULES = (
    Rule("skip", r".*\.rotary_emb\.inv_freq"),  # computed from the config
    Rule("note", r".*\.weight_shape"),
    Rule("copy", r"(?:model\.)?(.+)", to=(r"\1",)),  # some re-exports add the prefix
)
