"""The check of sampled texts: the shipped rules pass it, wrong ones fail it, and its parts are right."""

import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jddtree import accept
from jddtree.compare import sampling as check
from jddtree.compare.__main__ import main
from jddtree.compare.sampling import Law, chi_square, draw, exact, probabilities
from jddtree.decoder import Decoder
from jddtree.errors import InputError
from jddtree.sampling import Mode, Sample
from jddtree.state import Method, Options
from tests import tiny
from tests.oracles.cuts import kept_tokens

VOCAB, LENGTH, ROWS, DRAWS = 12, 3, 512, 1536
PROMPT = [3, 10, 0, 7]
MODE = Mode(sampled=True, cuts=True)
BLOCK = tiny.DFLASH["block_size"]
METHODS = {"ar": Method.plain(), "chain": Method.chain(BLOCK), "tree": Method.tree(BLOCK, 6)}
CUTS = {"no cut": {}, "top-k": {"top_k": 5}, "top-p": {"top_p": 0.9}, "min-p": {"min_p": 0.1}}


TARGET = tiny.QWEN3 | {"vocab_size": VOCAB, "num_hidden_layers": 1}
DRAFTER = tiny.DFLASH | {
    "vocab_size": VOCAB,
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "num_target_layers": 1,
    "dflash_config": {"mask_token_id": VOCAB - 1, "target_layer_ids": [0]},
}


@cache
def target():
    return tiny.target(TARGET, seed=2)


def new_decoder(method: str, rule: str) -> Decoder:
    with jax.numpy_dtype_promotion("strict"):
        return Decoder(
            target(),
            None if method == "ar" else tiny.drafter(DRAFTER),
            METHODS[method],
            rows=ROWS,
            slots=len(PROMPT) + LENGTH,
            dtype=jnp.dtype(jnp.float32),
            options=Options(MODE, rule),
        )


decoder = cache(new_decoder)


@cache
def law(temperature: float, cut: str) -> Law:
    return exact(target(), PROMPT, LENGTH, Sample(temperature, **CUTS[cut]))


@pytest.mark.parametrize(
    ("cut", "temperature"),
    [("no cut", 0.6), ("no cut", 1.0), ("top-k", 0.6), ("top-p", 1.0), ("min-p", 1.0)],
)
@pytest.mark.parametrize("rule", accept.RULES)
@pytest.mark.parametrize("method", ["chain", "tree"])
def test_draws_have_the_targets_law(method, rule, cut, temperature):
    policy = Sample(temperature, **CUTS[cut], seed=1000)
    fit = chi_square(law(temperature, cut), draw(decoder(method, rule), PROMPT, LENGTH, policy, DRAWS))
    assert fit.passed and fit.degrees >= 10, fit


def test_texts_under_follow_are_plain_decodings():
    policy = Sample(seed=5)
    texts = [draw(decoder(method, "follow"), PROMPT, LENGTH, policy, ROWS).tolist() for method in METHODS]
    assert texts[0] == texts[1] == texts[2]
    assert len({tuple(text) for text in texts[0]}) > 50


def coin_against_each_child(scores, tree, coins, noise):
    """Wrong: takes the likeliest child whose own probability reaches the coin, nothing added up."""
    drawn, tokens = RIGHT(scores, tree, coins, noise)
    children = jnp.broadcast_to(tree.tokens[:, None, :], (*tree.tokens.shape, tree.tokens.shape[1]))
    share = jnp.take_along_axis(jax.nn.softmax(scores, axis=-1), children, axis=-1)
    slots = jnp.arange(tree.parents.shape[1], dtype=jnp.int32)
    hit = (share >= coins[:, :, None]) & (tree.parents[:, None, :] == slots[:, None])
    best = jnp.argmax(jnp.where(hit, share, -1.0), axis=-1)
    child = jnp.take_along_axis(tree.tokens, best, axis=1)
    return drawn, jnp.where(jnp.any(hit, axis=-1), child, tokens)


RIGHT = accept._target_only


def test_a_wrong_rule_fails(monkeypatch):
    monkeypatch.setattr(accept, "_target_only", coin_against_each_child)
    # Compiled anew: the shared decoder holds the right rule.
    texts = draw(new_decoder("tree", "target-only"), PROMPT, LENGTH, Sample(seed=1000), DRAWS)
    assert not chi_square(law(1.0, "no cut"), texts).passed


def test_the_exact_law_is_the_product_along_each_text():
    policy = Sample(0.6, top_k=5)
    found = law(0.6, "top-k")
    assert len(found.texts) == 5**LENGTH and abs(found.probabilities.sum() - 1) < 1e-12
    assert found.texts.tolist() == sorted(found.texts.tolist())
    for at in (0, 61, 124):
        ids = np.array([*PROMPT, *found.texts[at]], np.int32)
        after = tiny.forward(target(), ids)[len(PROMPT) - 1 : -1].astype(np.float64)
        chance = 1.0
        for logits, token in zip(after, found.texts[at], strict=True):
            kept = kept_tokens(logits.tolist(), policy)
            weights = np.exp((logits[kept] - logits.max()) / 0.6)
            chance *= weights[kept.index(token)] / weights.sum()
        np.testing.assert_allclose(found.probabilities[at], chance, rtol=1e-4)


@pytest.mark.parametrize(
    "policy",
    [Sample(0.7), Sample(top_k=3), Sample(2.0, top_p=0.7), Sample(min_p=0.2), Sample(1.0, 4, 0.8, 0.3)],
)
def test_probabilities_are_softmax_over_what_the_oracle_keeps(policy):
    logits = np.random.default_rng(0).normal(size=(20, 9)).round(1).astype(np.float32)
    for row, found in zip(logits, probabilities(logits, policy), strict=True):
        kept = kept_tokens(row.tolist(), policy)
        weights = np.exp(row[kept].astype(np.float64) / policy.temperature)
        assert np.flatnonzero(found).tolist() == kept
        np.testing.assert_allclose(found[kept], weights / weights.sum(), rtol=1e-12)


def made(*probabilities: float) -> Law:
    return Law(np.arange(len(probabilities), dtype=np.int32)[:, None], np.array(probabilities))


def texts(*counts: int) -> np.ndarray:
    return np.repeat(np.arange(len(counts), dtype=np.int32), counts)[:, None]


def test_chi_square_by_hand():
    fit = chi_square(made(0.5, 0.3, 0.2), texts(40, 40, 20))
    # 10 squared over 50, over 30, and nothing; for 2 degrees of freedom the tail is exp(-x / 2).
    assert fit.statistic == pytest.approx(2 + 100 / 30)
    assert (fit.cells, fit.degrees, fit.outside) == (3, 2, 0)
    assert fit.p_value == pytest.approx(np.exp(-fit.statistic / 2), rel=1e-9) and fit.passed
    # A tail for 4 degrees of freedom, exp(-x / 2) (1 + x / 2), far out.
    fit = chi_square(made(*[0.2] * 5), texts(1000, 0, 0, 0, 0))
    half = fit.statistic / 2
    assert fit.p_value == pytest.approx(np.exp(-half) * (1 + half), rel=1e-6, abs=1e-300) and not fit.passed


def test_small_texts_are_pooled_with_their_neighbours():
    # Each small text is expected once: six stretches of about ten, the sixth with what is left over.
    law = made(*[0.005] * 30, 0.7, *[0.005] * 30)
    fit = chi_square(law, texts(*[1] * 30, 140, *[1] * 30))
    assert fit.cells == 7 and fit.statistic == pytest.approx(0)
    # One half is drawn twice as often, the other never: no rare text alone could show it.
    assert not chi_square(law, texts(*[2] * 30, 140, *[0] * 30)).passed


def test_a_text_that_cannot_be_drawn_fails():
    fit = chi_square(made(0.5, 0.5, 0.0), np.append(texts(500, 500), [[7]], axis=0).astype(np.int32))
    assert fit.outside == 1 and not fit.passed


def test_a_single_possible_text_passes_and_too_few_draws_are_refused():
    assert chi_square(made(1.0), texts(3)).passed
    with pytest.raises(InputError, match="--draws"):
        chi_square(made(0.5, 0.5), texts(1, 1))


def test_too_many_texts_are_refused(monkeypatch):
    monkeypatch.setattr(check, "PREFIXES", 12)
    with pytest.raises(InputError, match="144 prefixes"):
        exact(target(), PROMPT, 3, Sample())
    assert len(exact(target(), PROMPT, 3, Sample(top_k=2)).texts) == 8
    monkeypatch.setattr(check, "TEXTS", 100)
    with pytest.raises(InputError, match="more than 100 texts"):
        exact(target(), PROMPT, 2, Sample())


PAIR = ["--target", str(tiny.TRAINED / "target"), "--drafter", str(tiny.TRAINED / "drafter")]


def run(*flags: str) -> int:
    return main(["sampling", *PAIR, *flags])


def test_the_command_on_a_trained_pair(own_cache, tmp_path, capsys):
    report = tmp_path / "report.json"
    flags = ("--draws", "150", "--length", "2", "--top-k", "3", "--rows", "50", "--budget", "4")
    assert run("--prompt-ids", "[63, 102, 103]", *flags, "--json", str(report)) == 0
    said = capsys.readouterr().out
    found = json.loads(report.read_text())
    assert found["passed"] and found["texts"] == 9 and found["draws"] == 150 and found["budget"] == 4
    assert f"p-value {found['p_value']:.3g}" in said and "committed tokens a round" in said
    # Block 8 and a trained drafter: greedy rounds commit more than one token.
    assert found["committed_per_round_greedy"] > found["committed_per_round"] >= 1


def test_draws_that_do_not_fit_exit_with_1(own_cache, monkeypatch, capsys):
    monkeypatch.setattr(check, "exact", lambda *given: Law(np.array([[140], [1]], np.int32), np.full(2, 0.5)))
    flags = ("--length", "1", "--draws", "40", "--prompt-ids", "[129, 130]", "--method", "ar", "--json", "-")
    assert main(["sampling", *PAIR[:2], *flags]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"] and found["p_value"] == 0 and found["outside"] > 0


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--prompt-ids", "[1"), "--prompt-ids must be a JSON list"),
        (("--prompt-ids", "[]"), "--prompt-ids is empty"),
        (("--prompt-ids", "[160]"), "outside the vocabulary"),
        (("--prompt-ids", "[1]", "--temperature", "0"), "nothing is sampled"),
        (("--prompt-ids", "[1]", "--top-p", "2"), "top-p"),
        (("--prompt-ids", "[1]", "--draws", "0"), "--draws must be 1 or more"),
        (("--prompt-ids", "[1]", "--length", "512"), "context of 512"),
        (("--prompt-ids", "[1]", "--seed", str(2**32 - 5)), "no room for 20000 seeds"),
        (("--prompt-ids", "[1]", "--method", "chain", "--budget", "3"), "--budget belongs to"),
        (("--prompt-ids", "[1]", "--rule", "best"), "--rule"),
        ((), "--prompt-ids"),
    ],
)
def test_bad_input_is_one_line(flags, named, own_cache, capsys):
    assert run(*flags) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("Converting ")]
    assert len(said) == 1 and said[0].startswith("error: ") and named in said[0]


def test_a_drafter_is_needed_but_for_plain_decoding(capsys):
    assert main(["sampling", *PAIR[:2], "--prompt-ids", "[1]"]) == 2
    assert "needs the target's --drafter" in capsys.readouterr().err
