"""A conversion's journal: what lies where it is to be. Continuing is tested in test_transfer.py."""

import pytest

from jddtree.checkpoint.journal import Journal
from jddtree.errors import InputError


def test_what_is_no_stopped_conversion_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is in the way"):
        Journal(tmp_path, {"to": "orbax"})
    assert (tmp_path / "mine.txt").read_text() == "mine"
