"""Where a text ends. The one place that decides what of a row's new tokens is kept, counted and shown.

The device stops a row at stop tokens, at its length and at a bad logit; here the same tokens pass the stop
strings, which only text can show. Whatever is cut is neither counted nor scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jddtree.errors import InputError
from jddtree.state import CANCELLED, FAILED, LENGTH, RUNNING, STOP, Report
from jddtree.tokenizer import TextStream, Tokenizer

REASONS = {RUNNING: None, STOP: "stop", LENGTH: "length", FAILED: "error", CANCELLED: "cancelled"}


@dataclass
class Generation:
    """One row's result so far.

    output_ids: generated tokens, the one that ended the text included. text: None without a tokenizer; a stop
    string, and what follows it, is left out. margins: by how much each token won (`jddtree.accept.choose`).
    logprobs, top_logprobs: if asked for, each token's log-probability, and the likeliest tokens' as
    (id, log-probability). acceptance_lengths: root + accepted nodes a round, overrun included; the prefill's
    token is in no round. trace: each round's tree (tokens, parents, depths; slot 0 is the anchor) and
    accepted slots. experts: distinct experts of each MoE layer, a round, over all rows. finish_reason:
    "stop", "length", "error", "cancelled", or None while unfinished; error: the line that goes with "error".
    """

    output_ids: list[int] = field(default_factory=list)
    text: str | None = None
    margins: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    acceptance_lengths: list[int] = field(default_factory=list)
    trace: list[dict] = field(default_factory=list)
    experts: list[list[int]] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None

    @property
    def committed_per_round(self) -> float | None:
        """Mean acceptance length; None without rounds."""
        lengths = self.acceptance_lengths
        return sum(lengths) / len(lengths) if lengths else None


def check_stops(name: str, stops: Sequence[str], tokenizer: Tokenizer | None) -> None:
    """Raise InputError unless these stop strings can be looked for."""
    if stops and tokenizer is None:
        raise InputError(f"{name}: stop strings need a tokenizer")
    if not all(stops):
        raise InputError(f"{name}: a stop string is empty")


class Row:
    """Turns a row's reports into its Generation."""

    def __init__(self, name: str, prompt_length: int, tokenizer: Tokenizer | None, stops: Sequence[str]):
        check_stops(name, stops, tokenizer)
        self.result = Generation(text=None if tokenizer is None else "")
        self._name, self._prompt_length = name, prompt_length
        self._stream = None if tokenizer is None else TextStream(tokenizer)
        self._stops, self._whole = tuple(stops), ""

    @property
    def finished(self) -> bool:
        """Whether nothing more will be added."""
        return self.result.finish_reason is not None

    def add(self, report: Report, row: int, *, in_round: bool) -> None:
        """Take over what a round (or the prefill) did for row ``row``; ``report`` holds host arrays."""
        if self.finished:
            return
        result = self.result
        if in_round and report.accepted[row]:
            width = int(report.tree_count[row]) + 1
            result.acceptance_lengths.append(int(report.accepted[row]))
            result.experts.append(report.experts.tolist())
            result.trace.append(
                {
                    "tokens": report.tree_tokens[row, :width].tolist(),
                    "parents": report.tree_parents[row, :width].tolist(),
                    "depths": report.tree_depths[row, :width].tolist(),
                    "accepted": report.slots[row, : int(report.accepted[row])].tolist(),
                }
            )
        for place in range(int(report.kept[row])):
            self._add_token(report, row, place)
            if self.finished:
                return
        reason = REASONS[int(report.reason[row])]
        if reason == "error":
            position = self._prompt_length + len(result.output_ids)
            result.error = f"{self._name}: the target's logits for position {position} are not finite"
        if reason is not None:
            self.finish(reason)

    def finish(self, reason: str) -> None:
        """End the row, letting out text that was held back."""
        if self._stream is not None and not self.finished:
            self._add_text(self._stream.flush())
            if self.finished:
                return
            self.result.text = self._whole
        self.result.finish_reason = reason

    def _add_token(self, report: Report, row: int, place: int) -> None:
        result = self.result
        result.output_ids.append(int(report.tokens[row, place]))
        result.margins.append(float(report.margins[row, place]))
        if report.logprobs.shape[1]:
            result.logprobs.append(float(report.logprobs[row, place]))
            likeliest = zip(report.top_ids[row, place], report.top_logprobs[row, place], strict=True)
            result.top_logprobs.append([(int(token), float(value)) for token, value in likeliest])
        if self._stream is not None:
            self._add_text(self._stream.push(result.output_ids[-1:]))

    def _add_text(self, piece: str) -> None:
        """Add text, up to a stop string that it completes."""
        before = len(self._whole)
        self._whole += piece
        # Each found stop's end and start: the earliest end wins, of several there the longest stop.
        found = [
            (at + len(stop), at)
            for stop in self._stops
            if (at := self._whole.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if found:
            self.result.text, self.result.finish_reason = self._whole[: min(found)[1]], "stop"
        else:
            self.result.text = self._whole[: len(self._whole) - self._held()]

    def _held(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1)
        for size in range(min(longest - 1, len(self._whole)), 0, -1):
            if any(stop.startswith(self._whole[-size:]) for stop in self._stops):
                return size
        return 0
