"""Write a published checkpoint of a few layers of Kimi K2.6, true in names, shapes and dtypes, with random
weights: what conversion, loading and memory are measured on.

python -m scripts.make_synthetic_checkpoint --out FOLDER --layers 3
"""

import argparse
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jddtree.checkpoint.arrays import batches
from jddtree.checkpoint.place import partial_of, put_in_place, require_room, writing
from jddtree.checkpoint.progress import bar
from jddtree.checkpoint.published import DTYPES, SHARD_BYTES, Tensor, begin, shard_name, store, write_index
from jddtree.config import KimiK2Config, family, read_json, target_config, text_config
from jddtree.errors import InputError
from jddtree.plan.pair import CONFIGS
from jddtree.quantization import GROUP
from jddtree.wording import counted
from scripts.pair.command import run

CONFIG = CONFIGS / "kimi-k2.6.json"
_BLOCK_BYTES = 32 << 20  # of a tensor at once

Layout = list[tuple[str, str, tuple[int, ...]]]  # name, dtype, shape


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--layers", type=int, required=True, help="from the first, which is dense, on")
    parser.add_argument("--config", type=Path, default=CONFIG, help="a config.json of the K2 family")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    raw = read_json(args.config)
    if family(raw) != "kimi_k2":
        raise InputError(f"{args.config} is not of the K2 family")
    if args.layers < 1:
        raise InputError(f"--layers {args.layers}: at least one layer is needed")
    nested = text_config(raw)
    if args.layers > nested["num_hidden_layers"]:
        raise InputError(f"--layers {args.layers}: {args.config} has {nested['num_hidden_layers']}")
    if nested is raw:
        raw = raw | {"num_hidden_layers": args.layers}
    else:
        raw = raw | {"text_config": {**nested, "num_hidden_layers": args.layers}}
    make(args.out.absolute(), raw, args.seed)


def make(out: Path, raw: dict[str, Any], seed: int) -> None:
    """Write the folder ``out`` for ``raw``, a config.json of the K2 family.

    Raises:
        InputError: ``out`` is taken, or the disk has too little room.
    """
    config = target_config(raw)
    assert isinstance(config, KimiK2Config)
    if out.exists():
        raise InputError(f"{out} exists already; choose another folder")
    tensors = layout(config, "" if text_config(raw) is raw else "language_model.")
    shards = list(batches(((_nbytes(*tensor[1:]), tensor) for tensor in tensors), SHARD_BYTES))
    total = sum(_nbytes(*tensor[1:]) for tensor in tensors)
    out.parent.mkdir(parents=True, exist_ok=True)
    require_room(out.parent, total)
    partial = partial_of(out)
    partial.mkdir(exist_ok=True)
    files = [shard_name(number, len(shards)) for number in range(1, len(shards) + 1)]
    sizes = {name: shape for name, _, shape in tensors}
    found: list[Tensor] = []

    def blocks(tensor: Tensor) -> Iterator[np.ndarray]:
        if tensor.name.endswith(".weight_shape"):
            rows, words = sizes[tensor.name.removesuffix("_shape") + "_packed"]
            yield np.array([rows, 8 * words], DTYPES[tensor.dtype])
        else:
            yield from values(tensor.name, tensor.dtype, tensor.shape, seed)

    with bar("writing", total, 0) as advance:
        for file, shard in zip(files, shards, strict=True):
            for tensor in begin(partial / file, shard):
                start = 0
                for block in blocks(tensor):
                    store([tensor], [block], start)
                    start += len(block)
                    advance(block.nbytes)
                found.append(tensor)
    if len(shards) > 1:
        write_index(partial, found)
    with writing(partial / "config.json"):
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    put_in_place(out)
    print(f"{out}: {len(tensors)} tensors, {total / 1e9:.3f} GB, {counted(len(shards), 'file')}")


def layout(config: KimiK2Config, prefix: str) -> Layout:
    """Name, dtype and shape of every text tensor (spec kimi, section 4), layer by layer."""
    c = config
    found: Layout = []

    def add(name: str, *shape: int, dtype: str = "BF16") -> None:
        found.append((prefix + name, dtype, shape))

    def mlp(name: str, width: int) -> None:
        for part, shape in _projections(c.hidden_size, width):
            add(f"{name}.{part}.weight", *shape)

    for layer in range(c.num_layers):
        at = f"model.layers.{layer}."
        head = c.nope_head_dim + c.rope_head_dim
        add(at + "input_layernorm.weight", c.hidden_size)
        add(at + "post_attention_layernorm.weight", c.hidden_size)
        add(at + "self_attn.q_a_proj.weight", c.q_lora_rank, c.hidden_size)
        add(at + "self_attn.q_a_layernorm.weight", c.q_lora_rank)
        add(at + "self_attn.q_b_proj.weight", c.num_heads * head, c.q_lora_rank)
        add(at + "self_attn.kv_a_proj_with_mqa.weight", c.kv_lora_rank + c.rope_head_dim, c.hidden_size)
        add(at + "self_attn.kv_a_layernorm.weight", c.kv_lora_rank)
        up = c.nope_head_dim + c.v_head_dim
        add(at + "self_attn.kv_b_proj.weight", c.num_heads * up, c.kv_lora_rank)
        add(at + "self_attn.o_proj.weight", c.hidden_size, c.num_heads * c.v_head_dim)
        if not c.is_moe(layer):
            mlp(at + "mlp", c.intermediate_size)
            continue
        add(at + "mlp.gate.weight", c.num_experts, c.hidden_size)
        add(at + "mlp.gate.e_score_correction_bias", c.num_experts, dtype="F32")
        if c.num_shared_experts:
            mlp(at + "mlp.shared_experts", c.num_shared_experts * c.moe_intermediate_size)
        for expert in range(c.num_experts):
            for part, (rows, width) in _projections(c.hidden_size, c.moe_intermediate_size):
                name = f"{at}mlp.experts.{expert}.{part}.weight"
                add(name + "_packed", rows, width // 8, dtype="I32")
                add(name + "_scale", rows, width // GROUP)
                add(name + "_shape", 2, dtype="I32")
    add("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
    if not c.tied:
        add("lm_head.weight", c.vocab_size, c.hidden_size)
    add("model.norm.weight", c.hidden_size)
    return found


def values(name: str, dtype: str, shape: tuple[int, ...], seed: int) -> Iterator[np.ndarray]:
    """A tensor's values in blocks of rows, drawn from the seed and its name alone.

    Weights are uniform with the standard deviation in^-0.5. INT4 words are uniform, and their scales give the
    weights about that deviation too. Norms are about 1, the router's bias about 0.
    """
    random = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
    row = _nbytes(dtype, shape[1:])
    rows = max(1, _BLOCK_BYTES // row)
    for start in range(0, shape[0], rows):
        size = (min(rows, shape[0] - start), *shape[1:])
        if dtype == "I32":
            yield np.frombuffer(random.bytes(_nbytes(dtype, size)), np.int32).reshape(size)
            continue
        uniform = random.random(size, np.float32)
        if name.endswith("_scale"):
            uniform = (uniform + 0.5) * ((GROUP * shape[-1]) ** -0.5 / 4.6)
        elif name.endswith("norm.weight"):
            uniform = uniform * 0.2 + 0.9
        elif name.endswith("bias"):
            uniform = (uniform - 0.5) * 0.01
        else:
            uniform = (uniform - 0.5) * (12 / shape[-1]) ** 0.5
        yield uniform.astype(DTYPES[dtype])


def _projections(hidden: int, width: int) -> list[tuple[str, tuple[int, int]]]:
    """The three matrices of an MLP, [out, in]."""
    return [("gate_proj", (width, hidden)), ("up_proj", (width, hidden)), ("down_proj", (hidden, width))]


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPES[dtype].itemsize


if __name__ == "__main__":
    run(main)
