"""python -m jddtree.convert SRC DST: a published checkpoint folder into Orbax form, or back."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from jddtree.checkpoint import manifest, transfer
from jddtree.checkpoint.open import read_configs
from jddtree.checkpoint.place import Say, partial_of, put_in_place, require_room, sole_writer
from jddtree.checkpoint.progress import bar
from jddtree.command import Parser, exit_status, leave, path
from jddtree.errors import InputError, about


def convert(source: Path, destination: Path, to: str | None, force: bool, say: Say) -> None:
    """Convert ``source`` into ``destination``, which appears only when it is complete.

    Args:
        source: a published or an Orbax folder.
        destination: a folder that does not exist or is empty.
        to: "orbax" or "hf" (the published form); None is the form that ``source`` is not in.
        force: replace a checkpoint that is in ``destination``.
        say: takes lines for the user.

    Raises:
        InputError: the source is unusable, the destination is taken, or there is too little room on the disk.
    """
    source, destination = source.absolute(), destination.absolute()
    config, _ = read_configs(source)
    converted = manifest.is_converted(source)
    if to == ("orbax" if converted else "hf"):
        raise InputError(f"{source} is in this form already; copy the folder instead")
    _check_destination(source, destination, force)
    started = time.monotonic()
    with sole_writer(destination.parent, say):
        _check_destination(source, destination, force)
        if converted:
            plan = manifest.read_manifest(source)
            total = sum(entry.nbytes for entry in plan.entries)
            require_room(destination.parent, total)
            with bar("converting", total) as advance:
                transfer.to_published(plan, source, destination, advance)
        else:
            plan, tensors = transfer.plan_published(source, config)
            total = sum(entry.nbytes for entry in plan.entries)
            require_room(destination.parent, total)
            with bar("converting", total) as advance:
                transfer.to_orbax(plan, tensors, destination, advance)
        for file in transfer.companions(source):
            shutil.copyfile(file, partial_of(destination) / file.name)
        put_in_place(destination)
    seconds = time.monotonic() - started
    count = sum(len(entry.names) for entry in plan.entries)
    say(f"{source} -> {destination} ({'published' if converted else 'Orbax'} form)")
    say(f"{count} tensors, {total} bytes, {seconds:.1f} s, {total / 1e6 / max(seconds, 1e-9):.0f} MB/s")
    if plan.skipped:
        say(f"skipped, not part of the text model ({len(plan.skipped)}): {', '.join(plan.skipped)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, 2 bad input or a full disk, 130 interrupted."""
    parser = Parser(prog="python -m jddtree.convert", description=__doc__)
    parser.add_argument("source", metavar="SRC", type=path, help="a published or an Orbax checkpoint folder")
    parser.add_argument("destination", metavar="DST", type=path, help="the folder to make")
    parser.add_argument("--to", choices=("orbax", "hf"), help="default: the form that SRC is not in")
    parser.add_argument("--force", action="store_true", help="replace a checkpoint that is in DST")

    def job() -> int:
        flags = parser.parse_args(arguments)
        with about(flags.source):
            convert(flags.source, flags.destination, flags.to, flags.force, print)
        return 0

    return exit_status(job, "interrupted; the same command continues a conversion to Orbax")


def _check_destination(source: Path, destination: Path, force: bool) -> None:
    here, there = source.resolve(), destination.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise InputError(f"{destination} and {source} lie in each other; choose another folder")
    if not destination.exists():
        return
    if not destination.is_dir():
        raise InputError(f"{destination} is a file; choose another folder")
    if not any(destination.iterdir()):
        return
    if not force:
        raise InputError(f"{destination} is not empty; choose another folder or add --force")
    if not (destination / "config.json").is_file():
        raise InputError(
            f"{destination} holds no checkpoint, so --force does not replace it; empty it yourself"
        )


if __name__ == "__main__":
    leave(main())
