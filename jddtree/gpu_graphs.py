"""How XLA records a program's kernels as CUDA graphs: as compiler options, for programs on one GPU."""

import os
from collections.abc import Mapping

SCHEDULING = "xla_gpu_command_buffer_scheduling_mode"

COMMANDS = "xla_gpu_enable_command_buffer"

RECORDED = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,DYNAMIC_SLICE_FUSION"
"""What jaxlib 0.11.2 records unless told otherwise; an option replaces the list, a flag could add to it."""


def graph_options(platform: str, devices: int, kernels: Mapping[str, str]) -> dict[str, str]:
    """Options for `jax.stages.Lowered.compile`: kernels that need nothing of each other run side by side, and
    the loop over rounds is part of the graph, so that the host is not asked after every round.

    A small step took a sixth less time, one of Qwen3-4B's size a twentieth at best (BENCHMARKS.md). A program
    with Mosaic's kernels, each of which XLA records as a graph of its own, keeps its loop outside: inside, a
    plain step and a round of tree(16) took 0.1 ms more, one of tree(64) as long. ``kernels``: which
    implementation the program holds of each operation. Empty off a GPU and on several, where it was not
    measured. What XLA_FLAGS says of an option is left as it is.
    """
    if platform != "gpu" or devices > 1:
        return {}
    loop = "" if "mosaic_gpu" in kernels.values() else ",WHILE"
    found = {SCHEDULING: "CONCURRENT", COMMANDS: RECORDED + loop}
    return {name: value for name, value in found.items() if name not in os.environ.get("XLA_FLAGS", "")}
