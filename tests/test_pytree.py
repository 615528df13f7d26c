import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

from jddtree.pytree import pytree_dataclass


@pytree_dataclass
class Point:
    x: Float[Array, " N"]
    y: Float[Array, " N"]


def test_fields_are_the_leaves_and_shapes_may_take_their_place():
    point = Point(jnp.zeros(3), jnp.ones(3))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(point)]
    assert paths == [".x", ".y"]
    moved = jax.jit(lambda p: jax.tree.map(lambda leaf: leaf + 1, p))(point)
    assert isinstance(moved, Point) and moved.y.tolist() == [2, 2, 2]
    shapes = jax.eval_shape(lambda p: p, point)
    assert isinstance(shapes, Point) and shapes.x.shape == (3,)
    assert jax.tree.map(lambda _: "name", point).x == "name"


def test_a_point_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point(jnp.zeros(3), jnp.ones(3)).x = jnp.ones(3)
