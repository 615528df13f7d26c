"""Random weights: INT4 words are numbers of mean 0 and of the deviation that a width asks for."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jddtree.quantization import dequantize
from pallas_kernels.grouped_matmul.api import Int4
from scripts.random_weights import maker


def test_int4_weights_favour_no_direction():
    place, key = SingleDeviceSharding(jax.devices()[0]), jax.random.key(0)
    words = maker("words", (64, 128), jnp.dtype(jnp.int32), place)(key)
    scales = maker("scales", (64, 32), jnp.dtype(jnp.bfloat16), place)(key)
    nibbles = (np.asarray(words)[..., None] >> (4 * np.arange(8))) & 15
    assert set(np.unique(nibbles)) == set(range(1, 16))
    weights = np.asarray(dequantize(Int4(words, scales), "float32"))
    deviation = 1024**-0.5
    assert abs(weights.std() / deviation - 1) < 0.02
    assert abs(weights.mean()) < 0.02 * deviation
