import json

import pytest

from jddtree.checkpoint import skeleton
from jddtree.checkpoint.transfer import plan_published
from jddtree.errors import InputError

LAYER = "language_model.model.layers.1"
EXPERT = LAYER + ".mlp.experts.3.up_proj"


def _shape(name, shape):
    def edit(config, tensors):
        dtype, _, data = tensors[name]
        tensors[name] = dtype, shape, data

    return edit


def _dtype(name, dtype):
    def edit(config, tensors):
        _, shape, data = tensors[name]
        tensors[name] = dtype, shape, data

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda c, t: t.pop(f"{LAYER}.self_attn.q_a_proj.weight"),
            r"no tensor for layers\.1\.self_attn\.q_a_proj",
        ),
        (lambda c, t: t.pop("language_model.lm_head.weight"), r"no tensor for lm_head\.weight"),
        (lambda c, t: t.pop(f"{EXPERT}.weight_scale"), r"experts\.3\.up_proj\.weight_scale is missing"),
        (lambda c, t: t.update(x=("F32", [1], b"0000")), r"tensor x has no place"),
        (
            lambda c, t: t.update({f"{LAYER}.mlp.gate.bias": ("F32", [1], b"0000")}),
            r"gate\.bias has no place",
        ),
        (
            _shape("language_model.model.norm.weight", [2, 64]),
            r"norm\.weight is \[2, 64\]; config.json calls for",
        ),
        (
            lambda c, t: c["text_config"].update(n_routed_experts=15),
            r"experts\.15\.\w+\.\w+: the model has 15",
        ),
        (
            lambda c, t: c["text_config"].update(qk_nope_head_dim=48),
            r"kv_b_proj.* so layers\.0\.self_attn\.k_up",
        ),
        (lambda c, t: c["text_config"].update(moe_intermediate_size=32), r"experts.* calls for \[128, 4\]"),
        (
            _dtype(f"{LAYER}.self_attn.o_proj.weight", "I16"),
            r"o_proj\.weight is I16; it must be BF16 or F16 or F32",
        ),
        (
            _shape(f"{EXPERT}.weight_shape", [1, 2]),
            r"up_proj\.weight_shape is I32 \[1, 2\], but its neighbours",
        ),
        (
            lambda c, t: t.update({f"{EXPERT}.weight_shape": ("I32", [2], b"\x40\0\0\0\x41\0\0\0")}),
            r"says \[64, 65\]",
        ),
        (
            lambda c, t: t.update({"a.weight_shape": ("I32", [2], bytes(8))}),
            r"a\.weight_shape has no weight_packed",
        ),
        (
            lambda c, t: t.update({"a.weight_shape": ("F32", [2], bytes(8))}),
            r"a\.weight_shape is F32 \[2\], not a",
        ),
        (lambda c, t: c["text_config"].update(hidden_size=100), r"cannot be built"),
    ],
)
def test_a_checkpoint_must_fill_its_model_exactly(kimi_folder, edited, edit, message):
    folder = edited(kimi_folder, edit)
    with pytest.raises(InputError, match=message) as caught:
        plan_published(folder, json.loads((folder / "config.json").read_text()))
    assert "\n" not in str(caught.value)


def test_int4_modules_are_those_that_are_packed_in_the_files(kimi_folder):
    config = json.loads((kimi_folder / "config.json").read_text())
    plan, _ = plan_published(kimi_folder, config)
    expected = {f"layers.{layer}.mlp.experts.{p}_proj" for layer in (1, 2) for p in ("gate", "up", "down")}
    assert plan.packed == expected
    paths = dict(skeleton.array_paths(skeleton.abstract_model(config, plan.packed)))
    assert paths["layers.1.mlp.experts.up_proj.weight_packed"].shape == (16, 64, 16)
    assert all(name.startswith(("vision_tower.", "mm_projector.")) for name in plan.skipped)
    assert len(plan.skipped) == 9
