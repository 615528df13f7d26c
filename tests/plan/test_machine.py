import importlib.util

import jax
import pytest

from jddtree.errors import InputError
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
    assert (box.devices, list(box.compile_devices())) == (jax.device_count(), jax.devices())


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_a_compiler_the_line_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"pip install 'jax\[tpu\]'"):
        find("v5p:2x2x1").compile_devices()
