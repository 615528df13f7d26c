import jax.numpy as jnp
import numpy as np
import pytest

from jddtree.quantization import GROUP, dequantize, quantize


def test_groups_are_rounded_to_seven_steps_of_their_largest():
    weight = np.random.default_rng(0).normal(size=(2, 5, 3 * GROUP)).astype(np.float32)
    int4 = quantize(jnp.asarray(weight))
    assert (int4.packed.shape, int4.packed.dtype) == ((2, 5, 3 * GROUP // 8), jnp.int32)
    assert (int4.scale.shape, int4.scale.dtype) == ((2, 5, 3), jnp.bfloat16)
    scale = np.repeat(np.asarray(int4.scale, np.float32), GROUP, axis=-1)
    # The scale itself is rounded to bfloat16, so the largest may be off by that beside half a step.
    error = np.abs(np.asarray(dequantize(int4, "float32")) - weight)
    assert (error <= scale * (0.5 + 7 * 2**-8)).all()
    peak = np.abs(weight.reshape(2, 5, 3, GROUP)).max(-1)
    np.testing.assert_allclose(np.asarray(int4.scale, np.float32), peak / 7, rtol=2**-8)


@pytest.mark.parametrize("rounding", ["bfloat16", "float32"])
def test_what_was_dequantised_quantises_to_itself(rounding):
    weight = np.random.default_rng(1).normal(size=(4, GROUP)).astype(np.float32)
    # Every group reaches +-7, as absmax scaling makes it.
    once = quantize(jnp.asarray(weight))
    again = quantize(dequantize(once, rounding).astype(jnp.float32))
    np.testing.assert_array_equal(once.packed, again.packed)
    np.testing.assert_array_equal(once.scale, again.scale)


def test_a_group_of_zeros_stays_zero():
    int4 = quantize(jnp.zeros((1, GROUP)))
    assert not np.isnan(np.asarray(int4.scale, np.float32)).any()
    assert np.asarray(dequantize(int4)).tolist() == [[0.0] * GROUP]
