"""Word problems with worked steps, made by small generators: unlimited text whose answers are right."""

import random
from collections.abc import Callable, Iterator

NAMES = (
    "Ana Ben Carla Dan Ella Finn Grace Hugo Iris Jack Kim Leo Mia Noah Olga Paul Rosa Sam Tara Uma Vera Will "
    "Yara Zoe Nina Omar Lucy Max Amy Tom Sara Eric Jane Peter Maria Alex Lily Oscar Ruth Ivan"
).split()
THINGS = (
    "apples pears stickers marbles books pencils shells coins cards stamps buttons flowers eggs "
    "cookies oranges "
    "balloons beads stones ribbons tickets plums crayons toys nuts cakes"
).split()
PLACES = "shop,market,school,farm,library,bakery,park,garden,museum,kitchen".split(",")
BOXES = "box bag basket jar shelf tray crate packet drawer bowl".split()
PLURALS = {"box": "boxes", "shelf": "shelves"}

Problem = tuple[str, str]


def _pick(rng: random.Random) -> tuple[str, str, str]:
    first, second = rng.sample(NAMES, 2)
    return first, second, rng.choice(THINGS)


def _plural(box: str) -> str:
    return PLURALS.get(box, box + "s")


def _sum(rng: random.Random) -> Problem:
    name, other, thing = _pick(rng)
    a, b = rng.randint(2, 90), rng.randint(2, 90)
    prompt = rng.choice(
        (
            f"{name} has {a} {thing}. {other} gives {name} {b} more. How many {thing} does {name} have now?",
            f"{name} finds {a} {thing} in the morning and {b} {thing} in the evening. How many {thing} "
            "is that?",
            f"There are {a} {thing} in one {rng.choice(BOXES)} and {b} in another. How many {thing} "
            "are there?",
        )
    )
    return prompt, f"We add the two numbers: {a} + {b} = {a + b}.\nThe answer is {a + b}."


def _difference(rng: random.Random) -> Problem:
    name, other, thing = _pick(rng)
    a = rng.randint(10, 99)
    b = rng.randint(1, a - 1)
    prompt = rng.choice(
        (
            f"{name} had {a} {thing} and gave {b} of them to {other}. How many {thing} are left?",
            f"{name} has {a} {thing}. {other} has {b} {thing}. How many more does {name} have than {other}?",
            f"A {rng.choice(PLACES)} had {a} {thing} and lost {b}. How many {thing} does it have now?",
        )
    )
    return prompt, f"We take {b} away from {a}: {a} - {b} = {a - b}.\nThe answer is {a - b}."


def _product(rng: random.Random) -> Problem:
    name, _, thing = _pick(rng)
    a, b, box = rng.randint(2, 12), rng.randint(2, 12), rng.choice(BOXES)
    prompt = rng.choice(
        (
            f"{name} has {a} {_plural(box)} with {b} {thing} each. How many {thing} does {name} have?",
            f"Each {box} holds {b} {thing}. How many {thing} do {a} {_plural(box)} hold?",
            f"{name} buys {b} {thing} every day for {a} days. How many {thing} is that in all?",
        )
    )
    return prompt, f"There are {a} times {b}: {a} * {b} = {a * b}.\nThe answer is {a * b}."


def _share(rng: random.Random) -> Problem:
    name, _, thing = _pick(rng)
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    prompt = rng.choice(
        (
            f"{name} shares {a * b} {thing} equally among {a} friends. How many does each friend get?",
            f"{name} puts {a * b} {thing} into {a} {_plural(rng.choice(BOXES))}, the same number in each. "
            "How many are in each?",
        )
    )
    return prompt, f"We divide {a * b} by {a}: {a * b} / {a} = {b}.\nThe answer is {b}."


def _gain_loss(rng: random.Random) -> Problem:
    name, other, thing = _pick(rng)
    a, b = rng.randint(5, 60), rng.randint(5, 40)
    c = rng.randint(1, a + b - 1)
    prompt = rng.choice(
        (
            f"{name} has {a} {thing}. {name} buys {b} more and then gives {c} to {other}. How many are left?",
            f"{name} starts the day with {a} {thing}, gets {b} from {other}, and loses {c}. How many "
            f"{thing} does "
            f"{name} have at the end?",
        )
    )
    total = a + b
    return prompt, (
        f"First we add: {a} + {b} = {total}.\nThen we subtract: {total} - {c} = {total - c}.\n"
        f"The answer is {total - c}."
    )


def _boxes_more(rng: random.Random) -> Problem:
    name, other, thing = _pick(rng)
    a, b, c, box = rng.randint(2, 10), rng.randint(2, 12), rng.randint(1, 30), rng.choice(BOXES)
    prompt = rng.choice(
        (
            f"{name} has {a} {_plural(box)} of {b} {thing} and {c} loose {thing}. How many {thing} is that?",
            f"{name} fills {a} {_plural(box)} with {b} {thing} each. {other} brings {c} more {thing}. "
            "How many "
            f"{thing} do they have together?",
        )
    )
    total = a * b
    return prompt, (
        f"The {_plural(box)} hold {a} * {b} = {total} {thing}.\nWith the others it is {total} + {c} = "
        f"{total + c}.\n"
        f"The answer is {total + c}."
    )


def _boxes_less(rng: random.Random) -> Problem:
    name, other, thing = _pick(rng)
    a, b, box = rng.randint(2, 10), rng.randint(2, 12), rng.choice(BOXES)
    c = rng.randint(1, a * b - 1)
    prompt = rng.choice(
        (
            f"{name} has {a} {_plural(box)} with {b} {thing} each and gives {c} {thing} to {other}. How many "
            f"{thing} does {name} keep?",
            f"A {rng.choice(PLACES)} gets {a} {_plural(box)} of {b} {thing}. It sells {c} {thing}. How "
            f"many {thing} "
            "are left?",
        )
    )
    total = a * b
    return prompt, (
        f"At first there are {a} * {b} = {total} {thing}.\nThen {total} - {c} = {total - c} are left.\n"
        f"The answer is {total - c}."
    )


def _money(rng: random.Random) -> Problem:
    name, _, thing = _pick(rng)
    count, price = rng.randint(2, 9), rng.randint(2, 9)
    cost = count * price
    paid = cost + rng.randint(1, 40)
    thing_one = thing[:-1]
    prompt = rng.choice(
        (
            f"One {thing_one} costs {price} dollars. {name} buys {count} and pays with {paid} dollars. "
            "How much "
            f"money does {name} get back?",
            f"{name} has {paid} dollars and buys {count} {thing} for {price} dollars each. How many "
            "dollars are left?",
        )
    )
    return prompt, (
        f"The {thing} cost {count} * {price} = {cost} dollars.\n{paid} - {cost} = {paid - cost} "
        "dollars are left.\n"
        f"The answer is {paid - cost}."
    )


def _twice(rng: random.Random) -> Problem:
    name, other, thing = _pick(rng)
    a, times = rng.randint(2, 25), rng.choice((2, 3, 4))
    word = {2: "twice", 3: "three times", 4: "four times"}[times]
    prompt = f"{name} has {a} {thing}. {other} has {word} as many. How many {thing} do they have together?"
    return prompt, (
        f"{other} has {times} * {a} = {times * a} {thing}.\nTogether they have {a} + {times * a} = "
        f"{a + times * a}.\n"
        f"The answer is {a + times * a}."
    )


def _age(rng: random.Random) -> Problem:
    name, other, _ = _pick(rng)
    a, older, years = rng.randint(4, 40), rng.randint(1, 30), rng.randint(2, 20)
    prompt = (
        f"{name} is {a} years old. {other} is {older} years older. How old will {other} be in {years} years?"
    )
    now = a + older
    return prompt, (
        f"{other} is {a} + {older} = {now} years old now.\nIn {years} years it will be {now} + {years} "
        f"= {now + years}.\n"
        f"The answer is {now + years}."
    )


def _trip(rng: random.Random) -> Problem:
    name, other, _ = _pick(rng)
    speed, hours, more = rng.randint(3, 20), rng.randint(2, 8), rng.randint(2, 30)
    prompt = rng.choice(
        (
            f"{name} rides {speed} miles an hour for {hours} hours and then walks {more} miles. How "
            "far is the trip?",
            f"{name} drives {speed} miles every day for {hours} days to see {other}. Then there are "
            f"{more} miles to "
            "go. How long is the whole way?",
        )
    )
    far = speed * hours
    return prompt, (
        f"The first part is {speed} * {hours} = {far} miles.\nThe whole way is {far} + {more} = "
        f"{far + more} miles.\n"
        f"The answer is {far + more}."
    )


def _plain(rng: random.Random) -> Problem:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    sign = rng.choice("+-*")
    if sign == "-":
        a, b = max(a, b), min(a, b)
    if sign == "*":
        a, b = a % 12 + 1, b % 12 + 1
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    prompt = rng.choice(
        (f"What is {a} {sign} {b}?", f"Compute {a} {sign} {b}.", f"How much is {a} {sign} {b}?")
    )
    return prompt, f"{a} {sign} {b} = {value}.\nThe answer is {value}."


FORMS: tuple[Callable[[random.Random], Problem], ...] = (
    _sum,
    _difference,
    _product,
    _share,
    _gain_loss,
    _boxes_more,
    _boxes_less,
    _money,
    _twice,
    _age,
    _trip,
    _plain,
)


def problems(count: int, seed: int) -> Iterator[Problem]:
    """``count`` different (prompt, worked answer) pairs; every answer ends with ``The answer is N.``"""
    rng, seen = random.Random(seed), set()
    while len(seen) < count:
        prompt, answer = rng.choice(FORMS)(rng)
        if prompt not in seen:
            seen.add(prompt)
            yield prompt, answer
