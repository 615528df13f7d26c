"""JAX settings, hypothesis profile and fixtures that every test shares."""

import gc
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# Before JAX starts its backend: tests run on the CPU, cut into 8 devices for the layouts.
os.environ["JAX_PLATFORMS"] = "cpu"

import hypothesis
import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_default_matmul_precision", "highest")
# Most of the suite's time is compiling: the compiler's costly passes take more than they give at these sizes.
jax.config.update("jax_disable_most_optimizations", True)

# Tracing makes many objects; searching them for cycles as often as usual takes up to a tenth of the time.
gc.set_threshold(50_000)

# No deadline: the first example of a property compiles. Fixed examples: a red run is red for everyone.
hypothesis.settings.register_profile("jddtree", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("jddtree")

BUNDLED_GOLDENS = Path(__file__).parent / "data" / "goldens"


def named_goldens() -> list[Path]:
    """The bundled golden subset, then every folder that JDDTREE_GOLDENS names (separated like PATH)."""
    named = os.environ.get("JDDTREE_GOLDENS", "").split(os.pathsep)
    folders = [BUNDLED_GOLDENS, *(Path(name).resolve() for name in named if name)]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    assert not missing, f"JDDTREE_GOLDENS names folders that do not exist: {missing}"
    return folders


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Programs that more than one test compiles, in whichever worker, are compiled once a run."""
    folder = tmp_path_factory.getbasetemp()
    # Workers have folders side by side, new in every run.
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(scope="session")
def golden_folders() -> list[Path]:
    """See `named_goldens`."""
    return named_goldens()


@pytest.fixture(scope="session")
def trained_runs() -> dict:
    """The reference's prompts and runs of the small trained pair."""
    return json.loads((BUNDLED_GOLDENS / "e2e" / "tiny_a" / "runs.json").read_text())


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """The small trained pair in float32, with a tokenizer that cuts characters in two."""
    # Imported late: the shape checks must be hooked in before the package is imported.
    from jddtree.load import load_pair
    from tests import tiny

    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(tiny.TRAINED / "target", folder / "target")
    letters = [bytes([byte]) for byte in range(0x20, 0x7F)]
    halves = [b"\xed\x95", *(bytes([byte]) for byte in range(0x80, 0xC0))]
    tiny.write_tokenizer(folder / "target", [*letters, *halves])
    return load_pair(
        folder / "target",
        tiny.TRAINED / "drafter",
        dtype="float32",
        cache_dir=folder / "cache",
        say=lambda line: None,
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``golden_row`` runs for every category of the golden folders.

    The bundled ones are a subset made to run where there are no others, so they run only then.
    """
    if "golden_row" in metafunc.fixturenames:
        # Imported late: the shape checks must be hooked in before the package is imported.
        from jddtree.compare.goldens import find

        folders = named_goldens()
        rows = [(folder, category) for folder in folders[1:] or folders for category, _ in find(folder)]
        names = [f"{'bundled' if folder == BUNDLED_GOLDENS else folder.name}/{row}" for folder, row in rows]
        metafunc.parametrize("golden_row", rows, ids=names)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Converted weights and compiled programs go to a folder of the test's, and JAX's settings come back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def strict_dtypes() -> Iterator[None]:
    """Mixing dtypes raises, as a silent bfloat16-to-float32 promotion would cost memory and exactness."""
    with jax.numpy_dtype_promotion("strict"):
        yield
