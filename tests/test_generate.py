"""The command line, run in this process on a small trained pair whose reference outputs are known."""

import json
import shlex
import shutil

import jax
import pytest
import tokenizers
from jax.experimental.compilation_cache import compilation_cache
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import jddtree.generate
from jddtree.decoder import Decoder, Generation
from jddtree.exactness import Exactness
from jddtree.generate import device, main, parse, summary
from tests import tiny

TARGET, DRAFTER = tiny.TRAINED / "target", tiny.TRAINED / "drafter"
PAIR = ["--target", str(TARGET), "--drafter", str(DRAFTER)]
PLAIN = ["--target", str(TARGET), "--method", "ar"]
RUNS = json.loads((tiny.TRAINED / "runs.json").read_text())


def reference(method: str, budget: int | None = None, stop: list[int] | None = None) -> dict:
    """A run of the reference on prompt 2, 48 tokens."""
    return next(
        run
        for run in RUNS["runs"]
        if (run["prompt_index"], run["method"], run["budget"], run["stop_token_ids"])
        == (2, method, budget, stop)
    )


IDS = RUNS["prompts"][2]
OUTPUT = reference("ar")["output_ids"]
PROMPT = ["--prompt-ids", json.dumps(IDS), "--max-new-tokens", "48"]


@pytest.fixture(scope="module", autouse=True)
def cache_home(tmp_path_factory):
    """Conversions and compiled programs are kept for this file; the settings that `run` makes end with it."""
    home = tmp_path_factory.mktemp("home")
    kept = {
        name: getattr(jax.config, name)
        for name in ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        # Both folders are converted here, so that no test's standard error tells of it.
        assert main([*PAIR, "--prompt-ids", "[1]", "--max-new-tokens", "1", "--budget", "0"]) == 0
        yield home
    for name, value in kept.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def call(capsys):
    """Run the command line: exit status, standard output, lines of standard error."""

    def run(*words: str) -> tuple[int, str, list[str]]:
        capsys.readouterr()
        status = main(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err.splitlines()

    return run


def refused(result: tuple[int, str, list[str]]) -> str:
    """The one line that a bad input comes to."""
    status, out, lines = result
    assert (status, out, len(lines)) == (2, "", 1), lines
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give one prompt"),
        (["hi", "--prompt-ids", "[1]"], "give one prompt"),
        (["hi", "--budget", "-1"], "--budget must be 0 or more, not -1"),
        (["hi", "--budget", "two"], "--budget"),
        (["hi", "--budget", "4", "--method", "chain"], "--budget belongs to --method tree, not to chain"),
        (["hi", "--budget", "4", "--method", "ar"], "--budget belongs to --method tree, not to ar"),
        (["hi", "--topk", "2", "--method", "chain"], "--topk belongs to --method tree"),
        (["hi", "--topk", "0"], "--topk must be 1 or more"),
        (["hi", "--max-new-tokens", "0"], "--max-new-tokens must be 1 or more"),
        (["hi", "--max-new-tokens", str(2**31)], "--max-new-tokens must be"),
        (["hi", "--max-context", "0"], "--max-context must be 1 or more"),
        (["hi", "--method", "beam"], "--method"),
        (["hi", "--nope"], "--nope"),
        (["hi", "--trace"], "add --json"),
        (["hi", "--target", str(TARGET)], "--target needs its --drafter for --method tree"),
        (["hi", "--drafter", str(DRAFTER)], "--drafter needs the --target"),
        (["hi", *PAIR, "--method", "ar"], "--method ar uses no --drafter"),
        (["hi", "--target", "/nowhere", "--drafter", str(DRAFTER)], "/nowhere does not exist"),
        (["hi", "--target", str(DRAFTER), "--method", "ar"], "not a target: pass it as --drafter"),
        (["hi", "--target", str(TARGET), "--drafter", str(TARGET)], "no DFlash drafter"),
        (["hi", *PAIR], "has no tokenizer: pass --prompt-ids instead of text"),
        ([*PAIR, "--prompt-ids", "[1,"], "--prompt-ids must be a JSON list"),
        ([*PAIR, "--prompt-ids", '{"a": 1}'], "--prompt-ids must be a JSON list"),
        ([*PAIR, "--prompt-ids", "[1, 2.5]"], "--prompt-ids must be a JSON list"),
        ([*PAIR, "--prompt-ids", "[true]"], "--prompt-ids must be a JSON list"),
        ([*PAIR, "--prompt-ids", "@/nowhere"], "/nowhere cannot be read"),
        ([*PAIR, "--prompt-ids", "[]"], "the prompt is empty"),
        ([*PAIR, "--prompt-ids", "[1, 160]"], "token id 160 is outside the vocabulary, 0 to 159"),
        ([*PAIR, "--prompt-ids", "[-1]"], "token id -1 is outside the vocabulary"),
        ([*PAIR, "--prompt-ids", "[1, 2, 3]", "--max-context", "3"], "the context of 3 leaves no room"),
        ([*PAIR, "--prompt-ids", json.dumps([1] * 512)], "the context of 512 leaves no room"),
        ([*PAIR, "--prompt-ids", "[1]", "--stop-ids", "7"], "--stop-ids must be a JSON list"),
        ([*PAIR, *PROMPT, "--json", "/nowhere/a.json"], "--json: /nowhere/a.json cannot be written"),
        ([*PAIR, *PROMPT, "--json", "/"], "--json: / cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_status_2(call, words, reason):
    assert reason in refused(call(*words))


def test_a_truncated_weight_file_is_bad_input(call, tmp_path):
    folder = tmp_path / "target"
    shutil.copytree(TARGET, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors" in refused(
        call("--target", str(folder), "--method", "ar", "--prompt-ids", "[1]")
    )


def test_a_tree_verified_and_traced_with_the_json_alone_on_standard_output(call):
    run = reference("ddtree", 7)
    status, out, lines = call(*PAIR, *PROMPT, "--budget", "7", "--verify", "--trace", "--json", "-")
    assert status == 0
    record = json.loads(out)
    seconds, exact, trace = record.pop("seconds"), record.pop("exact"), record.pop("trace")
    lengths = record.pop("acceptance_lengths")
    assert set(seconds) == {"load", "compile", "prefill", "decode"} and min(seconds.values()) > 0
    assert record.pop("tokens_per_second") == pytest.approx(47 / seconds["decode"])
    assert record == {
        "prompt_ids": IDS,
        "output_ids": OUTPUT,
        "text": None,
        "finish_reason": "length",
        "method": "tree",
        "budget": 7,
        "topk": None,
        "committed_per_round": sum(lengths) / len(lengths),
        "device": jax.devices()[0].device_kind,
        "dtype": "float32",
        "kernels": {"tree_attention": "xla"},
    }
    total, kept = 1, []
    for length in run["acceptance_lengths"]:
        kept += [length] if total < 48 else []
        total += length
    assert lengths == kept
    assert exact == {"checked": True, "equal": True, "first_divergence": None, "gap": None}
    for entry, golden in zip(trace[:3], run["rounds"], strict=False):
        assert entry["accepted"] == golden["accepted_indices"]
        assert entry["tokens"][1:] == golden["node_token_ids"]
        assert entry["parents"] == golden["parents"]
        assert entry["depths"][1:] == golden["node_depths"]
    # What a reader sees: the ids, one line of figures, and the verdict.
    assert lines[0].split() == [str(token) for token in OUTPUT]
    assert lines[1].startswith(f"[48 tokens (length), {len(lengths)} rounds | ")
    assert "tree_attention: xla" in lines[1] and "compile" in lines[1]
    assert lines[2:] == ["verify: equal to plain decoding"]


def test_a_chain_is_the_references(call):
    _, out, _ = call(*PAIR, *PROMPT, "--method", "chain", "--json", "-")
    record, run = json.loads(out), reference("dflash")
    assert record["output_ids"] == OUTPUT
    assert record["acceptance_lengths"] == run["acceptance_lengths"][: len(record["acceptance_lengths"])]
    assert (record["method"], record["budget"]) == ("chain", None)
    assert record["exact"] == {"checked": False, "equal": None, "first_divergence": None, "gap": None}


def test_plain_decoding_needs_no_drafter_and_a_file_takes_the_json(call, tmp_path):
    (tmp_path / "ids.json").write_text(json.dumps(IDS))
    destination = tmp_path / "out.json"
    words = ["--prompt-ids", f"@{tmp_path / 'ids.json'}", "--max-new-tokens", "48"]
    status, out, lines = call(*PLAIN, *words, "--json", str(destination))
    assert (status, len(lines)) == (0, 1)
    assert out.split() == [str(token) for token in OUTPUT]
    record = json.loads(destination.read_text())
    assert record["output_ids"] == OUTPUT and set(record["acceptance_lengths"]) == {1}
    assert "trace" not in record


def test_one_token_has_no_round_and_no_rate(call):
    status, out, _ = call(*PLAIN, *PROMPT[:2], "--max-new-tokens", "1", "--json", "-")
    record = json.loads(out)
    assert (status, record["output_ids"], record["finish_reason"]) == (0, OUTPUT[:1], "length")
    assert record["acceptance_lengths"] == []
    assert record["committed_per_round"] is None and record["tokens_per_second"] is None


def test_stop_ids_come_from_the_flag_and_the_folder(call, tmp_path):
    stopped = reference("ar", stop=[102])["output_ids"]
    _, out, _ = call(*PLAIN, *PROMPT, "--stop-ids", "[102]", "--json", "-")
    assert (json.loads(out)["output_ids"], json.loads(out)["finish_reason"]) == (stopped, "stop")
    folder = tmp_path / "target"
    shutil.copytree(TARGET, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 102]}')
    plain = ["--target", str(folder), "--method", "ar", *PROMPT, "--json", "-"]
    assert json.loads(call(*plain)[1])["output_ids"] == stopped
    assert json.loads(call(*plain, "--ignore-eos")[1])["output_ids"] == OUTPUT
    # What is asked for by hand stays.
    both = json.loads(call(*plain, "--ignore-eos", "--stop-ids", "[102]")[1])
    assert both["output_ids"] == stopped


def test_text_goes_through_the_template_and_streams_as_it_decodes(call, tmp_path):
    folder = tmp_path / "target"
    shutil.copytree(TARGET, folder)
    words = tokenizers.Tokenizer(WordLevel({f"w{token}": token for token in range(160)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "w1 {{ messages[0].content }}{% if thinking %} w9{% endif %} w2"
    )
    base = ["--target", str(folder), "--method", "ar", "--max-new-tokens", "12"]
    status, out, _ = call(*base, "w5 w7", "--json", str(tmp_path / "out.json"))
    record = json.loads((tmp_path / "out.json").read_text())
    assert (status, record["prompt_ids"]) == (0, [1, 5, 7, 2])
    assert record["text"] == " ".join(f"w{token}" for token in record["output_ids"])
    assert out == record["text"] + "\n"
    for more, ids in ((["--thinking", "on"], [1, 5, 7, 9, 2]), (["--raw"], [5, 7])):
        assert json.loads(call(*base, "w5 w7", *more, "--json", "-")[1])["prompt_ids"] == ids


@pytest.fixture
def plain_decoding_errs(monkeypatch):
    """Plain decoding gives another token at index 3, where its two best logits are 0.5 apart."""
    real = Decoder.decode

    def decode(self, *arguments, **wishes):
        for rows in real(self, *arguments, **wishes):
            if self.method.name == "ar" and len(rows[0].output_ids) > 3:
                rows[0].output_ids[3] = 0
                rows[0].margins[3] = 0.5
            yield rows

    monkeypatch.setattr(Decoder, "decode", decode)


def test_a_difference_is_shown_with_its_gap_and_a_command(call, plain_decoding_errs, monkeypatch):
    words = [*PAIR, *PROMPT, "--budget", "7", "--stop-ids", "[159]"]
    status, out, lines = call(*words, "--verify", "--json", "-")
    record = json.loads(out)
    assert status == 1 and record["output_ids"] == OUTPUT
    assert record["exact"] == {"checked": True, "equal": False, "first_divergence": 3, "gap": 0.5}
    verdict, command = lines[-2:]
    assert verdict.startswith("verify: differs from plain decoding at output token 3")
    assert "5.00e-01" in verdict and verdict.endswith(": bug")
    program = shlex.split(command.removeprefix("reproduce: "))
    assert program[:3] == ["python", "-m", "jddtree.generate"]
    monkeypatch.undo()
    status, out, _ = call(*program[3:])
    assert status == 0
    assert json.loads(out)["output_ids"] == OUTPUT[:4]


@pytest.mark.parametrize(("dtype", "gap", "status"), [("float32", 5e-5, 1), ("bfloat16", 0.1, 0)])
def test_only_a_near_tie_in_bfloat16_is_excused(call, monkeypatch, dtype, gap, status):
    found = Exactness(checked=True, equal=False, first_divergence=1, gap=gap)
    monkeypatch.setattr(jddtree.generate, "compare", lambda *outputs: found)
    words = ["--prompt-ids", "[1, 2]", "--max-new-tokens", "2", "--dtype", dtype, "--verify"]
    result, _, lines = call(*PLAIN, *words)
    assert result == status
    assert lines[-2] == f"verify: {found.verdict(dtype)}"


def test_an_interrupt_leaves_the_text_and_the_json_so_far(call, monkeypatch):
    real = Decoder.decode

    def decode(self, *arguments, **wishes):
        for step, rows in enumerate(real(self, *arguments, **wishes)):
            if step == 2:
                raise KeyboardInterrupt
            yield rows

    monkeypatch.setattr(Decoder, "decode", decode)
    status, out, lines = call(*PLAIN, *PROMPT, "--verify", "--json", "-")
    record = json.loads(out)
    assert status == 130
    assert record["finish_reason"] == "interrupted"
    assert 1 < len(record["output_ids"]) < 48
    assert record["output_ids"] == OUTPUT[: len(record["output_ids"])]
    assert lines[0].split() == [str(token) for token in record["output_ids"]]
    assert not record["exact"]["checked"] and "verify" not in "".join(lines)


def test_an_interrupt_before_the_first_token_is_one_line(call, monkeypatch):
    def load_pair(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(jddtree.generate, "load_pair", load_pair)
    assert call(*PLAIN, *PROMPT) == (130, "", ["interrupted before the first token"])


def test_a_summary_without_rounds_has_no_rates():
    line = summary(Generation([1], [0.5], finish_reason="stop"), {"compile": 2.0}, {"a": "xla"})
    assert line == f"[1 tokens (stop), 0 rounds | compile 2.0 s | {device()} | a: xla]"


def test_defaults_are_a_tree_of_sixteen_on_the_bundled_pair():
    flags = parse(["hi"])
    assert (flags.method, flags.target, flags.drafter, flags.budget) == ("tree", None, None, None)
    assert (jddtree.generate.DEFAULT_BUDGET, flags.max_new_tokens, flags.thinking) == (16, 256, "off")
