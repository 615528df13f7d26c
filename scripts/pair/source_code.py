"""Python code of a wheel: whole modules as plain text, and its documented functions as chats."""

import ast
import builtins
import random
import re
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

Record = dict[str, str]

# Other projects' code inside a package, tests, and files that a program wrote.
FOREIGN = set(
    "test tests testing _vendor vendor vendored vendored_packages third_party thirdparty extern externals "
    "_extern ext_libs migrations locale locales typeshed node_modules sample_data generated _generated "
    "unittest functional".split()
)
NOT_OURS = re.compile(
    r"GNU (?:Lesser |Affero )?General Public|Mozilla Public|\bL?GPL|DO NOT EDIT|"
    r"auto-?(?:matically )?generated|generated (?:by|from|file)",
    re.IGNORECASE,
)
LICENCE_BLOCK = re.compile(r"\A(?:#[^\n]*\n|[ \t]*\n)+")
WORDS = re.compile(r"copyright|license|licensed|all rights reserved|spdx", re.IGNORECASE)
NUMBER = re.compile(r"\d")


def modules(wheel: Path, seed: int) -> Iterator[str]:
    """The clean ASCII modules of ``wheel``, in random order, without their licence comments."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".py"))
        random.Random(seed).shuffle(names)
        for name in names:
            path = Path(name)
            if FOREIGN & set(path.parts) or path.name.startswith(("test_", "conftest")):
                continue
            if path.stem.endswith(("_test", "_pb2", "_tests")) or path.name in ("setup.py", "_version.py"):
                continue
            if (text := clean(archive.read(name))) is not None:
                yield text


def clean(data: bytes) -> str | None:
    """The module's text, or None if it is not worth learning from."""
    if not 400 <= len(data) <= 200_000 or not data.isascii():
        return None
    text = data.decode("ascii").replace("\r\n", "\n").expandtabs(4)
    if NOT_OURS.search(text[:3000]):
        return None
    head = LICENCE_BLOCK.match(text)
    if head and WORDS.search(head.group()):
        text = text[head.end() :]
    text = "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"
    lines = text.splitlines()
    if len(text) < 300 or max(map(len, lines)) > 140:
        return None
    if len(NUMBER.findall(text)) > 0.12 * len(text):  # tables of numbers
        return None
    if sum(line.startswith(("import ", "from ", '    "', "    '")) for line in lines) > 0.5 * len(lines):
        return None  # lists of imports and of strings
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return text


VERBS = set(
    "add apply append assert build calculate cast check clear clip coerce collect combine compare compute "
    "concatenate convert copy count create decode decorate delete detect determine divide draw drop "
    "encode escape estimate evaluate expand extract fetch fill filter find flatten format generate get "
    "group guess identify insert interpolate invert iterate join limit list load locate look make map mark "
    "match merge move multiply normalize open order pad parse partition pick plot pop prepare print produce "
    "read remove rename render replace reshape resolve return reverse rotate round run sample save scale "
    "search select send set shift shorten show simplify sort split strip sum swap take test tell transform "
    "translate transpose trim truncate turn unpack update validate verify wrap write yield".split()
)
MARKUP = re.compile(r":\w+:`|``|\\|\*\*|>>>|TODO|deprecat|internal|\.\. |https?:|[<>{}|]", re.IGNORECASE)
TASKS = (
    "Write a Python function `{call}` that {does}.",
    "Write a Python function named {name} that {does}. Include a docstring.",
    "Write a function in Python that {does}. Call it {name}.",
    "How can I write a Python function that {does}? Please name it {name}.",
    "I need a Python function called {name}. It {does}.",
    "Please write the Python function `{call}`. It {does}.",
    "Can you show me Python code for a function {name} that {does}?",
    "Implement `{call}` in Python: a function that {does}.",
    'Complete this Python function.\n\n```python\ndef {call}:\n    """{line}"""\n```',
    "Give me a short Python function that {does}, with the name {name}.",
)
EXPLAIN = (
    "What does this Python function do?\n\n```python\n{code}\n```",
    "Explain this Python function in a sentence or two.\n\n```python\n{code}\n```",
    "Please explain what this code does.\n\n```python\n{code}\n```",
    "Write a docstring for this function.\n\n```python\n{code}\n```",
)


def functions(text: str, rng: random.Random) -> Iterator[Record]:
    """Chat records from the functions of a module that stand alone: 4 to 30 lines, a docstring that begins
    with a verb, and no name but their own, Python's, and imported ones.
    """
    tree = ast.parse(text)
    imports = _imports(tree)
    lines = text.splitlines()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            record = _record(node, lines, imports, rng)
            if record:
                yield record


def _imports(tree: ast.Module) -> dict[str, str]:
    """Statement by the name that it binds, for absolute imports."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = f" as {alias.asname}" if alias.asname else ""
                found[alias.asname or alias.name.split(".")[0]] = f"import {alias.name}{name}"
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                name = f" as {alias.asname}" if alias.asname else ""
                found[alias.asname or alias.name] = f"from {node.module} import {alias.name}{name}"
    return found


def _record(
    node: ast.FunctionDef, lines: list[str], imports: dict[str, str], rng: random.Random
) -> Record | None:
    doc = ast.get_docstring(node)
    end = node.end_lineno or node.lineno
    body = node.body[1:]
    if not doc or not body or not 1 <= end - body[0].lineno <= 26:
        return None
    first = " ".join(doc.split("\n\n")[0].split()).split(". ")[0]
    line = first if first.endswith(".") else first + "."
    does = _third_person(line)
    if does is None or MARKUP.search(line) or not 25 <= len(line) <= 200:
        return None
    needed = _needed(node, imports)
    if needed is None or not any(isinstance(n, ast.Return | ast.Yield) for n in ast.walk(node)):
        return None
    head = lines[node.lineno - 1 : node.body[0].lineno - 1]
    rest = lines[node.body[0].end_lineno or 0 : end]
    if not head or "#" in head[-1] or len(head) > 4:
        return None
    code = "\n".join([*head, *rest])
    documented = "\n".join([*head, f'    """{line}"""', *rest])
    top = "\n".join(sorted(needed)) + "\n\n\n" if needed else ""
    if len(documented) > 1300 or max(map(len, documented.splitlines())) > 110:
        return None
    name = node.name.strip("_")
    documented, code = (re.sub(rf"\b{node.name}\b", name, text) for text in (documented, code))
    call = f"{name}({', '.join(a.arg for a in node.args.args)})"
    if rng.random() < 0.85:
        prompt = rng.choice(TASKS).format(name=name, does=does, call=call, line=line)
        answer = f"```python\n{top}{documented}\n```"
    else:
        task = rng.choice(EXPLAIN)
        prompt = task.format(code=textwrap.dedent(code))
        answer = f'"""{line}"""' if "docstring" in task else f"This function {does}."
    return {"kind": "code", "prompt": prompt, "text": answer}


def _third_person(line: str) -> str | None:
    """ "Return the sum." as "returns the sum"; None unless one sentence that begins with a known verb."""
    words = line.rstrip(".").split(" ")
    if ". " in line or len(words) < 4:
        return None
    verb = words[0].lower()
    if verb not in VERBS:
        if not (verb.endswith("s") and (verb[:-1] in VERBS or verb[:-2] in VERBS)):
            return None
    elif verb.endswith(("s", "x", "ch", "sh", "z")):
        verb += "es"
    elif verb.endswith("y") and verb[-2] not in "aeou":
        verb = verb[:-1] + "ies"
    else:
        verb += "s"
    return " ".join([verb, *words[1:]])


def _needed(node: ast.FunctionDef, imports: dict[str, str]) -> set[str] | None:
    """Import statements for the foreign names of a function; None if one of them is not importable here."""
    bound, used = {node.name}, set()
    for item in ast.walk(node):
        if isinstance(item, ast.arg):
            bound.add(item.arg)
        elif isinstance(item, ast.Name):
            (used if isinstance(item.ctx, ast.Load) else bound).add(item.id)
        elif isinstance(item, ast.ExceptHandler | ast.FunctionDef) and item.name:
            bound.add(item.name)
        elif isinstance(item, ast.Import | ast.ImportFrom | ast.Global):
            return None
    foreign = used - bound - set(dir(builtins))
    if not foreign <= set(imports):
        return None
    return {imports[name] for name in foreign}
