"""Training, measuring and publishing, each as `python -m scripts.NAME`."""

# First of all imports: what JAX cannot read in the environment is one line then.
import jddtree  # noqa: F401
