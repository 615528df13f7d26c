"""Prompts with wishes from JSONL: all kinds come through, and each mistake is one line with its place."""

import json

import pytest

from jddtree.engine import Engine
from jddtree.errors import InputError
from jddtree.prompts import Wishes, batches, read_prompts
from jddtree.sampling import GREEDY, Sample

DEFAULTS = Wishes(max_new_tokens=20, temperature=0.5, stop=("x",))


@pytest.fixture
def read(tmp_path):
    def make(*lines: str | dict):
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return read_prompts(path, DEFAULTS)

    return make


@pytest.fixture(scope="module")
def engine(trained) -> Engine:
    return Engine(trained, budget=6)


def test_all_kinds_of_prompts_with_wishes_of_their_own(read, tmp_path):
    message = {"role": "user", "content": "hé"}
    own = {"max_new_tokens": 3, "temperature": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7, "n": 2}
    own |= {"budget": 4, "topk": 2, "stop": ["a", "b"], "stop_ids": [1, 2], "ignore_eos": True, "raw": True}
    own |= {"thinking": True, "specials": True}
    third = {"messages": [message], "id": "a/3", **own}
    found = read({"prompt": "hé"}, "", {"prompt_ids": [4, 5], "stop": "y"}, third)
    prompts, wishes, names = zip(*found, strict=True)
    assert prompts == ("hé", [4, 5], [message])
    # Lines are counted as an editor counts them.
    assert names == (*(f"{tmp_path / 'prompts.jsonl'}, line {number}" for number in (1, 3)), "a/3")
    assert wishes[0] == DEFAULTS
    assert wishes[1] == Wishes(max_new_tokens=20, temperature=0.5, stop=("y",))
    assert wishes[2] == Wishes(**{**own, "temperature": 1.0, "stop": ("a", "b"), "stop_ids": (1, 2)})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ({}, "needs one of prompt, prompt_ids, messages"),
        ({"prompt": "a", "prompt_ids": [1]}, "needs one of prompt, prompt_ids, messages"),
        ({"prompt": 3}, "prompt must be text"),
        ({"prompt": "a", "id": [1]}, "id must be text or a number"),
        ({"prompt_ids": [1, 2.5]}, "prompt_ids must be a JSON list of token ids"),
        ({"prompt_ids": [True]}, "prompt_ids must be a JSON list of token ids"),
        ({"messages": []}, "messages must be a JSON list of messages"),
        ({"messages": [{"content": "a"}]}, "messages must be a JSON list of messages"),
        ({"prompt": "a", "max_tokens": 3}, "unknown key 'max_tokens'; known: prompt, prompt_ids"),
        ({"prompt": "a", "max_new_tokens": 2.5}, "max_new_tokens must be int"),
        ({"prompt": "a", "max_new_tokens": True}, "max_new_tokens must be int"),
        ({"prompt": "a", "ignore_eos": 1}, "ignore_eos must be bool"),
        ({"prompt": "a", "temperature": "1"}, "temperature must be int or float"),
        ({"prompt": "a", "stop": [1]}, "stop must be text or a list of texts"),
        ({"prompt": "a", "stop_ids": ["1"]}, "stop_ids must be a JSON list of token ids"),
    ],
)
def test_a_malformed_line_is_named(read, line, reason):
    with pytest.raises(InputError) as caught:
        read({"prompt": "fine"}, line)
    message = str(caught.value)
    assert "prompts.jsonl, line 2: " in message and reason in message and "\n" not in message


def test_only_line_feeds_end_a_line(read):
    text = "a\u2028b\x85c"
    [(prompt, _, _)] = read('{"prompt": "' + text + '"}\r\n')
    assert prompt == text


def test_a_file_that_cannot_be_used_is_named(read, tmp_path):
    with pytest.raises(InputError, match=r"prompts.jsonl holds no prompts"):
        read("", "  ")
    with pytest.raises(InputError, match=r"nowhere cannot be read"):
        read_prompts(tmp_path / "nowhere", DEFAULTS)
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(InputError, match=r"latin cannot be read"):
        read_prompts(tmp_path / "latin", DEFAULTS)


def test_samples_of_one_prompt_have_seeds_in_a_row(engine):
    tasks = Wishes(temperature=0.5, top_k=4, seed=8, n=3, budget=2).tasks(engine, [1, 2], "mine", 50)
    assert [task.policy for task in tasks] == [Sample(0.5, top_k=4, seed=seed) for seed in (8, 9, 10)]
    assert {(tuple(task.prompt), task.name, task.max_context, task.budget) for task in tasks} == {
        ((1, 2), "mine", 50, 2)
    }
    [greedy] = Wishes(max_new_tokens=5, stop=("a",), stop_ids=(7,)).tasks(engine, "ab", "mine", None)
    assert greedy.policy == GREEDY
    assert (greedy.prompt, greedy.max_new, greedy.stop_strings) == ([65, 66], 5, ("a",))


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        (Wishes(max_new_tokens=0), "max_new_tokens must be 1 or more"),
        (Wishes(topk=0), "topk must be 1 or more"),
        (Wishes(n=0, temperature=1.0), "n must be 1 or more"),
        (Wishes(n=2), "at temperature 0 all 2 samples would be the same"),
        (Wishes(top_k=3), "top-k, top-p and min-p need a temperature above 0"),
        (Wishes(temperature=-1.0), "temperature must be a finite number"),
        (Wishes(temperature=1.0, seed=2**32 - 1, n=2), "seed must be a whole number"),
        (Wishes(budget=7), "budget must be 0 to 6, not 7"),
        (Wishes(stop=("",)), "a stop string is empty"),
    ],
)
def test_wishes_out_of_range_name_the_prompt(engine, wishes, reason):
    with pytest.raises(InputError) as caught:
        wishes.tasks(engine, [1], "line 4", None)
    assert str(caught.value).startswith("line 4: ") and reason in str(caught.value)


def test_tasks_go_into_batches_in_order(engine):
    tasks = [engine.task([token]) for token in range(1, 6)]
    groups = batches(tasks, 2)
    assert [len(group) for group in groups] == [2, 2, 1]
    assert [task for group in groups for task in group] == tasks
