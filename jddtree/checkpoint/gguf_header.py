"""The header of a GGUF file as the files of a published folder: configs, tokenizer, chat template.

Keys: the GGUF specification and llama.cpp's writers. Split patterns: the published tokenizer.json files of
SmolLM2, GPT-2, Llama 3 and Qwen2, which llama.cpp names in ``tokenizer.ggml.pre``.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from jddtree.config import Llama3Rope, Rope
from jddtree.errors import InputError
from jddtree.models.layers import inverse_frequencies

# What a header may say about a model beyond what is read here, when it says no more than this.
_NEUTRAL: dict[str, Any] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.finetuned": None,  # None: whatever it says
    "vocab_size": None,
}
_READ = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
}
_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # of tokenizer.ggml.token_type; 1 is an ordinary token

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class Header:
    """Key -> value. Missing or wrong values raise an InputError that names file and key."""

    file: Path
    values: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model's family."""
        return self.text("general.architecture")

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.count("attention.head_count")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values; as many as queries have where nothing is said."""
        return self.count("attention.head_count_kv", self.heads)

    @property
    def rope_theta(self) -> float:
        """Base of the rotary frequencies; llama.cpp's own where nothing is said."""
        return self.number("rope.freq_base", 10000.0)

    def need(self, key: str, default: Any = None) -> Any:
        """Any value; ``default``, if there is one, stands for a missing key."""
        value = self.values.get(key, default)
        if value is None:
            raise InputError(f"{self.file}: the header has no {key}")
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self.need(key)
        if not isinstance(value, str):
            raise InputError(f"{self.file}: the header's {key} must be text, found {value!r}")
        return value

    def count(self, part: str, default: int | None = None) -> int:
        """A positive number of the architecture's own keys; the same for every layer."""
        key = f"{self.architecture}.{part}"
        value = self.need(key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{self.file}: the header's {key} must be one positive number, found {value!r}")
        return value

    def number(self, part: str, default: float | None = None) -> float:
        """A float32 of the architecture's own keys, as the shortest decimal that gives it."""
        key = f"{self.architecture}.{part}"
        value = self.need(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.file}: the header's {key} must be a number, found {value!r}")
        return float(str(np.float32(value)))

    def words(self, key: str) -> list[str]:
        """A list of strings."""
        value = self.need(key)
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise InputError(f"{self.file}: the header's {key} must be a list of texts")
        return value


def llama3_scaling(header: Header, factors: np.ndarray) -> dict[str, Any]:
    """The ``rope_scaling`` that gives these factors on the wavelengths (Llama 3.1 and later).

    GGUF files keep the factors alone, so they are compared with those of the published constants. Raises
    InputError where they differ.
    """
    scaling = Llama3Rope(float(np.max(factors)), 1.0, 4.0, 8192)
    theta, dim = header.rope_theta, 2 * factors.size
    wanted = inverse_frequencies(Rope(theta, None), dim) / inverse_frequencies(Rope(theta, scaling), dim)
    if not np.allclose(factors, wanted, rtol=1e-4):
        raise InputError(f"{header.file}: the rotary factors in rope_freqs.weight are not those of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position,
    }


def companions(
    header: Header, *, vocab_size: int, dtype: str, names: Collection[str], scaling: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """config.json as an object, and all files beside the weights as texts.

    Args:
        header: of an architecture that is supported.
        vocab_size: rows of the embedding.
        dtype: what config.json says of the weights.
        names: published names of the tensors, which tell of biases and of a head of its own.
        scaling: ``rope_scaling``, where tensors hold it.
    """
    config = _config(header, vocab_size, names, scaling) | {"dtype": dtype}
    ends = _token_ids(header, vocab_size)
    config |= {key: ids[0] if len(ids) == 1 else ids for key, ids in ends.items()}
    files = {
        "config.json": _json(config),
        "generation_config.json": _json({key: config[key] for key in ends}),
    }
    if header.values.get("tokenizer.ggml.model", "none") not in ("none", "no_vocab"):
        backend = _tokenizer(header, vocab_size)
        files["tokenizer.json"] = backend.to_str(pretty=False)
        files["tokenizer_config.json"] = _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "clean_up_tokenization_spaces": False,
                "model_max_length": config["max_position_embeddings"],
            }
            | {key.removesuffix("_id"): backend.id_to_token(ids[0]) for key, ids in ends.items()}
        )
    if header.values.get("tokenizer.chat_template"):
        files["chat_template.jinja"] = header.text("tokenizer.chat_template")
    return config, files


def _config(
    header: Header, vocab_size: int, names: Collection[str], scaling: dict[str, Any] | None
) -> dict[str, Any]:
    prefix = header.architecture + "."
    for key, value in header.values.items():
        part = key.removeprefix(prefix)
        known = part in _READ or (part in _NEUTRAL and _NEUTRAL[part] in (None, value))
        if key.startswith(prefix) and not known:
            raise InputError(f"{header.file}: the header's {key} = {value!r} is not supported")
    head_dim = header.count("attention.key_length", header.count("embedding_length") // header.heads)
    for part in ("attention.value_length", "rope.dimension_count"):
        if header.count(part, head_dim) != head_dim:
            raise InputError(
                f"{header.file}: the header's {prefix}{part} must be the head's {head_dim} channels"
            )
    kind = header.values.get(prefix + "rope.scaling.type", "none")
    if kind not in ("none", "yarn"):
        raise InputError(
            f"{header.file}: the header's {prefix}rope.scaling.type {kind!r} is not supported; supported: "
            "none, yarn"
        )
    biased = {
        part for part in ("q", "k", "v", "o") if any(name.endswith(f"{part}_proj.bias") for name in names)
    }
    if biased and biased != {"q", "k", "v", "o"}:
        raise InputError(f"{header.file} has biases for only some of attn_q, attn_k, attn_v and attn_output")
    if kind == "yarn":
        scaling = {
            "rope_type": kind,
            "factor": header.number("rope.scaling.factor"),
            "original_max_position_embeddings": header.count("rope.scaling.original_context_length"),
        }
    return {
        "architectures": [_CLASSES[header.architecture]],
        "model_type": header.architecture,
        "vocab_size": vocab_size,
        "hidden_size": header.count("embedding_length"),
        "num_hidden_layers": header.count("block_count"),
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "head_dim": head_dim,
        "intermediate_size": header.count("feed_forward_length"),
        "hidden_act": "silu",
        "rms_norm_eps": header.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": header.rope_theta,
        "rope_scaling": scaling,
        "max_position_embeddings": header.count("context_length"),
        "tie_word_embeddings": "lm_head.weight" not in names,
        "attention_bias": bool(biased),
        "mlp_bias": any(name.endswith("gate_proj.bias") for name in names),
    }


def _token_ids(header: Header, vocab_size: int) -> dict[str, list[int]]:
    """Ids of the begin, end and padding tokens. An end of turn ends a text as the end token does."""
    kinds = {"bos_token_id": ("bos",), "eos_token_id": ("eos", "eot", "eom"), "pad_token_id": ("padding",)}
    found = {
        kind: [header.values.get(f"tokenizer.ggml.{name}_token_id") for name in names]
        for kind, names in kinds.items()
    }
    kept = {kind: list(dict.fromkeys(i for i in ids if i is not None)) for kind, ids in found.items()}
    for kind, ids in kept.items():
        if not all(type(i) is int and 0 <= i < vocab_size for i in ids):
            raise InputError(f"{header.file}: the header's {kind} {ids} must be below {vocab_size}")
    return {kind: ids for kind, ids in kept.items() if ids}


def _tokenizer(header: Header, vocab_size: int) -> tokenizers.Tokenizer:
    """The tokenizer of the header's tokens and merges."""
    kind = header.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(f"{header.file} has a tokenizer of kind {kind!r}; only byte-level BPE is supported")
    names, types = header.words("tokenizer.ggml.tokens"), header.need("tokenizer.ggml.token_type")
    types = types if isinstance(types, list) else [types]
    merges = [
        (left, right)
        for left, _, right in (merge.partition(" ") for merge in header.words("tokenizer.ggml.merges"))
    ]
    if len(types) != len(names) or len(names) > vocab_size:
        raise InputError(
            f"{header.file}: {len(names)} tokens, {len(types)} token types and {vocab_size} embeddings do "
            "not fit"
        )
    split, normalizer, ignore_merges = _split(header)
    vocab = {name: i for i, (name, type_) in enumerate(zip(names, types, strict=True)) if type_ != _UNUSED}
    try:
        backend = tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{header.file}: the tokenizer cannot be built ({error})") from error
    backend.pre_tokenizer, backend.decoder = split, decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_tokens(
        [
            AddedToken(name, normalized=False, special=type_ == _CONTROL)
            for name, type_ in zip(names, types, strict=True)
            if type_ in (_CONTROL, _USER_DEFINED)
        ]
    )
    if header.values.get("tokenizer.ggml.add_bos_token"):
        bos = header.need("tokenizer.ggml.bos_token_id")
        name = backend.id_to_token(bos)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{name} $A", special_tokens=[(name, bos)]
        )
    return backend


def _split(header: Header) -> tuple[pre_tokenizers.PreTokenizer, normalizers.Normalizer | None, bool]:
    """How text is cut into words, normalised before, and whether a word that is a token needs no merges."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pre = header.text("tokenizer.ggml.pre")
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words]), None, False
    if pre == "gpt-2":
        return words, None, False
    if pre not in ("llama-bpe", "qwen2"):
        raise InputError(
            f"{header.file}: tokenizer.ggml.pre {pre!r} is not supported; supported: smollm, gpt-2, "
            "llama-bpe, qwen2"
        )
    pattern = Regex(_LLAMA3 if pre == "llama-bpe" else _QWEN2)
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return split, normalizers.NFC() if pre == "qwen2" else None, pre == "llama-bpe"


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
