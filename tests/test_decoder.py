"""The host's side of decoding: stops, limits, chunks, reuse, and what the compiled program holds."""

import logging
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jddtree.decoder
from jddtree.decoder import CHUNKS, Decoder, Task, slots_for
from jddtree.errors import InputError
from jddtree.finish import Generation
from jddtree.state import Method
from jddtree.tokenizer import load_tokenizer
from tests import tiny

PROMPT = [11, 49, 3, 0, 27]
OTHER = [40, 30, 20, 10, 49, 0, 49, 13, 22, 7, 1, 1, 9, 33, 2, 8, 21, 17, 4, 30, 3]
BUDGET = 6
METHOD = Method.tree(tiny.DFLASH["block_size"], BUDGET)
MAX_NEW = 40
SLOTS = len(OTHER) + MAX_NEW  # Not one to spare for the longest prompt here.


@cache
def target():
    return tiny.target(tiny.QWEN3, seed=1)


@cache
def text_after(prompt: tuple[int, ...]) -> list[int]:
    return tiny.plain(target(), list(prompt), MAX_NEW + 4)


@cache
def random_decoder(rows: int = 1) -> Decoder:
    """A random DFlash drafter."""
    return tiny.decoder(target(), tiny.drafter(), METHOD, rows=rows, slots=SLOTS, rounds=3)


@cache
def perfect_decoder() -> Decoder:
    """A drafter that knows the text after PROMPT: every round accepts a whole block."""
    table = np.zeros((1, 64, 50), np.float32)
    text = text_after(tuple(PROMPT))
    table[0, np.arange(len(PROMPT), len(PROMPT) + len(text)), text] = 9.0
    drafter = tiny.Scripted(tiny.drafter(), jnp.asarray(table), jnp.array([True]))
    return tiny.decoder(target(), drafter, METHOD, slots=SLOTS)


def decode_one(decoder: Decoder, prompt=PROMPT, **wishes) -> Generation:
    (row,) = tiny.decode(decoder, [prompt], **{"max_new": MAX_NEW, **wishes})
    return row


def text(count: int, prompt=PROMPT) -> list[int]:
    return text_after(tuple(prompt))[:count]


# Stops and caps. A perfect round commits tokens 1 to 4 of the text: three nodes and the bonus.


@pytest.mark.parametrize(
    ("stops_at", "cap", "kept", "reason", "lengths"),
    [
        pytest.param([0], 40, 1, "stop", [], id="the prefill's token"),
        pytest.param([2], 40, 3, "stop", [4], id="in the middle of a path"),
        pytest.param([4], 40, 5, "stop", [4], id="the bonus token"),
        pytest.param([3, 1], 40, 2, "stop", [4], id="several in one round"),
        pytest.param([10], 40, 11, "stop", [4, 4, 4], id="a later round"),
        pytest.param([], 3, 3, "length", [4], id="cap in the middle of a path"),
        pytest.param([3], 3, 3, "length", [4], id="stop past the cap"),
        pytest.param([2], 3, 3, "stop", [4], id="stop at the cap"),
        pytest.param([], 1, 1, "length", [], id="one token is no round"),
        pytest.param([0], 1, 1, "stop", [], id="one token that stops"),
        pytest.param([], 5, 5, "length", [4], id="cap at the end of a round"),
    ],
)
def test_where_the_text_ends(stops_at, cap, kept, reason, lengths):
    first = text(12)
    assert len(set(first)) == 12, "the text must not repeat a token before the stop"
    row = decode_one(perfect_decoder(), stop_ids=[first[place] for place in stops_at], max_new=cap)
    assert row.output_ids == first[:kept]
    assert row.finish_reason == reason
    assert row.acceptance_lengths == lengths
    assert len(row.margins) == kept and len(row.trace) == len(lengths)
    assert row.committed_per_round == (4.0 if lengths else None)


def test_stop_ids_outside_the_vocabulary_never_come():
    assert decode_one(perfect_decoder(), stop_ids=[-1, 50, 10**6], max_new=9).output_ids == text(9)


def test_the_mask_token_is_a_token_like_any_other():
    mask = {"mask_token_id": text(3)[2], "target_layer_ids": [0, 1]}
    inner = tiny.drafter({**tiny.DFLASH, "dflash_config": mask})
    row = decode_one(tiny.decoder(target(), inner, METHOD, slots=SLOTS))
    assert row.output_ids == text(MAX_NEW)


# Limits.


def test_at_the_context_limit_no_node_is_past_it():
    room = 6
    row = decode_one(perfect_decoder(), max_context=len(PROMPT) + room)
    assert (row.output_ids, row.finish_reason) == (text(room), "length")
    assert row.acceptance_lengths == [4, 2]
    assert [max(entry["depths"]) for entry in row.trace] == [3, 1]
    assert decode_one(perfect_decoder(), max_context=len(PROMPT) + 1).output_ids == text(1)


def test_past_the_drafters_last_position_rounds_go_on_plainly():
    last = len(PROMPT) + 15
    small = tiny.drafter({**tiny.DFLASH, "max_position_embeddings": last})
    # One child a node, so that a tree is as deep as it may be.
    random = decode_one(random_decoder(), topk=1)
    row = decode_one(tiny.decoder(target(), small, METHOD, slots=SLOTS), topk=1)
    assert (row.output_ids, row.finish_reason) == (text(MAX_NEW), "length")
    root = len(PROMPT)
    for entry, accepted in zip(row.trace, row.acceptance_lengths, strict=True):
        assert max(entry["depths"]) == np.clip(last - 1 - root, 0, 3)
        root += accepted
    # Before the edge nothing changes.
    assert row.trace[:4] == random.trace[:4]
    assert root > last


def test_no_room_is_refused_and_says_why():
    decoder = random_decoder()
    for prompt, wishes, reason in (
        ([], {}, "prompt is empty"),
        ([1, 50], {}, "token id 50 is outside the vocabulary, 0 to 49"),
        ([-1], {}, "token id -1 is outside the vocabulary"),
        (PROMPT, {"max_context": 5}, "prompt has 5 tokens; a context of 5 leaves no room"),
        (PROMPT, {"max_new": 0}, "max_new must be at least 1, not 0"),
        (OTHER, {"max_new": MAX_NEW + 1}, "21 prompt tokens and 41 new ones do not fit the 61 cache"),
    ):
        with pytest.raises(InputError, match=reason):
            decode_one(decoder, prompt, **wishes)


def test_the_targets_own_limit_holds_without_another():
    raw = {**tiny.QWEN3, "max_position_embeddings": len(PROMPT) + 4}
    decoder = tiny.decoder(tiny.target(raw, seed=1), None, Method.plain(), slots=64)
    row = decode_one(decoder)
    assert (row.output_ids, row.finish_reason) == (text(4), "length")


def test_a_block_of_one_decodes_plainly():
    single = tiny.drafter({**tiny.DFLASH, "block_size": 1})
    row = decode_one(tiny.decoder(target(), single, Method.chain(single.block_size)))
    assert row.output_ids == text(MAX_NEW)
    assert row.acceptance_lengths == [1] * (MAX_NEW - 1)


@pytest.mark.parametrize(("tokens", "slots"), [(1, 1024), (1024, 1024), (1025, 2048), (5000, 8192)])
def test_few_cache_sizes_are_ever_compiled(tokens, slots):
    assert slots_for(tokens) == slots


# Prompts in chunks.


@pytest.mark.parametrize("sizes", [(8,), (4, 16)], ids=str)
def test_a_prompt_in_chunks_leaves_what_one_chunk_leaves(sizes, monkeypatch):
    """The drafter's context too: its trees are the same, round for round."""
    whole = decode_one(random_decoder(), OTHER)
    assert whole.output_ids == text(MAX_NEW, OTHER)
    monkeypatch.setattr(jddtree.decoder, "CHUNKS", sizes)
    parts = decode_one(random_decoder(), OTHER)
    assert replace(parts, margins=[]) == replace(whole, margins=[])
    np.testing.assert_allclose(parts.margins, whole.margins, rtol=0, atol=1e-4)


def test_rows_may_end_their_prompts_in_different_chunks(monkeypatch):
    wanted = [decode_one(random_decoder(), prompt).output_ids for prompt in (OTHER, PROMPT)]
    monkeypatch.setattr(jddtree.decoder, "CHUNKS", (8,))
    rows = tiny.decode(random_decoder(2), [OTHER, PROMPT], max_new=MAX_NEW)
    assert [row.output_ids for row in rows] == wanted
    told = []
    tasks = [Task(prompt, max_new=2) for prompt in (OTHER, PROMPT)]
    next(random_decoder(2).decode(tasks, read=lambda *at: told.append(at)))
    assert told == [(8, 21), (16, 21), (21, 21)]


# Rows and reuse.


def test_rows_of_different_lengths_and_ends_are_what_they_are_alone():
    long, short = text(MAX_NEW, OTHER), text(MAX_NEW)
    stop = next(token for token in short[8:] if token not in long[:20] and token not in short[:8])
    rows = tiny.decode(random_decoder(2), [PROMPT, OTHER], max_new=MAX_NEW, stop_ids=[stop])
    alone = [decode_one(random_decoder(), prompt, stop_ids=[stop]) for prompt in (PROMPT, OTHER)]
    for row, single in zip(rows, alone, strict=True):
        assert replace(row, margins=[]) == replace(single, margins=[])
        np.testing.assert_allclose(row.margins, single.margins, rtol=0, atol=1e-4)
    assert rows[0].finish_reason == "stop"
    assert len(rows[0].acceptance_lengths) < len(rows[1].acceptance_lengths)


def test_a_second_prompt_finds_nothing_of_the_first():
    decoder = random_decoder()
    fresh = decode_one(tiny.decoder(target(), tiny.drafter(), METHOD, slots=SLOTS))
    decode_one(decoder, OTHER)
    assert decode_one(decoder) == fresh
    abandoned = decoder.decode([Task(OTHER, max_new=MAX_NEW)])
    next(abandoned), next(abandoned)
    abandoned.close()
    assert decode_one(decoder) == fresh


def test_the_result_grows_by_chunks_of_rounds():
    sizes, rounds = [], []
    for (row,) in random_decoder().decode([Task(PROMPT, max_new=MAX_NEW)]):
        assert row.output_ids == text(len(row.output_ids))
        sizes.append(len(row.output_ids))
        rounds.append(len(row.acceptance_lengths))
    assert (sizes[0], sizes[-1]) == (1, MAX_NEW)
    assert rounds[:4] == [0, 3, 6, 9] and rounds[-1] - rounds[-2] <= 3
    assert sizes == sorted(sizes)


# The compiled program.


def test_a_chunk_of_rounds_never_calls_the_host_and_updates_its_state_in_place():
    compiled = random_decoder()._chunk
    program = compiled.as_text()
    assert "while(" in program
    for word in ("callback", "infeed", "outfeed", "host_compute", "SendToHost", "RecvFromHost"):
        assert word.lower() not in program.lower()
    state = jax.tree.leaves(jax.eval_shape(random_decoder()._empty))
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    assert "input_output_alias" in program
    assert compiled.memory_analysis().alias_size_in_bytes >= state_bytes


def test_the_host_fetches_once_a_chunk(monkeypatch):
    """Reports leave the program sealed; nothing but one device_get a step can open them."""
    decoder, fetches, real = random_decoder(), [], jax.device_get
    decode_one(decoder)  # compiles the prefill

    class Sealed:
        def __init__(self, value):
            self.value = value

    def sealing(program):
        def run(*arguments):
            state, *reports = program(*arguments)
            return state, *(Sealed(report) for report in reports)

        return run

    def opening(tree):
        fetches.append(tree)
        return real(jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Sealed) else leaf, tree))

    monkeypatch.setattr(decoder, "_chunk", sealing(decoder._chunk))
    real_prefill = decoder.prefill_program
    monkeypatch.setattr(decoder, "prefill_program", lambda width: sealing(real_prefill(width)))
    monkeypatch.setattr(jax, "device_get", opening)
    steps = sum(1 for _ in decoder.decode([Task(PROMPT, max_new=MAX_NEW)]))
    assert len(fetches) == steps > 3


def test_the_first_text_comes_soon_and_then_more_at_once(tmp_path):
    decoder = tiny.decoder(target(), None, Method.plain(), rows=2, slots=SLOTS, rounds=20)
    tiny.write_tokenizer(tmp_path, [])

    def lengths(**wishes) -> list[int]:
        steps = decoder.decode([Task(PROMPT, max_new=40, **wishes)], load_tokenizer(tmp_path))
        return [len(rows[0].output_ids) for rows in steps]

    assert lengths() == [1, 1 + 8, 1 + 8 + 16, 40]
    # Tokens behind a stop string are for nothing.
    assert lengths(stop_strings=["never"]) == [1, 9, 17, 25, 33, 40]


def test_another_prompt_length_stop_cap_or_topk_compiles_nothing(caplog):
    decoder = random_decoder()
    decode_one(decoder)
    seconds = decoder.compile_seconds

    def compiled() -> list[str]:
        return [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()]

    with jax.log_compiles(), caplog.at_level(logging.DEBUG, logger="jax"):
        decode_one(decoder, OTHER, stop_ids=[1, 2], topk=2, max_new=7, max_context=50)
        decode_one(decoder, [1], topk=1, max_new=1)
        assert compiled() == []
        jax.jit(lambda x: x * 3)(2)
        assert compiled()
    assert decoder.compile_seconds == seconds


def test_prefills_of_two_sizes_serve_every_prompt():
    decoder = tiny.decoder(target(), None, Method.plain(), slots=1024)
    decoder.compile_for([Task([1] * (CHUNKS[-1] + 1))])
    seconds = decoder.compile_seconds
    for length in range(1, 900, 7):
        decoder.compile_for([Task([1] * length)])
    assert decoder.compile_seconds == seconds
    prompt = (OTHER * 20)[: CHUNKS[-1] + CHUNKS[0]]
    (row,) = tiny.decode(decoder, [prompt], max_new=3)
    assert row.output_ids == tiny.plain(target(), prompt, 3)


def test_the_decoder_says_which_kernels_it_holds():
    assert random_decoder().kernels == {
        "commit": "xla",
        "dense_added": "xla",
        "dense_products": "xla",
        "rotary": "xla",
        "tree_attention": "xla",
        "top_k": "xla",
    }


def test_an_exchanged_drafter_is_the_one_that_drafts():
    decoder = random_decoder()
    first = decode_one(decoder)
    decoder.exchange(tiny.drafter(seed=5))
    other = decode_one(decoder)
    assert other.output_ids == first.output_ids
    assert other.trace != first.trace
    decoder.exchange(tiny.drafter())
    assert decode_one(decoder).trace == first.trace
    with pytest.raises(ValueError, match="another form"):
        decoder.exchange(tiny.drafter({**tiny.DFLASH, "num_hidden_layers": 1, "layer_types": None}))
