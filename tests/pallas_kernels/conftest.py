"""Machines that are not there."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, Mesh


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager:
    """Dispatch finds an H200 here; inside of the context programs are lowered for it."""
    chip = SimpleNamespace(device_kind="NVIDIA H200", compute_capability="9.0", core_count=132)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [chip])
    device = AbstractDevice(device_kind="NVIDIA H200", platform="gpu", num_cores=132)
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


@pytest.fixture
def mesh(topology: str) -> Iterator[Mesh]:
    """One device of the machine that a test calls ``topology``, for programs that are compiled, not run."""
    # Imported late: the shape checks must be hooked in before the package is imported.
    from jddtree.plan import machine

    with machine.find(topology).compile_devices() as devices:
        yield Mesh(np.array(devices[:1]), ("x",))
