"""The command line on a small trained pair: what it writes, going on, and what it refuses."""

import json

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jddtree.sweep import __main__ as sweep
from jddtree.sweep import journal
from tests import tiny

PAIR = ["--target", str(tiny.TRAINED / "target"), "--drafter", str(tiny.TRAINED / "drafter")]
RUNS = json.loads((tiny.TRAINED / "runs.json").read_text())
GRID = ["--methods", "ar-stepwise", "tree", "--budgets", "3", "--topk", "none", "2"]
SMALL = ["--concurrency", "2", "--max-new-tokens", "8", "--repetitions", "2", "--no-stages"]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """Conversions and compiled programs are kept for this file; the settings of a run end with it."""
    folder = tmp_path_factory.mktemp("home")
    kept = {
        name: getattr(jax.config, name)
        for name in ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
    for name, value in kept.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def call(capsys):
    """Run the command line: exit status, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = sweep.main(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


@pytest.fixture(scope="module")
def measured(home):
    """A finished sweep and the words that made it."""
    prompts = home / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in RUNS["prompts"][:3]))
    words = [*PAIR, *GRID, *SMALL, "--prompts", str(prompts), "--out", str(home / "sweep.jsonl")]
    assert sweep.main([*words, "--temperatures", "0", "1"]) == 0
    return home / "sweep.jsonl", [*words, "--temperatures", "0", "1"]


def test_every_cell_is_exact_and_has_its_figures(measured):
    about, *cells = map(json.loads, measured[0].read_text().splitlines())
    assert about["prompts"]["count"] == 3 and str(measured[0]) not in about["commands"][0]
    assert [(c["cell"]["temperature"], c["name"]) for c in cells] == [
        (0, "ar"), (0, "ar-stepwise"), (0, "tree(3)"), (0, "tree(3, topk 2)"),
        (1, "ar"), (1, "tree(3)"), (1, "tree(3, topk 2)"),
    ]  # fmt: skip
    greedy = {
        run["prompt_index"]: run["output_ids"][:8]
        for run in RUNS["runs"]
        if run["method"] == "ar" and not run["stop_token_ids"]
    }
    for cell in cells:
        # Three prompts two at a time: the last batch is filled up.
        assert cell["texts"] == 4 and cell["exact"] == {
            "equal": 4, "ties": 0, "bugs": 0, "largest_tie_gap": None, "first_bug": None
        }  # fmt: skip
        assert cell["tokens"] == 4 * 7
        assert len(cell["repetitions"]) == 2 and min(cell["repetitions"]) > 0
        assert cell["interval"][0] <= cell["tokens_per_second"] <= cell["interval"][1]
        assert cell["sign_test"]["wins"] + cell["sign_test"]["losses"] <= 2 * 2
        assert cell["bytes_per_round"] > 0 and cell["program_bytes"] > 0 and cell["round_ms"] > 0
        assert (cell["committed_per_round"] > 1) == (cell["cell"]["method"] == "tree")
        assert (cell["outputs"] is not None) == (cell["name"] == "ar")
    texts = [text["output_ids"] for text in cells[0]["outputs"]]
    assert len(texts) == 3 and texts[1:] == [greedy[1], greedy[2]]


def test_the_same_command_goes_on_with_what_is_missing(measured, call, monkeypatch):
    file, words = measured
    whole = file.read_text().splitlines(keepends=True)
    # A run that was cut off while it wrote its last but one line.
    file.write_text("".join(whole[:-2]) + whole[-2][:40])
    seen = []
    real = sweep.measure
    monkeypatch.setattr(
        sweep,
        "measure",
        lambda engine, tasks, group, *rest, **more: (
            seen.append(group) or real(engine, tasks, group, *rest, **more)
        ),
    )
    status, out, err = call(*words)
    assert (status, "holds 5 of 7 cells: going on" in err) == (0, True), err
    assert "tree(3, topk 2)" in out
    assert [[cell.name for cell in group.cells] for group in seen] == [["ar", "tree(3)", "tree(3, topk 2)"]]
    again = file.read_text().splitlines(keepends=True)
    assert again[:6] == whole[:6] and len(again) == len(whole)
    seen.clear()
    assert call(*words)[0] == 0 and not seen
    status, _, err = call(*words, "--max-new-tokens", "9")
    assert status == 2 and "holds a sweep of other prompts" in err
    # Another grid adds its cells, in their place; the report is of all.
    status, out, err = call(*words[:-3], "--temperatures", "0", "--methods", "chain")
    assert (status, "holds 1 of 2 cells, and 6 others: going on" in err) == (0, True), err
    assert [[cell.name for cell in group.cells] for group in seen] == [["ar", "chain"]]
    whole = journal.read(file)
    assert [entry["name"] for entry in whole.cells[:3]] == ["ar", "ar-stepwise", "chain"]
    assert len(whole.cells) == 8 and len(whole.environment["commands"]) == 2
    assert out.count("tree(3, topk 2)") == 2


def test_a_report_needs_no_models_and_says_what_is_inexact(measured, call, tmp_path):
    pytest.importorskip("matplotlib")
    entries = list(map(json.loads, measured[0].read_text().splitlines()))
    assert call("--from", str(measured[0]), "--report", str(tmp_path / "a"))[0] == 0
    entries[-1]["exact"] |= {"equal": 3, "bugs": 1, "first_bug": "differs: bug"}
    broken = tmp_path / "broken.jsonl"
    broken.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    status, out, _ = call("--from", str(broken), "--report", str(tmp_path / "b"))
    assert status == 1 and "INEXACT" in out
    assert "INEXACT" in (tmp_path / "b" / "report.md").read_text()
    assert "INEXACT, and" not in (tmp_path / "a" / "report.md").read_text()
    broken.write_text(json.dumps(entries[0]) + "\n")
    status, out, err = call("--from", str(broken), "--report", str(tmp_path / "c"))
    assert (status, out, (tmp_path / "c").exists()) == (2, "", False) and "no finished cell" in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--methods", "beam"], "'beam' is none of"),
        (["--budgets", "0"], "--budgets must be 1 or more"),
        (["--topk", "x"], "a number or none, not 'x'"),
        (["--topk", "0"], "--topk must be 1 or more"),
        (["--concurrency", "0"], "--concurrency must be 1 or more"),
        (["--repetitions", "0"], "--repetitions must be 1 or more"),
        (["--temperatures", "-1"], "temperature"),
        (["--bandwidth", "0"], "--bandwidth must be above 0"),
        (PAIR[:2], "--target needs its --drafter for method chain"),
        (["--target", "smolm2"], "smolm2 does not exist"),
        (PAIR[2:], "--drafter needs the --target"),
        ([*PAIR, "--methods", "ar"], "the methods use no --drafter"),
        (["--from", "a"], "--from needs --report"),
        (["--report", __file__], "is a file: name a folder"),
        (["--from", "/nowhere", "--report", "b"], "/nowhere cannot be read"),
        (["--from", "a", "--report", "b", "--no-stages"], "--from measures nothing: leave out --no-stages"),
        (["--from", "a", "--report", "b", "--budgets", "4"], "leave out --budgets"),
        (["--prompts", "/nowhere"], "/nowhere cannot be read"),
        ([*PAIR], "has no tokenizer: give token ids"),
    ],
)
def test_bad_input_is_one_line_and_status_2(call, words, reason):
    status, out, err = call(*words)
    lines = [line for line in err.splitlines() if not line.startswith("Converting")]
    assert (status, out, len(lines)) == (2, "", 1) and reason in lines[0]


def test_without_matplotlib_a_report_is_refused_before_anything_runs(call, monkeypatch):
    monkeypatch.setattr(sweep.report.importlib.util, "find_spec", lambda name: None)
    status, _, err = call("--report", "somewhere")
    assert status == 2 and "pip install 'jddtree[report]'" in err
