"""What speculative decoding committed, and how good its texts are: figures of many texts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jddtree.exactness import compare
from jddtree.finish import Generation
from scripts.pair.distinct import distinct_share
from scripts.pair.right import final_number

TOTAL = ("story", "explain", "chat", "code")  # kinds that the total is of


@dataclass(frozen=True)
class Case:
    """One text to write: a prompt of a kind, at a temperature (0: greedy), with a seed."""

    kind: str
    prompt: str
    temperature: float
    seed: int


Results = Mapping[str, Mapping[Case, Generation]]
"""By the method's name; "plain" and "chain" are there."""


Drafts = Iterable[tuple[int, Sequence[int]]]
"""Drafted tokens, and the place in the text of the anchor that they follow."""


def drafts_of(generation: Generation) -> Drafts:
    """A chain's, round by round."""
    at = 0
    for round_ in generation.trace:
        yield at, round_["tokens"][1:]
        at += len(round_["accepted"])


def committed(generations: Sequence[Generation]) -> float | None:
    """Total committed over total rounds."""
    rounds = [length for generation in generations for length in generation.acceptance_lengths]
    return sum(rounds) / len(rounds) if rounds else None


def share_by_depth(generations: Sequence[Generation]) -> list[float]:
    """Share of all rounds whose accepted path reached depth 1, 2, ..."""
    rounds = [length - 1 for generation in generations for length in generation.acceptance_lengths]
    return [sum(n >= depth for n in rounds) / len(rounds) for depth in range(1, max(rounds, default=0) + 1)]


def share_by_slot(texts: Iterable[tuple[Sequence[int], Drafts]]) -> list[float]:
    """How often every slot equals the text where there is text, over all drafts of all texts' ids."""
    totals: list[list[int]] = []
    for ids, drafts in texts:
        for at, tokens in drafts:
            for slot, token in enumerate(tokens, start=1):
                if slot > len(totals):
                    totals.append([0, 0])
                if at + slot < len(ids):
                    totals[slot - 1][0] += token == ids[at + slot]
                    totals[slot - 1][1] += 1
    return [right / max(count, 1) for right, count in totals]


def measure(
    results: Results,
    texts: Mapping[Case, str],
    answers: Mapping[str, float],
    everywhere: Mapping[Case, Sequence[Sequence[int]]],
) -> dict[str, Any]:
    """Figures by temperature (as text) and kind, and of the kinds of TOTAL together: "total".

    ``texts`` are plain decoding's; ``answers`` are right numbers by prompt. "right" is of the texts whose
    prompts have one, None where there are none. ``everywhere``: `scripts.pair.everywhere` of those texts.
    """
    found: dict[str, Any] = {}
    for temperature in dict.fromkeys(case.temperature for case in texts):
        groups: dict[str, list[Case]] = {}
        for case in (case for case in texts if case.temperature == temperature):
            groups.setdefault(case.kind, []).append(case)
        together = [case for kind in TOTAL for case in groups.get(kind, [])]
        if together:
            groups["total"] = together
        found[f"{temperature:g}"] = {
            kind: _figures(cases, results, texts, answers, everywhere) for kind, cases in groups.items()
        }
    return found


def _figures(
    cases: Sequence[Case],
    results: Results,
    texts: Mapping[Case, str],
    answers: Mapping[str, float],
    everywhere: Mapping[Case, Sequence[Sequence[int]]],
) -> dict[str, Any]:
    plain = [results["plain"][case] for case in cases]
    drafted = {
        name: [written[case] for case in cases] for name, written in results.items() if name != "plain"
    }
    asked = [case for case in cases if case.prompt in answers]
    return {
        "texts": len(cases),
        "committed": {name: committed(written) for name, written in drafted.items()},
        "reached": {name: share_by_depth(written) for name, written in drafted.items()},
        "slots": share_by_slot((run.output_ids, drafts_of(run)) for run in drafted["chain"]),
        "everywhere": share_by_slot(
            (run.output_ids, enumerate(everywhere[case])) for case, run in zip(cases, plain, strict=True)
        ),
        "distinct": sum(map(distinct_of, plain)) / len(cases),
        "stopped": sum(generation.finish_reason == "stop" for generation in plain),
        "asked": len(asked),
        "right": sum(final_number(texts[case]) == answers[case.prompt] for case in asked) if asked else None,
    }


def distinct_of(generation: Generation) -> float:
    """`distinct_share` of a text, its stop token left out."""
    ids = generation.output_ids
    return distinct_share(ids[:-1] if generation.finish_reason == "stop" else ids)


def differences(results: Results, dtype: str) -> list[dict[str, Any]]:
    """Texts that differ from plain decoding's: where, how close plain decoding's choice was, and whether
    rounding explains it.
    """
    found = []
    for name, written in results.items():
        for case, generation in written.items():
            plain = results["plain"][case]
            check = compare(generation.output_ids, plain.output_ids, plain.margins)
            if not check.equal:
                at = {"prompt": case.prompt, "temperature": case.temperature, "seed": case.seed}
                at |= {"at": check.first_divergence, "gap": check.gap, "tie": check.is_tie(dtype)}
                found.append({"method": name} | at)
    return found


def rows_of(kinds: Mapping[str, Any], perplexity: Mapping[str, float]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of a table of one temperature's figures; ``perplexity`` by kind."""
    names = list(next(iter(kinds.values()))["committed"])
    titles = [
        "kind",
        "texts",
        *names,
        "slots right",
        "from everywhere",
        "distinct",
        "stopped",
        "right",
        "perplexity",
    ]
    return titles, [
        [
            kind,
            str(row["texts"]),
            *("-" if row["committed"][name] is None else f"{row['committed'][name]:.2f}" for name in names),
            shares(row["slots"]),
            shares(row["everywhere"]),
            f"{row['distinct']:.2f}",
            str(row["stopped"]),
            "-" if row["right"] is None else f"{row['right']} of {row['asked']}",
            f"{perplexity[kind]:.2f}" if kind in perplexity else "-",
        ]
        for kind, row in kinds.items()
    ]


def depths_of(kinds: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of a table of one temperature: the share of rounds that reached each depth."""
    names = list(next(iter(kinds.values()))["reached"])
    return ["kind", *names], [
        [kind, *(shares(row["reached"][name]) for name in names)] for kind, row in kinds.items()
    ]


def shares(values: Sequence[float]) -> str:
    """Numbers of 0 to 1, in short."""
    return " ".join(f"{value:.2f}".removeprefix("0") for value in values) or "-"


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
