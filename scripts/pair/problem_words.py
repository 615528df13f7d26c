"""Words of the word problems: people, things, places, and numbers in words."""

import random

WOMEN = (
    "Ana Carla Ella Grace Iris Kim Mia Olga Rosa Tara Uma Vera Zoe Nina Lucy Amy Sara Jane Maria Lily "
    "Ruth Emma "
    "Julia Hannah Alice Clara Eva Fiona Gina Heidi Irene Joan Kate Laura Mary Nora Paula Rita Sofia "
    "Tina Wendy "
    "Yara Anna Beth Chloe Daisy Edith Freya Gloria Holly Ivy Jasmine Karen Linda Molly Naomi Priya "
    "Rachel Stella "
    "Tessa Violet Yuki Leila Amara Ingrid Bella Cora Diana Elena Fatima Hilda Jia Lena Mina Pearl Sana Thea"
).split()
MEN = (
    "Ben Dan Finn Hugo Jack Leo Noah Paul Sam Will Omar Max Tom Eric Peter Alex Oscar Ivan Adam Brian "
    "Carl David "
    "Frank George Harry Ian James Kevin Liam Mark Nick Oliver Patrick Robert Simon Victor Walter Andre "
    "Bruno Chen "
    "Diego Emil Felix Gabriel Hassan Igor Jonas Karim Lars Mateo Nils Pablo Rafael Samir Tariq Arjun "
    "Boris Cyrus "
    "Dennis Edgar Fred Gus Henry Jacob Kofi Luis Milo Neil Otto Quinn Ravi Stefan Theo Viktor Yusuf Zack"
).split()
THINGS = (
    "apple pear cookie sticker marble book pencil shell coin card stamp button flower egg orange "
    "balloon bead stone ribbon "
    "plum crayon toy nut peach lemon banana carrot tomato potato onion cherry grape candle cup plate "
    "spoon ball "
    "kite badge magnet notebook eraser postcard poster photo puzzle bracelet ring key brick tile nail "
    "screw bolt "
    "feather leaf seed acorn pinecone mushroom muffin cupcake pancake sandwich roll bun pretzel cracker "
    "chocolate "
    "candy lollipop strawberry melon turnip bean doll block dice comic mug sock scarf hat glove towel pillow "
    "basket lamp map paintbrush marker pen envelope letter"
).split()
BOXES = (
    "box,bag,basket,jar,shelf,crate,packet,drawer,bowl,carton,sack,bucket,bin,case,chest,pouch,tin,tub,folder,pack"
).split(",")
PLACES = (
    "shop,bakery,market,school,farm,library,park,garden,museum,kitchen,hotel,camp,workshop,cafe,office,hospital,club,"
    "theater,village,station,warehouse,harbor,zoo,gym,factory,church"
).split(",")
ANIMALS = (
    "dog:4,cat:4,cow:4,horse:4,sheep:4,goat:4,pig:4,rabbit:4,hen:2,duck:2,goose:2,swan:2,ant:6,bee:6,beetle:6,"
    "spider:8,butterfly:6,parrot:2"
)
LEGS = {name: int(legs) for name, legs in (pair.split(":") for pair in ANIMALS.split(","))}
WORKERS = (
    "teacher,farmer,gardener,painter,carpenter,tailor,driver,nurse,cook,waiter,librarian,sailor,builder,potter,"
    "shopkeeper,florist,postman,fisherman,mechanic,coach,weaver,beekeeper"
).split(",")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
PRODUCTS = (
    "shirt,hat,book,ball,lamp,mug,toy "
    "car,puzzle,scarf,kite,plant,cake,pizza,game,doll,backpack,notebook,umbrella,"
    "blanket,clock,basket,vase,belt,towel,pillow"
).split(",")
IRREGULAR = {
    one: many
    for one, _, many in (
        pair.partition(":")
        for pair in (
            "leaf:leaves scarf:scarves shelf:shelves loaf:loaves dice:dice sheep:sheep fish:fish "
            "tomato:tomatoes potato:potatoes goose:geese foot:feet person:people child:children "
            "fisherman:fishermen postman:postmen"
        ).split()
    )
}

SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}
PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}


def plural(noun: str) -> str:
    """The plural of an English noun; of several words, the last one changes."""
    *first, last = noun.split(" ")
    if last in IRREGULAR:
        last = IRREGULAR[last]
    elif last.endswith(("s", "x", "ch", "sh")):
        last += "es"
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ies"
    else:
        last += "s"
    return " ".join([*first, last])


def spoken(number: int) -> str:
    """A number below 100 in words, others in digits."""
    if number < 20:
        return SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{SMALL[ones]}" if ones else "")
    return str(number)


def cast(rng: random.Random) -> dict[str, str]:
    """Three people and the things of one problem, as fields of its wording."""
    woman = rng.random() < 0.5
    a = rng.choice(WOMEN if woman else MEN)
    b, c = rng.sample([name for name in WOMEN + MEN if name != a], 2)
    thing, other = rng.sample(THINGS, 2)
    box, case = rng.sample(BOXES, 2)
    day = rng.randrange(5)
    return {
        "a": a,
        "b": b,
        "c": c,
        "he": "she" if woman else "he",
        "his": "her" if woman else "his",
        "him": "her" if woman else "him",
        "thing": thing,
        "things": plural(thing),
        "others": plural(other),
        "box": box,
        "boxes": plural(box),
        "cases": plural(case),
        "case": case,
        "place": rng.choice(PLACES),
        "worker": rng.choice(WORKERS),
        "day": DAYS[day],
        "next": DAYS[day + 1],
        "last": DAYS[day + 2],
    }
