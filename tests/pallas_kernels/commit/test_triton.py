"""The kernel that commits, where it differs from a scatter; what it writes: `tests/test_cache.py`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.commit import reference, triton
from pallas_kernels.commit.api import commit
from pallas_kernels.commit.triton_kernel import CHANNELS
from pallas_kernels.dispatch import traced_kernels


def drawn(widths: list[int]) -> tuple:
    """Leaves [2, 9, W] bfloat16 and new ones [2, 5, W], of which two rows keep 3 slots and 1."""
    random = np.random.default_rng(0)

    def leaves(slots: int) -> list[jax.Array]:
        return [jnp.asarray(random.normal(size=(2, slots, width)), jnp.bfloat16) for width in widths]

    slots, count, lengths = (jnp.array(each, jnp.int32) for each in ([[4, 0, 2], [1, 3, 3]], [3, 1], [7, 2]))
    return leaves(9), leaves(5), slots, count, lengths


def test_more_leaves_than_a_launch_takes_are_several_launches(monkeypatch):
    monkeypatch.setattr(triton, "LEAVES", 3)
    arrays = drawn([3, 8, 1, 8, 5, 2, 7])
    written = jax.jit(partial(triton.commit, interpret=True))
    assert str(jax.make_jaxpr(written)(*arrays)).count("pallas_call[") == 3
    jax.tree.map(np.testing.assert_array_equal, written(*arrays), reference.commit(*arrays))


def test_wide_slots_are_copied_in_parts():
    arrays = drawn([2 * CHANNELS + 3, CHANNELS])
    written = jax.jit(partial(triton.commit, interpret=True))(*arrays)
    jax.tree.map(np.testing.assert_array_equal, written, reference.commit(*arrays))


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_gpus_take_it_and_write_a_cache_that_is_given_up_in_place(hopper):
    arrays = drawn([576, 64])
    with hopper, traced_kernels() as ran:
        lowered = jax.jit(commit, donate_argnums=0).trace(*arrays).lower(lowering_platforms=("cuda",))
    assert ran == {"commit": "triton"}
    assert lowered.as_text().count("output_operand_alias<") == 2
