"""The bench of whole rounds at toy size: figures of every program, and rounds held to plain steps."""

import json

import pytest

from jddtree.errors import InputError
from scripts import bench_round


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


def test_passes_of_a_part_of_kimi(capsys):
    bench_round.main(["--model", "k2.6-tp8", "--quick", "--widths", "3"])
    _, _, plain, wide, check = lines(capsys)
    assert [(each["program"], each["slots"]) for each in (plain, wide)] == [("plain step", 1), ("verify", 3)]
    for each in (plain, wide):
        assert each["ms"] > 0 and each["implementations"]["grouped_matmul"] == "xla"
    # Every token goes to two experts; so few read less than many.
    assert plain["experts"] == plain["experts_if_uniform"] == 2 < wide["experts"] <= 6
    assert plain["bytes"] < wide["bytes"]
    assert check["sound"] and check["worst"] < 1e-5 and check["same_likeliest"] == 1


def test_rounds_and_stages_of_a_pair(capsys):
    bench_round.main(["--model", "qwen3-4b", "--quick", "--layers", "1", "--budgets", "2"])
    _, _, *found = lines(capsys)
    programs = [each["program"] for each in found if "program" in each]
    stages = ["draft", "build", "verify", "accept", "commit"]
    assert programs == ["plain step", "chain", "tree", *stages, "empty turn"]
    checks = [each for each in found if "check" in each]
    assert [each["check"] for each in checks] == ["chain", "tree", "verify"]
    assert all(each["verdict"] == "equal to plain decoding" for each in checks)


def test_too_few_layers_are_refused():
    with pytest.raises(InputError, match=r"--layers must be 2 or more for k2.6-tp8, not 1"):
        bench_round.main(["--model", "k2.6-tp8", "--layers", "1"])
