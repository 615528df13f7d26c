"""Word problems about money: prices, change, saving, wages, reductions."""

import random

from scripts.pair.problem_draft import Draft
from scripts.pair.problem_words import PRODUCTS, plural

Problem = tuple[str, str]


def _draft(rng: random.Random) -> Draft:
    d = Draft.of(rng)
    first, second = rng.sample(PRODUCTS, 2)
    coin = rng.choice(("dollar", "dollar", "dollar", "euro", "coin", "pound"))
    d.fields |= {
        "item": first,
        "items": plural(first),
        "piece": second,
        "pieces": plural(second),
        "dollar": coin,
        "dollars": plural(coin),
    }
    return d


def _unit(d: Draft) -> str:
    return str(d.fields["dollar"])


def change(rng: random.Random) -> Problem:
    d = _draft(rng)
    n, p = d.number("n", 2, 12), d.number("p", 2, 15)
    m = d.fields["m"] = n * p + rng.randint(1, 60)
    cost = d.step("The {items} cost", n, "*", p, unit=_unit(d))
    d.step("What is left is", m, "-", cost, unit=_unit(d))
    return d.finished(
        "{a} has {m} {dollars} and buys {n} {items} for {p} {dollars} each. || How many {dollars} are left?",
        "{a} goes to the {place} with {m} {dollars}. {he} buys {n} {items} that cost {p} {dollars} each. "
        "|| How much money does {a} have [left|then|after that]?",
        "A {item} costs {p} {dollars}. {a} buys {n} of them and pays with {m} {dollars}. || How much "
        "[change|money] does {a} get back?",
        "{a} had {m} {dollars}. {he} paid {p} {dollars} for each of {n} {items}. || How many {dollars} "
        "does {a} still have?",
        "One {item} is {p} {dollars}. {a} takes {n} {items} and gives the {worker} {m} {dollars}. || "
        "What change should {a} get?",
        "With {m} {dollars} in {his} pocket, {a} buys {n} {items}, each for {p} {dollars}. || How much "
        "is left in the end?",
    )


def simple_change(rng: random.Random) -> Problem:
    d = _draft(rng)
    p = d.number("p", 2, 80)
    m = d.fields["m"] = p + rng.randint(1, 60)
    d.step("We take the price away:", m, "-", p, unit=_unit(d))
    return d.finished(
        "{a} buys a {item} for {p} {dollars} and pays with {m} {dollars}. || How much change does {he} get?",
        "{a} has {m} {dollars}. {he} spends {p} {dollars} on a {item}. || How many {dollars} are left?",
        "A {item} costs {m} {dollars}, and a {piece} costs {p} {dollars}. || How much more does the "
        "{item} cost?",
        "{a} wants a {item} for {m} {dollars} and has {p} {dollars}. || How many more {dollars} does {a} "
        "need?",
    )


def two_products(rng: random.Random) -> Problem:
    d = _draft(rng)
    n, p, k, q = d.number("n", 2, 8), d.number("p", 2, 15), d.number("k", 2, 8), d.number("q", 2, 15)
    first = d.step("The {items} cost", n, "*", p, unit=_unit(d))
    second = d.step("The {pieces} cost", k, "*", q, unit=_unit(d))
    d.step("Together that is", first, "+", second, unit=_unit(d))
    return d.finished(
        "{a} buys {n} {items} for {p} {dollars} each and {k} {pieces} for {q} {dollars} each. || How "
        "much does {a} [pay|spend] [in all|altogether]?",
        "A {item} costs {p} {dollars} and a {piece} costs {q} {dollars}. || How much do {n} {items} and "
        "{k} {pieces} cost [together|in total]?",
        "The {worker} sells {n} {items} at {p} {dollars} each and {k} {pieces} at {q} {dollars} each. || "
        "How many {dollars} does the {worker} [take in|get]?",
    )


def one_and_many(rng: random.Random) -> Problem:
    d = _draft(rng)
    n, p, q = d.number("n", 2, 9), d.number("p", 2, 15), d.number("q", 2, 40)
    first = d.step("The {items} cost", n, "*", p, unit=_unit(d))
    d.step("With the {piece} that is", first, "+", q, unit=_unit(d))
    return d.finished(
        "{a} buys {n} {items} for {p} {dollars} each and a {piece} for {q} {dollars}. || How much does "
        "{a} [pay|spend]?",
        "A {piece} costs {q} {dollars}, and each {item} costs {p} {dollars}. {a} buys one {piece} and "
        "{n} {items}. || How much is that?",
        "{a} pays {q} {dollars} for a {piece} and {p} {dollars} for each of {n} {items}. || What does "
        "{a} pay altogether?",
    )


def two_and_change(rng: random.Random) -> Problem:
    d = _draft(rng)
    p, q = d.number("p", 2, 40), d.number("q", 2, 40)
    m = d.fields["m"] = p + q + rng.randint(1, 50)
    cost = d.step("Together they cost", p, "+", q, unit=_unit(d))
    d.step("What is left is", m, "-", cost, unit=_unit(d))
    return d.finished(
        "{a} has {m} {dollars}. {he} buys a {item} for {p} {dollars} and a {piece} for {q} {dollars}. || "
        "How much money is left?",
        "{a} buys a {item} ({p} {dollars}) and a {piece} ({q} {dollars}) and pays with {m} {dollars}. || "
        "How much change does {a} get?",
        "A {item} costs {p} {dollars} and a {piece} {q} {dollars}. {a} buys both with {his} {m} "
        "{dollars}. || How many {dollars} does {he} have then?",
        "{a} got {m} {dollars} from {b}. {he} spent {p} {dollars} on a {item} and {q} on a {piece}. || "
        "How many {dollars} are left?",
    )


def price_of_one(rng: random.Random) -> Problem:
    d = _draft(rng)
    n, p, k = d.number("n", 2, 9), rng.randint(2, 15), d.number("k", 2, 9)
    total = d.fields["m"] = n * p
    one = d.step("One {item} costs", total, "/", n, unit=_unit(d))
    d.step("So {k} {items} cost", one, "*", k, unit=_unit(d))
    return d.finished(
        "{n} {items} cost {m} {dollars}. || How much do {k} {items} cost?",
        "{a} pays {m} {dollars} for {n} {items}. {b} buys {k} {items} [at the same price|in the same "
        "shop]. || How much does {b} pay?",
        "For {m} {dollars} you get {n} {items}. || What is the price of {k} {items}?",
    )


def each_costs(rng: random.Random) -> Problem:
    d = _draft(rng)
    n, p = d.number("n", 2, 12), rng.randint(2, 20)
    d.fields["m"] = n * p
    d.step("We divide the money:", n * p, "/", n)
    return d.finished(
        "{a} pays {m} {dollars} for {n} {items}. || How much does one {item} cost?",
        "A {item} costs {n} {dollars}. || How many {items} can {a} buy with {m} {dollars}?",
        "{n} friends pay {m} {dollars} together, each the same. || How much does each of them pay?",
    )


def saving(rng: random.Random) -> Problem:
    d = _draft(rng)
    w, n = d.number("w", 2, 20), rng.randint(2, 12)
    have = d.number("n", 2, 60)
    price = d.fields["m"] = have + w * n
    missing = d.step("{a} still needs", price, "-", have, unit=_unit(d))
    d.step("The number of weeks is", missing, "/", w)
    return d.finished(
        "{a} wants a {item} that costs {m} {dollars}. {he} has {n} {dollars} and saves {w} {dollars} a "
        "week. || How many weeks does {a} need?",
        "A {item} costs {m} {dollars}. {a} already has {n} {dollars} and puts {w} {dollars} aside every "
        "week. || After how many weeks can {a} buy it?",
        "{a} has {n} {dollars}. || How many weeks must {he} save {w} {dollars} each to have {m} {dollars}?",
    )


def wages(rng: random.Random) -> Problem:
    d = _draft(rng)
    n, p = d.number("n", 2, 10), d.number("p", 5, 25)
    k = d.number("k", 2, n * p - 1)
    earned = d.step("{a} earns", n, "*", p, unit=_unit(d))
    d.step("What is left is", earned, "-", k, unit=_unit(d))
    return d.finished(
        "{a} earns {p} {dollars} an hour and works {n} hours. Then {he} spends {k} {dollars}. || How "
        "much money is left?",
        "{a} works {n} hours for {p} {dollars} an hour and pays {k} {dollars} for [a meal|a taxi|food|a "
        "gift]. || How many {dollars} does {a} have left?",
        "For each of {n} hours of work {a} gets {p} {dollars}. {he} gives {k} {dollars} to {b}. || How "
        "much does {a} keep?",
    )


def wages_sum(rng: random.Random) -> Problem:
    d = _draft(rng)
    n, p, k = d.number("n", 2, 9), d.number("p", 5, 25), d.number("k", 2, 9)
    hours = d.step("The work takes", n, "+", k, unit="hour")
    d.step("The pay is", hours, "*", p, unit=_unit(d))
    return d.finished(
        "{a} earns {p} {dollars} an hour. {he} works {n} hours on {day} and {k} hours on {next}. || How "
        "much does {a} earn?",
        "A {worker} gets {p} {dollars} for every hour. The {worker} works {n} hours in the morning and "
        "{k} in the afternoon. || How many {dollars} is that?",
    )


def reduced(rng: random.Random) -> Problem:
    d = _draft(rng)
    off, n = d.number("k", 2, 15), d.number("n", 2, 9)
    p = d.number("p", off + 2, off + 30)
    now = d.step("One {item} now costs", p, "-", off, unit=_unit(d))
    d.step("So {n} {items} cost", now, "*", n, unit=_unit(d))
    return d.finished(
        "A {item} costs {p} {dollars}. Today it is {k} {dollars} cheaper. || How much do {n} {items} "
        "cost today?",
        "{a} buys {n} {items}. The price of one was {p} {dollars}, but [now it is {k} {dollars} less|the "
        "{worker} takes {k} {dollars} off each]. || How much does {a} pay?",
        "The {place} lowers the price of a {item} from {p} {dollars} by {k} {dollars}. || What do {n} "
        "{items} cost now?",
    )


def percent_off(rng: random.Random) -> Problem:
    d = _draft(rng)
    percent = d.fields["k"] = rng.choice((10, 20, 25, 50, 5, 30, 40, 75))
    p = d.fields["p"] = rng.randint(1, 12) * (100 if percent % 10 else 10) // (5 if percent == 25 else 1)
    if p * percent % 100:
        p = d.fields["p"] = p * 10
    d.lines.append(f"{percent} percent of {p} is {p} * {percent} / 100 = {p * percent // 100}.")
    if rng.random() < 0.7:
        d.step("The new price is", p, "-", p * percent // 100, unit=_unit(d))
        d.fields["ask"] = "[What is the new price|How much does it cost now|What does {a} pay for it]?"
    else:
        d.value = p * percent // 100
        d.fields["ask"] = "How many {dollars} does {a} save?"
    d.fields["ask"] = d.say(str(d.fields["ask"]))
    return d.finished(
        "A {item} costs {p} {dollars}. It is [sold|offered] at {k} percent off. || {ask}",
        "The price of a {item} was {p} {dollars}. {a} gets {k} percent off. || {ask}",
    )


def profit(rng: random.Random) -> Problem:
    d = _draft(rng)
    n, p = d.number("n", 2, 15), d.number("p", 4, 20)
    cost = d.number("k", 2, n * p - 1)
    taken = d.step("The {worker} takes in", n, "*", p, unit=_unit(d))
    d.step("The gain is", taken, "-", cost, unit=_unit(d))
    return d.finished(
        "A {worker} sells {n} {items} for {p} {dollars} each. Making them cost {k} {dollars}. || How "
        "much does the {worker} gain?",
        "A {worker} pays {k} {dollars} for {n} {items} and sells each for {p} {dollars}. || How many "
        "{dollars} does the {worker} make?",
    )


def pooled(rng: random.Random) -> Problem:
    d = _draft(rng)
    m, n, k = d.number("m", 2, 60), d.number("n", 2, 60), d.number("k", 2, 60)
    all_ = d.step("Together they have", m, "+", n, "+", k, unit=_unit(d))
    if rng.random() < 0.6:
        p = d.number("p", 2, all_ - 1)
        d.step("After that they have", all_, "-", p, unit=_unit(d))
        d.fields["ask"] = d.say("They buy a {item} for {p} {dollars}. || How much money is left?")
    else:
        d.fields["ask"] = d.say("|| How much money do they have [together|in all]?")
    text = str(d.fields.pop("ask"))
    return d.finished(
        "{a} has {m} {dollars}, {b} has {n} {dollars}, and {c} has {k} {dollars}. " + text,
        "{a}, {b} and {c} put their money together: {m}, {n} and {k} {dollars}. " + text,
    )


def cents(rng: random.Random) -> Problem:
    d = _draft(rng)
    (one, x), (two, y) = rng.sample((("nickel", 5), ("dime", 10), ("quarter", 25), ("penny", 1)), 2)
    m, n = d.number("m", 2, 12), d.number("n", 2, 12)
    d.fields |= {"ones": plural(one), "twos": plural(two)}
    first = d.step("The {ones} are worth", m, "*", x, unit="cent")
    second = d.step("The {twos} are worth", n, "*", y, unit="cent")
    d.step("Together that is", first, "+", second, unit="cent")
    return d.finished(
        "{a} has {m} {ones} and {n} {twos}. || How many cents [is that|does {a} have]?",
        "In a {box} there are {m} {ones} and {n} {twos}. || How many cents are they worth?",
    )


def twice_price(rng: random.Random) -> Problem:
    d = _draft(rng)
    p, t = d.number("p", 2, 30), rng.choice((2, 3, 4))
    d.fields["times"] = {2: "twice", 3: "three times", 4: "four times"}[t]
    other = d.step("The {piece} costs", t, "*", p, unit=_unit(d))
    d.step("Together they cost", p, "+", other, unit=_unit(d))
    return d.finished(
        "A {item} costs {p} {dollars}. A {piece} costs {times} as much. || How much do they cost together?",
        "{a} pays {p} {dollars} for a {item} and {times} as much for a {piece}. || How much does {a} pay "
        "in all?",
        "A {piece} costs {times} as much as a {item}, which costs {p} {dollars}. || What is the price of "
        "both?",
    )


MONEY_FORMS = (
    change, change, simple_change, two_products, one_and_many, two_and_change, price_of_one, each_costs,
    saving, wages, wages_sum, reduced, percent_off, profit, pooled, cents, twice_price,
)  # fmt: skip
