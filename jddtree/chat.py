"""Chat prompts: a checkpoint's jinja template, rendered and encoded so that no message can forge a token."""

import datetime
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jddtree.config import read_json
from jddtree.errors import InputError
from jddtree.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool")

Message = dict[str, Any]  # role, content, and as the template wants: name, reasoning_content, tool_calls ...


@dataclass(frozen=True)
class ChatTemplate:
    """A template's source text, the file it came from, and the begin and end tokens' names it may print."""

    source: str
    file: Path
    bos_token: str
    eos_token: str


def load_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a checkpoint folder: `chat_template.jinja`, else `chat_template` in
    `tokenizer_config.json` (of several, the one named "default"), else None.

    Raises:
        InputError: a file is unreadable or the template is not text.
    """
    config_file = folder / "tokenizer_config.json"
    config = read_json(config_file) if config_file.is_file() else {}
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read: {error}") from error
    else:
        file, source = config_file, config.get("chat_template")
        if isinstance(source, list):
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        if source is None:
            return None
        if not isinstance(source, str):
            raise InputError(f"{file}: chat_template must be a template's text")
    return ChatTemplate(source, file, _name(config.get("bos_token")), _name(config.get("eos_token")))


def render(template: ChatTemplate, messages: list[Message], thinking: bool, tools: list | None = None) -> str:
    """The prompt's text, up to where the answer begins.

    Args:
        template: from `load_template`.
        messages: dicts with `role` (system, user, assistant or tool) and `content`, oldest first.
        thinking: whether the answer starts with a think block (as `thinking` and `enable_thinking`).
        tools: JSON descriptions of the tools on offer.

    Raises:
        InputError: a role is unknown, or the template is malformed or refuses the messages.
    """
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise InputError(
                f"message {index} has role {message.get('role')!r}; roles are {', '.join(ROLES)}"
            )
    try:
        return (
            _environment()
            .from_string(template.source, globals={"raise_exception": _refuse, "strftime_now": _now})
            .render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=True,
                thinking=thinking,
                enable_thinking=thinking,
                bos_token=template.bos_token,
                eos_token=template.eos_token,
            )
        )
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"{template.file}: chat template, line {error.lineno}: {error.message}") from error
    except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{template.file}: the chat template failed: {reason}") from error


def thinks(template: ChatTemplate) -> bool:
    """Whether ``thinking`` changes how an answer starts. Errors as `render`."""
    asked: list[Message] = [{"role": "user", "content": "?"}]
    return render(template, asked, True) != render(template, asked, False)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: list[Message],
    thinking: bool,
    tools: list | None = None,
) -> list[int]:
    """Token ids of the rendered prompt. Special names that the template writes become their tokens; the
    same names inside messages and tools stay plain text, so no message can end its own turn.

    The tags that a model writes in its own answers (such as `<think>`; they are not flagged special) stay
    tags inside assistant messages: templates look for them there.

    Arguments and errors as `render`.
    """
    # A character that occurs nowhere is put inside every such name before rendering, and is taken out of the
    # plain text between the special tokens afterwards. Templates see the text otherwise unchanged.
    everything = json.dumps([template.source, messages, tools], ensure_ascii=False, default=str)
    mark = next(chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in everything)
    names = set(tokenizer.markup.values())
    flagged = {tokenizer.markup[token] for token in tokenizer.hidden}
    marked = [
        {
            key: value
            if key == "role"
            else _marked(value, flagged if message.get("role") == "assistant" else names, mark)
            for key, value in message.items()
        }
        for message in messages
    ]
    text = render(template, marked, thinking, _marked(tools, names, mark))
    ids: list[int] = []
    done = 0
    for token, start, end in tokenizer.special_spans(text):
        ids += tokenizer.encode(text[done:start].replace(mark, ""), specials=False)
        ids.append(token)
        done = end
    return ids + tokenizer.encode(text[done:].replace(mark, ""), specials=False)


def _marked(value: Any, names: Iterable[str], mark: str) -> Any:
    """`value` with `mark` inside every one of `names` that a string in it holds, and at its ends where a
    name could be completed by what comes before or after."""
    if isinstance(value, dict):
        return {_marked(key, names, mark): _marked(item, names, mark) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(item, names, mark) for item in value]
    if not isinstance(value, str):
        return value
    text = value
    for name in names:
        while len(name) > 1 and name in text:
            text = text.replace(name, name[:1] + mark + name[1:])
    if any(value.startswith(name[cut:]) for name in names for cut in range(1, len(name))):
        text = mark + text
    if any(value.endswith(name[:cut]) for name in names for cut in range(1, len(name))):
        text = text + mark
    return text


def _environment() -> jinja2.Environment:
    """What published templates expect to find."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    return environment


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes <, > and & for HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _name(token: Any) -> str:
    """A token's name in tokenizer_config.json: a string, or an object with `content`."""
    return str((token.get("content") if isinstance(token, dict) else token) or "")
