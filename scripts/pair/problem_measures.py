"""Word problems about time, ages, ways, temperatures, areas and other measures, and plain sums."""

import random

from scripts.pair.problem_draft import Draft

Problem = tuple[str, str]
TASK = (
    "painting a room|baking bread|mowing a lawn|cleaning a car|building a shelf|cooking soup|writing a letter"
)


def plain(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    sign = rng.choice("+-*/")
    m, n = d.number("m", 2, 99), d.number("n", 2, 99)
    if sign == "-":
        m, n = max(m, n), min(m, n)
    elif sign == "*":
        m, n = m % 12 + 1, n % 12 + 1
    elif sign == "/":
        n = n % 11 + 2
        m = n * (m % 12 + 1)
    word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[sign]
    d.fields |= {"m": m, "n": n, "sign": sign, "word": word}
    d.value = d.step("", m, sign, n)
    d.lines = [line.strip() for line in d.lines]
    prompt = d.say(
        rng.choice(
            (
                "What is {m} {sign} {n}?",
                "[Compute|Calculate|Work out] {m} {sign} {n}.",
                "How much is {m} {sign} {n}?",
                "What is {m} {word} {n}?",
                "{m} {sign} {n} = ?",
            )
        )
    )
    return prompt, "\n".join([*d.lines, f"The answer is {d.value}."])


def two_sums(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n, k = d.number("m", 2, 60), d.number("n", 2, 40), d.number("k", 2, 12)
    first = d.step("First:", m, "+", n)
    if rng.random() < 0.5:
        d.step("Then:", first, "*", k)
        text = "[Add {m} and {n}, then multiply by {k}|Multiply the sum of {m} and {n} by {k}]."
    else:
        k = d.number("k", 2, first - 1)
        d.step("Then:", first, "-", k)
        text = "[Add {m} and {n}, then take away {k}|What is {m} + {n} - {k}?|Compute {m} + {n} - {k}]."
    prompt = d.say(text).replace("?.", "?")
    return prompt, "\n".join([*d.lines, f"The answer is {d.value}."])


def guess_number(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    start, n, k = rng.randint(2, 30), d.number("n", 2, 9), d.number("k", 2, 40)
    d.fields["m"] = start * n + k
    before = d.step("We go back. Before adding:", start * n + k, "-", k)
    d.step("Before multiplying:", before, "/", n)
    return d.finished(
        "{a} thinks of a number. {he} multiplies it by {n} and adds {k}. The result is {m}. || What is "
        "the number?",
        "A number times {n}, plus {k}, is {m}. || What is the number?",
    )


def trip(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    p, n, k = d.number("p", 3, 60), d.number("n", 2, 9), d.number("k", 2, 60)
    unit = d.fields["mile"] = rng.choice(("mile", "kilometer"))
    d.fields["miles"] = unit + "s"
    far = d.step("The first part is", p, "*", n, unit=unit)
    d.step("The whole way is", far, "+", k, unit=unit)
    return d.finished(
        "{a} rides {p} {miles} an hour for {n} hours and then walks {k} {miles}. || How far is the trip?",
        "{a} drives {p} {miles} every day for {n} days to see {b}. Then there are {k} {miles} to go. || "
        "How long is the whole way?",
        "A train goes {p} {miles} an hour. After {n} hours there are still {k} {miles} to go. || How "
        "long is the trip?",
        "{a} walks {k} {miles} and then travels for {n} hours at {p} {miles} an hour. || How many "
        "{miles} is that in all?",
        "First {a} sails for {n} hours at {p} {miles} an hour, then {he} sails {k} {miles} more. || What "
        "is the distance?",
    )


def way_left(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    p, n = d.number("p", 3, 60), d.number("n", 2, 9)
    m = d.fields["m"] = p * n + rng.randint(2, 80)
    unit = rng.choice(("mile", "kilometer"))
    d.fields["miles"] = unit + "s"
    far = d.step("{a} has covered", p, "*", n, unit=unit)
    d.step("What is left is", m, "-", far, unit=unit)
    return d.finished(
        "{a} has a trip of {m} {miles} to make. {he} drives {n} hours at {p} {miles} an hour. || How "
        "many {miles} are left?",
        "The way to the {place} is {m} {miles}. {a} goes {p} {miles} an hour. || How far does {he} still "
        "have to go after {n} hours?",
        "{a} hikes {p} {miles} a day. The path is {m} {miles} long. || How many {miles} remain after {n} "
        "days?",
    )


def speed(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, p = d.number("n", 2, 9), rng.randint(3, 60)
    d.fields["m"] = n * p
    d.step("We divide:", n * p, "/", n)
    return d.finished(
        "{a} [drives|rides|sails] {m} miles in {n} hours[, always at the same speed|]. || How many miles "
        "is that an hour?",
        "A [boat|car|train|bird] covers {m} kilometers in {n} hours. || How far does it go in one hour?",
        "{a} walks {n} miles an hour. || How many hours does {he} need for {m} miles?",
        "A machine makes {m} {things} in {n} minutes. || How many does it make in a minute?",
    )


def speed_then(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, p, k = d.number("n", 2, 8), rng.randint(2, 20), d.number("k", 2, 9)
    d.fields["m"] = n * p
    one = d.step("In one hour that is", n * p, "/", n)
    d.step("In {k} hours that is", one, "*", k)
    return d.finished(
        "{a} [rides|drives] {m} miles in {n} hours. || How far does {he} get in {k} hours at the same speed?",
        "A machine makes {m} {things} in {n} hours. || How many {things} does it make in {k} hours?",
        "{a} [paints|sews|packs|cleans] {m} {things} in {n} hours. || How many can {he} do in {k} hours?",
    )


def two_ages(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n, k = d.number("m", 4, 40), d.number("n", 2, 30), d.number("k", 2, 20)
    older = rng.random() < 0.6 or n >= m
    d.fields["older"] = "older" if older else "younger"
    now = d.step("{b} is now", m, "+" if older else "-", n, unit="year")
    d.step("In {k} years {b} will be", now, "+", k, unit="year")
    return d.finished(
        "{a} is {m} years old. {b} is {n} years {older}. || How old will {b} be in {k} years?",
        "{b} is {n} years {older} than {a}, who is {m}. || How old will {b} be {k} years from now?",
        "{a} is {m}. {his} friend {b} is {n} years {older}. || What will be the age of {b} in {k} years?",
    )


def age_sum(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 5, 30), d.number("n", 2, 30)
    t = rng.choice((0, 0, 2, 3))
    if t:
        d.fields["how"] = {2: "twice", 3: "three times"}[t] + " as old as"
        b = d.step("{b} is", t, "*", m, unit="year")
    else:
        d.fields["how"] = f"{n} years older than"
        b = d.step("{b} is", m, "+", n, unit="year")
    d.step("Together they are", m, "+", b, unit="year")
    return d.finished(
        "{a} is {m} years old, and {b} is {how} {a}. || How old are they together?",
        "{b} is {how} {a}. {a} is {m} years old. || What is the sum of their ages?",
    )


def age_past(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    k = d.number("k", 2, 10)
    m, n = d.number("m", 3, 30), d.number("n", 2, 20)
    now = d.step("Now {a} is", m, "+", k, unit="year")
    d.step("In {n} years {a} will be", now, "+", n, unit="year")
    return d.finished(
        "{k} years ago {a} was {m} years old. || How old will {a} be in {n} years?",
        "{a} was {m} years old {k} years ago. || How old will {he} be {n} years from now?",
    )


def temperature(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 5, 40), d.number("n", 2, 20)
    warm = d.step("At noon it is", m, "+", n, unit="degree")
    k = d.number("k", 2, warm - 1)
    d.step("In the evening it is", warm, "-", k, unit="degree")
    return d.finished(
        "In the morning it is {m} degrees. By noon it gets {n} degrees warmer, and by evening {k} "
        "degrees colder again. || How many degrees is it in the evening?",
        "The temperature is {m} degrees. It rises by {n} degrees until noon and then falls by {k} "
        "degrees. || What is the temperature then?",
        "At eight it was {m} degrees. At noon it was {n} degrees warmer. In the evening it was {k} "
        "degrees cooler than at noon. || How warm was it in the evening?",
    )


def temperature_change(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 20, 40), d.number("n", 2, 18)
    d.step("The difference is", m, "-", n, unit="degree")
    return d.finished(
        "It was {m} degrees on {day} and {n} degrees on {next}. || By how many degrees did it get colder?",
        "In the {place} it is {m} degrees, outside it is {n} degrees. || How much warmer is it inside?",
    )


def minutes(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, k = d.number("n", 2, 9), d.number("k", 2, 59)
    whole = d.step("The hours are", n, "*", 60, unit="minute")
    d.step("In all that is", whole, "+", k, unit="minute")
    d.fields["task"] = rng.choice(TASK.split("|"))
    return d.finished(
        "{a} spends {n} hours and {k} minutes [on {task}|at the {place}]. || How many minutes is that?",
        "A [film|trip|game|lesson] lasts {n} hours and {k} minutes. || How many minutes does it last?",
        "|| How many minutes are {n} hours and {k} minutes?",
    )


def sessions(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, k, m = d.number("n", 2, 7), d.number("k", 5, 60), d.number("m", 5, 90)
    first = d.step("The lessons take", n, "*", k, unit="minute")
    d.step("In all that is", first, "+", m, unit="minute")
    return d.finished(
        "{a} [swims|practices the piano|runs|draws] {k} minutes on {n} days of the week and {m} minutes "
        "on Sunday. || How many minutes is that a week?",
        "{a} has {n} lessons of {k} minutes and then plays for {m} minutes. || How many minutes does "
        "that take?",
        "A {worker} needs {k} minutes for each {thing} and {m} minutes to clean up. || How long do {n} "
        "{things} take, cleaning included?",
    )


def clock(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m = d.number("m", 1, 7)
    n = d.number("n", 2, 11 - m) if m < 9 else 2
    k = d.fields["k"] = rng.randint(1, max(1, 12 - m - n))
    if m + n + k > 12:
        k = d.fields["k"] = 1
    first = d.step("The first part ends at", m, "+", n)
    d.step("The second part ends at", first, "+", k)
    d.fields["hours"] = "1 hour" if k == 1 else f"{k} hours"
    return d.finished(
        "{a} starts at {m} o'clock. {he} works {n} hours and then rests {hours}. || At what o'clock is "
        "the rest over?",
        "A trip begins at {m} o'clock. The train takes {n} hours and the ferry {hours}. || At what "
        "o'clock does the trip end?",
    )


def pages(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    p, days = d.number("p", 4, 30), rng.randint(2, 12)
    done = d.number("n", 4, 80)
    m = d.fields["m"] = done + p * days
    left = d.step("What is left is", m, "-", done, unit="page")
    d.step("The number of days is", left, "/", p)
    return d.finished(
        "A book has {m} pages. {a} has read {n} of them and reads {p} pages a day from now on. || How "
        "many days does {he} need for the rest?",
        "{a} has finished {n} pages of a book of {m} pages. || At {p} pages a day, how many more days "
        "will it take?",
    )


def tank(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, p, k = d.number("n", 3, 15), d.number("p", 4, 20), d.number("k", 2, 3)
    flow = d.step("Each minute the water grows by", p, "-", k, unit="liter")
    d.step("After {n} minutes there are", flow, "*", n, unit="liter")
    return d.finished(
        "Every minute {p} liters of water run into an empty [tank|tub|pool], and {k} liters run out. || "
        "How many liters are in it after {n} minutes?",
        "A [tank|barrel] is filled at {p} liters a minute but leaks {k} liters a minute. It was empty. "
        "|| How much water does it hold after {n} minutes?",
    )


def barrel(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, k = d.number("n", 2, 12), d.number("k", 2, 12)
    m = d.fields["m"] = n * k + rng.randint(2, 60)
    used = d.step("The number used is", n, "*", k, unit="liter")
    d.step("What is left is", m, "-", used, unit="liter")
    return d.finished(
        "A barrel holds {m} liters of water. {a} waters {n} plants with {k} liters each. || How many "
        "liters are left?",
        "{a} has {m} liters of paint. Each of {n} walls takes {k} liters. || How much paint is left?",
    )


def fence(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 3, 40), d.number("n", 2, 30)
    half = d.step("One long and one short side are", m, "+", n, unit="meter")
    d.step("All the way round it is", 2, "*", half, unit="meter")
    return d.finished(
        "A [garden|field|yard] is {m} meters long and {n} meters wide. || How long is the fence around it?",
        "{a} walks once around a [field|square|lawn] that is {m} meters long and {n} meters wide. || How "
        "many meters does {he} walk?",
    )


def area(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n, k = d.number("m", 3, 20), d.number("n", 2, 12), d.number("k", 2, 5)
    whole = d.step("The floor measures", m, "*", n, unit="square meter")
    if rng.random() < 0.5:
        d.step("The rest measures", whole, "-", k, unit="square meter")
        d.fields["ask"] = d.say(
            "A carpet covers {k} square meters. || How many square meters are not covered?"
        )
    else:
        d.step("The cost is", whole, "*", k, unit="dollar")
        d.fields["ask"] = d.say(
            "New tiles cost {k} dollars a square meter. || How many dollars does the floor cost?"
        )
    text = str(d.fields.pop("ask"))
    return d.finished(
        "A room is {m} meters long and {n} meters wide. " + text,
        "{a}'s room measures {m} by {n} meters. " + text,
    )


def weight(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, p, k = d.number("n", 2, 12), d.number("p", 2, 15), d.number("k", 2, 20)
    goods = d.step("The {boxes} weigh", n, "*", p, unit="kilogram")
    d.step("With the cart it is", goods, "+", k, unit="kilogram")
    return d.finished(
        "A cart weighs {k} kilograms. It carries {n} {boxes} of {p} kilograms each. || How many "
        "kilograms is that in all?",
        "{n} {boxes} weigh {p} kilograms each, and the cart under them weighs {k} kilograms. || What is "
        "the total weight?",
    )


def average(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    mean = rng.randint(5, 40)
    m, n = d.number("m", 2, 2 * mean), d.number("n", 2, mean)
    k = 3 * mean - m - n
    if k < 2:
        return average(rng)
    d.fields["k"] = k
    total = d.step("The sum is", m, "+", n, "+", k)
    d.step("A third of it is", total, "/", 3)
    return d.finished(
        "{a} [sold|picked|found] {m} {things} on {day}, {n} on {next} and {k} on {last}. || What is the "
        "average a day?",
        "|| What is the average of {m}, {n} and {k}?",
        "{a}, {b} and {c} have {m}, {n} and {k} {things}. || How many is that each on average?",
    )


def recipe(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, k, p = d.number("n", 2, 6), rng.randint(2, 6), d.number("p", 2, 9)
    d.fields["m"] = n * k
    more = d.step("That is more by a factor of", n * k, "/", n)
    d.step("So we need", more, "*", p)
    d.fields["what"] = rng.choice(
        ("cups of flour", "eggs", "spoons of sugar", "cups of rice", "carrots", "onions")
    )
    return d.finished(
        "A recipe for {n} people needs {p} {what}. || How many {what} are needed for {m} people?",
        "{a} cooks for {m} people. For {n} people {he} would take {p} {what}. || How many {what} does "
        "{he} need?",
    )


def percent(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    k = d.fields["k"] = rng.choice((10, 20, 25, 50, 75, 5, 40, 60))
    step = {5: 20, 25: 4, 75: 4, 50: 2}.get(k, 10 if k == 10 else 5)
    m = d.fields["m"] = step * rng.randint(2, 30)
    some = m * k // 100
    d.lines.append(f"{k} percent of {m} is {m} * {k} / 100 = {some}.")
    d.value = some
    d.fields["color"] = rng.choice(("red", "blue", "old", "broken", "new", "small", "heavy"))
    if rng.random() < 0.5:
        d.step("The others are", m, "-", some)
        return d.finished(
            "{k} percent of {m} {things} are {color}. || How many are not {color}?",
            "{a} has {m} {things} and gives {k} percent of them away. || How many does {a} keep?",
        )
    return d.finished(
        "|| How much is {k} percent of {m}?",
        "{a} has {m} {things}. {k} percent of them are {color}. || How many {color} {things} does {a} have?",
    )


def weeks(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    n, k = d.number("n", 2, 10), d.number("k", 2, 6)
    unit, size = rng.choice((("week", 7), ("hour", 60), ("minute", 60), ("year", 12), ("day", 24)))
    small = {"week": "day", "hour": "minute", "minute": "second", "year": "month", "day": "hour"}[unit]
    d.fields |= {"units": unit + "s", "smalls": small + "s"}
    whole = d.step("The {units} are", n, "*", size, unit=small)
    d.step("In all that is", whole, "+", k, unit=small)
    return d.finished(
        "A [journey|holiday|game|course] takes {n} {units} and {k} {smalls}. || How many {smalls} is that?",
        "|| How many {smalls} are {n} {units} and {k} {smalls}?",
        "{a} waits {n} {units} and {k} {smalls}. || How many {smalls} does {a} wait?",
    )


def groups(rng: random.Random) -> Problem:
    d = Draft.of(rng)
    m, n = d.number("m", 10, 60), d.number("n", 5, 50)
    k = rng.choice([k for k in range(2, 13) if (m + n) % k == 0] or [1])
    if k == 1:
        return groups(rng)
    d.fields["k"] = k
    d.fields |= dict(zip(("one", "two"), rng.choice(KINDS_OF_PEOPLE), strict=True))
    total = d.step("Together they are", m, "+", n)
    d.step("The number we look for is", total, "/", k)
    return d.finished(
        "There are {m} {one} and {n} {two} at the {place}. They form {k} equal groups. || How many are "
        "in each group?",
        "{m} {one} and {n} {two} make teams of {k}. || How many teams are there?",
        "{m} {one} and {n} {two} sit down at tables for {k}. || How many tables are filled?",
    )


KINDS_OF_PEOPLE = (
    ("girls", "boys"), ("children", "parents"), ("teachers", "students"), ("singers", "dancers"),
    ("guests", "helpers"), ("sailors", "passengers"), ("players", "coaches"), ("cooks", "waiters"),
)  # fmt: skip

MEASURE_FORMS = (
    plain, plain, two_sums, guess_number, trip, way_left, speed, speed_then, two_ages, age_sum, age_past,
    temperature, temperature_change, minutes, sessions, clock, pages, tank, barrel, fence, area, weight,
    average, recipe, percent, weeks, groups,
)  # fmt: skip
