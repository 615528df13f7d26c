"""A word problem in the making: its wordings, the numbers and words in them, and the worked steps."""

import operator
import random
import re
from dataclasses import dataclass, field
from fractions import Fraction

from scripts.pair.problem_words import cast, plural, spoken

SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}
CHOICE = re.compile(r"\[([^\[\]]*)\]")
VOWEL = re.compile(r"\b([Aa]) (?=[aeiou])(?!euro)")
ABOUT = re.compile(r"\{(?:he|him|his)\}|\b(?:then|that|now)\b")  # a question that cannot come first
SENTENCE = re.compile(r"(^|[.?!] |\n)([a-z])")
SPOKEN = 0.1  # share of problems with numbers in words
DISTRACTED = 0.1  # share with a number that is not needed
QUESTION_FIRST = 0.08
DISTRACTIONS = (
    "{b} is {x} years old.",
    "It is {x} degrees outside.",
    "{a} lives at number {x}.",
    "The [shop|school|house|bus stop] is {x} minutes away.",
    "{c} has {x} [cousins|pens|plants at home|friends].",
    "{b} came {x} minutes late.",
    "There are {x} [people|chairs|windows] in the room.",
    "{a} has a brother who is {x} years old.",
)


@dataclass
class Draft:
    """One problem. A wording is "facts | question" with {fields} and [one|of|these]; `step` adds a worked
    line.
    """

    rng: random.Random
    fields: dict[str, str | int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    value: int = 0

    @classmethod
    def of(cls, rng: random.Random) -> "Draft":
        return cls(rng, dict(cast(rng)))

    def number(self, name: str, low: int, high: int) -> int:
        """Draw the number of a field, ends included."""
        value = self.rng.randint(low, high)
        self.fields[name] = value
        return value

    def say(self, text: str) -> str:
        """``text`` with one of each [choice], and its fields filled in digits."""
        while CHOICE.search(text):
            text = CHOICE.sub(lambda found: self.rng.choice(found.group(1).split("|")), text)
        return VOWEL.sub(r"\1n ", text.format_map(self.fields))

    def step(self, lead: str, *parts: int | str, unit: str = "") -> int:
        """Add "lead 3 + 4 = 7 units." and give the result, taken from left to right; ``unit`` is one noun.

        Raises:
            ValueError: the result is negative or not whole.
        """
        value = Fraction(int(parts[0]))
        for sign, number in zip(parts[1::2], parts[2::2], strict=True):
            value = Fraction(SIGNS[str(sign)](value, int(number)))
        if value < 0 or value.denominator != 1:
            raise ValueError(f"{parts} is no whole number")
        self.value = int(value)
        name = f" {unit if self.value == 1 else plural(unit)}" if unit else ""
        sum_ = " ".join(map(str, parts))
        self.lines.append(f"{self.say(lead)} {sum_} = {self.value}{name}.")
        return self.value

    def finished(self, *wordings: str) -> tuple[str, str]:
        """(prompt, worked answer) in one of the wordings."""
        facts, question = (piece.strip() for piece in self.rng.choice(wordings).split("|| "))
        words: dict[str, str | int] = {
            key: spoken(value) if isinstance(value, int) else value for key, value in self.fields.items()
        }
        if facts and self.rng.random() < DISTRACTED:
            self.fields["x"] = self.rng.randint(2, 60)
            words["x"] = str(self.fields["x"])
            more = self.rng.choice(DISTRACTIONS)
            facts = f"{facts} {more}" if self.rng.random() < 0.6 else f"{more} {facts}"
        if self.rng.random() < SPOKEN:
            self.fields = words
        parts = [facts, question]
        if self.rng.random() < QUESTION_FIRST and facts and not ABOUT.search(question):
            parts.reverse()
        prompt = self.say(" ".join(part for part in parts if part))
        prompt = SENTENCE.sub(lambda found: found.group(1) + found.group(2).upper(), prompt)
        return prompt, "\n".join([*self.lines, f"The answer is {self.value}."])
