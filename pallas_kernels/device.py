"""What a program is traced for."""

import jax
import jax.numpy as jnp


def is_tpu() -> bool:
    """Whether for a TPU. A program may be compiled for devices that are not here: a mesh says for which."""
    return _platform() == "tpu"


def is_gpu() -> bool:
    """Whether for a GPU, here or not."""
    return _platform() == "gpu"


def _platform() -> str:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def kind() -> str:
    """What JAX calls the device that is traced for, as in "NVIDIA H200"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (jax.local_devices()[0] if device is None else device).device_kind


def is_hopper() -> bool:
    """Whether for the GPUs here, of compute capability 9.0."""
    if jax.default_backend() != "gpu":
        return False
    return getattr(jax.local_devices()[0], "compute_capability", "") == "9.0"


def processors(usual: int) -> int:
    """Multiprocessors of a GPU here, ``usual`` where JAX does not tell."""
    return getattr(jax.local_devices()[0], "core_count", usual)


def require_one_dtype(*arrays: jax.Array | None) -> None:
    """Raises NotImplementedError for arrays of several dtypes, and of others than bfloat16 and float32."""
    dtypes = {array.dtype for array in arrays if array is not None}
    if len(dtypes) > 1 or not dtypes <= {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}:
        raise NotImplementedError(f"dtypes {', '.join(sorted(map(str, dtypes)))}")


def require_triton() -> str:
    """The compute capability of the GPUs here. Raises NotImplementedError where Triton does not serve: off
    NVIDIA GPUs, and below 8.0.
    """
    if jax.default_backend() != "gpu":
        raise NotImplementedError("a kernel for GPUs")
    device = jax.local_devices()[0]
    capability = getattr(device, "compute_capability", "")
    if not capability[:1].isdigit() or float(capability) < 8.0:
        raise NotImplementedError(f"needs compute capability 8.0, not {capability or device.device_kind}")
    return capability
