"""Layouts on 8 devices: texts equal those of one device, and every array lies where its layout says."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from jddtree import pipeline, sharding, vocabulary
from jddtree.checkpoint.skeleton import array_paths
from jddtree.config import drafter_config, target_config
from jddtree.decoder import Task
from jddtree.errors import InputError
from jddtree.load import bundled_pair, load_pair
from jddtree.models.kimi_k2 import KimiK2
from jddtree.models.layers import FLOAT32, MLP, Linears, join_mlps
from jddtree.pytree import dotted
from jddtree.sampling import Mode, Sample
from jddtree.sharding import Layout
from jddtree.state import Method, Options
from pallas_kernels import device
from tests import tiny

KIMI = tiny.KIMI | {
    "vocab_size": 64,
    "num_attention_heads": 8,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
}
DFLASH = tiny.DFLASH | {
    "vocab_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "layer_types": ["sliding_attention"],
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [0, 1]},
}
PROMPTS = [[11, 49, 3, 0, 27], [40, 30, 20, 10, 49, 0, 49, 13, 22]]
# 2 layers, the second with experts, unless stages share more of them out.
LAYERS = {"pp2xtp4": 4, "pp8": 9}


@cache
def pair(layers: int):
    config = target_config(KIMI | {"num_hidden_layers": layers})
    packed = frozenset(
        f"layers.{layer}.mlp.experts.{name}_proj"
        for layer in range(1, layers)
        for name in ("gate", "up", "down")
    )
    target = KimiK2(config, packed=packed, rngs=nnx.Rngs(0))
    target.embed_tokens.weight.set_value(target.embed_tokens.weight[...] * 50)
    taps = {"mask_token_id": 63, "target_layer_ids": [0, layers - 1]}
    return target, tiny.drafter(DFLASH | {"num_target_layers": layers, "dflash_config": taps})


def spread(layout: Layout, model):
    """The model's arrays, cut as the layout says."""
    mesh = layout.mesh()

    def place(name):
        return sharding.placement(layout, mesh, model.config, name)

    placed = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.device_put(leaf, place(dotted(path))), model
    )
    join_mlps(placed, place)
    return pipeline.assembled(placed, layout, mesh) if sharding.is_staged(layout, model.config) else placed


def greedy(**wishes) -> list[Task]:
    return [Task(prompt, max_new=10, **wishes) for prompt in PROMPTS]


def runs(target, drafter, rounds: int = 1) -> list[list[tuple]]:
    """Ids, trees and distinct experts of every row. The same program drafts trees, chains (one child a node)
    and nothing (no nodes).
    """
    decoder = tiny.decoder(target, drafter, Method.tree(4, 5), rows=2, slots=32, rounds=rounds)
    return [
        [(row.output_ids, row.trace, row.experts) for row in tiny.run(decoder, greedy(**wishes))]
        for wishes in ({}, {"topk": 1, "budget": 3}, {"budget": 0})
    ]


@cache
def whole_runs(layers: int) -> list[list[tuple]]:
    return runs(*pair(layers))


@pytest.mark.parametrize("layout", ["tp8", "ep8", "ep4xtp2", "dp2xtp4", "pp2xtp4", "pp8"])
def test_trees_and_texts_do_not_depend_on_the_layout(layout):
    layers = LAYERS.get(layout, 2)
    target, drafter = (spread(Layout.parse(layout), model) for model in pair(layers))
    # Where rows are shared out, devices must agree on when a loop of rounds ends.
    found = runs(target, drafter, rounds=3 if layout.startswith("dp") else 1)
    assert found == whole_runs(layers)
    ids = [[row[0] for row in rows] for rows in found]
    assert ids == [ids[2]] * 3
    assert any(entry["tokens"][1:] for _, trace, _ in found[0] for entry in trace)


def test_joined_mlps_of_stages(monkeypatch):
    # The last stage has a layer less.
    whole = tiny.target(tiny.QWEN3 | {"num_hidden_layers": 3, "vocab_size": 64})
    monkeypatch.setattr(device, "is_gpu", lambda: True)
    cut = spread(Layout.parse("pp2xtp2"), whole)
    for layer in cut.layers:
        joined = layer.mlp.gate_up[...]
        assert (joined.shape, joined.sharding.spec) == ((4, 32, 32), P("stage", "tensor"))
        assert joined.sharding.shard_shape(joined.shape) == (2, 16, 32)
        assert not hasattr(layer.mlp, "gate_proj")
    ours, theirs = (
        tiny.run(tiny.decoder(model, None, Method.plain(), rows=2, slots=32, rounds=1), greedy())
        for model in (cut, whole)
    )
    assert [row.output_ids for row in ours] == [row.output_ids for row in theirs]


def test_sampled_texts_and_log_probabilities_do_not_depend_on_the_layout():
    options, tasks = Options(Mode(sampled=True), top_logprobs=3), greedy(policy=Sample(0.8, seed=5))
    whole, cut = (
        tiny.run(tiny.decoder(*models, Method.chain(4), rows=2, slots=32, rounds=1, options=options), tasks)
        for models in (pair(2), [spread(Layout.parse("ep4xtp2"), model) for model in pair(2)])
    )
    assert [row.output_ids for row in whole] != [row[0] for row in whole_runs(2)[0]]
    for ours, theirs in zip(cut, whole, strict=True):
        assert ours.output_ids == theirs.output_ids and ours.logprobs
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)


def test_a_bias_is_added_once():
    mlp = MLP("mlp", 32, 64, Linears(frozenset(), "bfloat16", FLOAT32, nnx.Rngs(0)), bias=True)
    mlp.down_proj.bias.set_value(jnp.arange(32.0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 32)), jnp.float32)
    layout, (weights, form) = Layout.parse("ep2xtp2"), jax.tree.flatten(mlp)
    specs = [
        sharding.parameter_spec(layout, KIMI_CONFIG, name)
        for name, _ in array_paths(nnx.eval_shape(lambda: mlp))
    ]
    cut = jax.shard_map(
        lambda parts, x: jax.tree.unflatten(form, parts)(x),
        mesh=layout.mesh(),
        in_specs=(specs, P()),
        out_specs=P(),
        check_vma=False,
    )
    assert P(("expert", "tensor")) in specs
    np.testing.assert_allclose(jax.jit(cut)(weights, x), mlp(x), atol=1e-5)


def test_the_bundled_pair_in_eight_parts(tmp_path):
    whole, cut = (
        load_pair(
            *bundled_pair(),
            dtype="float32",
            cache_dir=tmp_path,
            say=lambda line: None,
            layout=Layout.parse(layout),
        )
        for layout in ("tp1", "tp8")
    )
    for ours, theirs in ((cut.target, whole.target), (cut.drafter, whole.drafter)):
        for (name, leaf), known in zip(array_paths(ours), jax.tree.leaves(theirs), strict=True):
            assert leaf.sharding.spec == sharding.parameter_spec(cut.layout, ours.config, name)
            np.testing.assert_array_equal(leaf, known)
    # INT4 outside of experts is dequantised once, and cut where its groups of 32 could not be.
    drafted = cut.drafter.layers[0].mlp.down_proj.weight[...]
    assert drafted.sharding.shard_shape(drafted.shape) == (drafted.shape[0], drafted.shape[1] // 8)


EXPECTED = {
    "tp8": {
        "embed_tokens.weight": P("tensor"),
        "lm_head.weight": P("tensor"),
        "layers.0.mlp.gate_proj.weight": P("tensor"),
        "layers.0.mlp.down_proj.weight": P(None, "tensor"),
        "layers.1.input_layernorm.weight": P(),
        "layers.1.self_attn.q_a_proj.weight": P(),
        "layers.1.self_attn.kv_a_proj_with_mqa.weight": P(),
        "layers.1.self_attn.q_b_proj.weight": P("tensor"),
        "layers.1.self_attn.k_up": P("tensor"),
        "layers.1.self_attn.o_proj.weight": P(None, "tensor"),
        "layers.1.mlp.gate.weight": P(),
        "layers.1.mlp.experts.up_proj.weight_scale": P(None, "tensor"),
        "layers.1.mlp.experts.down_proj.weight_packed": P(None, None, "tensor"),
        "layers.1.mlp.shared_experts.down_proj.weight": P(None, "tensor"),
    },
    "ep8": {
        "lm_head.weight": P("expert"),
        "layers.1.self_attn.v_up": P("expert"),
        "layers.1.mlp.experts.up_proj.weight_packed": P("expert"),
        "layers.1.mlp.experts.down_proj.weight_packed": P("expert"),
        "layers.1.mlp.shared_experts.up_proj.weight": P("expert"),
    },
    "ep4xtp2": {
        "lm_head.weight": P(("expert", "tensor")),
        "layers.1.mlp.experts.up_proj.weight_packed": P("expert", "tensor"),
        "layers.1.mlp.experts.down_proj.weight_packed": P("expert", None, "tensor"),
    },
    "dp2xtp4": {"layers.1.self_attn.o_proj.weight": P(None, "tensor")},
    "pp2xtp4": {
        "lm_head.weight": P(("stage", "tensor")),
        "layers.0.mlp.up_proj.weight": P(("stage", "tensor")),
        "layers.1.input_layernorm.weight": P("stage"),
        "layers.1.self_attn.q_b_proj.weight": P(("stage", "tensor")),
        "layers.2.mlp.experts.down_proj.weight_packed": P("stage", None, "tensor"),
    },
}


@pytest.mark.parametrize("layout", EXPECTED)
def test_where_weights_lie(layout):
    spreading, (target, _) = Layout.parse(layout), pair(LAYERS.get(layout, 2))
    form = pipeline.stacked(nnx.eval_shape(lambda: target), spreading)
    specs = dict(array_paths(sharding.parameter_specs(spreading, form)))
    assert {name: specs[name] for name in EXPECTED[layout]} == EXPECTED[layout]


def test_where_caches_lie():
    (target, drafter), shape = pair(4), jnp.dtype(jnp.float32)
    caches = [jax.eval_shape(lambda m=model: m.new_cache(2, 8, shape)) for model in (target, drafter)]

    def specs(layout: str, which: int):
        config = (target, drafter)[which].config
        return sharding.cache_specs(Layout.parse(layout), config, caches[which])

    assert specs("tp8", 0) == (P(),) * 4
    assert specs("dp2xtp4", 0) == (P("data"),) * 4
    assert specs("dp2xpp2", 0) == (P("data"), *[P(("stage", "data"))] * 3)
    # 4 key-value heads: one a device, or groups, or on every device where a single axis is longer.
    assert specs("dp2xtp4", 1) == ((P("data", None, "tensor"),) * 2,)
    assert specs("ep4xtp2", 1) == ((P(None, None, "expert"),) * 2,)
    assert specs("tp8", 1) == ((P(),) * 2,)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("tp8", (1, 1, 1, 8)), ("tp2xep4", (1, 1, 4, 2)), ("dp2xpp3", (2, 3, 1, 1)), ("tp1", (1, 1, 1, 1))],
)
def test_a_layout_is_written_as_it_is_read(text, sizes):
    layout = Layout.parse(text)
    assert (layout.data, layout.stage, layout.expert, layout.tensor) == sizes
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("xp8", "layout xp8: no axis is named ''"),
        ("sp8", "no axis is named 'sp'"),
        ("tp", "tp needs a number"),
        ("tp0", "tp needs a number"),
        ("tp2xtp4", "tp is there twice"),
        ("8", "no axis is named ''"),
        ("tp-8", "no axis is named 'tp-8'"),
    ],
)
def test_what_is_no_layout(text, reason):
    with pytest.raises(InputError, match=reason):
        Layout.parse(text)


def test_more_devices_than_there_are():
    with pytest.raises(InputError, match="layout tp16 needs 16 devices; there are 8"):
        Layout.parse("tp16").mesh()


KIMI_CONFIG, DFLASH_CONFIG = target_config(KIMI), drafter_config(DFLASH)
DENSE_CONFIG = target_config(tiny.QWEN3)


@pytest.mark.parametrize(
    ("layout", "config", "changes", "reason"),
    [
        ("tp3", KIMI_CONFIG, {}, r"the target's attention heads \(8\) cannot be cut 3 ways"),
        ("tp8", KIMI_CONFIG, {"vocab_size": 60}, r"vocabulary \(60\) cannot be cut 8 ways"),
        ("tp8", KIMI_CONFIG, {"intermediate_size": 36}, r"MLP width \(36\) cannot be cut 8 ways"),
        ("ep8", KIMI_CONFIG, {"num_experts": 12}, r"experts \(12\) cannot be cut 8 ways"),
        ("tp8", KIMI_CONFIG, {"moe_intermediate_size": 128}, r"\(128\) cut 8 ways gives 16, .* groups of 32"),
        ("pp2", KIMI_CONFIG, {}, "2 stages for 1 layers"),
        ("pp2", KIMI_CONFIG, {"num_layers": 3}, "stages need layers of one kind"),
        ("tp16", DFLASH_CONFIG, {}, r"the drafter's attention heads \(8\) cannot be cut 16 ways"),
        ("tp4", DFLASH_CONFIG, {"num_heads": 12, "num_kv_heads": 6}, "6 key-value heads cannot be shared"),
        ("ep2", DENSE_CONFIG, {}, "the target has no experts to cut"),
    ],
)
def test_what_cannot_be_cut(layout, config, changes, reason):
    # Only the second layer is INT4: a third would be of another kind.
    with pytest.raises(InputError, match=rf"layout {layout}: .*{reason}"):
        sharding.check(Layout.parse(layout), replace(config, **changes), tiny.EXPERTS)


def test_stages_do_not_cut_the_heads_of_their_own_layers():
    sharding.check(Layout.parse("pp2"), replace(DENSE_CONFIG, num_heads=3, num_kv_heads=3))


def test_rows_that_cannot_be_shared_out():
    target, _ = (spread(Layout.parse("dp2"), model) for model in pair(2))
    with pytest.raises(InputError, match="layout dp2: 3 rows cannot be shared by 2"):
        tiny.decoder(target, None, Method.plain(), rows=3)


def test_equal_logits_go_to_the_lower_id_across_parts():
    logits = jnp.array([[1.0, 3.0, 0.0, 2.0, 3.0, 2.0, 3.0, -jnp.inf]])
    mesh = Layout.parse("ep2xtp2").mesh()

    def ask(logits):
        ids, margins = vocabulary.likeliest(logits)
        values, best = vocabulary.top_k(logits, 5)
        total = vocabulary.log_sum_exp(logits, values[:, :1])
        return ids, margins, values, best, total, vocabulary.finite(logits)

    cut = jax.shard_map(
        ask, mesh=mesh, in_specs=P(None, ("expert", "tensor")), out_specs=P(), check_vma=False
    )
    ids, margins, values, best, total, finite = jax.jit(cut)(logits)
    assert (ids.tolist(), margins.tolist(), finite.tolist()) == ([1], [0.0], [False])
    assert best.tolist() == [[1, 4, 6, 3, 5]] and values.tolist() == [[3.0, 3.0, 3.0, 2.0, 2.0]]
    np.testing.assert_allclose(total, jax.nn.logsumexp(logits, axis=-1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize(
    ("stages", "rows", "at_once"), [(1, 6, 6), (2, 6, 3), (4, 6, 3), (8, 4, 1), (8, 3, 3)]
)
def test_stages_work_on_equal_parts_of_the_rows(stages, rows, at_once, monkeypatch):
    monkeypatch.setattr(pipeline, "here", lambda: Layout(stage=stages))
    assert pipeline.rows_at_once(rows) == at_once
