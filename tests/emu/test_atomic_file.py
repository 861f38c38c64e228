import os
import stat

import pytest

from emu.atomic_file import write_whole


def test_all_are_written(tmp_path):
    write_whole({tmp_path / "a": "one\n", tmp_path / "b": "\u00fc"})
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == {"a": "one\n", "b": "\u00fc"}


def test_rights_are_those_of_any_new_file_or_stay(tmp_path):
    (tmp_path / "plain").write_text("")
    (tmp_path / "old").write_text("")
    (tmp_path / "old").chmod(0o640)
    write_whole({tmp_path / "new": "x", tmp_path / "old": "x"})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes["new"] == modes["plain"]
    assert modes["old"] == 0o640


def test_a_link_stays_one(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole({tmp_path / "link": "new"})
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("bad", ["missing/b", "folder", "file/b"])
def test_one_that_cannot_be_written_leaves_all_as_they_were(tmp_path, bad):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OSError, match="directory") as caught:
        write_whole({tmp_path / "file": "new", tmp_path / bad: "x"})
    assert caught.value.filename == str(tmp_path / bad)
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "file").read_text() == "old"


def test_what_goes_wrong_at_the_end_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole({path: b"new"})
    assert caught.value.filename == str(path)
    assert [path.read_text(), list(tmp_path.iterdir())] == ["old", [path]]


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole({tmp_path / "pipe": "through"})
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
