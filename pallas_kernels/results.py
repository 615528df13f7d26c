"""What a kernel gives."""

import jax


def result(like: jax.Array, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> jax.ShapeDtypeStruct:
    """An array that varies over the same axes of a mesh as ``like``, as `jax.shard_map` asks."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).manual_axis_type)
