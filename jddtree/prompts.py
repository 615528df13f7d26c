"""Prompts with their wishes, from flags or from a JSONL file, as tasks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jddtree.decoder import Task
from jddtree.engine import DEFAULT_NEW, Engine, Prompt, Reading
from jddtree.errors import InputError
from jddtree.sampling import GREEDY, Policy, Sample


@dataclass(frozen=True)
class Wishes:
    """What may be asked for a prompt, by the names that flags and JSONL keys have.

    ``n`` rows are made of one prompt, with seeds ``seed``, ``seed`` + 1 and so on. The rest: see Task, Sample
    and Reading.
    """

    max_new_tokens: int = DEFAULT_NEW
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    budget: int | None = None
    topk: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    raw: bool = False
    thinking: bool = False
    specials: bool = False
    n: int = 1

    def policy(self, seed: int) -> Policy:
        """How tokens are chosen. Raises InputError."""
        drawn = Sample(self.temperature, self.top_k, self.top_p, self.min_p, seed)
        if self.temperature > 0:
            return drawn
        if drawn.cuts:
            raise InputError("top-k, top-p and min-p need a temperature above 0")
        return GREEDY

    def tasks(self, engine: Engine, prompt: Prompt, name: str, max_context: int | None) -> list[Task]:
        """``n`` tasks. Raises InputError."""
        for key in ("max_new_tokens", "topk", "n"):
            value = getattr(self, key)
            if value is not None and not 1 <= value < 2**31:
                raise InputError(f"{name}: {key} must be 1 or more (and fit 32 bits), not {value}")
        if self.n > 1 and self.temperature == 0:
            raise InputError(f"{name}: at temperature 0 all {self.n} samples would be the same")
        try:
            first = engine.task(
                prompt,
                max_new=self.max_new_tokens,
                policy=self.policy(self.seed),
                budget=self.budget,
                topk=self.topk,
                stop_ids=self.stop_ids,
                stop_strings=self.stop,
                ignore_eos=self.ignore_eos,
                max_context=max_context,
                reading=Reading(self.raw, self.thinking, self.specials),
                name=name,
            )
            more = [replace(first, policy=self.policy(self.seed + i)) for i in range(1, self.n)]
        except InputError as error:
            raise InputError(str(error) if str(error).startswith(name) else f"{name}: {error}") from None
        return [first, *more]


_TYPES: dict[str, tuple[type, ...]] = {
    "max_new_tokens": (int,),
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "min_p": (int, float),
    "seed": (int,),
    "budget": (int,),
    "topk": (int,),
    "stop": (str, list),
    "stop_ids": (list,),
    "ignore_eos": (bool,),
    "raw": (bool,),
    "thinking": (bool,),
    "specials": (bool,),
    "n": (int,),
}
_PROMPTS = ("prompt", "prompt_ids", "messages")


def read_prompts(path: Path, defaults: Wishes) -> list[tuple[Prompt, Wishes, str]]:
    """Prompts of a JSONL file, each with its wishes and a name: one object a line, with one of ``prompt``
    (text), ``prompt_ids`` or ``messages``, any wishes of its own, and an ``id``, which names it (else its
    line does). Blank lines are skipped.

    Raises:
      InputError: names the line and what is wrong with it.
    """
    try:
        # Not splitlines: JSON texts may hold the other line ends of Unicode as they are.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read: {reason}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_read_line(line, f"{path}, line {number}", defaults))
    if not found:
        raise InputError(f"{path} holds no prompts")
    return found


def _read_line(line: str, name: str, defaults: Wishes) -> tuple[Prompt, Wishes, str]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{name}: not JSON") from None
    if not isinstance(entry, dict):
        raise InputError(f"{name}: not a JSON object")
    given = [key for key in _PROMPTS if key in entry]
    if len(given) != 1:
        raise InputError(f"{name}: needs one of {', '.join(_PROMPTS)}")
    prompt: Any = entry.pop(given[0])
    if given[0] == "prompt":
        if not isinstance(prompt, str):
            raise InputError(f"{name}: prompt must be text")
    elif given[0] == "prompt_ids":
        prompt = as_ids(prompt, f"{name}: prompt_ids")
    else:
        prompt = as_messages(prompt, f"{name}: messages")
    named = entry.pop("id", name)
    if not isinstance(named, str | int) or isinstance(named, bool):
        raise InputError(f"{name}: id must be text or a number")
    wishes: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in _TYPES:
            raise InputError(f"{name}: unknown key {key!r}; known: {', '.join((*_PROMPTS, 'id', *_TYPES))}")
        right = isinstance(value, _TYPES[key]) and isinstance(value, bool) == (_TYPES[key] == (bool,))
        if not right:
            raise InputError(f"{name}: {key} must be {' or '.join(kind.__name__ for kind in _TYPES[key])}")
        if float in _TYPES[key]:
            value = float(value)
        if key == "stop":
            value = (value,) if isinstance(value, str) else tuple(value)
            if not all(isinstance(stop, str) for stop in value):
                raise InputError(f"{name}: stop must be text or a list of texts")
        wishes[key] = tuple(as_ids(value, f"{name}: stop_ids")) if key == "stop_ids" else value
    return prompt, replace(defaults, **wishes), str(named)


def as_ids(value: Any, name: str) -> list[int]:
    """``value`` if it is a list of token ids. Raises InputError."""
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise InputError(f"{name} must be a JSON list of token ids such as [1, 2]")
    return value


def as_messages(value: Any, name: str) -> list[dict]:
    """``value`` if it is a list of chat messages. Raises InputError."""
    right = isinstance(value, list) and value and all(isinstance(m, dict) and "role" in m for m in value)
    if not right:
        raise InputError(
            f'{name} must be a JSON list of messages such as [{{"role": "user", "content": "Hi"}}]'
        )
    return value


def read_json_list(value: str, flag: str) -> Any:
    """JSON from a flag, or from the file that @FILE names. Raises InputError."""
    if value == "@":
        raise InputError(f"{flag}: @ needs the name of a file after it")
    try:
        return json.loads(Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value)
    except OSError as error:
        raise InputError(f"{flag}: {value[1:]} cannot be read: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{flag} must be a JSON list such as '[1, 2]', or @FILE") from None


def batches(tasks: Sequence[Task], rows: int) -> list[Sequence[Task]]:
    """Tasks in groups of at most ``rows``, in order."""
    return [tasks[begin : begin + rows] for begin in range(0, len(tasks), rows)]
