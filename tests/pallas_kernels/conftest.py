"""An H200 that is not there."""

from contextlib import AbstractContextManager
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager:
    """Dispatch finds an H200 here; inside of the context programs are lowered for it."""
    chip = SimpleNamespace(device_kind="NVIDIA H200", compute_capability="9.0", core_count=132)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [chip])
    device = AbstractDevice(device_kind="NVIDIA H200", platform="gpu", num_cores=132)
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))
