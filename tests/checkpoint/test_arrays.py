import resource
import signal

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jddtree.checkpoint import arrays
from jddtree.errors import InputError


@given(st.lists(st.integers(0, 9)), st.integers(1, 12))
def test_batches_keep_order_and_limit(sizes, limit):
    groups = list(arrays.batches([(size, size) for size in sizes], limit))
    assert [size for group in groups for size in group] == sizes
    assert all(group and (len(group) == 1 or sum(group) <= limit) for group in groups)


@pytest.mark.parametrize(
    ("path", "shape", "itemsize", "slab", "chunk"),
    [  # tensors of K2.6: files of at most 64 MiB, cut in 16 for tensor parallelism
        ("experts.up_proj.weight_packed", (384, 2048, 896), 4, (8, 2048, 896), (1, 128, 896)),
        ("experts.down_proj.weight_packed", (384, 7168, 256), 4, (8, 7168, 256), (1, 7168, 16)),
        ("experts.down_proj.weight_scale", (384, 7168, 64), 2, (64, 7168, 64), (1, 7168, 4)),
        ("embed_tokens.weight", (163840, 7168), 2, (4096, 7168), (256, 7168)),
        ("layers.0.self_attn.o_proj.weight", (7168, 8192), 2, (4096, 8192), (4096, 512)),
        ("layers.0.self_attn.k_up", (64, 128, 512), 2, (64, 128, 512), (4, 128, 512)),
        ("norm.weight", (7168,), 2, (7168,), (7168,)),
        ("two.of.an.expert", (2, 2**15, 2**12), 4, (1, 4096, 4096), (1, 256, 4096)),
    ],
)
def test_files_and_chunks_follow_the_cuts(path, shape, itemsize, slab, chunk):
    assert arrays.slab(shape, itemsize) == slab
    assert arrays.chunk(path, shape, itemsize) == chunk


@pytest.fixture
def small(monkeypatch):
    """Files of 4 of 16 experts, in chunks."""
    monkeypatch.setattr(arrays, "SLAB_BYTES", 20_000)
    monkeypatch.setattr(arrays, "_PART_BYTES", 64)
    random = np.random.default_rng(0)
    return {
        "a.up.weight": random.integers(0, 2**16, (16, 64, 32), dtype=np.uint16).view(ml_dtypes.bfloat16),
        "a.zeros": np.full((40, 3), -0.0, np.float32),
        "b": random.integers(-(2**31), 2**31, (5,), dtype=np.int32),
    }


def write(weights, content):
    for path, array in content.items():
        height = arrays.slab(array.shape, array.dtype.itemsize)[0]
        for start in range(0, len(array), height):
            part = array[start : start + height]
            arrays.write(weights, path, array.shape, (slice(start, start + len(part)),), part)


def wish(content, spec):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    cut, whole = NamedSharding(mesh, spec), NamedSharding(mesh, PartitionSpec())
    return {
        path: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=cut if array.ndim == 3 else whole)
        for path, array in content.items()
    }


def test_bits_survive_and_nothing_loads_before_the_end(tmp_path, small):
    weights = tmp_path / "weights"
    write(weights, small)
    with pytest.raises(InputError, match="damaged"):
        arrays.load(weights, wish(small, PartitionSpec()))
    with pytest.raises(InputError, match="damaged"):
        arrays.read(weights, "b", (slice(0, 5),), small["b"][:5].copy())
    dtypes = {path: array.dtype for path, array in small.items()}
    arrays.finish(weights, dtypes)
    arrays.finish(weights, dtypes)  # as after a kill at its end
    for spec in (PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec(None, None, "x")):
        for path, array in arrays.load(weights, wish(small, spec)).items():
            expected = small[path]
            assert (array.dtype, np.asarray(array).tobytes()) == (expected.dtype, expected.tobytes())
            assert array.sharding.spec == (spec if array.ndim == 3 else PartitionSpec())
    region = slice(3, 9), slice(5, 7)
    expected = small["a.up.weight"][region]
    out = np.zeros((*expected.shape[:1], 2 * expected.shape[1], *expected.shape[2:]), expected.dtype)[:, ::2]
    arrays.read(weights, "a.up.weight", region, out)
    assert out.tobytes() == expected.tobytes()
    with pytest.raises(InputError, match="lacks c"):
        arrays.load(weights, {"c": wish(small, PartitionSpec())["b"]})


def test_damage_is_named_by_its_file(tmp_path, small, capfd):
    weights = tmp_path / "weights"
    write(weights, small)
    arrays.finish(weights, {path: array.dtype for path, array in small.items()})
    [file] = weights.glob("*/a.up.weight/c/2/0/0")
    good = file.read_bytes()

    def refused(reason):
        with pytest.raises(InputError, match=rf"a\.up\.weight/c/2/0/0 .*{reason}") as caught:
            arrays.load(weights, wish(small, PartitionSpec("x")))
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match=rf"a\.up\.weight/c/2/0/0 .*{reason}"):
            arrays.read(weights, "a.up.weight", (slice(8, 12),), small["a.up.weight"][8:12].copy())
        assert capfd.readouterr().err == ""

    file.write_bytes(good[:1000] + bytes([good[1000] ^ 1]) + good[1001:])
    refused("checksum")
    file.write_bytes(good[:-1])
    refused("checksum")
    file.unlink()
    refused("missing")


def test_a_disk_that_is_full_at_the_end_is_one_line(tmp_path, small, capfd):
    weights = tmp_path / "weights"
    write(weights, small)
    dtypes = {path: array.dtype for path, array in small.items()}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(InputError, match=r"weights: Orbax's own files cannot be written: ") as caught:
            arrays.finish(weights, dtypes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "File too large" in str(caught.value)
    assert "\n" not in str(caught.value) and capfd.readouterr().err == ""
    with pytest.raises(InputError):
        arrays.load(weights, wish(small, PartitionSpec("x")))
    arrays.finish(weights, dtypes)
    arrays.load(weights, wish(small, PartitionSpec("x")))


def test_a_disk_that_keeps_other_bytes_is_noticed(tmp_path, small, monkeypatch):
    open_ = arrays._open

    class Faulty:
        def __init__(self, place, **create):
            self.array = open_(place, **create)

        def __getitem__(self, region):
            return Faulty.View(self.array[region])

        class View:
            def __init__(self, array):
                self.array = array

            def read(self):
                return self.array.read()

            def write(self, values):
                return self.array.write(values + 1)

    monkeypatch.setattr(arrays, "_open", Faulty)
    with pytest.raises(InputError, match="b gave other bytes back"):
        write(tmp_path / "weights", {"b": small["b"]})


def test_nesting_is_reversible():
    flat = {"a.b.0": 1, "a.b.1": 2, "c": 3}
    assert arrays.nest(flat) == {"a": {"b": {"0": 1, "1": 2}}, "c": 3}
    assert arrays.flatten(arrays.nest(flat)) == flat
