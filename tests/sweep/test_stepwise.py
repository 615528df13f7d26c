"""The naive loop gives plain decoding's text, to the same end."""

from jddtree.decoder import Task
from jddtree.state import Method
from jddtree.sweep.stepwise import Stepwise
from tests import tiny

PROMPTS = ([11, 49, 3, 0, 27], [5, 44], [1, 2, 3])


def test_texts_stops_and_lengths_are_plain_decodings(strict_dtypes):
    target = tiny.target(tiny.QWEN3, seed=1)
    text = tiny.plain(target, PROMPTS[0], 8)
    stop = next(token for at, token in enumerate(text) if at > 2 and token not in text[:at])
    tasks = [
        Task(PROMPTS[0], max_new=8, stop_ids=(stop,)),
        Task(PROMPTS[1], max_new=1),
        Task(PROMPTS[2], max_new=8),
    ]
    decoder = tiny.decoder(target, None, Method.plain(), rows=3)
    results, prefill, seconds = Stepwise(decoder).decode(tasks)
    plain = tiny.run(decoder, tasks)
    assert [r.output_ids for r in results] == [r.output_ids for r in plain]
    assert (
        [r.finish_reason for r in results] == [r.finish_reason for r in plain] == ["stop", "length", "length"]
    )
    assert [len(r.acceptance_lengths) for r in results] == [len(r.output_ids) - 1 for r in results]
    # Rows end one after the other; the one that the prefill ended took no step.
    assert prefill > 0 and seconds[1] == 0 < seconds[0] < seconds[2]
