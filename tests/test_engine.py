"""The Python interface on a small trained pair."""

from dataclasses import replace

import pytest

import jddtree
from jddtree import Engine, InputError, Reading, Sample, Task
from tests import tiny


@pytest.fixture(scope="module")
def engine(trained) -> Engine:
    return Engine(trained, budget=6, top_logprobs=2)


@pytest.fixture(scope="module")
def task(engine, trained_runs) -> Task:
    policy = jddtree.Sample(temperature=0.7, seed=1)
    return engine.task(trained_runs["prompts"][2], max_new=40, policy=policy)


def test_streamed_pieces_are_the_generated_text(engine, task, trained):
    pieces = list(engine.stream(task))
    [result] = engine.generate([task])
    assert len(pieces) > 2 and all(pieces)
    assert "".join(pieces) == result.text == trained.tokenizer.decode(result.output_ids)
    assert len(result.output_ids) == len(result.logprobs) == 40
    [check] = engine.verify([task], [result])
    assert check.equal
    [check] = engine.verify([task], [replace(result, output_ids=[*result.output_ids[:5], 0])])
    assert (check.equal, check.first_divergence) == (False, 5)


def test_nothing_to_do_is_nothing_done(engine):
    assert engine.generate([]) == []


@pytest.mark.parametrize(
    ("prompt", "wishes", "reason"),
    [
        ("", {}, "the prompt is empty: give at least one token"),
        ([1, 2], {"stop_ids": [3, 10**6]}, "stop id 1000000 is outside the vocabulary"),
        ([1, 2], {"stop_ids": [-1]}, "stop id -1 is outside the vocabulary"),
    ],
)
def test_a_task_that_cannot_be_is_refused(engine, prompt, wishes, reason):
    with pytest.raises(InputError, match=reason):
        engine.task(prompt, **wishes)


def test_a_chat_about_nothing_is_refused(engine, monkeypatch):
    monkeypatch.setattr("jddtree.engine.load_template", lambda folder: "any template")
    with pytest.raises(InputError, match="the prompt is empty"):
        engine.task(" ")


def test_closing_a_stream_ends_its_decoding(engine, task, monkeypatch):
    closed = []
    real = Engine.run

    def run(self, tasks):
        try:
            yield from real(self, tasks)
        finally:
            closed.append(tasks)

    monkeypatch.setattr(Engine, "run", run)
    stream = engine.stream(task)
    next(stream)
    assert closed == []
    stream.close()
    assert closed == [[task]]


def test_a_stream_that_fails_raises_after_its_text(engine, task, monkeypatch):
    def run(self, tasks):
        result = jddtree.Generation(text="a", output_ids=[1])
        yield [result]
        result.finish_reason, result.error = "error", "the prompt: the target's logits ... are not finite"
        yield [result]

    monkeypatch.setattr(Engine, "run", run)
    stream = engine.stream(task)
    assert next(stream) == "a"
    with pytest.raises(FloatingPointError, match="not finite"):
        next(stream)


def test_programs_are_compiled_once_and_a_short_last_batch_reuses_them(engine, task):
    first = engine.decoder([task])
    assert engine.decoder([replace(task, max_new=3)]) is first
    assert engine.decoder([task, task], rows=2) is not first
    assert engine.decoder([task], rows=2) is engine.decoder([task, task])
    greedy = engine.decoder([replace(task, policy=jddtree.Greedy())])
    assert greedy is not first and not greedy.options.mode.sampled


def test_prompts_are_text_ids_or_messages(engine, trained):
    assert engine.task([3, 1]).prompt == [3, 1]
    # There is no template here: text is encoded as it is.
    assert engine.task("ab", reading=Reading(raw=True)).prompt == engine.task("ab").prompt == [65, 66]
    with pytest.raises(InputError, match="no chat template: give text instead of messages"):
        engine.task([{"role": "user", "content": "hi"}])
    special, name = next(iter(trained.tokenizer.markup.items()))
    assert engine.encode(name, Reading(raw=True, specials=True)) == [special]
    assert special not in engine.encode(name, Reading(raw=True))
    task = engine.task([3], stop_ids=[9], stop_strings=["x"], name="mine")
    assert (task.stop_strings, task.name, task.stop_ids[0]) == (("x",), "mine", 9)
    assert set(task.stop_ids) == {9, *engine.own_stop_ids()}
    assert engine.task([3], stop_ids=[9], ignore_eos=True).stop_ids == (9,)


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [160]}, "the prompt: token id 160 is outside the vocabulary"),
        ({"prompt": [1], "budget": 7}, "the prompt: budget must be 0 to 6, not 7"),
        ({"prompt": [1], "budget": -1}, "budget must be 0 to 6, not -1"),
        ({"prompt": [1], "topk": 0}, "topk must be at least 1, not 0"),
        ({"prompt": [1], "max_new": 0}, "max_new must be at least 1, not 0"),
        ({"prompt": [1], "max_context": 0}, "a context of 0 leaves no room"),
        ({"prompt": [1], "stop_strings": [""]}, "a stop string is empty"),
    ],
)
def test_a_task_out_of_range_is_refused_when_it_is_made(engine, wishes, reason):
    with pytest.raises(InputError, match=reason):
        engine.task(**wishes)


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        ({"method": "beam"}, "method must be one of tree, chain, ar, not 'beam'"),
        ({"rule": "guess"}, "rule must be one of follow, target-only, not 'guess'"),
        ({"budget": -1}, "budget must be 0 or more, not -1"),
        ({"budget": 4097}, "a budget of 4097 nodes is too large: a round verifies 4096 at most"),
        ({"top_logprobs": 161}, "0 to 160 tokens, not 161"),
    ],
)
def test_an_engine_out_of_range_is_refused(trained, wishes, reason):
    with pytest.raises(InputError, match=reason):
        Engine(trained, **wishes)


def test_what_a_pair_lacks_is_said(trained, task):
    with pytest.raises(InputError, match="method chain needs a drafter"):
        Engine(replace(trained, drafter=None), method="chain")
    with pytest.raises(InputError, match="a drafter needs the target"):
        Engine.load(None, tiny.TRAINED / "drafter")
    mute = Engine(replace(trained, tokenizer=None))
    with pytest.raises(InputError, match="has no tokenizer: give token ids"):
        mute.task("hi")
    with pytest.raises(InputError, match="has no tokenizer: use run"):
        next(mute.stream(task))
    with pytest.raises(InputError, match="stop strings need a tokenizer"):
        mute.task([1], stop_strings=["x"])


def test_texts_that_depend_on_the_tree_are_not_compared(trained, task):
    engine = Engine(trained, rule="target-only")
    with pytest.raises(InputError, match="depend on the tree"):
        engine.verify([task], [])


def test_a_decoder_refuses_what_it_was_not_compiled_for(engine, task):
    greedy = engine.decoder([replace(task, policy=jddtree.Greedy())])
    with pytest.raises(InputError, match="compiled for greedy rows"):
        next(greedy.decode([task]))
    sampled = engine.decoder([task])
    with pytest.raises(InputError, match="without cuts"):
        next(sampled.decode([replace(task, policy=Sample(top_k=3))]))
    with pytest.raises(InputError, match="2 prompts for a decoder of 1 row"):
        next(sampled.decode([task, task]))
