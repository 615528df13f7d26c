"""Writing into a part of a file."""

import pytest

from jddtree.errors import InputError
from scripts.pair.section import replace_section


def test_a_section_is_replaced_and_nothing_else(tmp_path):
    file = tmp_path / "x.md"
    file.write_text("a\n<!-- begin one -->\n<!-- end one -->\n<!-- begin two -->\nb\n<!-- end two -->\nc")
    for text in ("x\ny\n", "z"):
        replace_section(file, "one", text)
    assert file.read_text() == (
        "a\n<!-- begin one -->\nz\n<!-- end one -->\n<!-- begin two -->\nb\n<!-- end two -->\nc"
    )
    with pytest.raises(InputError, match="no lines"):
        replace_section(file, "three", "x")
    with pytest.raises(InputError, match="missing"):
        replace_section(tmp_path / "missing", "one", "x")
