"""python -m jddtree.convert SRC DST: a published checkpoint folder into Orbax form or back, or a GGUF file.
python -m jddtree.convert --check SRC: read an Orbax folder and compare every tensor with its hash, or a
published folder and compare its files with the hashes that its download kept.

The same command goes on where it was stopped.

Quantised weights of a GGUF file become float32, as its own format defines their values; bfloat16 would round
them. F32, F16 and BF16 weights keep their dtype.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jddtree.checkpoint import journal, manifest, published, transfer
from jddtree.checkpoint.gguf import is_gguf, read_gguf
from jddtree.checkpoint.open import read_configs
from jddtree.checkpoint.place import Say, partial_of, put_in_place, sole_writer
from jddtree.checkpoint.published import Tensor
from jddtree.command import Parser, exit_status, leave, path
from jddtree.errors import InputError, about
from jddtree.wording import counted

FORMS = {"orbax": "Orbax", "hf": "published"}


def convert(source: Path, destination: Path, to: str | None, force: bool, say: Say) -> None:
    """Convert ``source`` into ``destination``, which appears only when it is complete.

    Args:
        source: a published or an Orbax folder, or a GGUF file.
        destination: a folder that does not exist or is empty.
        to: "orbax" or "hf" (the published form); None is the form that ``source`` is not in, published for
            a GGUF file.
        force: replace a checkpoint that is in ``destination``.
        say: takes lines for the user.

    Raises:
        InputError: the source is unusable, the destination is taken, or there is too little room on the disk.
    """
    source, destination = source.absolute(), _behind_links(destination)
    gguf = read_gguf(source) if is_gguf(source) else None
    config = gguf.config if gguf else read_configs(source)[0]
    converted = gguf is None and manifest.is_converted(source)
    if gguf is None and to == ("orbax" if converted else "hf"):
        raise InputError(f"{source} is in this form already; copy the folder instead")
    to = to or ("hf" if gguf or converted else "orbax")
    _check_destination(source, destination, force)
    started = time.monotonic()
    tensors: Path | Mapping[str, Tensor]
    if gguf:
        plan, tensors = transfer.plan_tensors(gguf.tensors, config), gguf.tensors
    elif converted:
        found = manifest.read_manifest(source)
        manifest.check_config(found, config, source)
        plan, tensors = found.plan, source
    else:
        plan, tensors = transfer.plan_published(source, config)
    with sole_writer(destination.parent, say):
        _check_destination(source, destination, force)
        if to == "orbax":
            assert not isinstance(tensors, Path)
            earlier = transfer.to_orbax(plan, tensors, destination, config, published.revision(source))
        else:
            earlier = transfer.to_published(plan, tensors, destination)
        transfer.write_companions(gguf or source, partial_of(destination))
        put_in_place(destination)
        if to == "hf":
            (destination / journal.NAME).unlink()
    seconds = time.monotonic() - started
    count = sum(len(entry.names) for entry in plan.entries)
    total = sum(entry.nbytes for entry in plan.entries)
    say(f"{source} -> {destination} ({FORMS[to]} form)")
    rate = (total - earlier) / 1e6 / max(seconds, 1e-9)
    say(f"{counted(count, 'tensor')}, {total} bytes, {seconds:.1f} s, {rate:.0f} MB/s")
    if earlier:
        again = f"; --check {destination} reads them again" if to == "orbax" else ""
        say(f"{earlier} bytes are of an earlier run that was stopped, as they were read back then{again}")
    if plan.skipped:
        say(f"skipped, not part of the text model ({len(plan.skipped)}): {', '.join(plan.skipped)}")


def check(folder: Path, say: Say) -> None:
    """Compare every tensor of an Orbax folder with the hash that was taken when it was converted, or the
    files of a published folder with the hashes that its download kept.

    Raises:
        InputError: there are no hashes, or something is damaged or altered; names the tensor and the file.
    """
    if is_gguf(folder):
        raise InputError(f"{folder} is a GGUF file, which has no hashes: convert it, then --check the result")
    if not manifest.is_converted(folder):
        read_configs(folder)
        count, total = transfer.verify_download(folder)
        say(f"{folder}: {counted(count, 'file')}, {total} bytes are as they were published")
        return
    found = manifest.read_manifest(folder)
    manifest.check_config(found, read_configs(folder)[0], folder)
    count, total = transfer.verify(found.plan, folder)
    say(f"{folder}: {counted(count, 'tensor')}, {total} bytes are as they were converted")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status: 0, 2 bad input or a full disk, 130 interrupted."""
    parser = Parser(
        prog="python -m jddtree.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="SRC", type=path, help="a published or an Orbax checkpoint folder, or a GGUF file"
    )
    parser.add_argument("destination", metavar="DST", nargs="?", type=path, help="the folder to make")
    parser.add_argument(
        "--to", choices=("orbax", "hf"), help="default: the form that SRC is not in; hf for GGUF"
    )
    parser.add_argument("--force", action="store_true", help="replace a checkpoint that is in DST")

    parser.add_argument("--check", action="store_true", help="make nothing; compare SRC with its hashes")

    def job() -> int:
        flags = parser.parse_args(arguments)
        if flags.check == bool(flags.destination):
            parser.error("--check takes no DST" if flags.check else "DST, the folder to make, is missing")
        with about(flags.source):
            if flags.check:
                check(flags.source, print)
                return 0
            convert(flags.source, flags.destination, flags.to, flags.force, print)
        return 0

    return exit_status(
        job,
        "interrupted; the same command goes on",
    )


def _behind_links(place: Path) -> Path:
    """Where a folder is or will be: a link to it stays a link. Raises InputError."""
    try:
        return place.resolve()
    except RuntimeError as error:
        raise InputError(f"{place} is a link that leads to itself") from error


def _check_destination(source: Path, destination: Path, force: bool) -> None:
    here, there = source.resolve(), destination
    if here == there:
        raise InputError(f"{destination} is the source itself; choose another folder")
    if here in there.parents or there in here.parents:
        raise InputError(f"{destination} and {source} lie in each other; choose another folder")
    if not destination.exists():
        return
    if not destination.is_dir():
        raise InputError(f"{destination} is a file; choose another folder")
    if destination.is_mount():
        # It would be built on the disk of its parent, and could not be renamed.
        raise InputError(f"{destination} is a mount point; choose a folder inside of it")
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
