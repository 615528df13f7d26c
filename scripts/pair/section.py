"""A part of a Markdown file that a script writes."""

from pathlib import Path

from jddtree.errors import InputError


def replace_section(path: Path, name: str, text: str) -> None:
    """Put ``text`` between the lines `<!-- begin NAME -->` and `<!-- end NAME -->`.

    Raises InputError when the file or one of the two lines is missing.
    """
    before, after = require_section(path, name)
    path.write_text(f"{before}{text.rstrip()}\n{after}", encoding="utf-8")


def require_section(path: Path, name: str) -> tuple[str, str]:
    """What stands around the section, its two lines included. Raises InputError when something is missing."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    whole = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, found, rest = whole.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise InputError(f'{path} has no lines "{begin.strip()}" and "{end}" to write between')
    return before + begin, end + after
