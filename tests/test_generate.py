"""The command line, run in this process on a small trained pair whose reference outputs are known."""

import json
import re
import shlex
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers
from jax.experimental.compilation_cache import compilation_cache
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import jddtree.engine
import jddtree.load
from jddtree.decoder import Decoder
from jddtree.engine import DEFAULT_BUDGET, Engine
from jddtree.exactness import Exactness
from jddtree.finish import Generation
from jddtree.flags import parse
from jddtree.generate import Seconds, device, main, summary
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
        (["hi", "--target", "smolm2"], "smolm2 does not exist"),
        (["hi", "--drafter", str(DRAFTER)], "--drafter needs the --target"),
        (["hi", *PAIR, "--method", "ar"], "--method ar uses no --drafter"),
        (["hi", "--target", "/nowhere", "--drafter", str(DRAFTER)], "/nowhere does not exist"),
        (["hi", "--target", str(DRAFTER), "--method", "ar"], "not a target: pass it as --drafter"),
        (["hi", "--target", str(TARGET), "--drafter", str(TARGET)], "no DFlash drafter"),
        (["hi", *PAIR], "has no tokenizer: give token ids instead of text"),
        ([*PAIR, "--prompt-ids", "[1,"], "--prompt-ids must be a JSON list"),
        ([*PAIR, "--prompt-ids", '{"a": 1}'], "--prompt-ids must be a JSON list"),
        ([*PAIR, "--prompt-ids", "[1, 2.5]"], "--prompt-ids must be a JSON list"),
        ([*PAIR, "--prompt-ids", "[true]"], "--prompt-ids must be a JSON list"),
        ([*PAIR, "--prompt-ids", "@/nowhere"], "/nowhere cannot be read"),
        ([*PAIR, "--prompt-ids", "[]"], "the prompt is empty"),
        ([*PAIR, "--prompt-ids", "[1, 160]"], "token id 160 is outside the vocabulary, 0 to 159"),
        ([*PAIR, "--prompt-ids", "[-1]"], "token id -1 is outside the vocabulary"),
        ([*PAIR, "--prompt-ids", "[1, 2, 3]", "--max-context", "3"], "a context of 3 leaves no room"),
        ([*PAIR, "--prompt-ids", json.dumps([1] * 512)], "a context of 512 leaves no room"),
        ([*PAIR, "--prompt-ids", "[1]", "--stop-ids", "7"], "--stop-ids must be a JSON list"),
        (["hi", "--prompts", "f"], "give one prompt"),
        (["hi", "--rows", "4"], "--rows is for many prompts"),
        (["hi", "--n", "0"], "--n must be 1 or more"),
        ([*PAIR, *PROMPT, "--n", "2"], "at temperature 0 all 2 samples would be the same"),
        (["hi", "--logprobs", "0"], "--logprobs goes into the JSON: add --json"),
        ([*PAIR, *PROMPT, "--json", "-", "--logprobs", "161"], "of 0 to 160 tokens, not 161"),
        (["hi", "--raw", "--chat"], "--raw goes around the chat template"),
        (["--messages", "f", "--raw"], "--raw goes around the chat template"),
        (["hi", "--specials"], "--specials is for --raw text"),
        (["hi", "--temperature", "-1"], "temperature must be a finite number, 0 or more"),
        (["hi", "--top-p", "0.5"], "top-k, top-p and min-p need a temperature above 0"),
        (["hi", "--temperature", "1", "--top-p", "0"], "top-p must be above 0"),
        (["hi", "--temperature", "1", "--rule", "target-only", "--verify"], "--verify cannot compare"),
        ([*PAIR, *PROMPT, "--chat"], "has no chat template"),
        ([*PAIR, *PROMPT, "--stop", "x"], "stop strings need a tokenizer"),
        (["--messages", "/nowhere"], "/nowhere cannot be read"),
        (["--prompts", "/nowhere"], "/nowhere cannot be read"),
        ([*PAIR, *PROMPT, "--json", "/nowhere/a.json"], "--json: /nowhere/a.json cannot be written"),
        ([*PAIR, *PROMPT, "--json", "/"], "--json: / cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_status_2(call, words, reason):
    assert reason in refused(call(*words))


def test_a_line_that_cannot_be_verified_is_refused_before_anything_is_decoded(call, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt_ids": [1]}\n{"prompt_ids": [1], "temperature": 1}')
    words = [*PAIR, "--prompts", str(tmp_path / "prompts.jsonl"), "--rule", "target-only", "--verify"]
    assert "--verify cannot compare" in refused(call(*words))


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
    assert len(record.pop("margins")) == 48
    assert set(seconds) == {"load", "compile", "prefill", "decode"} and min(seconds.values()) > 0
    assert record.pop("tokens_per_second") == pytest.approx(47 / seconds["decode"])
    assert record == {
        "prompt_ids": IDS,
        "output_ids": OUTPUT,
        "text": None,
        "finish_reason": "length",
        "error": None,
        "usage": {"prompt_tokens": len(IDS), "completion_tokens": 48},
        "policy": {"temperature": 0.0},
        "method": "tree",
        "budget": 7,
        "topk": None,
        "committed_per_round": sum(lengths) / len(lengths),
        "device": jax.devices()[0].device_kind,
        "dtype": "float32",
        "layout": "tp1",
        "kernels": dict.fromkeys(
            ("commit", "dense_added", "dense_products", "rotary", "tree_attention", "top_k"), "xla"
        ),
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
    assert "kernels: xla]" in lines[1] and "compile" in lines[1]
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


@pytest.fixture(scope="module")
def chatty(tmp_path_factory) -> list[str]:
    """Plain decoding of the target with a tokenizer of words and a template."""
    folder = tmp_path_factory.mktemp("chatty") / "target"
    shutil.copytree(TARGET, folder)
    words = tokenizers.Tokenizer(WordLevel({f"w{token}": token for token in range(160)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "w1 {% for m in messages %}{{ m.content }} {% endfor %}{% if thinking %}w9 {% endif %}w2"
    )
    return ["--target", str(folder), "--method", "ar", "--max-new-tokens", "12"]


def test_text_goes_through_the_template_and_streams_as_it_decodes(call, chatty, tmp_path):
    status, out, _ = call(*chatty, "w5 w7", "--json", str(tmp_path / "out.json"))
    record = json.loads((tmp_path / "out.json").read_text())
    assert (status, record["prompt_ids"]) == (0, [1, 5, 7, 2])
    assert record["text"] == " ".join(f"w{token}" for token in record["output_ids"])
    assert out == record["text"] + "\n"
    chat = [{"role": "user", "content": "w5"}, {"role": "assistant", "content": "w8 w3"}]
    (tmp_path / "chat.json").write_text(json.dumps(chat))
    for words, ids in (
        (["w5 w7", "--thinking", "on"], [1, 5, 7, 9, 2]),
        (["w5 w7", "--raw"], [5, 7]),
        (["w5 w7", "--chat"], [1, 5, 7, 2]),
        (["--messages", str(tmp_path / "chat.json")], [1, 5, 8, 3, 2]),
        (["--messages", str(tmp_path / "chat.json"), "--thinking", "on"], [1, 5, 8, 3, 9, 2]),
    ):
        _, out, lines = call(*chatty, *words, "--json", "-")
        assert json.loads(out)["prompt_ids"] == ids and not any("thinking" in line for line in lines)
    template = Path(chatty[1]) / "chat_template.jinja"
    text = template.read_text()
    template.write_text(text.replace("if thinking", "if false"))
    _, _, lines = call(*chatty, "w5 w7", "--thinking", "on", "--json", "-")
    template.write_text(text)
    assert sum(line.startswith("note: ") and "thinking" in line for line in lines) == 1


def test_a_stop_string_ends_the_text_and_what_is_shown(call, chatty):
    _, out, _ = call(*chatty, "w5 w7", "--json", "-")
    whole = json.loads(out)
    cut = f" w{whole['output_ids'][3]}"
    assert whole["text"].count(cut) == 1
    _, out, lines = call(*chatty, "w5 w7", "--stop", "never", "--stop", cut, "--verify", "--json", "-")
    record = json.loads(out)
    assert record["output_ids"] == whole["output_ids"][:4]
    assert record["text"] == lines[0] == whole["text"][: whole["text"].index(cut)]
    assert (record["finish_reason"], record["usage"]["completion_tokens"]) == ("stop", 4)
    assert record["exact"]["equal"]


def test_many_prompts_with_wishes_of_their_own(call, chatty, tmp_path):
    """Three kinds of prompts in two batches, the second with an empty row."""
    (tmp_path / "prompts.jsonl").write_text(
        '{"prompt": "w5 w7", "max_new_tokens": 3}\n\n'
        '{"prompt_ids": [5, 7], "temperature": 2, "seed": 4, "n": 2, "max_new_tokens": 4}\n'
        '{"messages": [{"role": "user", "content": "w5"}]}\n'
        '{"prompt": "w5 w7", "raw": true, "temperature": 2, "seed": 5, "max_new_tokens": 4}\n'
    )
    words = [
        "--prompts",
        str(tmp_path / "prompts.jsonl"),
        "--rows",
        "3",
        "--json",
        str(tmp_path / "out.json"),
    ]
    status, out, lines = call(*chatty, *words, "--verify")
    outputs = json.loads((tmp_path / "out.json").read_text())["outputs"]
    assert status == 0
    assert [o["prompt_ids"] for o in outputs] == [[1, 5, 7, 2], [5, 7], [5, 7], [1, 5, 2], [5, 7]]
    assert [o["usage"]["completion_tokens"] for o in outputs] == [3, 4, 4, 12, 4]
    assert [o["policy"].get("seed") for o in outputs] == [None, 4, 5, None, 5]
    assert outputs[2]["output_ids"] == outputs[4]["output_ids"] != outputs[1]["output_ids"]
    assert all(o["exact"]["equal"] and o["finish_reason"] == "length" for o in outputs)
    core = {"prompt_ids", "output_ids", "text", "finish_reason", "acceptance_lengths", "committed_per_round"}
    core |= {"method", "budget", "topk", "seconds", "tokens_per_second", "device", "dtype", "kernels"}
    assert all(core <= set(o) for o in outputs)
    # Texts come under numbers that go on from batch to batch, with the place of their prompts.
    file = tmp_path / "prompts.jsonl"
    heads = [line for line in out.splitlines() if line.startswith("---")]
    assert heads == [
        f"--- {n}: {file}, line {line}" for n, line in zip(range(1, 6), (1, 3, 3, 4, 5), strict=True)
    ]
    assert [text in out for text in (o["text"] for o in outputs)] == [True] * 5
    assert sum("texts, " in line for line in lines) == 2


def test_samples_with_log_probabilities_equal_plain_samples(call):
    words = [*PAIR, *PROMPT[:2], "--max-new-tokens", "20", "--budget", "7", "--json", "-"]
    words += ["--temperature", "0.9", "--top-p", "0.95", "--seed", "3", "--n", "2"]
    status, out, lines = call(*words, "--verify", "--logprobs", "2", "--stats")
    first, second = json.loads(out)["outputs"]
    assert status == 0
    assert [first["policy"], second["policy"]] == [
        {"temperature": 0.9, "top_k": None, "top_p": 0.95, "min_p": 0.0, "seed": seed} for seed in (3, 4)
    ]
    assert first["output_ids"] != second["output_ids"]
    assert sum(line.endswith(": equal to plain decoding") for line in lines) == 2
    for record in (first, second):
        assert record["exact"]["equal"]
        assert len(record["logprobs"]) == len(record["top_logprobs"]) == 20
        assert {len(likeliest) for likeliest in record["top_logprobs"]} == {2}
        assert min(record["logprobs"]) < 0
        # The statistics are the batch's, printed and in the JSON.
        stats = record["stats"]
        assert list(stats["stage_ms"]) == ["draft", "build", "verify", "accept", "commit"]
        assert stats["acceptance"]["rounds"] == sum(len(r["acceptance_lengths"]) for r in (first, second))
    assert any(
        line.startswith(f"rounds {stats['acceptance']['rounds']}, committed a round") for line in lines
    )
    assert any(line.startswith("stages run apart, ms: draft") for line in lines)


def test_a_row_whose_logits_are_not_finite_is_named_and_is_status_1(call, tmp_path, monkeypatch):
    bad = IDS[0]
    real = Engine.load

    def load(*folders, **wishes):
        engine = real(*folders, **wishes)
        weight = engine.pair.target.embed_tokens.weight
        weight.set_value(weight[...].at[bad].set(np.nan))
        return engine

    monkeypatch.setattr(Engine, "load", load)
    good = next([token, token] for token in range(160) if token != bad)
    prompts = [{"prompt_ids": good}, {"prompt_ids": [*good, bad]}]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    words = ["--prompts", str(tmp_path / "prompts.jsonl"), "--max-new-tokens", "2", "--json", "-"]
    status, out, lines = call(*PLAIN, *words)
    fine, failed = json.loads(out)["outputs"]
    assert status == 1
    assert (len(fine["output_ids"]), fine["finish_reason"], fine["error"]) == (2, "length", None)
    line = f"{tmp_path / 'prompts.jsonl'}, line 2: the target's logits for position 3 are not finite"
    assert (failed["output_ids"], failed["finish_reason"], failed["error"]) == ([], "error", line)
    assert f"error: {line}" in lines


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
    monkeypatch.setattr(jddtree.engine, "compare", lambda *outputs: found)
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

    monkeypatch.setattr(jddtree.engine, "load_pair", load_pair)
    assert call(*PLAIN, *PROMPT) == (130, "", ["interrupted before the first token"])


def test_a_named_target_without_its_drafter_decodes_plainly(call, tmp_path, monkeypatch):
    monkeypatch.setattr(jddtree.load, "smollm2_file", lambda: TARGET)
    monkeypatch.setattr(jddtree.load, "BUNDLED", tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["--target", "smollm2", "--prompt-ids", "[1, 2]", "--max-new-tokens", "2", "--json", "-"]
    status, out, lines = call(*words)
    record = json.loads(out)
    assert (status, record["method"], record["budget"], len(record["output_ids"])) == (0, "ar", None, 2)
    assert any(line.startswith("No drafter for smollm2 lies in") for line in lines)
    refused = (2, "", ["error: method chain needs a drafter for smollm2: give one, or use ar"])
    assert call(*words, "--method", "chain") == refused


def test_a_summary_without_rounds_has_no_rates():
    row = Generation([1], margins=[0.5], finish_reason="stop")
    line = summary([row], Seconds(load=1.0, compile=2.0), {"b": "xla", "c": "mosaic_gpu", "a": "xla"})
    assert (
        line
        == f"[1 token (stop), 0 rounds | compile 2.0 s | {device()} | kernels: mosaic_gpu (c); xla (a, b)]"
    )


def test_a_pair_spread_over_stages(call, tmp_path):
    # Six layers over four stages: two of them have one layer less. The drafter's two key-value heads are on
    # every device.
    file = tmp_path / "result.json"
    status, _, lines = call(
        *PAIR, *PROMPT, "--layout", "pp4", "--budget", "7", "--json", str(file), "--stats"
    )
    assert status == 0 and "cpu, pp4 on 4 devices" in lines[0]
    assert not any("stages run apart" in line for line in lines)
    found = json.loads(file.read_text())
    assert found["layout"] == "pp4" and found["output_ids"] == OUTPUT
    lengths = found["acceptance_lengths"]
    assert lengths == reference("ddtree", 7)["acceptance_lengths"][: len(lengths)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--layout", "xx8"], "layout xx8: no axis is named"),
        (["--layout", "tp16"], "layout tp16 needs 16 devices; there are 8"),
        (["--layout", "tp8"], r"the target's attention heads \(4\) cannot be cut 8 ways"),
        (
            ["--layout", "dp2", "--rows", "3", "--n", "4"],
            "--rows 3 cannot be shared by the 2 of --layout dp2: give a multiple of 2",
        ),
        (["--coordinator", "127.0.0.1:1", "--process", "0"], "--coordinator, --process and"),
        (["--coordinator", "127.0.0.1:1", "--process", "2", "--processes", "2"], "--process 2 is not one of"),
    ],
)
def test_devices_that_cannot_be_used(call, words, reason):
    assert re.search(reason, refused(call(*PAIR, *PROMPT, *words)))


def test_defaults_are_a_tree_of_sixteen_on_the_bundled_pair():
    flags = parse(["hi"])
    assert (flags.method, flags.target, flags.drafter, flags.budget) == (None, None, None, None)
    assert (DEFAULT_BUDGET, flags.max_new_tokens, flags.thinking) == (16, 256, "off")
