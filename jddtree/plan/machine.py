"""Machines by name: how many devices, what each holds and reads, and the compiler's own devices for them."""

import json
import math
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import jax
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

from jddtree.errors import InputError

CHIPS = Path(__file__).parent / "chips"
"""One file a chip; a new chip is a new file."""

EXAMPLES = "v5p:2x2x4, v6e:4x8, 8x-h200, local"

_uncached = RLock()


@dataclass(frozen=True)
class Machine:
    """Devices of one kind.

    name: as the user says it. chip: its name here, None for one that is not known. platform: "tpu", "cuda" or
    "local". devices: what JAX counts (two a chip on some TPUs). memory: bytes that a device has, bandwidth:
    bytes a second that it reads; None where not known. gpu: the compiler's description of a GPU.
    """

    name: str
    chip: str | None
    platform: str
    devices: int
    memory: int | None
    bandwidth: float | None
    gpu: Mapping[str, Any] | None = None

    @contextmanager
    def compile_devices(self) -> Generator[Sequence[jax.Device]]:
        """Devices that programs can be compiled for while this is open; none has to be here.

        Nothing that is compiled meanwhile, in any thread, touches JAX's persistent compilation cache, unless
        the devices are this machine's own. Programs may be compiled side by side within; another thread that
        asks for devices that are not here waits until this is closed.

        Raises:
          InputError: the compiler for them is not installed, or there is no such machine.
        """
        if self.platform == "local":
            yield jax.devices()
            return
        with _without_cache():
            yield _tpu(self.name) if self.platform == "tpu" else _cuda(self)


def find(name: str) -> Machine:
    """A machine: a TPU topology (``v5p:2x2x4``), a box of GPUs (``8x-h200``), or ``local``.

    Raises:
      InputError: no such chip, or a name of another form; the line lists those that are known.
    """
    if name == "local":
        return _local()
    chips = _chips()
    if tpu := re.fullmatch(r"([a-z0-9]+):([1-9]\d*(?:x[1-9]\d*){1,2})", name):
        chip, count = tpu[1], math.prod(int(side) for side in tpu[2].split("x"))
    elif gpus := re.fullmatch(r"([1-9]\d*)x-(.+)", name):
        chip, count = gpus[2], int(gpus[1])
    else:
        chip, count = None, 0
    facts = chips.get(chip)
    if facts is None or (facts["platform"] == "tpu") != (":" in name):
        known = [f"{c}:AxB" if f["platform"] == "tpu" else f"Nx-{c}" for c, f in sorted(chips.items())]
        raise InputError(f"--topology {name!r} is not known: {', '.join(known)} (or AxBxC), local")
    return Machine(
        name=name,
        chip=chip,
        platform=facts["platform"],
        devices=count * facts["devices_a_chip"],
        memory=facts["memory_bytes"],
        bandwidth=float(facts["bandwidth_bytes_a_second"]),
        gpu=facts.get("gpu_device_info"),
    )


def _chips() -> dict[str | None, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in CHIPS.glob("*.json")}


def _local() -> Machine:
    """What JAX sees here. The data sheet's memory stands in where the device does not tell."""
    devices = jax.devices()
    kind = devices[0].device_kind
    matching = {chip: facts for chip, facts in _chips().items() if facts["device_kind"] == kind}
    chip, facts = next(iter(matching.items()), (None, {}))
    memory = (devices[0].memory_stats() or {}).get("bytes_limit", facts.get("memory_bytes"))
    bandwidth = float(facts["bandwidth_bytes_a_second"]) if facts else None
    return Machine("local", chip, "local", len(devices), memory, bandwidth)


@contextmanager
def _without_cache() -> Generator[None]:
    """JAX (0.11.2) stores a program for devices that are not here, but cannot read it back, and warns."""
    # The setting is the process's: the first to leave would turn the cache on under the others.
    with _uncached:
        before = jax.config.jax_enable_compilation_cache
        jax.config.update("jax_enable_compilation_cache", False)
        # JAX looks at the setting once, when it first compiles.
        compilation_cache.reset_cache()
        try:
            yield
        finally:
            jax.config.update("jax_enable_compilation_cache", before)
            compilation_cache.reset_cache()


def _tpu(name: str) -> Sequence[jax.Device]:
    # libtpu looks for the machine that it runs on, and complains at length when it runs on none.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_WORKER_ID", "0")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5p-8")
    # It guards a machine's own TPUs, which compiling for others does not touch.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    try:
        return topologies.get_topology_desc(name, platform="tpu").devices
    except jax.errors.JaxRuntimeError as error:
        raise InputError(f"--topology {name}: {str(error).splitlines()[0]}") from error
    except RuntimeError as error:
        raise InputError(
            "--compile for a TPU needs its compiler, which runs on any Linux machine: pip install 'jax[tpu]'"
        ) from error


def _cuda(machine: Machine) -> Sequence[jax.Device]:
    assert machine.gpu is not None
    description = f"""gpu_device_info {{ {_proto(machine.gpu)} }}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{machine.chip}"
"""
    try:
        # As slices x hosts x devices of a host.
        return topologies.get_topology_desc(
            machine.name,
            platform="cuda",
            topology=f"1x1x{machine.devices}",
            target_config=description,
        ).devices
    except NotImplementedError as error:
        raise InputError(
            "--compile for a GPU needs JAX's CUDA plugin, which runs without a GPU too: "
            'pip install "jax[cuda13]" (or cuda12)'
        ) from error


def _proto(fields: Mapping[str, Any]) -> str:
    """As protocol buffer text."""
    return " ".join(
        f"{name} {{ {_proto(value)} }}" if isinstance(value, Mapping) else f"{name}: {value}"
        for name, value in fields.items()
    )
