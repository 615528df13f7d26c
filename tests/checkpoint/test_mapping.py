from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jddtree.checkpoint.mapping import Rule, make_plan
from jddtree.checkpoint.published import Tensor, begin, store, tensors
from jddtree.errors import InputError

EXPERTS = Rule("stack", r"model\.experts\.(?P<index>\d+)\.(weight)", to=(r"experts.\2",), count=3)
COPY = Rule("copy", r"(?:model\.)?(.+)", to=(r"\1",))


def source(names: list[str], shape: tuple[int, ...] = (2, 2)) -> dict[str, Tensor]:
    """Tensors that are never read."""
    return {name: Tensor(name, Path("f.safetensors"), "F32", shape, 0) for name in names}


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 12), st.integers(0, 9))
def test_arrays_lead_back_to_the_published_bytes(tmp_path_factory, heads, a, b, experts, seed):
    random = np.random.default_rng(seed)
    # Any bits: not-a-numbers and negative zeros count too.
    bits = lambda *shape: random.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)  # noqa: E731
    published = {"model.kv_b.weight": bits(heads * (a + b), 3), "model.norm.weight": bits(5)}
    published |= {f"model.experts.{index}.weight": bits(2, 3) for index in range(experts)}
    published["model.experts.w_shape"] = np.array([2, 3], np.int64)
    folder = tmp_path_factory.mktemp("model")
    codes = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64"}
    shuffled = [list(published.items())[index] for index in random.permutation(len(published))]
    layout = [(name, codes[array.dtype], array.shape) for name, array in shuffled]
    store(begin(folder / "model.safetensors", layout), [array for _, array in shuffled])

    rules = (
        Rule("note", r".*_shape"),
        Rule("stack", EXPERTS.name, to=EXPERTS.to, count=experts),
        Rule("heads", r"model\.kv_b\.weight", to=("k_up", "v_up"), rows=(a, b)),
        COPY,
    )
    found = tensors(folder)
    plan = make_plan(found, rules)
    shapes = {path: shape for entry in plan.entries for path, shape in entry.arrays.items()}
    arrays = {path: np.zeros(shape, np.float32) for path, shape in shapes.items()}
    blocks = [block for entry in plan.entries if entry.arrays for block in in_blocks(entry, a + b)]
    for entry, tensors_, rows in blocks:
        block = np.stack([found[name].read()[rows] for name in entry.names[tensors_]])
        for path, part in entry.split(block).items():
            arrays[path][entry.places(tensors_, rows)[path]] = part
    assert shapes == {
        "k_up": (heads, a, 3),
        "v_up": (heads, b, 3),
        "norm.weight": (5,),
        "experts.weight": (experts, 2, 3),
    }
    kv = published["model.kv_b.weight"].reshape(heads, a + b, 3)
    assert arrays["k_up"].tobytes() == kv[:, :a].tobytes()
    assert arrays["v_up"].tobytes() == kv[:, a:].tobytes()
    assert (
        arrays["experts.weight"][-1].tobytes() == published[f"model.experts.{experts - 1}.weight"].tobytes()
    )

    back = {"model.experts.w_shape": next(e for e in plan.entries if e.op == "note").note(0)}
    for entry, tensors_, rows in blocks:
        block = np.zeros(
            (tensors_.stop - tensors_.start, rows.stop - rows.start, *entry.shape[1:]), np.float32
        )
        for path, part in entry.split(block).items():
            part[:] = arrays[path][entry.places(tensors_, rows)[path]]
        for name, part in zip(entry.names[tensors_], block, strict=True):
            back[name] = np.concatenate([back[name], part]) if name in back else part
    assert back.keys() == published.keys()
    for name, array in published.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()


def in_blocks(entry, heads):
    """An entry, some of its tensors, some of their rows: two tensors and two rows, or heads, at a time."""
    step = heads if entry.op == "heads" else 2
    return [
        (entry, slice(first, min(first + 2, len(entry.names))), slice(row, min(row + step, entry.shape[0])))
        for first in range(0, len(entry.names), 2)
        for row in range(0, entry.shape[0], step)
    ]


def test_packed_modules_are_those_with_packed_words():
    plan = make_plan(source(["a.b.weight_packed", "a.b.weight_scale", "a.c.weight"]), (COPY,))
    assert plan.packed == {"a.b"}


def expert(index: int | str) -> str:
    return f"model.experts.{index}.weight"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([expert(0), expert(2)], r"model\.experts\.1\.weight is missing"),
        ([expert(0), expert(1)], r"model\.experts\.2\.weight is missing"),
        ([*map(expert, range(4))], r"no place for tensor model\.experts\.3\.weight"),
        ([*map(expert, range(3)), "other"], r"f\.safetensors: no place for tensor other"),
        ([*map(expert, range(2)), expert("02")], r"no place for tensor model\.experts\.02\.weight"),
    ],
)
def test_stacks_must_be_complete(names, message):
    with pytest.raises(InputError, match=message):
        make_plan(source(names), (EXPERTS,))


def test_members_of_a_stack_must_be_alike():
    odd = source([expert(0), expert(1)]) | source([expert(2)], (2, 3))
    with pytest.raises(InputError, match=r"model\.experts\.2\.weight is F32 \[2, 3\], but its neighbours"):
        make_plan(odd, (EXPERTS,))


def test_two_tensors_for_one_array_are_refused():
    with pytest.raises(InputError, match=r"model\.norm and norm are both norm"):
        make_plan(source(["model.norm", "norm"]), (COPY,))


def test_rows_that_do_not_divide_into_heads_are_refused():
    rule = Rule("heads", "kv", to=("k", "v"), rows=(2, 3))
    with pytest.raises(InputError, match="tensor kv is"):
        make_plan(source(["kv"], (6, 4)), (rule,))
