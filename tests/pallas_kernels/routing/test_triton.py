"""The kernel that chooses experts: interpreted against the reference, and lowered for CUDA without a GPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.routing import reference, triton
from pallas_kernels.routing.api import Rule, route


def drawn(tokens: int, experts: int) -> tuple[np.ndarray, ...]:
    """Logits and a bias in which two experts are alike, and of three tokens one that is not valid."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(tokens, experts)).astype(np.float32)
    bias = random.normal(scale=0.1, size=experts).astype(np.float32)
    logits[:, 3], bias[3] = logits[:, 5], bias[5]
    return logits, bias, np.arange(tokens) % 3 != 2


@pytest.mark.parametrize(
    ("tokens", "experts", "chosen"), [(1, 384, 8), (17, 384, 8), (5, 16, 2), (4, 12, 12)]
)
@pytest.mark.parametrize("normalised", [True, False])
def test_interpreted_it_equals_the_reference(tokens, experts, chosen, normalised):
    rule = Rule(chosen, groups=1, kept_groups=1, normalised=normalised, scale=2.5)
    found = jax.jit(partial(triton.route, rule=rule, interpret=True))(*drawn(tokens, experts))
    wanted = jax.jit(partial(reference.route, rule=rule))(*drawn(tokens, experts))
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)


def test_what_is_no_number_is_chosen_first_and_shows():
    logits, bias, valid = drawn(2, 384)
    logits[0, 9], logits[1] = np.nan, np.nan
    rule = Rule(8, groups=1, kept_groups=1, normalised=False, scale=1.0)
    found = jax.jit(partial(triton.route, rule=rule, interpret=True))(logits, bias, valid)
    ids, weights = map(np.asarray, found)
    assert ids[0, 0] == 9 and np.isnan(weights[0]).tolist() == [True] + 7 * [False]
    assert ids[1].tolist() == [*range(8)] and np.isnan(weights[1]).all()


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("groups", "taken"), [(1, "triton"), (4, "xla")])
def test_gpus_take_it_unless_experts_are_in_groups(groups, taken, hopper):
    rule = Rule(2, groups=groups, kept_groups=1, normalised=True, scale=2.5)
    arrays = [jnp.asarray(array) for array in drawn(17, 16)]
    with hopper, traced_kernels() as ran:
        lowered = jax.jit(partial(route, rule=rule)).trace(*arrays).lower(lowering_platforms=("cuda",))
    assert ran == {"routing": taken}
    assert ("xla.gpu.triton" in lowered.as_text()) == (taken == "triton")
