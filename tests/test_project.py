"""The set-up scripts, and the rules about the source tree that no linter checks."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = [
    path
    for folder in ("jddtree", "pallas_kernels", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def find_python(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", ROOT / ".ci" / "find_python"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_interpreter_that_fails_when_run_is_passed_over(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    (tmp_path / "python3.13").symlink_to(sys.executable)
    found = find_python({"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()) != shim
    assert "3." in subprocess.check_output([found.stdout.strip(), "-V"], text=True)


def test_an_interpreter_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho\n")
    old.chmod(0o755)
    found = find_python({"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": str(old)})
    assert found.returncode == 1
    assert str(old) in found.stderr and "3.12" in found.stderr


def test_files_stay_short() -> None:
    limits = {path: 700 if path.is_relative_to(ROOT / "pallas_kernels") else 500 for path in SOURCES}
    assert SOURCES
    assert not [path for path, limit in limits.items() if len(path.read_text().splitlines()) > limit]


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, by its full name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_imports_go_one_way() -> None:
    """Command lines -> decode -> models, tree, accept, cache -> pallas_kernels."""
    command_lines = {f"jddtree.{name}" for name in ("generate", "sweep", "convert", "plan", "compare")}
    parts = [ROOT / "jddtree" / f"{name}.py" for name in ("tree", "accept", "cache", "sampling", "config")]
    models = sorted((ROOT / "jddtree" / "models").glob("*.py"))
    for path in SOURCES:
        modules = imported_modules(path)
        if path.is_relative_to(ROOT / "pallas_kernels"):
            assert not {name for name in modules if name.split(".")[0] in ("jddtree", "scripts")}, path
        if path in parts or path in models:
            assert not modules & {"jddtree.decode", *command_lines}, path
        if path == ROOT / "jddtree" / "decode.py":
            assert not modules & command_lines, path
