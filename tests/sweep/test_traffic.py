"""Bytes of weights and caches, counted by hand."""

from jddtree.checkpoint.skeleton import abstract_model
from jddtree.sweep.traffic import cache_bytes, weights
from tests import tiny


def model(raw: dict):
    return abstract_model(raw, tiny.EXPERTS if raw["num_hidden_layers"] > 1 else frozenset())


def test_a_mixtures_weights():
    two_layers, one_layer = model(tiny.KIMI), model(tiny.KIMI | {"num_hidden_layers": 1})
    found = weights(two_layers, tied=False)
    # Gate, up and down of 32 x 32 INT4, with a bfloat16 scale for every 32 weights.
    assert list(found.experts.values()) == [3 * (32 * 32 // 2 + 32 * 2)]
    assert found.head == 50 * 32 * 4
    assert weights(one_layer, tied=False).experts == {}
    assert weights(one_layer, tied=False).dense < found.dense
    assert cache_bytes(two_layers, "bfloat16") == 2 * (32 + 8) * 2


def test_a_tied_embedding_is_read_as_the_head_alone():
    untied, tied = (
        abstract_model(tiny.QWEN3 | {"tie_word_embeddings": tie}, frozenset()) for tie in (False, True)
    )
    assert weights(untied, tied=False) == weights(tied, tied=True)
    assert cache_bytes(untied, "float32") == 2 * 2 * 2 * 8 * 4
    assert weights(abstract_model(tiny.DFLASH, frozenset()), tied=False).head == 0
