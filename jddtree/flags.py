"""The flags of ``python -m jddtree.generate``, checked against each other."""

import argparse
from collections.abc import Sequence

from jddtree import devices
from jddtree.accept import RULES
from jddtree.command import Parser, path
from jddtree.engine import DEFAULT_BUDGET, DEFAULT_NEW, METHODS
from jddtree.errors import InputError
from jddtree.load import lacks_drafter
from jddtree.prompts import Wishes, as_ids, read_json_list

DEFAULT_ROWS = 8


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags. Raises InputError."""
    parser = Parser(
        prog="python -m jddtree.generate",
        description="Generate text with a target model and a DFlash drafter. The text is the target's own: "
        "its greedy text at temperature 0, a sample of its distribution above. "
        "Exit status: 0 done, 1 a check failed, 2 bad input, 130 interrupted.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("prompt", nargs="?", help="text; goes through the chat template if there is one, unless --raw")

    add = parser.add_argument_group("models").add_argument
    add(
        "--target",
        type=path,
        metavar="DIR",
        help="target: a folder, published or Orbax, a GGUF file, or smollm2 (default: bundled)",
    )
    add("--drafter", type=path, metavar="DIR", help="DFlash drafter folder (default: bundled)")
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32 on a CPU, else bfloat16")
    add("--cache-dir", type=path, metavar="DIR", help="for converted weights and compiled programs")

    add = parser.add_argument_group("devices").add_argument
    devices.add_layout(add)
    devices.add_processes(add)

    add = parser.add_argument_group("method").add_argument
    add("--method", choices=METHODS, help="ar: plain decoding, no drafter (default tree)")
    add("--budget", type=int, metavar="N", help=f"nodes of a tree (default {DEFAULT_BUDGET})")
    add("--topk", type=int, metavar="K", help="children that a tree node may have (default: no cap)")
    add("--rule", choices=RULES, default="follow", help="how sampled rows walk the tree (default follow)")
    add("--verify", action="store_true", help="also decode plainly and compare")

    add = parser.add_argument_group("other prompts").add_argument
    add("--prompt-ids", metavar="IDS", help="token ids as a JSON list, or @FILE; needs no tokenizer")
    add("--messages", type=path, metavar="FILE", help='a chat: JSON list of {"role": ..., "content": ...}')
    add("--prompts", type=path, metavar="FILE", help="many prompts: JSONL, see the README")
    add("--rows", type=int, metavar="B", help=f"prompts decoded at a time (default {DEFAULT_ROWS})")
    add(
        "--n", type=int, default=1, metavar="N", help="samples of each prompt, with seeds SEED, SEED + 1, ..."
    )
    add("--raw", action="store_true", help="encode text as it is, without the chat template")
    add("--chat", action="store_true", help="insist on the chat template: an error if there is none")
    add("--specials", action="store_true", help="with --raw: read names of special tokens as those tokens")
    add("--thinking", choices=("on", "off"), default="off", help="for templates that know it (default off)")

    add = parser.add_argument_group("sampling").add_argument
    add("--temperature", type=float, default=0.0, metavar="T", help="0 (default): greedy")
    add("--top-k", type=int, metavar="K", help="sample among the K likeliest tokens")
    add("--top-p", type=float, default=1.0, metavar="P", help="sample among the likeliest that make up P")
    add("--min-p", type=float, default=0.0, metavar="P", help="cut tokens under P times the likeliest")
    add("--seed", type=int, default=0, metavar="N", help="same seed, same text (default 0)")

    add = parser.add_argument_group("where the text ends").add_argument
    add("--max-new-tokens", type=int, default=DEFAULT_NEW, metavar="N", help=f"default {DEFAULT_NEW}")
    add("--max-context", type=int, metavar="N", help="tokens of prompt and output (default: the target's)")
    add("--stop", action="append", default=[], metavar="TEXT", help="text that ends it; may be repeated")
    add("--stop-ids", metavar="IDS", help="more token ids that end it: a JSON list, or @FILE")
    add("--ignore-eos", action="store_true", help="do not stop at the model's own end tokens")

    add = parser.add_argument_group("output").add_argument
    add("--json", metavar="FILE", help="write the result; - for standard output (the text moves to stderr)")
    add("--trace", action="store_true", help="put every round's tree and accepted slots into the JSON")
    add("--logprobs", type=int, metavar="N", help="log-probabilities, of N likeliest tokens too, in the JSON")
    add("--stats", action="store_true", help="print acceptance, experts and stage times")

    flags = parser.parse_args(arguments)
    _check(flags)
    wishes(flags).policy(flags.seed)  # to refuse wrong numbers before anything is loaded
    return flags


def wishes(flags: argparse.Namespace) -> Wishes:
    """What the flags ask for every prompt. Raises InputError."""
    stop_ids = as_ids(read_json_list(flags.stop_ids, "--stop-ids"), "--stop-ids") if flags.stop_ids else []
    return Wishes(
        max_new_tokens=flags.max_new_tokens,
        temperature=flags.temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
        min_p=flags.min_p,
        seed=flags.seed,
        topk=flags.topk,
        stop=tuple(flags.stop),
        stop_ids=tuple(stop_ids),
        ignore_eos=flags.ignore_eos,
        raw=flags.raw,
        thinking=flags.thinking == "on",
        specials=flags.specials,
        n=flags.n,
    )


def _check(flags: argparse.Namespace) -> None:
    method = flags.method or "tree"
    for name in ("budget", "topk"):
        if getattr(flags, name) is not None and method != "tree":
            raise InputError(f"--{name} belongs to --method tree, not to {method}")
    if flags.budget is not None and flags.budget < 0:
        raise InputError(f"--budget must be 0 or more, not {flags.budget}")
    for name in ("topk", "max_new_tokens", "max_context", "rows", "n"):
        value = getattr(flags, name)
        if value is not None and not 1 <= value < 2**31:
            raise InputError(f"--{name.replace('_', '-')} must be 1 or more (and fit 32 bits), not {value}")
    if flags.logprobs is not None and flags.logprobs < 0:
        raise InputError(f"--logprobs must be 0 or more, not {flags.logprobs}")
    if flags.json == "":
        raise InputError("--json needs a file name, or - for standard output")
    for name, asked in (("trace", flags.trace), ("logprobs", flags.logprobs is not None)):
        if asked and not flags.json:
            raise InputError(f"--{name} goes into the JSON: add --json FILE")
    given = [flags.prompt, flags.prompt_ids, flags.messages, flags.prompts]
    if sum(value is not None for value in given) != 1:
        raise InputError('give one prompt: "TEXT", or one of --prompt-ids, --messages, --prompts')
    if flags.raw and (flags.chat or flags.messages is not None):
        raise InputError("--raw goes around the chat template, which --chat and --messages need")
    if flags.specials and not flags.raw:
        raise InputError(
            "--specials is for --raw text; in a chat, special tokens come from the template alone"
        )
    if flags.rows is not None and flags.rows % flags.layout.data:
        raise InputError(
            f"--rows {flags.rows} cannot be shared by the {flags.layout.data} of --layout {flags.layout}: "
            f"give a multiple of {flags.layout.data}"
        )
    if flags.rows is not None and flags.prompts is None and flags.n == 1:
        raise InputError("--rows is for many prompts: --prompts or --n")
    if lacks_drafter(flags.target, flags.drafter) and method != "ar":
        raise InputError(f"--target needs its --drafter for --method {method} (--method ar needs none)")
    if flags.target is None and flags.drafter is not None:
        raise InputError("--drafter needs the --target that it was trained for")
    if flags.drafter is not None and method == "ar":
        raise InputError("--method ar uses no --drafter")
