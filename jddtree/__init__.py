"""Speculative decoding with draft trees in JAX: exact output, one compiled program a round."""

import sys

try:
    import jax  # noqa: F401
except ValueError as error:  # it reads environment variables at once
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)

from jddtree.decoder import Task
from jddtree.engine import Engine, Reading
from jddtree.errors import InputError
from jddtree.finish import Generation
from jddtree.sampling import Greedy, Sample

__all__ = ["Engine", "Generation", "Greedy", "InputError", "Reading", "Sample", "Task"]
