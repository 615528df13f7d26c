"""How scripts end."""

import os
import sys

import pytest

from jddtree.errors import InputError
from scripts.pair.command import run


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [(InputError("no text"), 2, "error: no text"), (KeyboardInterrupt(), 130, "interrupted")],
)
def test_a_script_ends_as_the_packages_commands_do(monkeypatch, capsys, error, status, line):
    def main() -> None:
        raise error

    left = []
    # At an interrupt the device's threads are not waited for, since tearing them down may abort.
    monkeypatch.setattr(os, "_exit", lambda code: left.append(code) or sys.exit(code))
    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == status and left == ([130] if status == 130 else [])
    assert capsys.readouterr().err == f"{line}\n"
