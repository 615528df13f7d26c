import importlib.util
import json
from pathlib import Path

import pytest

from jddtree import load
from jddtree.errors import InputError
from jddtree.plan.__main__ import main
from jddtree.plan.report import agrees, compiled_text
from tests import tiny

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
MINI = f"--target {CHECKPOINTS / 'k2-mini'} --drafter {CHECKPOINTS / 'k2-mini-dflash'}"


def planned(tmp_path: Path, *arguments: str) -> tuple[int, dict]:
    file = tmp_path / "plan.json"
    status = main([*arguments, "--json", str(file)])
    return status, json.loads(file.read_text())


def test_kimi_on_eight_gpus(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    status, plan = planned(tmp_path, "--topology", "8x-rtx-pro-6000", "--budgets", "32", "8", "8")
    assert status == 0 and plan["device"]["fits"]
    assert [each["budget"] for each in plan["rounds"]] == [8, 32]
    budget8 = plan["rounds"][0]
    verify, cache_ms = budget8["verify"], 1e3 * 4096 * 70_272 / 1792e9
    assert 1e3 * verify["weights_seconds"] == pytest.approx(9.41, abs=0.01)
    assert 1e3 * verify["evenly_seconds"] == pytest.approx(8.34 + cache_ms / 8, abs=0.01)
    assert 1e3 * (verify["seconds"] - verify["weights_seconds"]) == pytest.approx(cache_ms, rel=1e-6)
    read = verify["total"] + plan["draft"]["total"]
    assert budget8["tokens_to_beat_plain"] == pytest.approx(read / plan["plain"]["total"])
    shown = capsys.readouterr().out
    assert "attention" in shown and "3.16" in shown and "It fits: " in shown
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in shown  # 78 GB are over what JAX takes by default


def test_what_does_not_fit_says_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    status, plan = planned(tmp_path, "--topology", "v6e:4x4", "--drafter", "none", "--budgets", "8")
    assert status == 1
    over = plan["device"]["total"] - plan["device"]["memory"]
    assert plan["device"]["to_spare"] == -over
    assert f"does not fit: {over / 1e9:.2f} GB too much" in capsys.readouterr().out


def test_the_bundled_pair_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    status, plan = planned(
        tmp_path, *MINI.split(), "--layout", "tp8", "--context", "1000", "--dtype", "float32"
    )
    assert status == 0
    assert plan["device"]["fits"] is None and plan["plain"]["seconds"] is None  # nothing is known of a CPU
    assert plan["rounds"][0]["tokens_to_beat_plain"] > 1
    assert "not known" in capsys.readouterr().out


def test_json_alone_on_standard_output(capsys: pytest.CaptureFixture) -> None:
    flags = ["--target", str(CHECKPOINTS / "k2-mini"), "--topology", "8x-h200", "--json", "-"]
    assert main(flags) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["drafter"] is None and plan["draft"] is None


def test_a_named_target_has_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(load, "smollm2_file", lambda: CHECKPOINTS / "k2-mini")
    monkeypatch.setattr(load, "BUNDLED", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-dflash").symlink_to(CHECKPOINTS / "k2-mini-dflash")
    status, plan = planned(tmp_path, "--target", "smollm2", "--topology", "8x-h200", "--budgets", "8")
    assert (status, plan["target"], plan["drafter"]) == (0, "smollm2", str(tmp_path / "smollm2-dflash"))
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--topology nowhere", "--topology 'nowhere' is not known: "),
        ("--topology 8x-h200 --layout tp4", "layout tp4 takes 4 devices; 8x-h200 has 8"),
        ("--topology 8x-h200 --layout 8tp", "layout 8tp: "),
        (f"{MINI} --topology 5x-h200", "layout tp5: the target's attention heads (8) cannot be cut 5 ways"),
        (f"{MINI} --topology 8x-h200 --layout dp8", "--batch 1 cannot be shared out over dp8"),
        ("--batch 0", "--batch must be 1 or more, not 0"),
        ("--context -1", "--context must be 1 or more, not -1"),
        (f"{MINI} --layout tp8 --context 262145", "--context 262145 is over the 262144 tokens"),
        ("--budgets 8 0", "--budgets must be 1 or more, not 0"),
        ("--target no-such-folder", "no-such-folder holds no config.json"),
        (f"--target {CHECKPOINTS / 'k2-mini-dflash'}", "pass it as --drafter"),
        (f"--target {CHECKPOINTS / 'k2-mini'} --drafter kimi-k2.6-dflash --layout tp8", "does not fit"),
    ],
)
def test_bad_input_is_one_line(arguments: str, message: str, capsys: pytest.CaptureFixture) -> None:
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out


KIMI = tiny.KIMI | {
    "vocab_size": 640,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "moe_intermediate_size": 256,
    "n_routed_experts": 8,
    "quantization_config": {"format": "pack-quantized"},
}
DFLASH = tiny.DFLASH | {
    "vocab_size": 640,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_target_layers": 3,
    "dflash_config": {"mask_token_id": 63, "target_layer_ids": [0, 2]},
}


def configs(tmp_path: Path) -> list[str]:
    """Flags for a tiny pair."""
    for name, config in (("target", KIMI), ("drafter", DFLASH)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    sizes = "--batch 2 --context 64 --dtype float32 --budgets 3".split()
    return ["--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "drafter"), *sizes]


@pytest.mark.parametrize(
    ("flags", "name"),
    [("--layout ep2xtp2xdp2", "round of 3"), ("--layout pp2xtp4 --drafter none", "plain step")],
)
def test_programs_take_the_arguments_that_are_planned(
    flags: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    status, plan = planned(tmp_path, *configs(tmp_path), *flags.split(), "--compile")
    assert status == 0
    round_, prefill = plan["programs"]
    held = plan["device"]["bytes"]
    assert round_["arguments"] == pytest.approx(sum(held.values()) - held["scratch, estimated"], rel=0.02)
    assert round_["collectives"]["all-reduce"]["count"] >= plan["plain"]["sums"]["count"]
    assert prefill["total"] > prefill["arguments"] > 0
    assert f"{name}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("topology", "compiler"), [("v5p:2x2x1", "libtpu"), ("4x-rtx-pro-6000", "jax_plugins.xla_cuda13")]
)
def test_a_machine_that_is_not_here(topology: str, compiler: str, tmp_path: Path) -> None:
    if not installed(compiler):
        pytest.skip(f"{compiler} is not installed")
    status, plan = planned(tmp_path, *configs(tmp_path), "--topology", topology, "--compile")
    assert status == 0 and plan["layout"] == "tp4"
    assert [program["collectives"]["all-reduce"]["count"] > 0 for program in plan["programs"]] == [True, True]


def test_without_a_compiler_the_rest_of_the_plan_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def missing(*job: object) -> None:
        raise InputError("no compiler")

    monkeypatch.setattr("jddtree.plan.__main__.compiled", missing)
    status, plan = planned(tmp_path, *configs(tmp_path), "--topology", "4x-h200", "--compile")
    shown = capsys.readouterr()
    assert status == 2 and shown.err == "error: no compiler\n" and "It fits" in shown.out
    assert plan["device"]["fits"] and "programs" not in plan


def test_weights_in_another_form_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    flags = configs(tmp_path)
    stored = {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "target" / "config.json").write_text(json.dumps(KIMI | stored))
    assert main([*flags, "--layout", "tp8"]) == 2
    assert "weights in the form 'fp8' are not supported" in capsys.readouterr().err


def test_a_cut_through_groups_of_int4_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    flags = configs(tmp_path)
    narrow = KIMI | {"moe_intermediate_size": 128}
    (tmp_path / "target" / "config.json").write_text(json.dumps(narrow))
    assert main([*flags, "--layout", "tp8"]) == 2
    assert "breaks INT4 groups of 32" in capsys.readouterr().err


def test_a_program_that_does_not_fit_says_so() -> None:
    plan = {"platform": "cuda", "device": {"total": 100, "memory": 90, "bytes": {"scratch, estimated": 20}}}
    sizes = {
        "arguments": 80,
        "results": 5,
        "temporaries": 15,
        "total": 100,
        "seconds": 1.0,
        "collectives": {},
    }
    plan["programs"] = [{"program": "round of 8", **sizes}, {"program": "round of 9", "error": "OOM"}]
    shown = [part for part in compiled_text(plan) if isinstance(part, str)]
    assert any(line.startswith("round of 8: does not fit") for line in shown)
    assert "round of 9: does not fit: OOM" in shown


def test_arguments_may_be_two_percent_off_and_padded_on_tpus() -> None:
    plan = {"platform": "cuda", "device": {"total": 1100, "bytes": {"scratch, estimated": 100}}}
    for platform, arguments, agree in [
        ("cuda", 1019, True),
        ("cuda", 1030, False),
        ("tpu", 1030, True),
        ("tpu", 970, False),
    ]:
        plan["platform"] = platform
        assert agrees(plan, {"program": "round of 8", "arguments": arguments}) == agree


def installed(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
