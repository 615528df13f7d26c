"""Random models of a given size: the same whatever they are cut into, as large as planned, and timed."""

import json

import pytest

from jddtree.errors import InputError
from scripts import run_full_size
from tests import tiny


def test_a_cut_model_is_the_whole_one_and_as_large_as_planned(tmp_path, capsys):
    drafter = tiny.DFLASH | {"dflash_config": tiny.DFLASH["dflash_config"] | {"target_layer_ids": [0, 1]}}
    for name, raw in (("target", tiny.KIMI), ("drafter", drafter)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(raw))
    flags = ["--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "drafter"), "--layouts", "ep2"]
    sizes = ["--contexts", "5", "--batches", "1", "--budgets", "3", "--rounds", "1", "--dtype", "float32"]
    run_full_size.main([*flags, *sizes, "--json", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())["layouts"]["ep2"]
    assert found["layers"] == found["all_layers"] == 2
    assert found["two_layers"]["l2"] < 1e-5
    assert found["two_layers"]["ids"] == dict.fromkeys(("plain", "tree(3)"), "equal to one device's")
    assert found["weight_bytes"] == found["planned_weight_bytes"]
    assert [record["method"] for record in found["rounds"]] == ["plain", "chain", "tree(3)"]
    assert all(record["round_ms"] > 0 and record["rounds"] == 1 for record in found["rounds"])
    assert "ep2: 1 row, context 5, tree(3): " in capsys.readouterr().out


def test_numbers_below_one_are_refused():
    with pytest.raises(InputError, match="--contexts must be 1 or more"):
        run_full_size.main(["--contexts", "0"])
