"""Everyday words and phrases that the teacher's prompts are filled with, by field."""


def _list(text: str) -> tuple[str, ...]:
    return tuple(piece.strip() for piece in text.replace("\n", " ").split(",") if piece.strip())


HEROES = _list("""
baker, fisherman, girl, boy, grandmother, grandfather, queen, king, shepherd, miller, painter, violin
player, teacher,
gardener, clockmaker, sailor, tailor, woodcutter, librarian, doctor, nurse, inventor, robot, dragon, giant,
witch,
wizard, knight, ghost, clown, juggler, twin, orphan, farmer, postwoman, lighthouse keeper, pilot, bus
driver, cook,
waiter, potter, shoemaker, astronomer, mapmaker, bridge builder, goose girl, blacksmith, beekeeper, dancer,
singer,
detective, shopkeeper, train conductor, chess player, ferryman, stonemason, toymaker, glassblower, street
musician,
scientist, student, mayor, night watchman, captain, cartographer, mountain guide, weaver, puppet maker,
swimmer
""")
ANIMALS = _list("""
fox, bear, mouse, owl, hedgehog, otter, badger, sparrow, crow, heron, frog, toad, turtle, snail, beetle,
spider, ant,
bee, moth, rabbit, hare, squirrel, deer, wolf, goat, sheep, donkey, horse, pony, cow, pig, hen, rooster,
duck, goose,
swan, cat, kitten, dog, puppy, parrot, penguin, seal, whale, dolphin, crab, octopus, elephant, lion, tiger,
monkey,
camel, giraffe, zebra, kangaroo, koala, lizard, snake, bat, mole, stork, robin, raven, lynx, beaver, salmon
""")
THINGS = _list("""
lamp, ladder, kettle, clock, mirror, bicycle, umbrella, key, lock, map, compass, telescope, violin, drum,
flute, piano,
boat, kite, wheel, bridge, window, door, chair, table, bed, blanket, basket, bucket, broom, hammer, saw,
needle, button,
coat, boot, hat, scarf, glove, book, letter, pencil, notebook, newspaper, stamp, photograph, painting,
camera, radio,
telephone, computer, train, bus, tram, ship, airplane, tractor, wagon, candle, match, stove, oven, pot,
spoon, knife,
plate, cup, bottle, jar, bread, apple, potato, onion, pumpkin, egg, cheese, tree, seed, flower, stone,
shell, feather,
rope, bell, ring, coin, purse, suitcase, tent, fence, gate, well, garden, roof, chimney, mailbox, sled,
calendar, puzzle
""")
PLURALS = _list("""
bridges, lamps, clocks, mirrors, bicycles, umbrellas, keys, maps, telescopes, boats, wheels, windows,
ladders, kettles,
coats, books, letters, pencils, newspapers, stamps, photographs, cameras, radios, telephones, computers,
trains, buses,
ships, airplanes, tractors, candles, ovens, knives, cups, bottles, trees, seeds, ropes, bells, coins,
suitcases, tents,
fences, wells, roofs, chimneys, calendars, libraries, schools, markets, hospitals, parks, gardens, museums,
farms, mills,
harbors, roads, tunnels, lighthouses, shoes, buttons, needles, glasses, batteries, magnets, thermometers,
scales, rules,
songs, games, holidays, names, numbers, words, recipes, friends, neighbors, pets, bees, worms, birds,
forests, rivers
""")
TOPICS = _list("""
gravity, the water cycle, photosynthesis, electricity, magnetism, friction, sound, light, a shadow, a
rainbow, thunder,
lightning, the wind, the tides, an earthquake, a volcano, snow, fog, dew, frost, the seasons, day and
night, the moon,
the sun, a star, a planet, a comet, a river, a glacier, a desert, a swamp, the ocean, soil, rust, steam,
ice, fire,
smoke, glass, paper, plastic, steel, wood, cotton, wool, silk, salt, sugar, yeast, bread making, cheese
making, cooking,
digestion, breathing, the heart, muscles, bones, the brain, sleep, dreams, memory, taste, smell, hearing,
sight, touch,
pain, fever, a vaccine, germs, healthy food, exercise, growth, ageing, laughter, tears, fear, anger,
courage, patience,
honesty, kindness, trust, friendship, jealousy, pride, curiosity, imagination, boredom, luck, habit,
teamwork, a promise,
fairness, respect, responsibility, gratitude, forgiveness, money, a bank, saving, trade, taxes, a budget,
work, a law,
an election, a city, a village, a map, a calendar, time zones, the alphabet, grammar, a dictionary,
translation,
a library, a newspaper, the internet, a password, a computer, a program, an algorithm, a robot, a battery,
an engine,
a bicycle, a train, a ship, an airplane, a bridge, a dam, a windmill, solar power, recycling, compost,
farming, a seed,
a tree, a forest, pollination, migration, hibernation, camouflage, evolution, an ecosystem, a food chain,
an insect,
a bird's nest, a beehive, fractions, percent, averages, probability, angles, symmetry, negative numbers,
zero, estimating,
music, rhythm, a melody, an orchestra, painting, color mixing, perspective, poetry, a fairy tale, theater,
a museum,
chess, a team sport, a marathon, swimming, a map scale, first aid, a fire drill, traffic lights, good
manners, a holiday
""")
EVENTS = _list("""
found a hidden door, lost the way home, heard a strange song, built a raft, planted a tree, saved a
drowning bird,
opened the wrong letter, painted the whole house blue, missed the last ferry, repaired an old clock, made
an odd promise,
won a race by accident, shared the last piece of bread, climbed the highest hill, met a stranger on the
bridge,
learned to whistle, kept a secret too long, forgot a birthday, baked a cake for the whole street, followed
a trail of
feathers, wrote a letter to the moon, slept through a storm, broke a precious vase, lost a shoe, sold the
old boat,
tried to catch the wind, gave away a favorite coat, told a small lie, returned a stolen ring, crossed the
frozen lake,
fixed the village well, started a school under a tree, sang in front of a crowd, found a map in an old book,
waited all night for a train, spoke to the trees, invited a rival to dinner, carried a lantern through the
fog,
counted all the stars, grew an enormous pumpkin, got stuck in a tower, moved to a new town, learned to say no,
rode backwards on a donkey, dug up an old box, made friends with the quietest person in town, lost a bet,
changed the color of the sea, hid in a wardrobe, ran out of flour, caught a very small thief, taught an old
dog to dance,
walked to the end of the road, saved the harvest, guarded a sleeping giant, discovered an island, said
sorry at last,
refused a bag of gold, woke up as a bird, listened to an old tree, stopped the clock at noon, lost a voice,
found a message in a bottle, tamed a wild horse, traded a cow for a song, made the queen laugh, crossed the
desert,
drew a door on the wall, finished a very long book, missed an important meeting, cooked soup from a stone
""")
WHERE = _list("""
in a small village by the sea, on a farm at the edge of town, in a house with a crooked roof, on an island
without trees,
in the old library, at the end of a long road, in a busy harbor, on a night train, in a snowy valley,
beside a wide river,
under the city, in a forgotten garden, at the top of a lighthouse, in a kitchen full of steam, at a school
in the hills,
on the roof of a tall building, in a desert town, behind the theater, in a little museum, on a fishing
boat, in a
windmill, at the weekly market, in a cave above the beach, in a quiet street, at the railway station, in
the deep forest,
on a frozen lake, in a castle without a king, in a tent on the plain, at a crowded airport, in an orchard,
at the zoo,
in a workshop full of clocks, on a mountain path, at a country fair, in a hospital at night, in a bakery
before dawn,
by a broken bridge, in a town where it never rains, on the last bus home, in a tiny apartment, near an old
mill
""")
PLACES = _list("""
a quiet harbor, a bakery before dawn, a railway station, an old library, a school yard, a mountain hut, a
fish market,
a garden after rain, an empty beach, a busy kitchen, a narrow street, a forest path, a frozen lake, a
village square,
a waiting room, a night train, a workshop, an attic, a farm in autumn, a small island, a rooftop, a museum
hall,
a bridge over a river, a flower shop, a crowded bus, a library corner, a barn, a lighthouse, a theater
before the play,
a campfire, a windy hill, a swimming pool, a bus stop in the snow, an orchard, a tailor's shop, a hospital
garden
""")
DOINGS = _list("""
keeping a garden, learning a language, cooking for guests, riding a bicycle, playing the piano, drawing,
painting a wall,
reading aloud, writing a diary, saving money, baking bread, growing tomatoes, walking every day, swimming,
hiking,
camping, sewing, knitting, fishing, singing in a choir, playing chess, keeping bees, training a dog, moving
house,
speaking in public, taking photographs, cleaning a kitchen, sleeping well, studying for a test, working in
a team,
making friends, asking for help, saying no, traveling by train, packing a suitcase, repairing clothes,
building a
birdhouse, planting a tree, watching the stars, telling a story, listening well, giving a present, hosting
a party,
looking after a baby, visiting a museum, running a small shop, keeping a promise, using less water, eating
less sugar,
sorting old papers, teaching a child to read, waking up early, learning to dance, playing fair, planning a
week
""")
TASKS = _list("""
bake bread, plant a tree, clean a window, paint a fence, repair a flat tire, write a letter, learn a poem,
train a dog,
sew on a button, pack a suitcase, build a bird house, cook a soup, make jam, wash a sweater, set the table,
light a fire,
find a job, rent an apartment, plan a trip, save water, grow herbs, read a map, tie a knot, peel an orange,
boil an egg,
make tea, fold a shirt, sharpen a pencil, hang a picture, calm a crying baby, wrap a present, organize a desk,
learn ten new words, cross a busy street, feed the birds, clean a bicycle, choose a melon, dry flowers,
store apples,
make a paper boat, send a parcel, prepare for a test, give a short talk, start a conversation, ask for
directions,
mix the color green, wash the dishes, make a bed, find the north, measure a room, water the plants, cut an
onion
""")
FEELINGS = _list("""
tired, nervous, lonely, homesick, bored, angry, sad, worried, proud, restless, confused, jealous, shy,
stressed, hopeful,
excited, disappointed, embarrassed, afraid of the dark, unsure, curious, sleepless, grumpy, overwhelmed,
thankful, lost
""")
PERSONS = _list("""
sister, brother, mother, father, grandmother, grandfather, aunt, uncle, cousin, neighbor, teacher, friend,
best friend,
coworker, boss, landlord, roommate, daughter, son, niece, nephew, coach, music teacher, old classmate,
doctor, team
""")
MATTERS = _list("""
a broken window, a lost key, the summer holidays, a new job, a garden party, a borrowed book, the noisy
music, a late
train, a birthday cake, a missed call, the old dog, a school play, a rainy weekend, a long journey, a small
misunderstanding,
the new baby, a wedding, a move to another city, the price of apples, an old photograph, a surprise visit,
the lost cat,
a chess game, a good book, a bad dream, the first snow, a hard exam, a concert, a shared meal, a broken
promise, a repaired
bicycle, the village fair, a walk by the sea, a recipe for soup, a stubborn child, a forgotten umbrella, a
new neighbor,
the weather, a letter that never came, a flower bed, a job interview, a camping trip, the last day of
school, a swimming
lesson, a power cut, a football match, a big decision, a favorite teacher, homework, an empty fridge, a
lost bet
""")
OCCASIONS = _list("""
a birthday party, a picnic, a farewell dinner, a school reunion, a garden party, a house warming, a chess
evening,
a reading circle, a family breakfast, a camping weekend, a concert, a village fair, a wedding anniversary,
a movie night,
a cooking evening, a day at the lake, a winter walk, a flea market, a bicycle tour, a dance, a game night,
a science fair,
a neighborhood cleanup, a surprise party, a tea afternoon, a hiking day, a costume party, a harvest festival
""")
FAULTS = _list("""
forgot the birthday, came too late, broke a cup, lost the borrowed book, spoke too loudly, did not call
back, ate the last
piece of cake, missed the meeting, left the gate open, forgot to feed the cat, told a secret, was rude
yesterday,
spilled coffee on the carpet, lost the tickets, took the wrong coat, forgot the appointment, woke the baby,
let the soup
burn, did not keep a promise, scratched the car, sent the wrong parcel, laughed at the wrong moment
""")
KINDNESSES = _list("""
helped in a storm, worked late for us, found a lost bag, repaired the roof, taught the children to swim,
looked after the
garden, brought soup, stayed calm in an emergency, drove us home, gave good advice, kept the library open,
saved the
party, answered every question, fixed the bicycle, watered the plants, listened for a whole evening
""")
HAPPENINGS = _list("""
you mix oil and water, ice melts, the moon covers the sun, a seed gets no light, it does not rain for
months, you leave
bread in the sun, a river freezes, you shout in a cave, a magnet touches iron, two friends disagree, you
stop practicing,
everyone speaks at once, a ship is too heavy, a town has no doctor, nobody follows the rules, you hold your
breath,
you sleep too little, a plant gets too much water, the power goes out, a tree falls in a forest, you add
salt to water,
metal gets very hot, a child is bored, a leader does not listen, you plant a potato, prices go up, a bee
visits a flower,
milk stands in the sun, you push a swing, a bridge is closed, snow falls in May, a shop sells nothing, you
forget a word,
a promise is broken, the wind stops, a well runs dry, you read every day, an egg is boiled, a balloon flies
very high
""")
WHYFACTS = _list("""
cats purr, dogs wag their tails, leaves are green, the sea is salty, bread rises, ice floats, we yawn,
birds sing in the
morning, owls hunt at night, people shake hands, metal feels cold, shadows change their length, stars
twinkle, we dream,
babies cry, we laugh, old people tell stories, clocks have twelve hours, wheels are round, soap cleans,
onions make us cry,
bees dance, trees lose their leaves, snow is white, the sky turns red in the evening, balloons rise, boats
float, tires
need air, we need rules, people keep pets, children play, we celebrate birthdays, music makes us happy,
practice helps,
friends quarrel, we forget things, time seems to fly, winter is cold, deserts are dry, rivers bend,
mountains have snow on
top, fish need water, worms like rain, spiders build webs, salmon swim upstream, geese fly in a V, camels
have humps,
paper burns, iron rusts, mirrors show us backwards, echoes come back, we get goosebumps, fruit gets sweet,
eggs are oval
""")
CLAIMS = _list("""
the sun a star, a whale a fish, it good to be bored, money the same as happiness, glass a liquid, a tomato
a fruit,
walking good for thinking, it fair to share everything equally, a spider an insect, silence useful, it bad
to make
mistakes, the moon moving away from us, reading better than watching films, it always right to tell the truth,
winter healthy, coffee bad for you, luck important, it possible to learn at any age, homework useful, sugar
harmful,
a robot able to feel, water always wet, it safe to eat snow, a friend better than a teacher, cooking an art
""")
SOURCES = _list("""
does rain, does honey, do pearls, does chocolate, does salt, do names, does wool, does paper, do rivers,
does wind,
does cotton, does cheese, do words, do ideas, do dreams, does coal, does sand, do diamonds, does cork, does
rubber,
does silk, do spices, does coffee, do numbers, do fairy tales, does thunder, does fog, do mushrooms
""")
ADJECTIVES = _list("""
curious, stubborn, gentle, forgetful, brave, shy, cheerful, lazy, clever, honest, lonely, patient, clumsy,
proud, quiet,
sleepy, generous, careful, restless, thoughtful, grumpy, tiny, old, young, hungry, absent-minded, fearless,
humble,
dreamy, serious, playful, tidy, messy, polite, bold, anxious, jolly, weary, wise, foolish, loyal, greedy,
hopeful
""")
PROGRAMS = _list("""
counts how often a letter occurs in a word, adds all even numbers of a list, finds the longest line of a text,
turns minutes into hours and minutes, checks whether two words have the same letters, removes spaces at
both ends of all
strings in a list, returns every third item of a list, merges two sorted lists, groups words by their first
letter,
counts the lines of a file, finds the two closest numbers, turns a dictionary into a list of pairs, rounds
all prices,
checks whether a year is a leap year, computes the area of a triangle, converts miles to kilometers, splits
a full name,
finds missing numbers in a range, returns the middle item of a list, computes the factorial of a number,
makes a title
from a sentence, masks all but the last four digits, draws a triangle of stars, finds common items of two
lists,
computes a weighted average, counts words in a text, validates an email address, returns the day of the week,
sums the digits of a number, transposes a table, flattens a nested list, sorts names by length, removes
vowels,
zips two lists into a dictionary, finds the largest value of a dictionary, formats a number with commas,
reads a CSV
file, writes a list to a file, generates a multiplication table, calculates compound interest, moves zeros
to the end
""")
FUNCTIONS = _list("""
count_letters, sum_even, longest_line, to_hours, same_letters, clean_names, every_third, merge_lists,
group_words,
count_lines, closest_pair, to_pairs, round_prices, is_leap_year, triangle_area, to_kilometers, split_name,
find_missing, middle_item, make_title, mask_digits, draw_triangle, common_items, weighted_average, word_count,
sum_digits, transpose, flatten, sort_by_length, remove_vowels, make_index, largest_key, with_commas,
times_table
""")

WORDS = {
    "hero": HEROES,
    "animal": ANIMALS,
    "animals": tuple(f"stories about a {name}" for name in ANIMALS),
    "thing": THINGS,
    "other": THINGS,
    "plural": PLURALS,
    "topic": TOPICS,
    "topic2": TOPICS,
    "event": EVENTS,
    "events": EVENTS,
    "where": WHERE,
    "where2": PLACES,
    "doing": DOINGS,
    "task": TASKS,
    "feeling": FEELINGS,
    "person": PERSONS,
    "matter": MATTERS,
    "occasion": OCCASIONS,
    "fault": FAULTS,
    "fault2": FAULTS,
    "kindness": KINDNESSES,
    "happening": HAPPENINGS,
    "whyfact": WHYFACTS,
    "claim": CLAIMS,
    "source": SOURCES,
    "adjective": ADJECTIVES,
    "program": PROGRAMS,
    "programs": tuple(f"write a function that {program}" for program in PROGRAMS),
    "function": FUNCTIONS,
    "day": _list("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
}
