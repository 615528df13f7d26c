"""Speculative decoding with draft trees in JAX: exact output, one compiled program a round."""

from jddtree.decoder import Task
from jddtree.engine import Engine, Reading
from jddtree.errors import InputError
from jddtree.finish import Generation
from jddtree.sampling import Greedy, Sample

__all__ = ["Engine", "Generation", "Greedy", "InputError", "Reading", "Sample", "Task"]
