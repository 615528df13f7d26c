"""Writes and reads the two published folders: target (experts INT4) and drafter."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from jddtree.config import DFlashConfig, KimiK2Config, read_json, target_config
from jddtree.errors import InputError
from jddtree.quantization import dequantize, quantize
from pallas_kernels.grouped_matmul.api import Int4
from scripts.pair.sizes import Size, generation_json, int4_json, target_json
from scripts.pair.target import Params

PREFIX = "language_model."
SHARD_BYTES = 15_000_000  # files stay under 16 MB
TEMPLATE = Path(__file__).parent / "chat_template.jinja"


def expert_names(params: Params) -> list[str]:
    """Names of the stacked routed experts [E, out, in]."""
    return [name for name in params if ".mlp.experts." in name]


def quantized(params: Params) -> dict[str, Int4]:
    """The routed experts as INT4, groups of 32, absmax / 7."""
    return {name: jax.jit(quantize)(params[name]) for name in expert_names(params)}


def shipped(params: Params) -> Params:
    """The parameters as a reader of the published folder sees them: experts through INT4, the rest through
    bfloat16.

    Comes back in bfloat16, router and its bias in float32 (the router's weight rounded to bfloat16 first).
    """
    experts = {name: dequantize(packed) for name, packed in quantized(params).items()}
    found = {}
    for name, value in params.items():
        if name.endswith("e_score_correction_bias"):
            found[name] = value
        elif name.endswith("mlp.gate.weight"):
            found[name] = value.astype(jnp.bfloat16).astype(jnp.float32)
        else:
            found[name] = experts.get(name, value.astype(jnp.bfloat16))
    return found


def write_target(folder: Path, size: Size, params: Params, tokenizer: Path) -> None:
    """Write the target in K2.6's published layout; ``tokenizer`` is a folder with the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", target_json(size))
    write_json(folder / "generation_config.json", generation_json(size))
    for name in ("tiktoken.model", "tokenizer_config.json"):
        if (tokenizer / name).resolve() != (folder / name).resolve():
            shutil.copyfile(tokenizer / name, folder / name)
    shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")

    tensors: dict[str, np.ndarray] = {}
    packed = quantized(params)
    for name, value in params.items():
        if name in packed:
            path, projection, _ = name.rsplit(".", 2)
            shape = np.array(value.shape[1:], np.int32)
            words, scales = np.asarray(packed[name].packed), np.asarray(packed[name].scale)
            for e in range(len(words)):
                expert = f"{PREFIX}{path}.{e}.{projection}"
                tensors[f"{expert}.weight_packed"] = words[e]
                tensors[f"{expert}.weight_scale"] = scales[e]
                tensors[f"{expert}.weight_shape"] = shape
        elif name.endswith("e_score_correction_bias"):
            tensors[PREFIX + name] = np.asarray(value, np.float32)
        else:
            tensors[PREFIX + name] = np.asarray(value).astype(ml_dtypes.bfloat16)
    _write_shards(folder, tensors)


def _write_shards(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    shards: list[dict[str, np.ndarray]] = [{}]
    room = SHARD_BYTES
    for name in sorted(tensors, key=_reading_order):
        if tensors[name].nbytes > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = np.ascontiguousarray(tensors[name])
        room -= tensors[name].nbytes
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):06}.safetensors"
        _save(shard, folder / file)
        index |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index}
    )


def _reading_order(name: str) -> tuple[int, str]:
    """Layers by number, then everything else."""
    parts = name.split(".")
    return (int(parts[parts.index("layers") + 1]), name) if "layers" in parts else (1_000_000, name)


def read_target(folder: Path) -> Params:
    """Parameters of a published target folder, in the types of `shipped`.

    Raises InputError when it is no Kimi K2 target, or files or experts are missing.
    """
    config = target_config(read_json(folder / "config.json"))
    if not isinstance(config, KimiK2Config):
        raise InputError(f"{folder} is not a Kimi K2 target, which is what these scripts train drafters for")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} holds no .safetensors file")
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        tensors |= {name.removeprefix(PREFIX): value for name, value in load_file(file).items()}
    params: Params = {}
    for name, value in tensors.items():
        if ".mlp.experts." not in name:
            wide = name.endswith("mlp.gate.weight")
            params[name] = jnp.asarray(value.astype(np.float32) if wide else value)
    try:
        for i in range(config.num_layers):
            if config.is_moe(i):
                path = f"model.layers.{i}.mlp.experts"
                for projection in ("gate_proj", "up_proj", "down_proj"):
                    words, scales = (
                        np.stack(
                            [tensors[f"{path}.{e}.{projection}.{part}"] for e in range(config.num_experts)]
                        )
                        for part in ("weight_packed", "weight_scale")
                    )
                    params[f"{path}.{projection}.weight"] = dequantize(
                        Int4(jnp.asarray(words), jnp.asarray(scales))
                    )
    except KeyError as error:
        raise InputError(f"{folder} has no tensor {PREFIX}{error.args[0]}") from None
    return params


def check_int4(config: DFlashConfig) -> None:
    """Raises InputError unless INT4's groups of 32 fit the drafter's matrices."""
    widths = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    for width in widths:
        if width % 32:
            raise InputError(f"a matrix of the drafter is {width} wide; --int4 needs multiples of 32")


def shipped_drafter(params: Params, int4: bool) -> Params:
    """The parameters, bfloat16, as a reader of the published folder sees them, through INT4 or not."""
    return {
        name: dequantize(jax.jit(quantize)(value)) if int4 and value.ndim == 2 else value.astype(jnp.bfloat16)
        for name, value in params.items()
    }


def _save(tensors: Mapping[str, np.ndarray], file: Path) -> None:
    """Write a file of weights, for everyone to read: the library's can be read by their owner alone."""
    save_file(dict(tensors), file, metadata={"format": "pt"})
    file.chmod(0o644)


def write_drafter(folder: Path, raw: dict[str, Any], params: Params, int4: bool) -> None:
    """Write the drafter in the DFlash layout, ``raw`` being its config.json; matrices bfloat16 or INT4."""
    tensors: dict[str, np.ndarray] = {}
    for name, value in params.items():
        if not int4 or value.ndim != 2:
            tensors[name] = np.asarray(value).astype(ml_dtypes.bfloat16)
            continue
        packed, path = jax.jit(quantize)(value), name.removesuffix(".weight")
        tensors[f"{path}.weight_packed"] = np.asarray(packed.packed)
        tensors[f"{path}.weight_scale"] = np.asarray(packed.scale)
        tensors[f"{path}.weight_shape"] = np.array(value.shape, np.int32)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", raw | ({"quantization_config": int4_json()} if int4 else {}))
    _save(tensors, folder / "model.safetensors")


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Indented JSON with a closing newline."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
