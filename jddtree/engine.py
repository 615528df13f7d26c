"""The Python interface: load a pair once, then generate or stream."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp

from jddtree.accept import RULES
from jddtree.chat import encode_chat, load_template
from jddtree.decoder import Decoder, Prefills, Task, check_ids, check_task, slots_for
from jddtree.errors import InputError
from jddtree.exactness import Exactness, compare
from jddtree.finish import Generation, check_stops
from jddtree.load import BUNDLED, Pair, is_named, load_pair, pair_places
from jddtree.sampling import GREEDY, Mode, Policy
from jddtree.sharding import ONE_DEVICE, Layout
from jddtree.state import Method, Options
from jddtree.tokenizer import stop_ids

METHODS = ("tree", "chain", "ar")
DEFAULT_BUDGET = 16
DEFAULT_NEW = 256

Prompt = str | Sequence[int] | Sequence[Mapping[str, object]]
"""Text, token ids, or chat messages ({"role": ..., "content": ...})."""


@dataclass(frozen=True)
class Reading:
    """How text becomes ids. raw: without the chat template. thinking: for templates that know it. specials:
    in raw text, read the names of special tokens as those tokens.
    """

    raw: bool = False
    thinking: bool = False
    specials: bool = False


def default_cache_dir() -> Path:
    """Where converted weights and compiled programs go: $XDG_CACHE_HOME/jddtree, else ~/.cache/jddtree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jddtree"


class Engine:
    """A pair, a method, and the programs compiled for them so far.

    method: "tree", "chain" or "ar" (plain decoding). budget: most nodes of a tree. rule: how sampled rows
    walk the tree, "follow" or "target-only". top_logprobs: report log-probabilities, of so many likeliest
    tokens too.
    """

    def __init__(
        self,
        pair: Pair,
        *,
        method: str = "tree",
        budget: int = DEFAULT_BUDGET,
        rule: str = "follow",
        top_logprobs: int | None = None,
    ):
        if method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
        if rule not in RULES:
            raise InputError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")
        if method != "ar" and pair.drafter is None:
            raise InputError(f"method {method} needs a drafter")
        vocab_size = pair.target.config.vocab_size
        if top_logprobs is not None and not 0 <= top_logprobs <= vocab_size:
            raise InputError(f"log-probabilities can be had of 0 to {vocab_size} tokens, not {top_logprobs}")
        if budget < 0:
            raise InputError(f"budget must be 0 or more, not {budget}")
        if pair.dtype == "float32":
            # The default on a GPU is TF32, whose rounding is not float32's.
            jax.config.update("jax_default_matmul_precision", "highest")
        self.pair, self.rule, self.top_logprobs = pair, rule, top_logprobs
        self.method = {
            "ar": Method.plain(),
            "chain": Method.chain(pair.block_size),
            "tree": Method.tree(pair.block_size, budget),
        }[method]
        self._decoders: dict[tuple, Decoder] = {}
        self._prefills: dict[tuple, Prefills] = {}

    @classmethod
    def load(
        cls,
        target: Path | str | None = None,
        drafter: Path | str | None = None,
        *,
        method: str | None = None,
        budget: int = DEFAULT_BUDGET,
        rule: str = "follow",
        top_logprobs: int | None = None,
        dtype: str | None = None,
        cache_dir: Path | None = None,
        layout: Layout = ONE_DEVICE,
        say: Callable[[str], object] = print,
    ) -> "Engine":
        """Load folders or a GGUF file, or the bundled pair if none is given. The target "smollm2" brings its
        own drafter.

        method: None means "tree"; or "ar" for smollm2 where its drafter is missing, which ``say`` is told.
        dtype: "float32" or "bfloat16" (None: float32 on a CPU, else bfloat16). layout: how the pair is spread
        over devices (see `jddtree.sharding`). ``say`` takes lines for the
        user, such as that a folder is converted. Raises InputError.
        """
        if target is None and drafter is not None:
            raise InputError("a drafter needs the target that it was trained for")
        folders = pair_places(Path(target) if target else None, Path(drafter) if drafter else None)
        if folders[1] is None and method != "ar":
            if method is not None or target is None or not is_named(Path(target)):
                raise InputError(
                    f"method {method or 'tree'} needs a drafter for {target}: give one, or use ar"
                )
            say(f"No drafter for {target} lies in {BUNDLED}: decoding plainly.")
            method = "ar"
        method = method or "tree"
        cache_dir = cache_dir or default_cache_dir()
        jax.config.update("jax_compilation_cache_dir", str(cache_dir / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        pair = load_pair(
            folders[0],
            None if method == "ar" else folders[1],
            dtype=dtype,
            cache_dir=cache_dir,
            say=say,
            layout=layout,
        )
        return cls(pair, method=method, budget=budget, rule=rule, top_logprobs=top_logprobs)

    def task(
        self,
        prompt: Prompt,
        *,
        max_new: int = DEFAULT_NEW,
        policy: Policy = GREEDY,
        budget: int | None = None,
        topk: int | None = None,
        stop_ids: Sequence[int] = (),
        stop_strings: Sequence[str] = (),
        ignore_eos: bool = False,
        max_context: int | None = None,
        reading: Reading | None = None,
        name: str = "the prompt",
    ) -> Task:
        """A prompt with its wishes (see Task), as ids and with the model's own stop tokens. Raises
        InputError.
        """
        config = self.pair.target.config
        check_ids(stop_ids, config.vocab_size, f"{name}: stop id")
        task = Task(
            prompt=self.encode(prompt, reading or Reading()),
            max_new=max_new,
            policy=policy,
            budget=budget,
            topk=topk,
            stop_ids=(*stop_ids, *([] if ignore_eos else self.own_stop_ids())),
            stop_strings=tuple(stop_strings),
            max_context=max_context,
            name=name,
        )
        # Here already: a batch later in a file of prompts should not fail after hours of earlier ones.
        check_stops(name, stop_strings, self.pair.tokenizer)
        check_task(task, config.vocab_size, config.max_position, self.method.budget)
        return task

    def encode(self, prompt: Prompt, reading: Reading) -> list[int]:
        """Ids of a prompt: text and messages go through the chat template, if there is one. Raises
        InputError.
        """
        tokenizer, folder = self.pair.tokenizer, self.pair.checkpoint.folder
        ids = [token for token in prompt if isinstance(token, int)]
        if not isinstance(prompt, str) and len(ids) == len(prompt):
            return ids
        if tokenizer is None:
            raise InputError(f"{folder} has no tokenizer: give token ids instead of text")
        template = None if reading.raw else load_template(folder)
        if template is None:
            if not isinstance(prompt, str):
                raise InputError(f"{folder} has no chat template: give text instead of messages")
            return tokenizer.encode(prompt, specials=reading.specials)
        if isinstance(prompt, str) and not prompt.strip():
            raise InputError("the prompt is empty")
        chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = [dict(message) for message in chat if isinstance(message, Mapping)]
        if len(messages) < len(chat):
            raise InputError("a prompt is text, a list of token ids, or a list of messages")
        return encode_chat(tokenizer, template, messages, reading.thinking)

    def own_stop_ids(self) -> list[int]:
        """The ids that end a text of this target: see `jddtree.tokenizer.stop_ids`."""
        checkpoint = self.pair.checkpoint
        return stop_ids(checkpoint.config, checkpoint.generation_config, self.pair.tokenizer)

    def run(self, tasks: Sequence[Task]) -> Generator[list[Generation]]:
        """Decode tasks as the rows of one batch. Yields the growing results; see Decoder.decode."""
        return self.decoder(tasks).decode(tasks, self.pair.tokenizer)

    def generate(self, tasks: Sequence[Task]) -> list[Generation]:
        """Decode tasks as the rows of one batch, to the end."""
        if not tasks:
            return []
        *_, results = self.run(tasks)
        return results

    def stream(self, task: Task) -> Iterator[str]:
        """Text as it comes; pieces never end inside a character. Closing the iterator ends the decoding."""
        if self.pair.tokenizer is None:
            raise InputError(f"{self.pair.checkpoint.folder} has no tokenizer: use run() for ids")
        shown = 0
        for [result] in self.run([task]):
            text = result.text or ""
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)
            if result.error:
                raise FloatingPointError(result.error)

    def decoder(
        self, tasks: Sequence[Task], *, method: Method | None = None, rows: int | None = None
    ) -> Decoder:
        """The programs that these tasks need, compiled now if they were not before.

        rows: of the batch, if some are to stay empty, as in the last batch of many; more of them where the
        layout shares rows out and they could not be divided.
        """
        shares = self.pair.layout.data
        method, rows = method or self.method, -(-(rows or len(tasks)) // shares) * shares
        limit = self.pair.target.config.max_position
        most = max(task.tokens(limit) for task in tasks)
        slots = slots_for(most)
        options = Options(Mode.of([task.policy for task in tasks]), self.rule, self.top_logprobs)
        key = (method, rows, slots, options)
        if key not in self._decoders:
            self._decoders[key] = Decoder(
                self.pair.target,
                self.pair.drafter,
                method,
                rows=rows,
                slots=slots,
                dtype=jnp.dtype(self.pair.dtype),
                options=options,
                prefills=self._prefills.setdefault((method.depth, rows, slots, options), Prefills()),
            )
        self._decoders[key].compile_for(tasks)
        return self._decoders[key]

    def verify(
        self, tasks: Sequence[Task], results: Sequence[Generation], *, rows: int | None = None
    ) -> list[Exactness]:
        """Decode the tasks plainly, as a batch of ``rows`` (see `decoder`), and compare.

        Sampled rows compare too: under the "follow" rule a token depends on the text before it and on the
        seed alone. Raises InputError for sampled rows under "target-only", whose texts depend on the tree.
        """
        if self.rule == "target-only" and Mode.of([task.policy for task in tasks]).sampled:
            raise InputError(
                "texts sampled under target-only depend on the tree: compare distributions instead"
            )
        plainly = [replace(task, budget=None, topk=None) for task in tasks]
        decoder = self.decoder(plainly, method=Method.plain(), rows=rows)
        *_, plain = decoder.decode(plainly, self.pair.tokenizer)
        return [
            compare(ours.output_ids, theirs.output_ids, theirs.margins)
            for ours, theirs in zip(results, plain, strict=True)
        ]
