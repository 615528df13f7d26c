"""The optimiser: what it does to a matrix, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np

from scripts.pair import muon


def test_orthogonal_keeps_directions_and_levels_sizes():
    x = jax.random.normal(jax.random.key(0), (3, 12, 20))
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    sizes = np.einsum("nik,nij,nkj->nk", u, np.asarray(muon.orthogonal(x)), vt)
    assert sizes.min() > 0.5
    assert sizes.max() < 1.3


def test_fits_a_linear_map():
    goal = jax.random.normal(jax.random.key(1), (6, 8))
    x = jax.random.normal(jax.random.key(2), (64, 8))
    params = {
        "layer.weight": jnp.zeros((6, 8)),
        "norm.weight": jnp.ones(6),
        "stack.weight": jnp.ones((2, 6, 8)),
    }

    def loss_of(params):
        return jnp.mean((x @ params["layer.weight"].T * params["norm.weight"] - x @ goal.T) ** 2)

    moments, losses = muon.start(params), []
    step = jax.jit(lambda p, m, rate: muon.update(p, jax.grad(loss_of)(p), m, rate))
    for i in range(150):
        losses.append(float(loss_of(params)))
        params, moments = step(params, moments, jnp.float32(muon.schedule(i / 150, 0.1)))
    assert losses[-1] < 0.02 * losses[0]


def test_adam_serves_vectors_embeddings_head_and_router_alone():
    names = {
        "model.norm.weight": (4,),
        "model.embed_tokens.weight": (8, 4),
        "lm_head.weight": (8, 4),
        "model.layers.1.mlp.gate.weight": (2, 4),
        "model.layers.1.mlp.gate.e_score_correction_bias": (2,),
        "model.layers.1.mlp.shared_experts.gate_proj.weight": (4, 4),
        "model.layers.1.mlp.experts.gate_proj.weight": (2, 4, 4),
    }
    by_muon = {name for name, shape in names.items() if muon.by_muon(name, jnp.zeros(shape))}
    assert by_muon == {name for name in names if name.endswith("gate_proj.weight")}


def test_schedule_rises_holds_and_falls():
    rates = [muon.schedule(done, 1.0) for done in (0.0, 0.01, 0.02, 0.29, 0.65, 1.0)]
    assert rates[0] < rates[1] < rates[2] == rates[3] == 1.0 > rates[4] > rates[5] > 0
