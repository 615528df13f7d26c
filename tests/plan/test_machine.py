import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jddtree.errors import InputError
from jddtree.plan import machine
from jddtree.plan.machine import find


@pytest.mark.parametrize(
    ("name", "devices", "memory_gb", "gb_a_second"),
    [
        ("v5p:2x2x4", 16, 102.8, 2765),
        ("v6e:4x8", 32, 33.5, 1638),
        ("tpu7x:2x2x1", 8, 101.7, 3690),
        ("8x-rtx-pro-6000", 8, 103.1, 1792),
        ("3x-h200", 3, 151.4, 4800),
        ("8x-b300", 8, 297.0, 7936),
    ],
)
def test_a_name_says_devices_memory_and_bandwidth(name, devices, memory_gb, gb_a_second) -> None:
    box = find(name)
    assert box.devices == devices
    assert box.memory == pytest.approx(memory_gb * 1e9, rel=5e-3)
    assert box.bandwidth == gb_a_second * 1e9


@pytest.mark.parametrize("name", ["h200", "v5p", "8x-v5p", "h200:2x2", "0x-h200", "v5p:2", "8x-abacus"])
def test_an_unknown_machine_lists_the_known(name: str) -> None:
    with pytest.raises(InputError, match=r"is not known: .*Nx-h200.*v5p:AxB.*local"):
        find(name)


def test_local_is_what_jax_sees() -> None:
    box = find("local")
    with box.compile_devices() as devices:
        assert (box.devices, list(devices)) == (jax.device_count(), jax.devices())


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_a_compiler_the_line_says_what_to_install() -> None:
    with (
        pytest.raises(InputError, match=r"pip install 'jax\[tpu\]'"),
        find("v5p:2x2x1").compile_devices(),
    ):
        pass


@pytest.fixture
def persistent(own_cache, tmp_path: Path) -> Path:
    """The folder of a persistent compilation cache, which keeps every program."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    return tmp_path


def doubled() -> jax.stages.Lowered:
    return jax.jit(lambda x: x + x).lower(1.0)


@pytest.mark.parametrize(("name", "platform"), [("v5p:2x2x1", "tpu"), ("2x-h200", "cuda")])
def test_programs_for_machines_that_are_not_here_touch_no_cache(
    name: str, platform: str, persistent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, f"_{platform}", lambda _: jax.devices())
    doubled().compile()
    (stored,) = persistent.glob("*-cache")
    # What is read now is an error, as warnings are.
    stored.write_bytes(b"cannot be read back")
    with find(name).compile_devices() as devices, ThreadPoolExecutor(2) as pool:
        assert list(devices) == jax.devices()
        with find(name).compile_devices():
            doubled().compile()
        list(pool.map(jax.stages.Lowered.compile, [doubled(), doubled()]))
        doubled().compile()
        assert [*persistent.glob("*-cache")] == [stored]
    assert stored.read_bytes() == b"cannot be read back"
    # Others use it again.
    stored.unlink()
    doubled().compile()
    assert stored.exists()
