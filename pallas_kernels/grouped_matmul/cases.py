"""Named shapes that every implementation of the routed experts is tested (CASES) or timed (TIMED) on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """T tokens of width M through K of E experts of width I. ``routing`` is ``random``, ``one``,
    ``partly_none``, or ``eighth``: the E experts are an eighth of those that are chosen from.
    """

    name: str
    tokens: int
    hidden: int
    inner: int
    experts: int
    chosen: int
    routing: str
    packed: bool
    dtype: str = "float32"


CASES = (
    Case("one_token", 1, 64, 32, 8, 2, "random", packed=True),
    Case("tree_17", 17, 64, 64, 16, 4, "random", packed=True),
    Case("all_to_one", 9, 32, 32, 4, 1, "one", packed=True),
    Case("padding_routes_nowhere", 9, 64, 32, 8, 2, "partly_none", packed=True),
    Case("plain_weights", 9, 64, 32, 8, 2, "random", packed=False),
    Case("bfloat16", 17, 64, 64, 8, 4, "random", packed=True, dtype="bfloat16"),
)

TIMED = tuple(
    Case(
        f"K2.6 {layout}, {tokens} token{'s' * (tokens > 1)}",
        tokens,
        7168,
        *sizes,
        packed=True,
        dtype="bfloat16",
    )
    for layout, sizes in (("tp8", (256, 384, 8, "random")), ("ep8", (2048, 48, 8, "eighth")))
    for tokens in (1, 9, 17, 33, 65)
)
