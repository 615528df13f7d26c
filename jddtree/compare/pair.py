"""``python -m jddtree.compare pair``: does this drafter draft for this target?

Chains of the same prompts: as the pair is; with the drafter's features rolled by half of their channels (what
it gets right without being able to read them); with features of the layers one below and one above; with
other rotary bases, the target's own among them; and with a drafter that knows plain decoding's text (what the
decoder accepts of a draft without a mistake: whole blocks).
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jddtree.command import json_writer, say
from jddtree.config import DFlashConfig
from jddtree.decoder import Task
from jddtree.engine import Engine
from jddtree.errors import InputError
from jddtree.exactness import compare
from jddtree.finish import Generation
from jddtree.load import Pair, pair_places
from jddtree.models.dflash import DFlash
from jddtree.models.target import Cache, Target
from jddtree.prompts import Wishes
from jddtree.pytree import pytree_dataclass
from jddtree.sweep.suites import SUITES, read_suite, tasks_of
from jddtree.wording import counted

TIMES_CHANCE = 2.0
"""A sound drafter gets more than so many times as many tokens accepted a round as one that cannot read."""

LEAST = 0.1
"""Tokens accepted a round that a sound drafter gets more than."""

BETTER = 1.1
"""Neighbouring layers, or a rotary base, that get so many times as many accepted are those it was trained
with.
"""

BASES = (10_000.0, 1_000_000.0)
"""Rotary bases (rope_theta) that most models have."""

WHOLE = 0.95
"""Share of a block that a perfect draft must have accepted; ties within rounding take a little."""

CAUSES = (
    "likely causes: features of the wrong layers (dflash_config.target_layer_ids, or an index off by one), "
    "another mask token (mask_token_id), another rotary layout or base (rope_theta, rope_scaling), "
    "weights of another checkpoint, or a drafter trained for another target"
)


@pytree_dataclass
class Probed:
    """A drafter that is shown and drafts what arrays say, so that one program serves for all of its changes.

    channels: of the features of `near` layers, those that ``inner`` is shown, in this order. texts: prompts
    and plain decoding's texts by position, drafted if it ``knows``.
    """

    inner: DFlash
    channels: Int[Array, " C"]
    texts: Int[Array, "B T"]
    knows: Bool[Array, ""]

    @property
    def config(self) -> DFlashConfig:
        return self.inner.config

    @property
    def block_size(self) -> int:
        return self.inner.block_size

    @property
    def target_layers(self) -> tuple[int, ...]:
        return near(self.config)

    @property
    def max_position(self) -> int:
        return self.inner.max_position

    def new_cache(self, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
        return self.inner.new_cache(rows, slots, dtype)

    def context(self, features: Float[Array, "B T FM"], positions: Int[Array, "B T"]) -> Cache:
        return self.inner.context(features[..., self.channels], positions)

    def draft(
        self, target: Target, anchor: Int[Array, " B"], lengths: Int[Array, " B"], cache: Cache
    ) -> Float[Array, "B D V"]:
        places = lengths[:, None] + 1 + jnp.arange(self.block_size - 1, dtype=jnp.int32)
        ids = jnp.take_along_axis(self.texts, jnp.minimum(places, self.texts.shape[1] - 1), axis=1)
        known = jax.nn.one_hot(ids, target.config.vocab_size, dtype=jnp.float32)
        return jnp.where(self.knows, known, self.inner.draft(target, anchor, lengths, cache))


@dataclass(frozen=True)
class Found:
    """Tokens committed a round, over rounds that had a whole block left to draft.

    first: share of rounds of the pair whose first drafted token was accepted. below, above: with features of
    the layers next to the drafter's own. texts_exact: how many of the pair's texts are plain decoding's, or
    part from it at a tie.
    """

    block_size: int
    texts: int
    texts_exact: int
    rounds: int
    first: float
    pair: float
    rolled: float
    below: float
    above: float
    bases: dict[float, float]
    perfect: float

    @property
    def verdict(self) -> str:
        """One phrase: sound, or what is broken."""
        if self.texts_exact < self.texts:
            return "the pair's text is not plain decoding's: the decoder is broken, not the drafter"
        if self.perfect < WHOLE * self.block_size:
            return "a draft without a mistake is not accepted: the decoder is broken, not the drafter"
        others = {"with the layers one below": self.below, "with the layers one above": self.above}
        others |= {f"with a rotary base of {base:,.0f}": value for base, value in self.bases.items()}
        better = max(others, key=lambda name: others[name])
        reads = max(TIMES_CHANCE * (self.rolled - 1), LEAST)
        if others[better] - 1 > max(BETTER * (self.pair - 1), reads):
            return f"acceptance is that of a broken drafter: {better} it does better"
        if self.pair - 1 <= reads:
            return "acceptance is that of a broken drafter"
        return "sound"


def add_flags(command: argparse.ArgumentParser, path: Any) -> None:
    """The flags of this comparison; ``path`` reads a folder's name."""
    add = command.add_argument
    add("--target", type=path, metavar="DIR", help="as for generate (default: bundled)")
    add("--drafter", type=path, metavar="DIR", help="DFlash drafter folder (default: the target's own)")
    add("--prompts", default="bundled", metavar="SUITE", help=f"{', '.join(SUITES)}, or a JSONL file")
    add("--limit", type=int, default=8, metavar="N", help="the first N prompts (default 8)")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="tokens of a text (default 64)")
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, else bfloat16")
    add("--json", metavar="FILE", help="also write the result as JSON; - means standard output alone")


def main(flags: argparse.Namespace) -> int:
    """Run the self-test, print what was found, and return 0, or 1 if something is broken. Raises
    InputError.
    """
    for name in ("limit", "max_new_tokens"):
        if getattr(flags, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} must be 1 or more, not {getattr(flags, name)}")
    if pair_places(flags.target, flags.drafter)[1] is None:
        raise InputError(f"there is no drafter for {flags.target}: give --drafter")
    write_json = json_writer(flags.json)
    problems = read_suite(flags.prompts, Wishes(max_new_tokens=flags.max_new_tokens), flags.limit)
    engine = Engine.load(flags.target, flags.drafter, method="chain", dtype=flags.dtype, say=say)
    found = examine(engine.pair, tasks_of(problems, engine))
    write_json(asdict(found) | {"verdict": found.verdict})
    if flags.json != "-":
        print(
            f"committed a round of {found.block_size} at most, {counted(found.rounds, 'round')}, "
            f"{counted(found.texts, 'text')}:\n"
            f"  the pair          {found.pair:.2f} (first drafted token accepted in {found.first:.0%})\n"
            f"  features rolled   {found.rolled:.2f}\n"
            f"  layers below      {found.below:.2f}\n"
            f"  layers above      {found.above:.2f}\n"
            + "".join(f"  base {base:<12,.0f} {value:.2f}\n" for base, value in found.bases.items())
            + f"  perfect drafts    {found.perfect:.2f}\n"
            f"{found.verdict}"
        )
        if "broken drafter" in found.verdict:
            print(CAUSES)
    return 0 if found.verdict == "sound" else 1


def shifted(config: DFlashConfig, by: int) -> tuple[int, ...]:
    """The layers that the drafter taps, ``by`` layers up, as far as there are any."""
    return tuple(min(max(tap + by, 0), config.num_target_layers - 1) for tap in config.target_layers)


def near(config: DFlashConfig) -> tuple[int, ...]:
    """The layers that the drafter taps, and those one below and one above, from the lowest up."""
    return tuple(sorted({tap for by in (-1, 0, 1) for tap in shifted(config, by)}))


def channels(config: DFlashConfig, by: int, width: int) -> np.ndarray:
    """Which features of `near` layers, ``width`` each, are those of the layers ``by`` above the drafter's."""
    places = [near(config).index(tap) for tap in shifted(config, by)]
    return (np.array(places, np.int32)[:, None] * width + np.arange(width, dtype=np.int32)).reshape(-1)


def based(drafter: DFlash, base: float) -> DFlash:
    """The drafter with another rotary base."""
    moved = nnx.clone(drafter)
    moved.config = replace(drafter.config, rope=replace(drafter.config.rope, theta=base))
    return moved


def examine(pair: Pair, tasks: Sequence[Task]) -> Found:
    """Decode greedy tasks, one batch, plainly and with every drafter. Raises InputError if nothing can
    be drafted.
    """
    if not isinstance(pair.drafter, DFlash) or pair.block_size < 2:
        raise InputError("the drafter's block holds the anchor alone: there is nothing to test")
    plain = Engine(pair, method="ar").generate(tasks)
    longest = max(len(task.prompt) + len(text.output_ids) for task, text in zip(tasks, plain, strict=True))
    texts = np.zeros((len(tasks), longest), np.int32)
    for row, (task, text) in enumerate(zip(tasks, plain, strict=True)):
        whole = [*task.prompt, *text.output_ids]
        texts[row, : len(whole)] = whole

    def lengths(engine: Engine) -> tuple[list[Generation], list[int]]:
        results = engine.generate(tasks)
        # The last round of a text drafts past its end.
        whole = [count for result in results for count in result.acceptance_lengths[:-1]]
        if not whole:
            raise InputError("the texts are too short to tell: raise --max-new-tokens")
        return results, whole

    def probed(order: np.ndarray, knows: bool = False) -> tuple[list[Generation], list[int]]:
        engine.decoder(tasks).exchange(replace(probe, channels=jnp.asarray(order), knows=jnp.array(knows)))
        return lengths(engine)

    def by_base(base: float) -> float:
        moved: Any = based(inner, base)
        return float(np.mean(lengths(Engine(replace(pair, drafter=moved), method="chain"))[1]))

    inner, width = pair.drafter, pair.target.config.hidden_size
    own_channels = channels(inner.config, 0, width)
    probe: Any = Probed(inner, jnp.asarray(own_channels), jnp.asarray(texts), jnp.array(False))
    engine = Engine(replace(pair, drafter=probe), method="chain")
    results, as_is = probed(own_channels)
    checks = [
        compare(ours.output_ids, theirs.output_ids, theirs.margins)
        for ours, theirs in zip(results, plain, strict=True)
    ]
    # One more than half, so that no tapped layer falls into another's place channel by channel.
    rolled = np.roll(own_channels, len(own_channels) // 2 + 1)
    own = inner.config.rope.theta
    others = [base for base in dict.fromkeys((pair.target.config.rope.theta, *BASES)) if base != own]
    return Found(
        block_size=pair.block_size,
        texts=len(tasks),
        texts_exact=sum(bool(check.equal) or check.is_tie(pair.dtype) for check in checks),
        rounds=len(as_is),
        first=float(np.mean([count > 1 for count in as_is])),
        pair=float(np.mean(as_is)),
        rolled=float(np.mean(probed(rolled)[1])),
        below=float(np.mean(probed(channels(inner.config, -1, width))[1])),
        above=float(np.mean(probed(channels(inner.config, 1, width))[1])),
        bases={base: by_base(base) for base in others},
        perfect=float(np.mean(probed(own_channels, knows=True)[1])),
    )
