"""Named shapes that every implementation of tree attention is tested (CASES) or timed (TIMED) on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One shape: B rows, N slots, H heads over J key heads, Kw/Vw channels, S cache slots, the lengths and
    the tree.

    ``latent`` means that values are the first Vw key channels. ``tree`` is ``chain``, ``star``, ``random`` or
    ``all`` (every slot sees every slot); ``window`` cuts the prefix a query sees.
    """

    name: str
    rows: int
    slots: int
    heads: int
    key_heads: int
    key_width: int
    value_width: int
    cache: int
    lengths: tuple[int, ...]
    tree: str
    latent: bool = False
    window: int | None = None
    dtype: str = "float32"


CASES = (
    Case("one_node", 1, 1, 4, 2, 16, 16, 8, (3,), "chain"),
    Case("empty_prefix", 2, 5, 4, 4, 16, 16, 8, (0, 0), "random"),
    Case("full_cache", 1, 9, 4, 1, 24, 16, 16, (16,), "star", latent=True),
    Case("ragged", 3, 17, 8, 2, 16, 16, 40, (0, 31, 40), "random"),
    Case("tile_edges", 6, 3, 3, 1, 16, 16, 48, (15, 16, 17, 31, 33, 48), "chain"),
    Case("latent_wide_tree", 1, 65, 8, 1, 40, 32, 70, (33,), "random", latent=True),
    Case("drafter_window", 2, 8, 4, 2, 16, 16, 32, (5, 32), "all", window=6),
    Case("bfloat16", 1, 17, 8, 1, 40, 32, 64, (50,), "random", latent=True, dtype="bfloat16"),
    Case("budget_1024", 1, 1025, 2, 1, 24, 16, 32, (20,), "random", latent=True),
)

TIMED = (
    Case("bundled target", 1, 17, 8, 1, 80, 64, 512, (300,), "random", latent=True, dtype="bfloat16"),
    Case("bundled target, float32", 1, 17, 8, 1, 80, 64, 512, (300,), "random", latent=True),
    Case("bundled drafter", 1, 8, 8, 4, 64, 64, 512, (300,), "all", dtype="bfloat16"),
    Case("SmolLM2, 17 slots", 1, 17, 9, 3, 64, 64, 512, (300,), "random", dtype="bfloat16"),
    Case("SmolLM2, 33 slots", 1, 33, 9, 3, 64, 64, 512, (300,), "random", dtype="bfloat16"),
    Case("Qwen3-4B, 4k", 1, 17, 32, 8, 128, 128, 4096, (4096,), "random", dtype="bfloat16"),
    *(
        Case(
            f"K2.6, {heads} heads, {context // 1024}k" + (", 1 slot" if slots == 1 else ""),
            *(1, slots, heads, 1, 576, 512, context, (context,), "random"),
            latent=True,
            dtype="bfloat16",
        )
        for slots, heads in ((17, 8), (17, 64), (1, 8))
        for context in (32_768, 131_072)
    ),
    Case("K2.6, 8 heads, 1k, 1 slot", 1, 1, 8, 1, 576, 512, 1024, (960,), "chain", True, dtype="bfloat16"),
)
