"""Open a checkpoint in either form and restore its weights into a model's state."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jddtree.checkpoint import arrays, manifest, published, skeleton, transfer
from jddtree.checkpoint.gguf import is_gguf, read_gguf
from jddtree.checkpoint.mapping import Plan
from jddtree.checkpoint.place import Say, partial_of, put_in_place, sole_writer
from jddtree.checkpoint.published import DTYPES, Tensor
from jddtree.config import read_json
from jddtree.errors import InputError
from jddtree.wording import counted

_LAYOUT = b"jddtree weights 2"  # part of the content key: change it when converted weights change


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose weights are in Orbax form.

    Attributes:
        folder: the folder the user named: configs, tokenizer and template are read from here.
        config: its config.json.
        generation_config: its generation_config.json, if it has one.
        weights: the folder with the Orbax weights and the manifest; `folder` itself or one in the cache.
        plan: which published tensor fills which array.
    """

    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any] | None
    weights: Path
    plan: Plan

    @property
    def packed(self) -> frozenset[str]:
        """Dotted paths of the modules whose weights are INT4: what the models' constructors take."""
        return self.plan.packed

    @property
    def skipped(self) -> list[str]:
        """Published tensors that are not part of the text model."""
        return self.plan.skipped


def open_checkpoint(path: Path, cache_dir: Path, say: Say) -> Checkpoint:
    """Open a published or an Orbax folder, or a GGUF file. Weights in another form than Orbax are converted
    once, into ``cache_dir``.

    The cache entry is named after the content of config.json and the weight files, so a copy or a renamed
    folder finds it and an edited one does not.

    Args:
        path: the folder or file.
        cache_dir: made when it is needed.
        say: takes lines for the user.

    Raises:
        InputError: no such folder, no weights in it, damaged files, or weights that do not fit the config.
    """
    if is_gguf(path):
        path = _from_gguf(path, cache_dir, say)
    config, generation_config = read_configs(path)
    if manifest.is_converted(path):
        found = manifest.read_manifest(path)
        manifest.check_config(found, config, path)
        return Checkpoint(path, config, generation_config, path, found.plan)
    plan, source = transfer.plan_published(path, config)
    entry = cache_dir / "checkpoints" / content_key(path, cache_dir)
    if not _is_whole(entry):
        with sole_writer(entry.parent, say):
            if not _is_whole(entry):  # unless another process has just done it
                _fill(entry, path, plan, source, config, say)
                put_in_place(entry)
    return Checkpoint(path, config, generation_config, entry, plan)


def read_configs(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """config.json, and generation_config.json or None.

    Raises:
        InputError: no such folder, neither form of weights in it, or a file that cannot be read.
    """
    if not path.is_dir():
        raise InputError(
            f"{path} is neither a folder nor a GGUF file" if path.exists() else f"{path} does not exist"
        )
    if not manifest.is_converted(path) and not published.is_published(path):
        raise InputError(f"{path} holds no checkpoint: neither *.safetensors nor {manifest.NAME}")
    generation = path / "generation_config.json"
    return read_json(path / "config.json"), read_json(generation) if generation.is_file() else None


def restore(checkpoint: Checkpoint, abstract_state: Any, dtype: DTypeLike) -> Any:
    """Load a checkpoint's weights into the form of a model's state.

    Args:
        checkpoint: from `open_checkpoint`.
        abstract_state: a model or its `nnx.State` made by `nnx.eval_shape`; the leaves' shapes count, and
            their shardings where they have them (else the first device holds everything).
        dtype: for floating weights. INT4 words and scales and the router's correction bias keep theirs
            (int32, bfloat16, float32).

    Returns:
        ``abstract_state`` with `jax.Array` leaves.

    Raises:
        InputError: a weight is missing, left over or of another shape, or the stored weights are damaged.
    """
    filled = checkpoint.plan.arrays
    leaves = skeleton.array_paths(abstract_state)
    wanted = {}
    for path, leaf in leaves:
        entry = filled.pop(path, None)
        if entry is None:
            raise InputError(f"{checkpoint.folder}: no tensor for {path}, which the model needs")
        if entry.arrays[path] != leaf.shape:
            raise InputError(
                f"{checkpoint.folder}: tensor {entry.names[0]} gives {path} {list(entry.arrays[path])}; "
                f"the model needs {list(leaf.shape)}"
            )
        sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        wanted[path] = jax.ShapeDtypeStruct(
            leaf.shape, _kept_dtype(path, entry.dtype) or dtype, sharding=sharding
        )
    for path, entry in filled.items():
        raise InputError(f"{checkpoint.folder}: tensor {entry.names[0]} ({path}) has no place in the model")
    # Of an array that lies on other processes' devices alone there is nothing to read here.
    own = {path: wish for path, wish in wanted.items() if wish.sharding.addressable_devices}
    loaded = arrays.load(checkpoint.weights / manifest.WEIGHTS, own)
    for path in wanted.keys() - own.keys():
        wish = wanted[path]
        loaded[path] = jax.make_array_from_single_device_arrays(
            wish.shape, wish.sharding, [], dtype=wish.dtype
        )
    return jax.tree.unflatten(jax.tree.structure(abstract_state), [loaded[path] for path, _ in leaves])


def _from_gguf(file: Path, cache_dir: Path, say: Say) -> Path:
    """The Orbax folder, in the cache, of a GGUF file."""
    entry = cache_dir / "checkpoints" / f"{file.stem}-{_content_key((file,), cache_dir)}"
    if not _is_whole(entry):
        with sole_writer(entry.parent, say):
            if not _is_whole(entry):
                gguf = read_gguf(file)
                plan = transfer.plan_tensors(gguf.tensors, gguf.config)
                _fill(entry, file, plan, gguf.tensors, gguf.config, say)
                transfer.write_companions(gguf, partial_of(entry))
                put_in_place(entry)
    return entry


def _fill(
    entry: Path, origin: Path, plan: Plan, source: Mapping[str, Tensor], config: dict[str, Any], say: Say
) -> None:
    """Convert tensors into the partial folder of a cache entry. Raises InputError in one of many processes:
    Orbax would wait for all of them to write.
    """
    if jax.process_count() > 1:
        raise InputError(
            f"{origin} is not converted yet: run python -m jddtree.convert {origin} DIR once, and give DIR"
        )
    say(f"Converting {origin} ({sum(e.nbytes for e in plan.entries) / 1e6:.1f} MB) once into {entry}.")
    if plan.skipped:
        names = f"names in {entry / manifest.NAME}"
        say(f"Skipping {counted(len(plan.skipped), 'tensor')} not part of the text model ({names}).")
    transfer.to_orbax(plan, source, entry, config, published.revision(origin))


def _is_whole(entry: Path) -> bool:
    """Whether a cache entry is there and undamaged; a damaged one is made again."""
    try:
        return bool(manifest.read_manifest(entry).plan.entries)
    except InputError:
        return False


def _kept_dtype(path: str, stored: str) -> jnp.dtype | None:
    name = path.rsplit(".", 1)[-1]
    if name == "e_score_correction_bias":
        return jnp.dtype(jnp.float32)  # bfloat16 would merge biases and change the routing
    if name == "weight_scale" or DTYPES[stored].kind == "i":
        return DTYPES[stored]
    return None


def content_key(path: Path, cache_dir: Path) -> str:
    """Hash of a GGUF file, or of config.json and the weight files of a folder in either form. Hashes are
    remembered in ``cache_dir`` by path, size and time of change.
    """
    if is_gguf(path):
        return _content_key([path], cache_dir)
    if manifest.is_converted(path):
        inside = sorted((path / manifest.WEIGHTS).rglob("*"))
        weights = [path / manifest.NAME, *(file for file in inside if file.is_file())]
    else:
        weights = published.weight_files(path)
    return _content_key([path / "config.json", *weights], cache_dir)


def _content_key(files: Sequence[Path], cache_dir: Path) -> str:
    """Hash of the files' content. Hashes are remembered by path, size and time of change."""
    memory = cache_dir / "hashes.json"
    try:
        known = json.loads(memory.read_text())
        known = known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        known = {}
    total, fresh = hashlib.sha256(_LAYOUT), False
    for file in files:
        status, place = file.stat(), str(file.resolve())
        facts = [status.st_size, status.st_mtime_ns]
        if known.get(place, [])[:2] != facts:
            with file.open("rb") as opened:
                known[place] = [*facts, hashlib.file_digest(opened, "sha256").hexdigest()]
            fresh = True
        total.update(known[place][2].encode())
    if fresh:
        cache_dir.mkdir(parents=True, exist_ok=True)
        temporary = memory.with_name(f"hashes.{os.getpid()}.new")
        temporary.write_text(json.dumps(known))
        temporary.replace(memory)
    return total.hexdigest()[:32]
