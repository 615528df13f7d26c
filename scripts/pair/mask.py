"""The drafter's mask token: an id that stands for a token not known yet, and that no text holds."""

from collections.abc import Callable, Sequence

import numpy as np

from jddtree.config import KimiK2Config
from jddtree.decoder import check_ids
from jddtree.errors import InputError
from jddtree.load import Pair
from scripts.pair.documents import Documents


def mask_token(pair: Pair, stops: Sequence[int], asked: int | None) -> int:
    """``asked``, or the target family's own choice: Kimi's [UNK] slot, the last but one of its ids; else the
    first id that the tokenizer does not use; else the last special token that ends no text.

    Raises InputError when nothing serves.
    """
    config, tokenizer = pair.target.config, pair.tokenizer
    if asked is not None:
        check_ids([asked], config.vocab_size, "--mask-token: id")
        return asked
    if isinstance(config, KimiK2Config):
        return config.vocab_size - 2
    used = tokenizer.backend.get_vocab_size() if tokenizer else config.vocab_size
    if used < config.vocab_size:
        return used
    free = sorted(set(tokenizer.markup) - set(stops)) if tokenizer else []
    if not free:
        raise InputError("the target's tokenizer has no token to spare: name an id with --mask-token")
    return free[-1]


def without(texts: Documents, mask: int, say: Callable[[str], None]) -> Documents:
    """The texts that do not hold the mask token: a warm sample of a target may. Raises InputError when half
    of them hold it.
    """
    holds = np.add.reduceat(texts.tokens == mask, texts.starts(), dtype=np.int64) > 0
    if 2 * holds.sum() >= len(holds):
        raise InputError(f"token {mask} is in the training text: name another one with --mask-token")
    if not holds.any():
        return texts
    say(f"{holds.sum()} of {len(holds)} texts hold the mask token {mask} and are left out")
    return texts.take(np.flatnonzero(~holds))
