"""How XLA records a program's kernels as CUDA graphs: as compiler options, for programs on one GPU."""

import os

SCHEDULING = "xla_gpu_command_buffer_scheduling_mode"

COMMANDS = "xla_gpu_enable_command_buffer"

RECORDED = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,DYNAMIC_SLICE_FUSION"
"""What jaxlib 0.11.2 records unless told otherwise; an option replaces the list, a flag could add to it."""


def graph_options(platform: str, devices: int) -> dict[str, str]:
    """Options for `jax.stages.Lowered.compile`: kernels that need nothing of each other run side by side, and
    the loop over rounds is part of the graph, so that the host is not asked after every round.

    A small step took a sixth less time, one of Qwen3-4B's size a twentieth at best (BENCHMARKS.md). Empty off
    a GPU and on several, where it was not measured. What XLA_FLAGS says of an option is left as it is.
    """
    if platform != "gpu" or devices > 1:
        return {}
    found = {SCHEDULING: "CONCURRENT", COMMANDS: f"{RECORDED},WHILE"}
    return {name: value for name, value in found.items() if name not in os.environ.get("XLA_FLAGS", "")}
