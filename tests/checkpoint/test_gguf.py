"""GGUF files written by the gguf package, against the published folder of the same model."""

import json
import sys
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from jddtree.chat import load_template
from jddtree.checkpoint import arrays, open_checkpoint
from jddtree.checkpoint.published import DTYPES, tensors
from jddtree.config import target_config
from jddtree.convert import main
from jddtree.models.layers import inverse_frequencies
from jddtree.tokenizer import _byte_characters, load_tokenizer, stop_ids

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 288,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 400,
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
BYTES = [chr(character) for _, character in sorted(_byte_characters().items())]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"]
MERGES = ["h e", "Ġ he", "1 2", "l l"]
TOKENS = [*SPECIALS, *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = "{{ messages[0].content }}<|im_end|>"


def original(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Random published tensors of a config, float32."""
    random = np.random.default_rng(seed)
    c, found = config, {}
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    linears = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}{name}.weight": (hidden,) for name in list(NAMES)[:2]}
        shapes |= {f"{layer}{name}.weight": shape for name, shape in linears.items()}
        if c["model_type"] == "qwen3":
            shapes |= {f"{layer}self_attn.{name}_norm.weight": (c["head_dim"],) for name in "qk"}
        for name, (rows, _) in linears.items():
            if c.get("attention_bias" if "attn" in name else "mlp_bias"):
                shapes[f"{layer}{name}.bias"] = (rows,)
    for name, shape in shapes.items():
        found[name] = random.normal(size=shape).astype(np.float32)
    return found


def rotary_order(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's own order of query and key rows in Llama models."""
    rows = array.shape[0] // heads
    return array.reshape(heads, 2, rows // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def stored_name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    path, kind = name.rsplit(".", 1)
    if path in whole:
        return f"{whole[path]}.{kind}"
    _, _, layer, part = path.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def write_gguf(
    file: Path,
    config: dict,
    weights: dict[str, np.ndarray],
    *,
    kind: Kind = Kind.F32,
    changes: dict | None = None,
    extra: dict[str, np.ndarray] | None = None,
) -> None:
    """A file as llama.cpp's converter writes it: norms and biases F32, other weights of ``kind``.

    ``changes``: header keys that differ; None leaves a key out. ``extra``: more tensors.
    """
    family = config["model_type"]
    writer = gguf.GGUFWriter(file, family)
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": config["rope_theta"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    header = {f"{family}.{key}": value for key, value in keys.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3, 4] + [1] * (len(TOKENS) - 4),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }
    for key, value in (header | (changes or {})).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    for name, array in weights.items():
        if family == "llama" and ".q_proj." in name:
            array = rotary_order(array, config["num_attention_heads"])
        if family == "llama" and ".k_proj." in name:
            array = rotary_order(array, config["num_key_value_heads"])
        chosen = kind if array.ndim == 2 else Kind.F32
        writer.add_tensor(stored_name(name), gguf.quants.quantize(array, chosen), raw_dtype=chosen)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


VARIANTS = {
    "llama": (LLAMA, Kind.F32),
    "llama, untied, biases": (
        LLAMA | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
        Kind.F32,
    ),
    "llama, F16": (LLAMA, Kind.F16),
    "llama, BF16": (LLAMA, Kind.BF16),
    "llama, Q8_0": (LLAMA, Kind.Q8_0),
    "llama, Q4_1": (LLAMA, Kind.Q4_1),
    "llama, long": (LLAMA | {"rope_scaling": LLAMA3}, Kind.F32),
    "qwen3": (LLAMA | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, Kind.F32),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_file_becomes_the_published_folder_of_its_model(tmp_path, monkeypatch, variant):
    monkeypatch.setattr(arrays, "SLAB_BYTES", 8000)  # tensors in several blocks of rows
    config, kind = VARIANTS[variant]
    weights = original(config)
    extra = {}
    if "rope_scaling" in config:
        stretched = target_config(config)
        plain = target_config(LLAMA)
        extra["rope_freqs.weight"] = inverse_frequencies(plain.rope, 16) / inverse_frequencies(
            stretched.rope, 16
        )
    write_gguf(tmp_path / "model.gguf", config, weights, kind=kind, extra=extra)
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "folder")]) == 0

    dtype = {Kind.F16: np.dtype(np.float16), Kind.BF16: np.dtype(ml_dtypes.bfloat16)}.get(kind)
    found = tensors(tmp_path / "folder")
    assert found.keys() == weights.keys()
    for name, wanted in weights.items():
        array = found[name].read()
        if wanted.ndim == 2:
            # Rows of quantised weights are blocks of their own, so their order does not matter to the values.
            wanted = gguf.quants.dequantize(gguf.quants.quantize(wanted, kind), kind)
        assert DTYPES[found[name].dtype] == (dtype if dtype and wanted.ndim == 2 else np.float32)
        np.testing.assert_array_equal(np.asarray(array, np.float32), wanted)
    written = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert target_config(written) == target_config(config)
    assert written["dtype"] == ("float32" if dtype is None else dtype.name)


def test_tokenizer_template_and_stops_come_from_the_header(tmp_path):
    write_gguf(tmp_path / "model.gguf", LLAMA, original(LLAMA))
    lines: list[str] = []
    checkpoint = open_checkpoint(tmp_path / "model.gguf", tmp_path / "cache", lines.append)
    again = open_checkpoint(tmp_path / "model.gguf", tmp_path / "cache", lines.append)
    assert checkpoint.folder == again.folder
    [line] = lines
    assert line.startswith(f"Converting {tmp_path / 'model.gguf'}")
    tokenizer = load_tokenizer(checkpoint.folder)
    assert tokenizer is not None
    # Digits stand alone, merges join the rest, and special tokens are read only where that is asked for.
    assert tokenizer.encode("12 hell", specials=False) == [
        TOKENS.index(name) for name in ("1", "2", "Ġhe", "ll")
    ]
    assert tokenizer.encode("<think><|im_end|>", specials=True) == [3, 2]
    assert len(tokenizer.encode("<|im_end|>", specials=False)) == len("<|im_end|>")
    assert (tokenizer.decode([3, 2, 4 + 65]), tokenizer.decode([2], skip_special=False)) == (
        "<think>A",
        "<|im_end|>",
    )
    template = load_template(checkpoint.folder)
    assert template is not None
    assert (template.source, template.bos_token, template.eos_token) == (TEMPLATE, *SPECIALS[1:3])
    assert stop_ids(checkpoint.config, checkpoint.generation_config, tokenizer) == [2, 0]


def test_a_word_that_is_a_token_needs_no_merges_in_llama3s_tokenizer(tmp_path):
    changes = {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.tokens": [*TOKENS, "abc"]}
    changes["tokenizer.ggml.token_type"] = [3, 3, 3, 4] + [1] * (len(TOKENS) - 3)
    write_gguf(tmp_path / "model.gguf", LLAMA, original(LLAMA), changes=changes)
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "folder")]) == 0
    tokenizer = load_tokenizer(tmp_path / "folder")
    assert tokenizer is not None
    assert tokenizer.encode("abc12", specials=False) == [len(TOKENS), TOKENS.index("12")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general.architecture": "gpt2"}, "has architecture 'gpt2'; supported: llama, qwen3"),
        ({"llama.block_count": None}, "the header has no llama.block_count"),
        ({"llama.block_count": 3}, "no tensor for layers.2."),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count must be the head's 16 channels"),
        ({"llama.expert_count": 4}, "llama.expert_count = 4 is not supported"),
        ({"llama.logit_scale": 0.5}, "llama.logit_scale = 0.5 is not supported"),
        (
            {
                "llama.rope.scaling.type": "linear",
                "llama.rope.scaling.factor": 2.0,
                "llama.rope.scaling.original_context_length": 100,
            },
            "rope.scaling.type 'linear' is not supported; supported: none, yarn",
        ),
        ({"llama.rope.scaling.type": "linear"}, "rope.scaling.type 'linear' is not supported"),
        ({"llama.block_count": 2**31}, "num_hidden_layers must be at most 10000"),
        ({"tokenizer.ggml.model": "llama"}, "a tokenizer of kind 'llama'; only byte-level BPE"),
        ({"tokenizer.ggml.pre": "other"}, "tokenizer.ggml.pre 'other' is not supported"),
        ({"tokenizer.ggml.merges": None}, "the header has no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["x yz"]}, "the tokenizer cannot be built"),
        ({"tokenizer.ggml.eos_token_id": 288}, "eos_token_id [288, 0] must be below 288"),
        ({"tokenizer.ggml.token_type": [1]}, "1 token types and 288 embeddings do not fit"),
    ],
)
def test_a_header_that_cannot_be_used_says_why(tmp_path, capsys, changes, reason):
    write_gguf(tmp_path / "model.gguf", LLAMA, original(LLAMA), changes=changes)
    assert reason in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("blk.0.ffn_gate_inp.weight", "tensor blk.0.ffn_gate_inp.weight has no place"),
        ("rope_freqs.weight", "the rotary factors in rope_freqs.weight are not those of Llama 3"),
        ("blk.7.attn_norm.weight", "has no place in the model of config.json"),
        ("blk.0.attn_q.bias", "has biases for only some of attn_q, attn_k, attn_v and attn_output"),
    ],
)
def test_a_tensor_without_a_place_is_named(tmp_path, capsys, name, reason):
    extra = {name: np.arange(1, 9, dtype=np.float32)}
    write_gguf(tmp_path / "model.gguf", LLAMA, original(LLAMA), extra=extra)
    assert reason in refused(tmp_path, capsys)


def test_the_base_of_rotary_frequencies_may_be_left_out(tmp_path):
    write_gguf(tmp_path / "model.gguf", LLAMA, original(LLAMA), changes={"llama.rope.freq_base": None})
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "folder")]) == 0
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["rope_theta"] == 10000.0


def test_damaged_files_and_a_missing_package(tmp_path, capsys, monkeypatch):
    file = tmp_path / "model.gguf"
    write_gguf(file, LLAMA, original(LLAMA), kind=Kind.Q8_0)
    content = file.read_bytes()
    for length in (6, 30, 2000, 6000, len(content) - 5000):
        file.write_bytes(content[:length])
        assert "is truncated or damaged" in refused(tmp_path, capsys)
    # Name, two dimensions, kind: as if written in fewer bits.
    place = content.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 2 * 8
    assert content[place] == Kind.Q8_0
    file.write_bytes(content[:place] + bytes([Kind.Q4_0]) + content[place + 1 :])
    assert "tensor blk.0.ffn_up.weight does not end where" in refused(tmp_path, capsys)
    file.write_bytes(content.replace(b"gpt2", b"gpt\xff", 1))
    assert "is truncated or damaged" in refused(tmp_path, capsys)
    assert main(["--check", str(file)]) == 2
    assert "is a GGUF file, which has no hashes" in capsys.readouterr().err
    file.write_bytes(b"GGML" + content[4:])
    assert "neither a folder nor a GGUF file" in refused(tmp_path, capsys)
    file.write_bytes(content)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "needs the gguf package: pip install gguf" in refused(tmp_path, capsys)


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that refuses model.gguf."""
    assert main([str(folder / "model.gguf"), str(folder / "new")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert not (folder / "new").exists()
    return error
