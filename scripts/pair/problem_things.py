"""Word problems about things that people have, give, pack, share and compare."""

import random

from scripts.pair.problem_draft import Draft
from scripts.pair.problem_words import LEGS, PARTS, TIMES, plural

Problem = tuple[str, str]


def gain(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    d.step("We add the two numbers:", d.number("m", 2, 90), "+", d.number("n", 2, 90))
    return d.finished(
        "{a} [has|owns|keeps] {m} {things}. {b} [gives|sends|brings] {a} {n} [more|other {things}]. || "
        "How many {things} does {a} have [now|in all|altogether]?",
        "{a} [finds|picks|collects] {m} {things} [in the morning|before lunch|on {day}] and {n} [in the "
        "evening|after lunch|on {next}]. || How many {things} [is that|does {a} find|are there] in all?",
        "There are {m} {things} in [one|a] {box} and {n} in [another|a second one]. || How many {things} "
        "are [there|there in both|there together]?",
        "{a} has {m} {things} and {b} has {n}. || How many {things} do they have [together|in "
        "total|altogether]?",
        "A {place} [had|owned] {m} {things}. It [got|bought|received] {n} more. || How many {things} "
        "does it have now?",
        "{a} put {m} {things} [on the table|in a {box}]. Then {b} [added|put down] {n}. || What is the "
        "number of {things} there now?",
        "{m} {things} were [in the {box}|on the table] when {a} [came|arrived] with {n} more. || How "
        "many {things} [were there then|did that make]?",
        "At the {place}, {a} counted {m} {things} and {b} counted {n} others. || How many {things} did "
        "they count?",
    )


def loss(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m = d.number("m", 10, 120)
    n = d.number("n", 2, m - 2)
    d.step(f"We take {n} away from {m}:", m, "-", n)
    return d.finished(
        "{a} had {m} {things} and [gave|sent|lent] {n} of them to {b}. || How many {things} [are "
        "left|does {a} have left|did {a} keep]?",
        "A {place} had {m} {things} and [lost|sold|threw away] {n}. || How many {things} [does it have "
        "now|are left]?",
        "There were {m} {things} in a {box}. {a} took out {n}. || How many {things} [are still in the "
        "{box}|stayed in the {box}|are left]?",
        "{a} [made|bought|found] {m} {things}. {n} of them were [broken|lost|given away]. || How many "
        "{things} are [left|still there]?",
        "Of {m} {things}, {a} has already [painted|counted|washed|sorted] {n}. || How many {things} [are "
        "still to do|are left to do]?",
        "{a} wants to have {m} {things} and has {n} so far. || How many more {things} does {a} need?",
        "{a} started with {m} {things}. At the end of the day {he} had {n}. || How many {things} did {a} "
        "[lose|give away|use]?",
    )


def compare(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m = d.number("m", 10, 120)
    n = d.number("n", 2, m - 2)
    d.step("The difference is", m, "-", n)
    return d.finished(
        "{a} has {m} {things}. {b} has {n} {things}. || How many more {things} does {a} have than {b}?",
        "{a} has {m} {things} and {b} has {n}. || How many fewer {things} does {b} have than {a}?",
        "One {box} holds {m} {things}, [another|the other] holds {n}. || What is the difference?",
        "{a} [collected|found|sold] {m} {things} on {day} and {n} on {next}. || How many more was that "
        "on {day} than on {next}?",
        "There are {m} {things} and {n} {others} [on the table|in the {place}|in a {box}]. || How many "
        "more {things} than {others} are there?",
    )


def gain_loss(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 5, 80), d.number("n", 2, 60)
    have = d.step("First there are", m, "+", n, unit=str(d.fields["thing"]))
    k = d.number("k", 2, have - 1)
    d.step("Then there are", have, "-", k, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {things}, [gets|finds|buys] {n} more and then [gives|sells|sends] {k} to {b}. || "
        "How many {things} does {a} have [now|left|in the end]?",
        "{a} has {m} {things}. {a} buys {n} more and then gives {k} to {b}. || How many are left?",
        "{a} had {m} {things}. {b} gave {him} {n} {things}, and then {he} lost {k}. || How many {things} "
        "does {a} have now?",
        "There were {m} {things} in the {place}. In the morning {n} more [came|were brought], and in the "
        "evening {k} were taken away. || How many {things} are there now?",
        "On {day} {a} made {m} {things}, and on {next} {he} made {n}. On {last} {he} gave away {k} of "
        "them. || How many {things} are left?",
        "{a} picked {m} {things} and {b} picked {n}. They [gave|sold] {k} of them [to a friend|to {c}|at "
        "the {place}]. || How many {things} do they still have?",
        "A {box} held {m} {things}. {a} put in {n} more, and {b} took out {k}. || How many {things} are "
        "in the {box} [now|after that]?",
        "{a} brings {m} {things} and {b} brings {n}. {k} of all these {things} are broken. || How many "
        "are good?",
        "{a} and {b} have {m} and {n} {things}. Together they use {k}. || How many {things} remain?",
    )


def loss_gain(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m = d.number("m", 8, 90)
    n, k = d.number("n", 2, m - 2), d.number("k", 2, 60)
    left = d.step("First there are", m, "-", n, unit=str(d.fields["thing"]))
    d.step("Then there are", left, "+", k, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} had {m} {things} and gave {n} to {b}. [Later|Then|The next day] {he} [found|bought|got] {k} "
        "more. || How many {things} does {a} have now?",
        "A {place} has {m} {things}. It [sells|loses|lends] {n} and then [buys|gets] {k} new ones. || "
        "How many {things} does it have [now|then]?",
        "In a {box} there were {m} {things}. {b} took {n} of them and {c} put {k} in. || How many "
        "{things} are in the {box} now?",
        "{a} lost {n} of {his} {m} {things}, but {b} gave {him} {k}. || How many {things} does {a} have "
        "in the end?",
        "{m} {things} lay on the table. {n} fell down, and then {a} put {k} more on it. || How many "
        "{things} lie on the table now?",
    )


def two_losses(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m = d.number("m", 20, 120)
    n = d.number("n", 2, m // 2)
    k = d.number("k", 2, m // 2)
    gone = d.step("Together that is", n, "+", k, unit=str(d.fields["thing"]))
    d.step("So there are still", m, "-", gone, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} had {m} {things}. {he} gave {n} to {b} and {k} to {c}. || How many {things} are left?",
        "A {place} had {m} {things}. It sold {n} on {day} and {k} on {next}. || How many {things} were left?",
        "Of the {m} {things} in a {box}, {n} are [red|old|small] and {k} are [blue|new|green]. The "
        "others are white. || How many are white?",
        "{a} must [pack|paint|count|wash] {m} {things}. {he} does {n} in the morning and {k} in the "
        "afternoon. || How many are still to do then?",
        "{m} {things} were on sale. {b} bought {n} and {c} bought {k}. || How many {things} could still "
        "be bought?",
    )


def more_than(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 3, 60), d.number("n", 2, 40)
    more = rng.random() < 0.5 or n >= m
    b = d.step("{b} has", m, "+" if more else "-", n, unit=str(d.fields["thing"]))
    d.fields["more"] = "more" if more else "fewer"
    d.step("Together they have", m, "+", b, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {things}. {b} has {n} {more} than {a}. || How many {things} do they have "
        "[together|in all|altogether]?",
        "{b} has {n} {more} {things} than {a}, who has {m}. || How many {things} do the two have together?",
        "{a} [found|picked|bought|made] {m} {things}, and {b} {n} {more} than that. || How many {things} "
        "[is that together|are there in all]?",
        "There are {m} {things} in {a}'s {box}. In {b}'s {box} there are {n} {more}. || What is the "
        "number of {things} in both?",
    )


def times_as_many(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, t = d.number("m", 2, 40), rng.choice(list(TIMES))
    d.fields |= {"times": TIMES[t], "did": d.say("[found|sold|made|counted]")}
    b = d.step("{b} has", t, "*", m, unit=str(d.fields["thing"]))
    d.step("Together they have", m, "+", b, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {things}. {b} has {times} as many. || How many {things} do they have together?",
        "{b} has {times} as many {things} as {a}. {a} has {m}. || How many {things} do they have [in "
        "all|together]?",
        "{a} {did} {m} {things}, and {b} {did} {times} as many. || How many {things} [is that in "
        "total|are there together]?",
        "{a}'s {box} holds {m} {things}; {b}'s {box} holds {times} that number. || How many {things} are "
        "in both?",
    )


def times_difference(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, t = d.number("m", 2, 40), rng.choice(list(TIMES))
    d.fields["times"] = TIMES[t]
    b = d.step("{b} has", t, "*", m, unit=str(d.fields["thing"]))
    d.step("The difference is", b, "-", m, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {things} and {b} has {times} as many. || How many more {things} does {b} have than {a}?",
        "{b} [collects|has|owns] {times} as many {things} as {a}, who has {m}. || What is the difference "
        "between them?",
    )


def three_people(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, t = d.number("m", 4, 25), rng.choice(list(TIMES))
    d.fields["times"] = TIMES[t]
    b = d.step("{b} has", t, "*", m, unit=str(d.fields["thing"]))
    n = d.number("n", 2, min(b - 1, 20))
    more = rng.random() < 0.5
    d.fields["more"] = "more" if more else "fewer"
    c = d.step("{c} has", b, "+" if more else "-", n, unit=str(d.fields["thing"]))
    if rng.random() < 0.6:
        d.step("Together they have", m, "+", b, "+", c, unit=str(d.fields["thing"]))
        ask = "How many {things} do [all three|the three|they] have [together|in all]?"
    else:
        ask = "How many {things} does {c} have?"
    return d.finished(
        "{a} has {m} {things}. {b} has {times} as many as {a}, and {c} has {n} {more} than {b}. || " + ask,
        "{b} has {times} as many {things} as {a}. {c} has {n} {more} than {b}. {a} has {m}. || " + ask,
    )


def boxes(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 2, 15), d.number("n", 2, 15)
    d.step(f"There are {m} times {n}:", m, "*", n)
    return d.finished(
        "{a} has {m} {boxes} with {n} {things} each. || How many {things} does {a} have?",
        "Each {box} holds {n} {things}. || How many {things} [do {m} {boxes} hold|are in {m} {boxes}]?",
        "{a} [buys|makes|finds|uses] {n} {things} [every|each] day for {m} days. || How many {things} is "
        "that [in all|altogether]?",
        "There are {m} [rows|lines] of {n} {things} [on the wall|on the floor|in the {place}]. || How "
        "many {things} are there?",
        "{m} [children|friends|people] each [bring|get|carry] {n} {things}. || How many {things} is that "
        "together?",
        "A {place} orders {m} {boxes} of {things}. In every {box} there are {n}. || How many {things} "
        "does it order?",
    )


def boxes_loose(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n, k = d.number("m", 2, 12), d.number("n", 2, 15), d.number("k", 2, 60)
    full = d.step("The full {boxes} hold", m, "*", n, unit=str(d.fields["thing"]))
    d.step("In all there are", full, "+", k, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {boxes} with {n} {things} in each, and {k} more {things} [on the table|in {his} "
        "hand|at home]. || How many {things} does {a} have [in all|altogether]?",
        "{a} buys {m} {boxes} of {things}. Each {box} holds {n}. {he} already had {k} {things}. || How "
        "many {things} does {a} have now?",
        "There are {n} {things} in every {box}. A {place} has {m} full {boxes} and {k} single {things}. "
        "|| How many {things} does it have?",
        "{a} has {m} {boxes} of {n} {things} and {k} loose {things}. || How many {things} is that?",
        "{a} fills {m} {boxes} with {n} {things} each. After that {k} {things} [are left over|do not "
        "fit]. || How many {things} were there at first?",
        "{b} gives {a} {k} {things}. {a} also gets {m} {boxes} with {n} {things} each. || How many "
        "{things} does {a} get?",
    )


def boxes_less(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 2, 12), d.number("n", 3, 15)
    full = d.step("In all there are", m, "*", n, unit=str(d.fields["thing"]))
    k = d.number("k", 2, full - 1)
    d.step("What is left is", full, "-", k, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {boxes} of {n} {things} each and gives {k} {things} to {b}. || How many {things} "
        "are left?",
        "A {worker} buys {m} {boxes} with {n} {things} each. {k} of the {things} are [broken|bad|dirty]. "
        "|| How many are good?",
        "There are {m} {boxes} in the {place}, each with {n} {things}. The {worker} uses {k} {things}. "
        "|| How many {things} are still there?",
        "{a} [picks|makes|paints] {n} {things} a day for {m} days. Then {he} sells {k}. || How many "
        "{things} does {a} keep?",
        "{m} [children|friends] bring {n} {things} each. They eat or use {k}. || How many {things} remain?",
        "A {place} gets {m} {boxes} of {n} {things}. It [sells|uses|gives away] {k} {things}. || How "
        "many {things} are left?",
        "{a} needs {k} {things} out of {m} {boxes} of {n}. || How many {things} will not be needed?",
    )


def two_boxes(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n, k, j = d.number("m", 2, 9), d.number("n", 2, 12), d.number("k", 2, 9), d.number("j", 2, 12)
    first = d.step("The {boxes} hold", m, "*", n, unit=str(d.fields["thing"]))
    second = d.step("The {cases} hold", k, "*", j, unit=str(d.fields["thing"]))
    if rng.random() < 0.6 or second >= first:
        d.step("Together they hold", first, "+", second, unit=str(d.fields["thing"]))
        ask = "How many {things} [are there|is that] [in all|altogether|together]?"
    else:
        d.step("The difference is", first, "-", second, unit=str(d.fields["thing"]))
        ask = "How many more {things} are in the {boxes} than in the {cases}?"
    return d.finished(
        "{a} has {m} {boxes} with {n} {things} each and {k} {cases} with {j} {things} each. || " + ask,
        "There are {m} {boxes} and {k} {cases} in the {place}. A {box} holds {n} {things}, a {case} "
        "holds {j}. || " + ask,
        "A {worker} fills {m} {boxes} and {k} {cases}: {n} {things} go into each {box} and {j} into each "
        "{case}. || " + ask,
    )


def share(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    k, each = d.number("k", 2, 12), rng.randint(2, 15)
    d.fields["m"] = k * each
    d.step("Each part is", k * each, "/", k)
    return d.finished(
        "{a} shares {m} {things} [equally|fairly|evenly] among {k} [friends|children|people]. || How "
        "many {things} does each [one|of them] get?",
        "{m} {things} are put into {k} {boxes}, the same number in each. || How many {things} are in "
        "[one|each|a] {box}?",
        "{a} has {m} {things} and [packs|puts] {k} of them in each {box}. || How many {boxes} does {a} need?",
        "{k} [friends|children] [find|win] {m} {things} and share them equally. || How many {things} "
        "does each one have?",
        "A {worker} lays {m} {things} in {k} equal rows. || How many {things} are in [a|each] row?",
    )


def share_rest(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    k, each = d.number("k", 3, 12), rng.randint(2, 12)
    m = k * each + rng.randint(1, k - 1)
    d.fields["m"] = m
    d.lines.append(f"{k} goes into {m} {each} times.")
    used = d.step("That takes", k, "*", each, unit=str(d.fields["thing"]))
    d.step("What is left over is", m, "-", used)
    return d.finished(
        "{a} shares {m} {things} equally among {k} [friends|children]. Each gets as many as possible. || "
        "How many {things} are left over?",
        "{a} packs {m} {things} into {boxes} of {k}. || How many {things} are left over?",
        "{m} {things} are laid in rows of {k}. || How many do not fill a row?",
        "A {worker} ties {m} {things} into bundles of {k}. || How many {things} remain?",
    )


def more_then_share(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    k, each = d.number("k", 2, 10), rng.randint(2, 12)
    total = k * each
    n = d.number("n", 2, total - 2)
    m = total - n
    d.fields["m"] = m
    d.step("Together there are", m, "+", n, unit=str(d.fields["thing"]))
    d.step("Each part is", total, "/", k)
    return d.finished(
        "{a} has {m} {things} and {b} has {n}. They put them together and share them among {k} "
        "[children|friends]. || How many {things} does each one get?",
        "{a} picks {m} {things} on {day} and {n} on {next}. {he} puts them all into {k} {boxes}, the "
        "same number in each. || How many {things} are in each {box}?",
        "A {place} gets {m} {things} in the morning and {n} in the afternoon. It puts {k} {things} in "
        "every {box}. || How many {boxes} does it need?",
    )


def less_then_share(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    k, each = d.number("k", 2, 10), rng.randint(2, 12)
    n = d.number("n", 2, 30)
    m = k * each + n
    d.fields["m"] = m
    left = d.step("First there are", m, "-", n, unit=str(d.fields["thing"]))
    d.step("Each part is", left, "/", k)
    return d.finished(
        "{a} has {m} {things}. {he} keeps {n} and shares the rest equally among {k} [friends|children]. "
        "|| How many {things} does each [get|one get]?",
        "Of {m} {things}, {n} are broken. {a} packs the others into {k} {boxes}, the same number in "
        "each. || How many {things} are in a {box}?",
        "A {worker} had {m} {things} and sold {n}. The {worker} put the rest into {boxes} of {k}. || How "
        "many {boxes} were filled?",
        "{b} takes {n} of {m} {things}. The rest is for {k} [neighbors|cousins], and everyone gets the "
        "same number. || How many does one of them get?",
    )


def unknown_start(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    left, n, k = d.number("m", 2, 60), d.number("n", 2, 40), d.number("k", 2, 40)
    before = d.step("Before the last change there were", left, "+", k, unit=str(d.fields["thing"]))
    d.step("At the start there were", before, "+", n, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} gave {n} {things} to {b} and {k} to {c}. Now {he} has {m} left. || How many {things} did "
        "{a} have [at first|at the start|in the beginning]?",
        "A {place} sold {n} {things} on {day} and {k} on {next}. After that {m} were left. || How many "
        "{things} were there at first?",
    )


def part_of(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    p, each = rng.choice(list(PARTS)), rng.randint(2, 20)
    m = p * each
    d.fields["m"], d.fields["part"] = m, PARTS[p]
    d.step("{part} of {m} is".replace("{part}", PARTS[p].capitalize()), m, "/", p)
    if rng.random() < 0.6:
        d.step("So there are still", m, "-", each, unit=str(d.fields["thing"]))
        ask = "How many {things} [are left|does {a} have left|does {a} still have]?"
    else:
        ask = "How many {things} is that?"
    return d.finished(
        "{a} has {m} {things} and gives {part} of them to {b}. || " + ask,
        "{a} [buys|finds|bakes|makes] {m} {things}. {he} [uses|sells|eats|loses] {part} of them. || " + ask,
    )


def part_then(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    p, each = rng.choice(list(PARTS)), rng.randint(3, 20)
    m = p * each
    d.fields["m"], d.fields["part"] = m, PARTS[p]
    given = d.step(f"{PARTS[p].capitalize()} of {m} is", m, "/", p)
    left = d.step("Then there are", m, "-", given, unit=str(d.fields["thing"]))
    n = d.number("n", 2, left - 1)
    d.step("In the end there are", left, "-", n, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {things}. {he} gives {part} of them to {b} and then {n} to {c}. || How many "
        "{things} are left?",
        "A {place} sells {part} of its {m} {things} on {day} and {n} more on {next}. || How many "
        "{things} does it have left?",
        "{a} had {m} {things}. {part} of them [broke|were lost], and {he} gave {n} away. || How many "
        "{things} does {a} have now?",
    )


def legs(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    first, second = rng.sample(list(LEGS), 2)
    m, n = d.number("m", 2, 12), d.number("n", 2, 12)
    d.fields |= {"beasts": plural(first), "birds": plural(second)}
    one = d.step("The {beasts} have", m, "*", LEGS[first], unit="leg")
    two = d.step("The {birds} have", n, "*", LEGS[second], unit="leg")
    d.step("Together they have", one, "+", two, unit="leg")
    return d.finished(
        "[There are|{a} sees|{a} counts|{a} draws] {m} {beasts} and {n} {birds}. || How many legs do "
        "they have [together|in all]?",
        "{m} {beasts} and {n} {birds} are [on a hill|in a field|in a picture]. || How many legs is that?",
    )


def every_day(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n, k = d.number("m", 5, 60), d.number("n", 2, 12), d.number("k", 2, 12)
    new = d.step("The new ones are", n, "*", k, unit=str(d.fields["thing"]))
    d.step("In all there are", m, "+", new, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {things} and [gets|buys|makes|finds] {n} more [every|each] day. || How many "
        "{things} will {a} have after {k} days?",
        "{a} already has {m} {things}. Each of {k} [friends|cousins|neighbors] gives {him} {n} more. || "
        "How many {things} does {a} have then?",
    )


def used_daily(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, k = d.number("n", 2, 12), d.number("k", 2, 12)
    m = n * k + rng.randint(1, 40)
    d.fields["m"] = m
    used = d.step("The number used is", n, "*", k, unit=str(d.fields["thing"]))
    d.step("What is left is", m, "-", used, unit=str(d.fields["thing"]))
    return d.finished(
        "{a} has {m} {things} and uses {n} every day. || How many {things} are left after {k} days?",
        "A {place} starts with {m} {things}. Each day {n} are [sold|taken away|used]. || How many "
        "{things} are there after {k} days?",
        "{a} gives {n} {things} to each of {k} [friends|children]. {he} had {m}. || How many {things} "
        "does {a} have left?",
    )


def boxes_packed(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    j, m, n = rng.choice(REPACKED)
    d.fields |= {"j": j, "m": m, "n": n}
    total = d.step("In all there are", m, "*", n, unit=str(d.fields["thing"]))
    d.step("The number of {cases} is", total, "/", j)
    return d.finished(
        "{a} empties {m} {boxes} of {n} {things} each and puts {j} {things} into every {case}. || How "
        "many {cases} does {a} fill?",
        "A {worker} gets {m} {boxes} with {n} {things} in each. The {things} are packed again, {j} to a "
        "{case}. || How many {cases} are needed?",
    )


# (things in a new box, old boxes, things in an old one) that come out even.
REPACKED = [
    (j, m, n) for j in range(2, 13) for m in range(2, 13) for n in range(2, 16) if m * n % j == 0 and j != n
]

THINGS_FORMS = (
    gain, loss, compare, gain_loss, gain_loss, loss_gain, two_losses, more_than, times_as_many,
    times_difference, three_people, boxes, boxes_loose, boxes_less, boxes_less, two_boxes, share,
    share_rest, more_then_share, less_then_share, unknown_start, part_of, part_then, legs, every_day,
    used_daily, boxes_packed,
)  # fmt: skip
