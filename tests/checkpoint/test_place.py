import threading

import pytest

from jddtree.checkpoint.place import partial_of, put_in_place, require_room, sole_writer
from jddtree.errors import InputError


def test_the_new_folder_takes_the_old_ones_place(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "old").touch()
    partial_of(folder).mkdir()
    (partial_of(folder) / "new").touch()
    # A backup of the user's own.
    (tmp_path / "x.old").mkdir()
    put_in_place(folder)
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert {path.name for path in tmp_path.iterdir()} == {"x", "x.old"}


def test_one_writer_at_a_time(tmp_path):
    lines, order = [], []
    said = threading.Event()

    def hear(line: str) -> None:
        lines.append(line)
        said.set()

    def second() -> None:
        with sole_writer(tmp_path, hear):
            order.append("second")

    with sole_writer(tmp_path, lines.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert said.wait(timeout=60)
        order.append("first")
    thread.join(timeout=60)
    assert order == ["first", "second"]
    assert lines == [f"Waiting for another conversion into {tmp_path}."]


def test_a_full_disk_is_noticed_before_the_work(tmp_path):
    require_room(tmp_path, 1)
    with pytest.raises(InputError, match="GB free"):
        require_room(tmp_path, 10**18)
