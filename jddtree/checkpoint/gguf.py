"""GGUF files: their tensors under published names, dequantised one at a time, and their header as files.

The ``gguf`` package parses and dequantises; it is an optional dependency.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from jddtree.checkpoint.gguf_header import Header, companions, llama3_scaling
from jddtree.checkpoint.published import Tensor
from jddtree.errors import InputError

ARCHITECTURES = ("llama", "qwen3")

# llama.cpp's names of the parts of a layer, and the published ones.
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_FREQUENCIES = "rope_freqs.weight"


@dataclass(frozen=True)
class GgufTensor(Tensor):
    """A tensor of a GGUF file, dequantised when it is read.

    ``raw``: its bytes or numbers, mapped from the file. ``kind``: the gguf package's quantisation type.
    ``heads``: of so many heads its rows hold (channel j, channel j + dim/2) side by side, as llama.cpp stores
    the queries and keys of Llama models; 0: rows are in the published order.
    """

    raw: np.ndarray = field(repr=False, compare=False)
    kind: Any = field(repr=False)
    heads: int

    def read_into(self, out: np.ndarray, start: int = 0) -> None:
        """Fill ``out``, of this dtype and so many rows in the published order, from row ``start`` on."""
        rows = slice(start, start + len(out))
        # The published order mixes rows of a head, so these tensors, which are small, are dequantised whole.
        whole = bool(self.heads) or out.shape == self.shape
        raw = self.raw if whole else self.raw[rows]
        if self.dtype == "BF16":
            values = raw.view(ml_dtypes.bfloat16)
        elif self.dtype == "F16":
            values = raw
        else:
            values = _package(self.file).quants.dequantize(raw, self.kind)
        if self.heads:
            height, rest = self.shape[0] // self.heads, self.shape[1:]
            values = (
                values.reshape(self.heads, height // 2, 2, *rest).swapaxes(1, 2).reshape(self.shape)[rows]
            )
        out[...] = values.reshape(out.shape)


@dataclass(frozen=True)
class GgufFile:
    """What a published folder of the same model would hold.

    tensors: by published name, in file order. files: name -> text; config.json is parsed as ``config``.
    """

    tensors: Mapping[str, Tensor]
    config: dict[str, Any]
    files: Mapping[str, str]


def is_gguf(path: Path) -> bool:
    """Whether ``path`` is a file that begins as GGUF files do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def read_gguf(path: Path) -> GgufFile:
    """Read a GGUF file's header; weights are read later, tensor by tensor.

    Quantised weights become float32, as the gguf package dequantises them: their values are not exact in
    bfloat16. F32, F16 and BF16 tensors keep their dtype.

    Raises:
        InputError: the gguf package is missing; or the file is damaged, of an unknown architecture or
            quantisation, holds a tensor without a place, or lacks a part of its header.
    """
    package = _package(path)
    try:
        reader = package.GGUFReader(path)
        values = {name: item.contents() for name, item in reader.fields.items()}
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path} is truncated or damaged ({reason}); download it again") from error
    if reader.byte_order == "S":
        raise InputError(f"{path} is of the other byte order, which is not supported")
    header = Header(path, values)
    if header.architecture not in ARCHITECTURES:
        raise InputError(
            f"{path} has architecture {header.architecture!r}; supported: {', '.join(ARCHITECTURES)}"
        )
    _check_places(path, reader)
    tensors: dict[str, Tensor] = {}
    scaling = None
    for stored in reader.tensors:
        if stored.name == _FREQUENCIES:
            scaling = llama3_scaling(header, package.quants.dequantize(stored.data, stored.tensor_type))
        else:
            tensor = _tensor(path, header, package, stored)
            tensors[tensor.name] = tensor
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is None:
        raise InputError(f"{path} has no tensor token_embd.weight")
    config, files = companions(
        header,
        vocab_size=embedding.shape[0],
        dtype={"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[embedding.dtype],
        names=tensors.keys(),
        scaling=scaling,
    )
    return GgufFile(tensors, config, files)


def _check_places(path: Path, reader: Any) -> None:
    """Tensors lie one behind the other, each padded: else a type or a size in the header is wrong."""
    stored = sorted(reader.tensors, key=lambda tensor: int(tensor.data_offset))
    for tensor, following in pairwise(stored):
        end = int(tensor.data_offset) + int(tensor.n_bytes)
        if end + -end % reader.alignment != int(following.data_offset):
            raise InputError(
                f"{path} is damaged: tensor {tensor.name} does not end where {following.name} begins; "
                "download it again"
            )


def _package(path: Path) -> ModuleType:
    """The gguf package. Only conversions need it."""
    try:
        import gguf
    except ImportError:
        raise InputError(f"{path} is a GGUF file, which needs the gguf package: pip install gguf") from None
    return gguf


def _tensor(path: Path, header: Header, package: ModuleType, stored: Any) -> GgufTensor:
    name = _published(path, stored.name)
    kinds = package.GGMLQuantizationType
    dtype = {kinds.F16: "F16", kinds.BF16: "BF16"}.get(stored.tensor_type, "F32")
    try:
        package.quants.dequantize(stored.data[:1], stored.tensor_type)
    except NotImplementedError:
        raise InputError(
            f"{path}: tensor {stored.name} is {stored.tensor_type.name}, which the gguf package cannot "
            "dequantise"
        ) from None
    shape = tuple(int(size) for size in reversed(stored.shape))
    heads = 0
    if header.architecture == "llama":
        part = stored.name.split(".")[-2]
        heads = {"attn_q": header.heads, "attn_k": header.kv_heads}.get(part, 0)
        if heads and shape[0] % (2 * heads):
            raise InputError(f"{path}: tensor {stored.name} has {shape[0]} rows for {heads} heads")
    return GgufTensor(
        name, path, dtype, shape, int(stored.data_offset), stored.data, stored.tensor_type, heads
    )


def _published(path: Path, name: str) -> str:
    """The published name of a tensor."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _PARTS:
        raise InputError(f"{path}: tensor {name} has no place in the models that are supported")
    return f"model.layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}"
