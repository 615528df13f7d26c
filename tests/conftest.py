"""JAX settings, hypothesis profile and fixtures that every test shares."""

import os
from collections.abc import Iterator
from pathlib import Path

# Before JAX starts its backend: tests run on the CPU, cut into 8 devices for the layouts.
os.environ["JAX_PLATFORMS"] = "cpu"

import hypothesis
import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_default_matmul_precision", "highest")

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


@pytest.fixture(scope="session")
def golden_folders() -> list[Path]:
    """See `named_goldens`."""
    return named_goldens()


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
def strict_dtypes() -> Iterator[None]:
    """Mixing dtypes raises, as a silent bfloat16-to-float32 promotion would cost memory and exactness."""
    with jax.numpy_dtype_promotion("strict"):
        yield
