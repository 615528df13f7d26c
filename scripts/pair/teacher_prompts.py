"""Prompts for the teacher: templates of four kinds filled from lists of everyday words."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from scripts.pair.problem_words import MEN, WOMEN, WORKERS
from scripts.pair.teacher_words import WORDS

SHARES = {"story": 0.35, "explain": 0.35, "chat": 0.25, "code": 0.05}
SYSTEMS = (
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are a kind teacher who writes short, simple and clear English.",
)
OPENED = {"story": 0.7, "explain": 0.15, "chat": 0.3, "code": 0.75}  # share with given opening words
CHOICE = re.compile(r"\[([^\[\]]*)\]")
FIELD = re.compile(r"\{(\w+)\}")
VOWEL = re.compile(r"\b([Aa]) (?=[aeiou])(?!euro|uni|use)")


@dataclass(frozen=True)
class Request:
    """What the teacher is asked. ``opening``: words that the answer starts with, perhaps none."""

    kind: str
    prompt: str
    opening: str
    system: str


STORIES = (
    "[Write|Tell|Tell me|Invent] [a|a short|a little|a gentle|a funny] story [about|with] a {adjective} "
    "{hero} who {event}.",
    "[Write|Tell me|Invent] a [story|tale|short tale] [set|that takes place] {where}, in which a {hero} "
    "{event}.",
    "[I would like|I want|Please give me|Can you tell me] a story about a {hero} and a {animal}[ who "
    "become friends| who help each other| who have a quarrel|].",
    "[Write|Tell] the story of how {name} {event}.",
    "[What happened|What might happen] when a {adjective} {hero} {event}? [Tell me|Write] the story.",
    "[Write|Continue|Tell] a story that [begins|starts] {where} [early one morning|late at night|on a "
    "windy day|in the first snow|after a long rain].",
    "[Write|Tell me] a story [with|about] a {thing}, a {hero} and a {animal}.",
    "[Tell|Write] a story in which [nobody|everyone] believes {name} until {he} {event}.",
    "My [son|daughter|niece|class|little brother] [loves|asks for] {animals}. [Tell|Write] one in which "
    "it {event}.",
    "[Write|Tell] a story about a [promise|secret|mistake|gift|letter|wish|race|surprise|journey] and a "
    "{adjective} {hero}.",
    "A {hero} {event} {where}. [Write|Tell] what happens [next|then].",
    "[Write|Tell me] a [story|fable] about a {animal} that wants to be a {hero}.",
    "[Write|Tell] a [calm|happy|thoughtful|lively|mysterious|tender] story for [the evening|a rainy "
    "day|bedtime|a long train ride]. The [hero|main character] is a {hero}.",
    "[Give me|Write] a story about {name}, a {hero} who {event}[, and how {he} felt about it|, and what "
    "{he} learned|].",
    "[Write|Tell] a story about {name} and {friend}, who {events} {where}.",
    "[Write|Tell] a story where a {thing} [can talk|goes missing|changes everything|brings two people "
    "together].",
    "[Write|Tell] a [diary-like|first-person] story: I am a {hero}, and yesterday I {event}.",
    "[Can you make up|Please write|Would you write] a story in which a {animal} teaches a {hero} [to be "
    "patient|to share|to listen|to rest|to be brave]?",
    '[Write|Tell me] a story with this first sentence: "[The {thing} was gone|Nobody had seen the '
    '{animal} for days|It was too quiet {where}|{name} did not want to get up]".',
    "[Story time|Bedtime|One more story, please]: a {adjective} {animal} {event}.",
)
STORY_ENDS = (
    "", "", "", "", " Keep it short.", " Use simple words.", " Let it end well.", " Write two or three "
    "paragraphs.",
    " Give it a title.", " Let the characters talk.", " Make the ending a surprise.", " Write it for "
    "adults, too.",
)  # fmt: skip
STORY_OPENINGS = (
    "Once upon a time, {where}, there [lived|was] a {adjective} {hero}",
    "One [morning|evening|afternoon], a {hero}",
    "{name} [had always|had never|did not]",
    "{name} was a {hero} who",
    "There was once a {adjective} {hero}",
    "The {hero} [looked|stood|woke|waited|listened]",
    "It was a [cold|warm|windy|bright|grey|quiet] [day|morning|evening] {where}",
    '"[Where|What|Who|Why|How]',
    "Every [day|morning|evening|spring|winter], the {animal}",
    "Long ago, {where},",
    "On the [first|last|longest|shortest] day of [spring|summer|autumn|winter],",
    "Nobody [knew|remembered|noticed|believed]",
    "High above the [village|valley|river|town],",
    "In a [small|old|narrow|yellow] house [lived|stood|slept|sat]",
    "When {name} [opened|found|heard|saw] the {thing},",
    "The {thing} [was|had]",
    "At [noon|midnight|sunrise|five o'clock],",
    "{name} and {friend} [were|had]",
    "Far away from the [city|sea|mountains],",
    "Last [winter|summer|week|year], a {hero}",
)

EXPLAIN = (
    "[What is|What exactly is|What do people mean by] {topic}?",
    "How does {topic} work?",
    "Why is {topic} [important|useful|interesting|so common|hard to understand]?",
    "What happens [if|when] {happening}?",
    "[Can you tell me|Do you know|Who can tell me|Is it known] why {whyfact}?",
    "[Please explain|Explain|Tell us|I wonder] why {whyfact}.",
    "[How|In what way] is a {thing} [different from|similar to] a {other}?",
    "[Can|Could] you [explain|describe|tell me about] {topic}[ in your own words| in a few sentences| "
    "with an example| as if I knew nothing about it|]?",
    "I [don't|do not] understand {topic}. [Please explain it|Can you help me|What is the main idea]?",
    "Give me three [tips|rules|ideas] for {doing}.",
    "What [should I know|do I need|is the first step|can go wrong] before {doing}?",
    "[How do people|How did people in the past|How can a child|How can I] [learn|begin|get better at] "
    "{doing}?",
    "Is {claim}?",
    "[Name|List|Give] three [reasons|good reasons] for {doing}.",
    "What are the [advantages|good sides and bad sides|main parts|uses] of {plural}?",
    "[Describe|Explain] how a {thing} is [made|used|cleaned|repaired|stored].",
    "What does a {worker} do [all day|first in the morning|when something goes wrong|in winter]?",
    "[Compare|What is the difference between] {topic} and {topic2}[?|.]",
    "When [should|do] people [use|need] a {thing}?",
    "Who [invented|uses|needs|repairs] {plural}, and why?",
    "[Tell me|Teach me] something [surprising|useful|simple|interesting] about {topic}.",
    "Which [is better|would you choose], a {thing} or a {other}? [Give reasons|Explain your choice|Why].",
    "What would [the world|a town|a day|school] be like without {plural}?",
    "[My neighbor|My teacher|A friend|A customer] asked me about {topic}. What should I answer?",
    "[Sum up|Summarize] what [every child|a beginner|a visitor] should know about {topic}.",
    "Where {source} come from?",
    "How [long|often|much time] does it take to {task}?",
    "What is the [best|easiest|safest|cheapest] way to {task}?",
    "How would you explain {topic} to [a farmer|your grandmother|a five-year-old|a tired "
    "student|someone from the past]?",
    "[Why|When] did people start to use {plural}?",
    "What [makes|can make] {doing} [easier|harder|more fun]?",
    "[Explain|Describe] {topic} step by step.",
    "What do {topic} and {topic2} have in common?",
)
EXPLAIN_ENDS = (
    "", "", "", "", "", "", " Keep it short.", " Use simple words.", " Answer in one paragraph.",
    " Please give an example.", " Answer in three or four sentences.", " Be precise.", " Write for a "
    "child of nine.",
)  # fmt: skip
EXPLAIN_OPENINGS = (
    "[Think of|Imagine] ", "Yes, ", "Not always. ", "In short, ", "[There are|There is] ", "People ", "Most ",
    "First, ", "A good ", "That is ", "When you ", "It depends on ", "The main ", "The short answer is ",
)  # fmt: skip

CHAT = (
    "[I feel|I am|I have been] {feeling} [today|this week|lately]. [What should I do|Can you help "
    "me|What do you advise]?",
    "[Write|Please write|Help me write] a [short|friendly|polite|warm] [letter|message|email|note|card] "
    "to my {person} about {matter}.",
    "[Invite|Write an invitation for] my {person} to {occasion}[ on {day}| next week| at my home|].",
    "[Write|Help me with] an apology to my {person}. I {fault}.",
    "How do I [tell|ask|thank|convince|comfort] my {person} [about|because of|after] {matter}?",
    "[Write|Make up] a [short|funny|polite|quiet] [dialogue|conversation|talk] between a {worker} and a "
    "{worker2} about {matter}.",
    "{name} and {friend} [meet|talk|argue] {where}. Write [down what they say|their conversation].",
    "[Describe|Paint in words|Write about] {where2} [in the early morning|at night|in the rain|in "
    "spring|on a market day|without naming it].",
    "[Give me|List] [three|four|five] [things to do|ideas|small gifts|games|meals] for [a rainy "
    "afternoon|a long train ride|a birthday|a quiet evening|a visit from my {person}].",
    "[Should I|Is it a good idea to] {task} [now|before lunch|alone|with my {person}]?",
    "My {person} [is|has been] {feeling}. [How can I help|What can I say|What should I do]?",
    "[Write|Compose] a [thank-you note|greeting|farewell|toast] for a {worker} who {kindness}.",
    "[Good morning|Hello|Hi|Good evening]! [I want to {task}|I am planning {occasion}|My {person} "
    "visits me on {day}]. [Any advice|Can you help|Where do I start]?",
    "[Write|Make] a [plan|list|schedule] for {occasion}.",
    "[Write|Give me] a [short|kind] [speech|announcement|notice] about {matter}.",
    "What would you [say|answer|write] to someone who {fault2}?",
    "[Write|Compose] a [poem|short poem|rhyme] about {where2}[ in eight lines| in four lines|].",
    "Write a [postcard|letter] from {where2} to {name}.",
    "[Write|Tell me in the voice of] a {worker}'s [diary entry|day|letter home][ after a hard day| on "
    "the first day of work| in winter|].",
    "[Which|What] [question|present|book|hobby] [would suit|should I choose for] my {person}, who likes "
    "{doing}?",
    "[Write|Give] [instructions|directions|simple rules] for [guests|children|new neighbors|a helper] "
    "who want to {task}.",
    "I [lost|forgot|broke|found] [a|my] {thing}. [What now|What should I do|Whom do I tell]?",
    '[Rewrite|Say] this more [politely|kindly|clearly]: "[Give me the {thing}|I have no time for '
    '{matter}|You are late again|Do not touch my {thing}]!"',
    "[Ask|Write what a {worker} could ask] a {worker2} about {doing}. Write [three|four|five] questions.",
)
CHAT_ENDS = (
    "", "", "", "", " Keep it short.", " Be kind.", " Make it cheerful.", " Use everyday words.", " "
    "About six sentences.",
    " Make it sound natural.",
)  # fmt: skip
CHAT_OPENINGS = (
    "Dear {name},",
    "Hello {name}!",
    "Hi {name},",
    "I am sorry ",
    "That sounds ",
    "[First|To begin], ",
    '{name}: "',
    "[The|A] ",
    "Of course! ",
    "Take ",
    "You could ",
)

CODE = (
    "[Write|Show me|Give me] a Python function that {program}. Include a docstring.",
    "[How can I|How do I] {programs} in Python? Include a docstring.",
    "I need [Python code|a small Python function] that {program}. Add a docstring[ and an example| and "
    "type hints|].",
    "[Write|Create] a Python function called `{function}`. [Use a docstring|Include a docstring and an "
    "example].",
)
CODE_ENDS = (
    "", " Add an example.", " Explain it in one sentence.", " Use clear names.", " Handle empty input.",
    " It is for a beginner.", " Keep it short.", " Add type hints.",
)  # fmt: skip
CODE_OPENINGS = ("```python\ndef ", "```python\n", "Here is the function:\n\n```python\ndef ")

KINDS = {
    "story": (STORIES, STORY_ENDS, STORY_OPENINGS),
    "explain": (EXPLAIN, EXPLAIN_ENDS, EXPLAIN_OPENINGS),
    "chat": (CHAT, CHAT_ENDS, CHAT_OPENINGS),
    "code": (CODE, CODE_ENDS, CODE_OPENINGS),
}


def distinct_requests(count: int, seed: int, nouns: tuple[str, ...]) -> list[Request]:
    """The first ``count`` of `requests`."""
    return list(islice(requests(seed, nouns), count))


def requests(seed: int, nouns: tuple[str, ...]) -> Iterator[Request]:
    """Endless different requests, in the kinds' shares. ``nouns`` are added to the things of the prompts."""
    rng = random.Random(seed)
    words = WORDS | {"thing": WORDS["thing"] + nouns, "other": WORDS["thing"] + nouns}
    kinds, weights = list(SHARES), list(SHARES.values())
    seen: set[str] = set()
    while True:
        kind = rng.choices(kinds, weights)[0]
        templates, ends, openings = KINDS[kind]
        fields = _people(rng)
        prompt = filled(rng.choice(templates), rng, words, fields) + rng.choice(ends)
        if prompt in seen:
            continue
        seen.add(prompt)
        # An opening must not name a hero that the prompt does not know.
        opening = rng.choice(openings) if rng.random() < OPENED[kind] else ""
        if not set(FIELD.findall(opening)) <= fields.keys() | {"where", "day"}:
            opening = ""
        yield Request(kind, prompt, filled(opening, rng, words, fields).strip(), rng.choice(SYSTEMS))


def _people(rng: random.Random) -> dict[str, str]:
    woman = rng.random() < 0.5
    name = rng.choice(WOMEN if woman else MEN)
    return {
        "name": name,
        "friend": rng.choice([other for other in WOMEN + MEN if other != name]),
        "he": "she" if woman else "he",
        "worker": rng.choice(WORKERS),
        "worker2": rng.choice(WORKERS),
    }


def filled(
    template: str, rng: random.Random, words: Mapping[str, tuple[str, ...]], fields: dict[str, str]
) -> str:
    """The template with one of each [choice] and a word for every {field}: those of ``fields`` stay the same
    all through, and are added to.
    """
    while CHOICE.search(template):
        template = CHOICE.sub(lambda found: rng.choice(found.group(1).split("|")), template)

    def word(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in fields:
            fields[name] = rng.choice(words[name])
        return fields[name]

    text = FIELD.sub(word, template)
    text = VOWEL.sub(r"\1n ", text)
    return text[:1].upper() + text[1:]
