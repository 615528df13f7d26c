"""Which teacher texts are kept: the rules of the corpus that the pair learns from, by name."""

import ast
import re
from collections import Counter
from dataclasses import dataclass

PLAIN = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-", "\u2026": "...",
    "\xa0": " ",
})  # fmt: skip
WORD = re.compile(r"[A-Za-z']+")
SENTENCE = re.compile(r"[^.!?]+[.!?]+[\"')]*")
END = re.compile(r"[.!?][\"')]*(?=\s|$)")
ASSISTANT = re.compile(
    r"\bas an ai\b|\bai (?:language )?model\b|\blanguage model\b|\bi(?:'m| am) an? (?:ai|assistant)\b|"
    r"\bi (?:can't|cannot|am unable to|'m unable to) (?:help|assist|provide|write|create)|https?:|www\.|"
    r"\.com\b|"
    r"\bi(?:'m| am) sorry, but\b|\bi(?:'m| am) here to (?:help|assist|support)\b|\bchatbot\b",
    re.IGNORECASE,
)
WORDLIST = re.compile(
    r"\b(?:kill\w*|murder\w*|suicid\w*|weapons?|guns?|blood\w*|corpses?|dead|died|dies|death|drugs?|"
    r"cocaine|heroin|"
    r"alcoholic|drunk|sex\w*|naked|nude|rape\w*|porn\w*|torture\w*|terroris\w*|bomb\w*|nazi\w*|stabb\w*)\b",
    re.IGNORECASE,
)
PLACEHOLDER = re.compile(r"\[[^\]]*\]|\{[^}]*\}|<[^>]*>|\byour name\b|\bname here\b", re.IGNORECASE)
COMMENT = re.compile(
    r"\b(?:this|the) (?:message|letter|note|story|response|answer|paragraph|text|email|poem|dialogue|"
    r"conversation|"
    r"version|revised|rewritten)\b[^.]*\b(?:is (?:meant|written|intended|designed|a)|aims|captures|"
    r"conveys|should|"
    r"includes|maintains|follows|provides|uses)\b|\bhere(?:'s| is) (?:a|an|the|my|one)\b[^.\n]*:",
    re.IGNORECASE,
)
IN_PROSE = re.compile(r"```|\bdef \w+\(|\bprint\(|\bimport \w+$", re.MULTILINE)
FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
SHARE_LEFT = 0.6  # of an unfinished text, up to its last sentence end
LOGPROB = {"code": -0.8}
LEAST_LOGPROB = -1.75


@dataclass(frozen=True)
class Raw:
    """One written text. ``logprob``: mean log-probability a token, nats. ``finished``: stopped by itself."""

    kind: str
    prompt: str
    text: str
    tokens: int
    logprob: float
    finished: bool


def judged(raw: Raw) -> tuple[str, str]:
    """(text to keep, "") or ("", name of the first rule that drops it)."""
    text = raw.text.translate(PLAIN).strip()
    text = "\n".join(line.rstrip() for line in text.splitlines())
    code = raw.kind == "code"
    if not raw.finished:
        if code:
            return "", "code not finished"
        ends = list(END.finditer(text))
        if not ends or ends[-1].end() < SHARE_LEFT * len(text):
            return "", "too little left after the cut"
        text = text[: ends[-1].end()]
    words = WORD.findall(text.lower())
    rule = _first_rule(raw, text, words, code)
    return ("", rule) if rule else (text, "")


def _first_rule(raw: Raw, text: str, words: list[str], code: bool) -> str:
    if raw.tokens < 40 or (len(words) < 28 and not code):
        return "under 40 tokens or 28 words"
    if not text.isascii():
        return "other non-ASCII characters"
    if raw.logprob < LOGPROB.get(raw.kind, LEAST_LOGPROB):
        return "low mean log-probability"
    if ASSISTANT.search(text):
        return "speaks as an AI, refuses, or holds a link"
    return _code_rule(text) if code else _prose_rule(text, words)


def _prose_rule(text: str, words: list[str]) -> str:
    if repeats(text, words):
        return "repetition"
    if len(set(words)) < (0.42 if len(words) > 120 else 0.5) * len(words):
        return "few distinct words"
    if text.count('"') % 2:
        return "unbalanced quotation marks"
    if WORDLIST.search(text):
        return "word list"
    if PLACEHOLDER.search(text):
        return "placeholder"
    if not re.search(r"[.!?\"')]$|^[A-Z][A-Za-z ]{0,30}$", text.splitlines()[-1]):
        return "no sentence end"
    if IN_PROSE.search(text):
        return "code in prose"
    if COMMENT.search(text):
        return "comments on its own answer"
    return ""


def _share(items: list[tuple[str, ...]]) -> float:
    """The share of items that came before."""
    return 1 - len(set(items)) / len(items) if items else 0.0


def ngrams(words: list[str], size: int) -> list[tuple[str, ...]]:
    """Every ``size`` words in a row."""
    return list(zip(*(words[i:] for i in range(size)), strict=False))


def repeats(text: str, words: list[str]) -> bool:
    """A sentence twice; too many n-grams twice; a word three times in a row or over 7.5 % of the text; three
    sentences with one opening of three words.
    """
    sentences = [" ".join(WORD.findall(s.lower())) for s in SENTENCE.findall(text)]
    long = [s for s in sentences if len(s.split()) >= 4]
    if len(set(long)) < len(long):
        return True
    if any(_share(ngrams(words, n)) > most for n, most in ((4, 0.06), (3, 0.12), (2, 0.30))):
        return True
    if any(a == b == c for a, b, c in ngrams(words, 3)):
        return True
    common = Counter(word for word in words if len(word) > 3)
    if common and common.most_common(1)[0][1] > max(3, 0.075 * len(words)):
        return True
    openings = Counter(tuple(s.split()[:3]) for s in long)
    return bool(openings) and openings.most_common(1)[0][1] > max(2, 0.35 * len(long))


def _code_rule(text: str) -> str:
    blocks = FENCE.findall(text)
    if text.count("```") % 2 or not blocks:
        return "no docstring, function or closed fence"
    try:
        trees = [ast.parse(block) for block in blocks]
    except (SyntaxError, ValueError, RecursionError):
        return "code does not parse"
    functions = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    if not functions or not any(ast.get_docstring(node) for node in functions):
        return "no docstring, function or closed fence"
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 12]
    if max(map(len, text.splitlines())) > 300:
        return "very long line"
    if len(set(lines)) < 0.8 * len(lines) or _share(ngrams(re.findall(r"\w+|[^\w\s]", text), 4)) > 0.5:
        return "repetition"
    if re.search(r"\[(?:your|insert)[^\]]*\]", text, re.IGNORECASE):
        return "placeholder"
    return ""
