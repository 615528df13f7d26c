"""Counting kernels in the compiler's text."""

from scripts.round.kernels import kernels

PROGRAM = """HloModule jit_loop, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %add = f32[4]{0} add(%p, %p)
}

%inner (c: (s32[], f32[4])) -> (s32[], f32[4]) {
  %c = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %n = s32[] get-tuple-element(%c), index=0
  %x = f32[4]{0} get-tuple-element(%c), index=1
  %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %t = (s32[], f32[4]{0}) tuple(%n, %f)
}

%go (c: (s32[], f32[4])) -> pred[] {
  %c = (s32[], f32[4]{0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

%turn (c: (s32[], f32[4])) -> (s32[], f32[4]) {
  %c = (s32[], f32[4]{0}) parameter(0)
  %w = (s32[], f32[4]{0}) while(%c), condition=%go, body=%inner, backend_config={"known_trip_count":{"n":"3"}}
  %x = f32[4]{0} get-tuple-element(%w), index=1
  %g = (f32[4]{0}, /*index=1*/s8[16]{0}) custom-call(%x), custom_call_target="gemm"
  %k = f32[4]{0} copy(%x)
  %s = f32[4]{0} sort(%k), dimensions={0}, to_apply=%fused
  ROOT %t = (s32[], f32[4]{0}) tuple(%c, %s)
}

ENTRY %main (a: f32[4]) -> (s32[], f32[4]) {
  %a = f32[4]{0} parameter(0)
  %before = f32[4]{0} copy(%a)
  %short = (s32[], f32[4]{0}) while(%before), condition=%go, body=%inner
  ROOT %w = (s32[], f32[4]{0}) while(%short), condition=%go, body=%turn
}
"""


def test_of_the_longest_loop_inner_loops_by_their_turns():
    assert kernels(PROGRAM) == {"fusions": 3, "custom_calls": 1, "copies": 1, "others": 1}


def test_without_a_loop_the_program_itself():
    entry = PROGRAM[PROGRAM.index("ENTRY") :]
    assert kernels("\n".join(line for line in entry.splitlines() if "while" not in line)) == {
        "fusions": 0,
        "custom_calls": 0,
        "copies": 1,
        "others": 0,
    }
