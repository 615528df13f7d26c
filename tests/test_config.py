"""Every accepted spelling of a config loads to the same values; what is missing or unknown is named."""

import json
from dataclasses import replace

import pytest

from jddtree.config import (
    DenseConfig,
    DFlashConfig,
    KimiK2Config,
    Llama3Rope,
    Rope,
    Yarn,
    default_target_layers,
    drafter_config,
    family,
    read_json,
    target_config,
    text_config,
)
from jddtree.errors import InputError
from tests.tiny import DFLASH, KIMI, QWEN3, YARN


def without(raw: dict, *keys: str) -> dict:
    return {key: value for key, value in raw.items() if key not in keys}


def nested_kimi(raw: dict) -> dict:
    return {"model_type": "kimi_k25", "text_config": raw, "vision_config": {"hidden_size": 7}}


SAME_KIMI = {
    "nested": nested_kimi(KIMI),
    "deepseek_v3": KIMI | {"model_type": "deepseek_v3"},
    "rope_type": KIMI | {"rope_scaling": {**without(YARN, "type"), "rope_type": "yarn"}},
    "deepseek_yarn": KIMI | {"rope_scaling": YARN | {"type": "deepseek_yarn"}},
    "rope_parameters": {
        **without(KIMI, "rope_scaling", "rope_theta"),
        "rope_parameters": {**without(YARN, "type"), "rope_type": "yarn", "rope_theta": 50000.0},
    },
    "explicit defaults": KIMI
    | {
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "attention_bias": False,
    },
}

SAME_QWEN3 = {
    "derived head_dim": without(QWEN3, "head_dim"),
    "null rope_scaling": QWEN3 | {"rope_scaling": None},
    "default rope type": QWEN3 | {"rope_scaling": {"rope_type": "default"}},
    "rope_parameters": {
        **without(QWEN3, "rope_theta"),
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "layer_types": QWEN3 | {"layer_types": ["full_attention"] * 2, "sliding_window": None},
    "window not in use": QWEN3 | {"sliding_window": 6, "use_sliding_window": False, "max_window_layers": 0},
    "windows start later": QWEN3 | {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 2},
    "untied by absence": without(QWEN3, "tie_word_embeddings"),
}

LLAMA = QWEN3 | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

NESTED = DFLASH["dflash_config"]
SAME_DFLASH = {
    "all nested": {
        **without(DFLASH, "block_size", "num_target_layers"),
        "dflash_config": NESTED | {"block_size": 4, "num_target_layers": 2},
    },
    "all at the top": without(DFLASH, "dflash_config") | NESTED,
    "nested wins": DFLASH | {"block_size": 99, "dflash_config": NESTED | {"block_size": 4}},
    "no architecture": without(DFLASH, "architectures"),
    "causal": DFLASH | {"dflash_config": NESTED | {"causal": True}},
    "is_causal": DFLASH | {"is_causal": True},
    "nested causal wins": DFLASH | {"is_causal": False, "dflash_config": NESTED | {"causal": True}},
    "neutral factors": DFLASH
    | {
        "dflash_config": NESTED
        | {"input_embedding_scale": 1.0, "output_multiplier": None, "final_logit_softcapping": None}
    },
}


@pytest.mark.parametrize("spelling", SAME_KIMI)
def test_spellings_of_kimi_are_one_config(spelling):
    assert target_config(SAME_KIMI[spelling]) == target_config(KIMI)


@pytest.mark.parametrize("spelling", SAME_QWEN3)
def test_spellings_of_qwen3_are_one_config(spelling):
    assert target_config(SAME_QWEN3[spelling]) == target_config(QWEN3)


@pytest.mark.parametrize("spelling", SAME_DFLASH)
def test_spellings_of_a_drafter_are_one_config(spelling):
    assert drafter_config(SAME_DFLASH[spelling]) == drafter_config(DFLASH)


def test_every_value_comes_from_the_file():
    kimi = target_config(KIMI | {"tie_word_embeddings": True})
    assert kimi == KimiK2Config(
        vocab_size=50,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        q_lora_rank=16,
        kv_lora_rank=32,
        nope_head_dim=8,
        rope_head_dim=8,
        v_head_dim=8,
        intermediate_size=32,
        moe_intermediate_size=32,
        num_experts=4,
        experts_per_token=2,
        num_shared_experts=1,
        num_groups=1,
        topk_groups=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        first_dense_layers=1,
        moe_layer_freq=1,
        rms_norm_eps=1e-5,
        lora_norm_eps=1e-6,
        rope=Rope(50000.0, Yarn(4.0, 64, 32.0, 1.0, 1.0, 1.0, None, True)),
        max_position=400,
        tied=True,
    )
    wide = QWEN3 | {"head_dim": 16, "sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1}
    assert target_config(wide) == DenseConfig(
        vocab_size=50,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=32,
        rms_norm_eps=1e-6,
        rope=Rope(10000.0, None),
        max_position=400,
        tied=False,
        windows=(None, 5),
        qk_norm=True,
        attention_bias=False,
        mlp_bias=False,
    )
    scaled = {"input_embedding_scale": 2.0, "output_multiplier": 0.5, "greedy_multiplier": 1.5}
    scaled |= {"final_logit_softcapping": 30.0}
    assert drafter_config(DFLASH | {"is_causal": False, "dflash_config": NESTED | scaled}) == DFlashConfig(
        vocab_size=50,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=32,
        rms_norm_eps=1e-6,
        rope=Rope(10000.0, None),
        max_position=400,
        block_size=4,
        mask_token_id=49,
        num_target_layers=2,
        target_layers=(0, 1),
        windows=(6, None),
        causal=False,
        input_embedding_scale=2.0,
        output_multiplier=0.5,
        greedy_multiplier=1.5,
        final_logit_softcapping=30.0,
    )


def test_an_early_llama_says_less():
    whole = LLAMA | {"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "num_key_value_heads": 4}
    short = without(whole, "rope_theta", "rms_norm_eps", "num_key_value_heads")
    assert target_config(short) == target_config(whole)
    assert target_config(short | {"rope_parameters": {"rope_theta": 7.0}}).rope == Rope(7.0, None)


def test_a_llama_differs_from_qwen3_in_norms_biases_and_positions():
    plain = replace(target_config(QWEN3), qk_norm=False)
    # Llama's public code knows no sliding window.
    assert target_config(LLAMA | {"sliding_window": 5, "max_window_layers": 0}) == plain
    rich = LLAMA | {"attention_bias": True, "mlp_bias": True, "rope_scaling": LLAMA3}
    rope = Rope(10000.0, Llama3Rope(8.0, 1.0, 4.0, 64))
    assert target_config(rich) == replace(plain, attention_bias=True, mlp_bias=True, rope=rope)
    assert target_config(QWEN3 | {"attention_bias": True}).attention_bias


OPTIONAL = {"architectures", "model_type", "tie_word_embeddings", "rope_scaling", "head_dim", "layer_types"}


@pytest.mark.parametrize(
    ("parse", "raw", "key"),
    [
        (parse, raw, key)
        for parse, raw in ((target_config, KIMI), (target_config, QWEN3), (drafter_config, DFLASH))
        for key in raw
        if key not in OPTIONAL | {"dflash_config"}
    ]
    + [(drafter_config, DFLASH, "mask_token_id")],
)
def test_a_missing_key_is_named(parse, raw, key):
    short = without(raw, key)
    if key == "mask_token_id":
        short = DFLASH | {"dflash_config": without(NESTED, key)}
    with pytest.raises(InputError, match=key):
        parse(short)
    if parse is target_config and raw is KIMI:
        with pytest.raises(InputError, match=key):
            parse(nested_kimi(short))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (KIMI | {"hidden_size": 0}, "hidden_size must be a positive integer, found 0"),
        (
            LLAMA | {"num_hidden_layers": 10**12},
            "num_hidden_layers must be at most 10000, found 1000000000000",
        ),
        (KIMI | {"num_hidden_layers": 2**31}, "num_hidden_layers must be at most 10000"),
        (QWEN3 | {"rope_theta": -1.0}, "rope_theta must be above 0, found -1"),
        (LLAMA | {"rope_theta": 0}, "rope_theta must be above 0, found 0"),
        (KIMI | {"rope_scaling": YARN | {"factor": -4.0}}, "factor must be above 0, found -4"),
        (LLAMA | {"rope_scaling": LLAMA3 | {"factor": -8.0}}, "factor must be above 0, found -8"),
        (QWEN3 | {"rms_norm_eps": -1e-6}, "rms_norm_eps must be above 0"),
        (KIMI | {"hidden_size": True}, "hidden_size must be a positive integer, found True"),
        (KIMI | {"hidden_size": "32"}, "hidden_size must be a positive integer, found '32'"),
        (KIMI | {"rms_norm_eps": "a"}, "rms_norm_eps must be a finite number, found 'a'"),
        (KIMI | {"n_shared_experts": 1.5}, "n_shared_experts must be 0 or a positive integer, found 1.5"),
        (KIMI | {"rope_scaling": YARN | {"beta_fast": [1]}}, "beta_fast must be a finite number"),
        (QWEN3 | {"rope_theta": float("nan")}, "rope_theta must be a finite number, found nan"),
        (QWEN3 | {"rope_scaling": "yarn"}, "rope_scaling must be an object, found 'yarn'"),
        (KIMI | {"scoring_func": "softmax"}, "scoring_func is 'softmax'; only 'sigmoid'"),
        (KIMI | {"topk_method": "greedy"}, "topk_method is 'greedy'"),
        (KIMI | {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        (KIMI | {"rope_scaling": YARN | {"type": "longrope"}}, "rope type 'longrope' is not supported"),
        (QWEN3 | {"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "rope type 'dynamic'"),
        (QWEN3 | {"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value"),
        (QWEN3 | {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        (QWEN3 | {"layer_types": ["full_attention", "linear_attention"]}, "holds 'linear_attention'"),
        (QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is missing"),
        (QWEN3 | {"model_type": "gpt2"}, "model_type 'gpt2'; supported"),
        (QWEN3 | {"mlp_bias": True}, "mlp_bias is True"),
        (QWEN3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (LLAMA | {"rope_scaling": without(LLAMA3, "low_freq_factor")}, "no low_freq_factor"),
        (LLAMA | {"rope_scaling": LLAMA3 | {"low_freq_factor": 4}}, "4.0 must be below high_freq_factor 4.0"),
        (DFLASH, "a DFlash drafter, not a target: pass it as --drafter"),
    ],
)
def test_a_target_that_cannot_run_says_why(raw, reason):
    with pytest.raises(InputError, match=reason):
        target_config(raw)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2"),
        *(
            ({"dflash_config": NESTED | {key: 4}}, f"sets {key}, which is not supported")
            for key in (
                "conv_kernel_size",
                "selector_rank",
                "attention_sink_bias",
                "attention_value_scale",
                "projector_type",
            )
        ),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
        ({"dflash_config": NESTED | {"target_layer_ids": [0, 2]}}, r"\[0, 2\] must be target layers, 0 to 1"),
        ({"dflash_config": NESTED | {"target_layer_ids": []}}, "target_layer_ids"),
        ({"dflash_config": NESTED | {"mask_token_id": 50}}, "mask_token_id 50 must be a token id, 0 to 49"),
        ({"dflash_config": {"mask_token_id": 49}}, "cannot be derived for a target of 2 layers"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"dflash_config": NESTED | {"greedy_multiplier": -1}}, "greedy_multiplier must be above 0"),
    ],
)
def test_a_drafter_that_cannot_run_says_why(changes, reason):
    with pytest.raises(InputError, match=reason):
        drafter_config(DFLASH | changes)


def test_a_target_is_no_drafter():
    with pytest.raises(InputError, match="holds no DFlash drafter"):
        drafter_config(QWEN3)
    assert [family(raw) for raw in (KIMI, nested_kimi(KIMI), QWEN3, DFLASH)] == [
        "kimi_k2",
        "kimi_k2",
        "dense",
        "dflash",
    ]
    assert text_config(nested_kimi(KIMI)) == KIMI


@pytest.mark.parametrize(
    ("target_layers", "layers", "wanted"),
    [
        # As published for Qwen3-4B and Qwen3-8B, Kimi K2.5, and one layer.
        (36, 5, (1, 9, 17, 25, 33)),
        (61, 6, (1, 12, 24, 35, 47, 58)),
        (48, 1, (24,)),
    ],
)
def test_tapped_layers_are_derived_as_published(target_layers, layers, wanted):
    assert default_target_layers(target_layers, layers) == wanted


@pytest.mark.parametrize(
    ("changes", "amplitude"),
    [
        ({"factor": 64.0}, 1.0),  # equal mscales cancel
        ({"factor": 64.0, "mscale": None}, 1.4158883),  # 0.1 ln 64 + 1
        ({"factor": 64.0, "mscale_all_dim": 0.5}, 1.4158883 / 1.2079442),
        ({"factor": 64.0, "attention_factor": 1.25}, 1.25),
        ({"factor": 1.0, "mscale": None}, 1.0),
    ],
)
def test_yarn_amplitude(changes, amplitude):
    config = target_config(KIMI | {"rope_scaling": YARN | changes})
    assert config.rope.amplitude == pytest.approx(amplitude, abs=1e-6)


def test_yarn_factor_follows_from_the_two_lengths():
    raw = KIMI | {"rope_scaling": without(YARN, "factor")}
    assert target_config(raw).rope.scaling.factor == 400 / 64


def test_softmax_scale_grows_with_yarn_at_every_length():
    plain = target_config(without(KIMI, "rope_scaling"))
    assert plain.softmax_scale == pytest.approx(16**-0.5)
    stretched = target_config(KIMI | {"rope_scaling": YARN | {"factor": 64.0}})
    assert stretched.softmax_scale == pytest.approx(16**-0.5 * 1.4158883**2)


def test_moe_layers():
    config = target_config(KIMI | {"num_hidden_layers": 6, "moe_layer_freq": 2, "first_k_dense_replace": 1})
    assert [config.is_moe(layer) for layer in range(6)] == [False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "does not exist"),
        (b"{", "cannot be read as JSON"),
        (b"[1]", "found list"),
        (b"\xff", "as JSON"),
    ],
)
def test_a_file_that_is_no_config(tmp_path, content, reason):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_json(path)
    path.write_text(json.dumps(KIMI))
    assert read_json(path) == KIMI
