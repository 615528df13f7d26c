from jddtree.plan.compiled import collectives, refusal

PROGRAM = """
  %psum.1 = bf16[1,8,7168]{2,1,0:T(8,128)(2,1)} all-reduce(%fusion.1), channel_id=1
  %ar.2 = (f32[4,8]{1,0}, pred[3]{0}) all-reduce(%a, %b), channel_id=2
  %ar.3 = f32[16]{0} all-reduce-start(%c), channel_id=3
  %ar.4 = f32[16]{0} all-reduce-done(%ar.3)
  %ag.1 = (s32[1,8]{1,0}, s32[1,64]{1,0}) all-gather-start(%d), dimensions={1}
  %p.1 = s4[32]{0} collective-permute(%e), source_target_pairs={{0,1}}
  %f.1 = f32[] fusion(%all-reduce.7), kind=kLoop
"""


def test_collectives_of_a_program() -> None:
    assert collectives(PROGRAM) == {
        "all-reduce": {"count": 3, "bytes": 8 * 7168 * 2 + (4 * 8 * 4 + 3) + 16 * 4},
        "all-gather": {"count": 1, "bytes": 64 * 4},
        "collective-permute": {"count": 1, "bytes": 32},
    }


def test_a_compiler_of_another_release_is_named() -> None:
    error = "INTERNAL: Could  not convert JSON\nstring to proto"
    assert refusal(error, "cuda") == "INTERNAL: Could not convert JSON"
    assert "pip install 'jax[tpu]'" in refusal(error, "tpu")
    assert "pip" not in refusal("RESOURCE_EXHAUSTED: of memory", "tpu")
