"""The TPU kernel for routed experts: interpreted over the named cases, under the TPU simulator, and compiled
for TPUs that are not here.
"""

import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.dispatch import traced_kernels
from pallas_kernels.grouped_matmul.api import Experts, Int4, expert_mlp
from pallas_kernels.grouped_matmul.cases import CASES, Case
from pallas_kernels.grouped_matmul.tpu_kernel import multiply
from tests.oracles.routed_experts import check, weights

multiplied = partial(multiply, limit=1 << 24, strip_bytes=1 << 20, interpret=True)


@pytest.mark.parametrize(
    ("case", "rounding"),
    [(case, "bfloat16") for case in CASES if case.packed]
    + [
        (CASES[1], "float32"),
        (Case("words_fill_registers", 5, 1024, 32, 3, 2, "random", packed=True), "bfloat16"),
        (Case("groups_fill_registers", 2, 4096, 32, 2, 1, "random", packed=True), "bfloat16"),
        (Case("two_strips", 2, 32, 4096, 1, 1, "one", packed=True, dtype="bfloat16"), "bfloat16"),
    ],
    ids=lambda each: each.name if isinstance(each, Case) else each,
)
def test_interpreted_it_equals_the_reference(case, rounding):
    check(case, rounding, multiplied)


def test_simulated_no_copy_is_read_too_early(capsys):
    case = Case("simulated", 3, 64, 32, 3, 2, "random", packed=True)
    simulator = pltpu.InterpretParams(detect_races=True)
    check(case, "bfloat16", partial(multiplied, interpret=simulator))
    assert "RACE DETECTED" not in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize(
    ("topology", "inner", "count"), [("v5e:2x2", 256, 384), ("v5p:2x2x1", 2048, 48), ("v6e:2x2", 256, 384)]
)
def test_dispatch_takes_it_for_a_tpu_and_the_compiler_does(mesh, inner, count):
    whole = jax.sharding.PartitionSpec()

    def array(*sizes: int, dtype) -> jax.ShapeDtypeStruct:
        place = jax.sharding.NamedSharding(mesh, whole)
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=place)

    def weight(out: int, inputs: int) -> Int4:
        packed = array(count, out, inputs // 8, dtype=jnp.int32)
        return Int4(packed, array(count, out, inputs // 32, dtype=jnp.bfloat16))

    mlp = jax.shard_map(
        partial(expert_mlp, rounding="bfloat16"), mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False
    )
    with traced_kernels() as ran:
        lowered = jax.jit(mlp).lower(
            array(17, 7168, dtype=jnp.bfloat16),
            array(17, 8, dtype=jnp.int32),
            array(17, 8, dtype=jnp.float32),
            Experts(weight(inner, 7168), weight(inner, 7168), weight(7168, inner)),
        )
        program = lowered.compile()
    assert ran == {"grouped_matmul": "mosaic_tpu"}
    # The experts are read as they lie.
    copies = [line for line in program.as_text().splitlines() if " copy(" in line]
    assert not [line for line in copies if f"[{count}," in line]


def test_off_a_tpu_it_is_refused():
    case = CASES[0]
    random = np.random.default_rng(0)
    experts = Experts(*(weights(case, *shape, random) for shape in ((32, 64), (32, 64), (64, 32))))
    x, ids = jnp.ones((1, 64)), jnp.zeros((1, 2), jnp.int32)
    with pytest.raises(NotImplementedError, match="a kernel for TPUs"):
        expert_mlp(x, ids, jnp.ones((1, 2)), experts, rounding="bfloat16", implementation="mosaic_tpu")
