"""Model configurations, read from ``config.json``. Values come from the file; a missing one is an error.

Sources: specs of the public configurations of Kimi K2.x, Qwen3 and DFlash. Accepted spellings load to the
same value: flat or nested (``text_config``), ``rope_scaling`` or ``rope_parameters``, drafter keys at the top
level or in ``dflash_config``.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jddtree.errors import InputError

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Yarn:
    """YaRN position scaling. ``attention_factor`` overrides the amplitude of cos and sin."""

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    mscale: float | None
    mscale_all_dim: float | None
    attention_factor: float | None
    truncate: bool

    @property
    def amplitude(self) -> float:
        """The factor on cos and sin: given, or the ratio of the two mscales, or 0.1 ln(factor) + 1."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)


def yarn_mscale(factor: float, mscale: float) -> float:
    """0.1 mscale ln(factor) + 1, and 1 where nothing is stretched."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True)
class Llama3Rope:
    """Llama 3's position scaling: long waves are stretched by ``factor``, short ones kept, those between the
    two wavelengths original_max_position / low_freq_factor and / high_freq_factor are mixed.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class Rope:
    """Rotary positions: base and, if positions are stretched, how."""

    theta: float
    scaling: Yarn | Llama3Rope | None

    @property
    def amplitude(self) -> float:
        """The factor on cos and sin."""
        return self.scaling.amplitude if isinstance(self.scaling, Yarn) else 1.0


@dataclass(frozen=True)
class KimiK2Config:
    """Text part of Kimi K2.x (DeepSeek-V3 form): MLA attention, sigmoid router, routed and shared experts."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    num_groups: int
    topk_groups: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    first_dense_layers: int
    moe_layer_freq: int
    rms_norm_eps: float
    lora_norm_eps: float
    rope: Rope
    max_position: int
    tied: bool

    def is_moe(self, layer: int) -> bool:
        """Whether layer ``layer`` (from 0) has routed experts."""
        return layer >= self.first_dense_layers and layer % self.moe_layer_freq == 0

    @property
    def softmax_scale(self) -> float:
        """(nope + rope)^-0.5, times m(factor, mscale_all_dim)^2 under YaRN, at every length (spec 2.4)."""
        scale = (self.nope_head_dim + self.rope_head_dim) ** -0.5
        yarn = self.rope.scaling
        if isinstance(yarn, Yarn) and yarn.mscale_all_dim:
            scale *= yarn_mscale(yarn.factor, yarn.mscale_all_dim) ** 2
        return scale


@dataclass(frozen=True)
class DenseConfig:
    """Dense models with grouped-query attention: Qwen3 and the Llama family.

    qk_norm: queries and keys are normalised a head (Qwen3). attention_bias: q, k, v and o have biases;
    mlp_bias: so have gate, up and down. windows: a sliding window a layer (None: full attention).
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: Rope
    max_position: int
    tied: bool
    windows: tuple[int | None, ...]
    qk_norm: bool
    attention_bias: bool
    mlp_bias: bool


@dataclass(frozen=True)
class DFlashConfig:
    """DFlash drafter: Qwen3-style layers over the target's embeddings, features and head.

    ``windows`` holds a sliding window a layer (None: full attention). ``causal`` says whether sliding layers
    look only backwards inside the block. ``target_layers``: the target's layers, from 0, that feed it.
    ``greedy_multiplier``, a key of this project's in ``dflash_config``: by what draft logits are multiplied
    before a tree is built for a row that is decoded greedily. A drafter that learned how its target samples
    is less sure than it could be of what the target likes best.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: Rope
    max_position: int
    block_size: int
    mask_token_id: int
    num_target_layers: int
    target_layers: tuple[int, ...]
    windows: tuple[int | None, ...]
    causal: bool
    input_embedding_scale: float
    output_multiplier: float
    greedy_multiplier: float
    final_logit_softcapping: float | None


TargetConfig = KimiK2Config | DenseConfig

MOST_LAYERS = 10_000
"""No model has so many: a larger number is damage, and a list of them would fill the memory."""

LLAMA_DEFAULTS = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0}
"""What early Llama configs leave out, as transformers' LlamaConfig has it; key heads are as many as heads."""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises InputError when the file is missing, not JSON, or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object, found {type(value).__name__}")
    return value


def text_config(raw: Raw) -> Raw:
    """The part that describes the text model: ``text_config`` where there is one, else the whole."""
    nested = raw.get("text_config")
    return nested if isinstance(nested, Mapping) else raw


def family(raw: Raw) -> str:
    """The model a config describes: ``kimi_k2``, ``dense`` or ``dflash``. Raises InputError for any other."""
    architectures = [str(name) for name in raw.get("architectures") or []]
    if any("DFlash2" in name for name in architectures):
        raise InputError(
            "config.json describes a DFlash2 drafter, whose conditional selector is not supported"
        )
    if "dflash_config" in raw or any("DFlash" in name for name in architectures):
        return "dflash"
    model_type = text_config(raw).get("model_type")
    if model_type in ("kimi_k2", "deepseek_v3"):
        return "kimi_k2"
    if model_type in ("qwen3", "llama"):
        return "dense"
    raise InputError(
        f"config.json has model_type {model_type!r}; supported: kimi_k2 (kimi_k25, deepseek_v3), qwen3, "
        "llama, and DFlash drafters"
    )


def target_config(raw: Raw) -> TargetConfig:
    """Parse a target's config. Raises InputError naming the key that is missing or unsupported."""
    kind = family(raw)
    if kind == "kimi_k2":
        return _kimi_k2(raw)
    if kind == "dense":
        return _dense(raw)
    raise InputError("this folder holds a DFlash drafter, not a target: pass it as --drafter")


def _kimi_k2(raw: Raw) -> KimiK2Config:
    text = text_config(raw)
    _only(text, "hidden_act", "silu")
    _only(text, "scoring_func", "sigmoid")
    _only(text, "topk_method", "noaux_tc")
    _only(text, "attention_bias", False)
    return KimiK2Config(
        vocab_size=_positive(text, "vocab_size"),
        hidden_size=_positive(text, "hidden_size"),
        num_layers=_layer_count(text),
        num_heads=_positive(text, "num_attention_heads"),
        q_lora_rank=_positive(text, "q_lora_rank"),
        kv_lora_rank=_positive(text, "kv_lora_rank"),
        nope_head_dim=_positive(text, "qk_nope_head_dim"),
        rope_head_dim=_positive(text, "qk_rope_head_dim"),
        v_head_dim=_positive(text, "v_head_dim"),
        intermediate_size=_positive(text, "intermediate_size"),
        moe_intermediate_size=_positive(text, "moe_intermediate_size"),
        num_experts=_positive(text, "n_routed_experts"),
        experts_per_token=_positive(text, "num_experts_per_tok"),
        num_shared_experts=_count(text, "n_shared_experts"),
        num_groups=_positive(text, "n_group"),
        topk_groups=_positive(text, "topk_group"),
        norm_topk_prob=bool(_required(text, "norm_topk_prob")),
        routed_scaling_factor=_number(text, "routed_scaling_factor"),
        first_dense_layers=_count(text, "first_k_dense_replace"),
        moe_layer_freq=_positive(text, "moe_layer_freq") if "moe_layer_freq" in text else 1,
        rms_norm_eps=_above_zero(text, "rms_norm_eps"),
        # The public model code never passes the config's eps to the two low-rank norms (spec 2.1).
        lora_norm_eps=1e-6,
        rope=_rope(text),
        max_position=_positive(text, "max_position_embeddings"),
        tied=bool(text.get("tie_word_embeddings", False)),
    )


def _dense(raw: Raw) -> DenseConfig:
    _only(raw, "hidden_act", "silu")
    qwen3 = raw.get("model_type") == "qwen3"
    if qwen3:
        _only(raw, "mlp_bias", False)
    else:
        defaults = {**LLAMA_DEFAULTS, "num_key_value_heads": raw.get("num_attention_heads")}
        raw = {**raw, **{key: value for key, value in defaults.items() if raw.get(key) is None}}
    common = _layers(raw)
    return DenseConfig(
        vocab_size=_positive(raw, "vocab_size"),
        tied=bool(raw.get("tie_word_embeddings", False)),
        windows=_windows(raw) if qwen3 else (None,) * common["num_layers"],
        qk_norm=qwen3,
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        **common,
    )


def drafter_config(raw: Raw) -> DFlashConfig:
    """Parse a DFlash drafter's config (spec 1.5). Raises InputError naming a missing or unsupported key."""
    if family(raw) != "dflash":
        raise InputError(
            "this folder holds no DFlash drafter: config.json has no dflash_config and no such architecture"
        )
    nested = raw.get("dflash_config") or {}
    merged = {**raw, **nested}
    for key in (
        "conv_kernel_size",
        "selector_rank",
        "attention_sink_bias",
        "attention_value_scale",
        "projector_type",
    ):
        if merged.get(key):
            raise InputError(f"the drafter's config.json sets {key}, which is not supported")
    if merged.get("sample_from_anchor"):
        raise InputError(
            "the drafter's config.json sets sample_from_anchor; only blocks that predict at the mask slots "
            "are supported"
        )
    _only(raw, "hidden_act", "silu")
    _only(raw, "attention_bias", False)
    common = _layers(raw)
    num_target_layers = _positive(merged, "num_target_layers")
    target_layers = merged.get("target_layer_ids")
    if target_layers is None:
        target_layers = default_target_layers(num_target_layers, common["num_layers"])
    if not target_layers or not all(isinstance(i, int) and 0 <= i < num_target_layers for i in target_layers):
        raise InputError(
            f"target_layer_ids {list(target_layers)} must be target layers, 0 to {num_target_layers - 1}"
        )
    mask_token_id = _required(merged, "mask_token_id")
    vocab_size = _positive(raw, "vocab_size")
    if not isinstance(mask_token_id, int) or not 0 <= mask_token_id < vocab_size:
        raise InputError(f"mask_token_id {mask_token_id} must be a token id, 0 to {vocab_size - 1}")
    causal = nested.get("causal")
    if causal is None:
        causal = raw.get("is_causal", raw.get("causal"))
    return DFlashConfig(
        vocab_size=vocab_size,
        block_size=_positive(merged, "block_size"),
        mask_token_id=mask_token_id,
        num_target_layers=num_target_layers,
        target_layers=tuple(target_layers),
        windows=_windows(raw),
        causal=True if causal is None else bool(causal),
        input_embedding_scale=_number(merged, "input_embedding_scale", 1.0),
        output_multiplier=_number(merged, "output_multiplier", 1.0),
        greedy_multiplier=_above_zero(merged, "greedy_multiplier", 1.0),
        final_logit_softcapping=_number(merged, "final_logit_softcapping", 0.0) or None,
        **common,
    )


def default_target_layers(num_target_layers: int, num_layers: int) -> tuple[int, ...]:
    """The layers tapped when a config lists none: the middle one for one layer, else spread over 1 .. N-3."""
    if num_layers == 1:
        return (num_target_layers // 2,)
    if num_target_layers < 4:
        raise InputError(
            f"target_layer_ids is missing and cannot be derived for a target of {num_target_layers} layers"
        )
    return tuple(round(1 + i * (num_target_layers - 4) / (num_layers - 1)) for i in range(num_layers))


def _layers(raw: Raw) -> dict[str, Any]:
    """The fields that dense models and DFlash share."""
    hidden, heads = _positive(raw, "hidden_size"), _positive(raw, "num_attention_heads")
    kv_heads = _positive(raw, "num_key_value_heads")
    if heads % kv_heads:
        raise InputError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    return {
        "hidden_size": hidden,
        "num_layers": _layer_count(raw),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": _positive(raw, "head_dim") if raw.get("head_dim") else hidden // heads,
        "intermediate_size": _positive(raw, "intermediate_size"),
        "rms_norm_eps": _above_zero(raw, "rms_norm_eps"),
        "rope": _rope(raw),
        "max_position": _positive(raw, "max_position_embeddings"),
    }


def _windows(raw: Raw) -> tuple[int | None, ...]:
    """A sliding window a layer, from ``layer_types`` or, without it, from the older three keys."""
    layers = _layer_count(raw)
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    types = raw.get("layer_types")
    if types is None:
        first = _count(raw, "max_window_layers") if "max_window_layers" in raw else 28
        types = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    if len(types) != layers:
        raise InputError(f"layer_types has {len(types)} entries for {layers} layers")
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise InputError(f"layer_types holds {unknown[0]!r}; supported: full_attention, sliding_attention")
    if "sliding_attention" in types and not raw.get("sliding_window"):
        raise InputError("layer_types has sliding_attention layers, but sliding_window is missing")
    return tuple(_positive(raw, "sliding_window") if kind == "sliding_attention" else None for kind in types)


def _rope(raw: Raw) -> Rope:
    scaling: dict[str, Any] = {"rope_theta": raw.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        part = raw.get(key) or {}
        if not isinstance(part, Mapping):
            raise InputError(f"config.json: {key} must be an object, found {part!r}")
        scaling |= part
    theta = _above_zero(scaling, "rope_theta")
    _only({**raw, **scaling}, "partial_rotary_factor", 1.0)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in (None, "default"):
        return Rope(theta, None)
    if kind == "llama3":
        return Rope(theta, _llama3(scaling))
    if kind not in ("yarn", "deepseek_yarn"):
        raise InputError(
            f"rope type {kind!r} is not supported; supported: default, llama3, yarn, deepseek_yarn"
        )
    longest = _positive(raw, "max_position_embeddings")
    original = int(_number(scaling, "original_max_position_embeddings", float(longest)))
    optional = {
        key: None if scaling.get(key) is None else _number(scaling, key)
        for key in ("mscale", "mscale_all_dim", "attention_factor")
    }
    yarn = Yarn(
        factor=_above_zero(scaling, "factor", longest / original),
        original_max_position=original,
        beta_fast=_above_zero(scaling, "beta_fast", 32.0),
        beta_slow=_above_zero(scaling, "beta_slow", 1.0),
        truncate=bool(scaling.get("truncate", True)),
        **optional,
    )
    return Rope(theta, yarn)


def _llama3(scaling: Raw) -> Llama3Rope:
    found = Llama3Rope(
        factor=_above_zero(scaling, "factor"),
        low_freq_factor=_above_zero(scaling, "low_freq_factor"),
        high_freq_factor=_above_zero(scaling, "high_freq_factor"),
        original_max_position=_positive(scaling, "original_max_position_embeddings"),
    )
    if not found.low_freq_factor < found.high_freq_factor:
        raise InputError(
            f"config.json: low_freq_factor {found.low_freq_factor} must be below high_freq_factor "
            f"{found.high_freq_factor}"
        )
    return found


def _required(raw: Raw, key: str) -> Any:
    if raw.get(key) is None:
        raise InputError(f"config.json has no {key}, which is required")
    return raw[key]


def _layer_count(raw: Raw) -> int:
    count = _positive(raw, "num_hidden_layers")
    if count > MOST_LAYERS:
        raise InputError(f"config.json: num_hidden_layers must be at most {MOST_LAYERS}, found {count}")
    return count


def _positive(raw: Raw, key: str) -> int:
    value = _required(raw, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"config.json: {key} must be a positive integer, found {value!r}")
    return value


def _count(raw: Raw, key: str) -> int:
    value = _required(raw, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"config.json: {key} must be 0 or a positive integer, found {value!r}")
    return value


def _number(raw: Raw, key: str, default: float | None = None) -> float:
    """A finite number; ``default``, if there is one, stands for a missing, null or zero value."""
    value = raw.get(key) or default
    if value is None:
        value = _required(raw, key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"config.json: {key} must be a finite number, found {value!r}")
    return float(value)


def _above_zero(raw: Raw, key: str, default: float | None = None) -> float:
    """The same, above 0."""
    value = _number(raw, key, default)
    if value <= 0:
        raise InputError(f"config.json: {key} must be above 0, found {value:g}")
    return value


def _only(raw: Raw, key: str, supported: Any) -> None:
    if raw.get(key, supported) != supported:
        raise InputError(f"config.json: {key} is {raw[key]!r}; only {supported!r} is supported")
