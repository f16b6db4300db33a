import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attemper.errors import FileError
from attemper.files import make_folder, read_json, whole_file, whole_folder, write_json


def test_a_file_comes_whole_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "result.json"
    write_json(path, {"name": "Ω", "values": [1, 2.5, None]})
    assert read_json(path) == {"name": "Ω", "values": [1, 2.5, None]}
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_error_while_writing_leaves_what_was_there(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, object())
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_killed_while_writing_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    code = f"""
import pathlib, os, signal
from attemper.files import whole_file
with whole_file(pathlib.Path({str(path)!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_a_folder_comes_whole_or_not_at_all(tmp_path):
    with whole_folder(tmp_path / "7") as temporary:
        (temporary / "x").write_text("x")
        assert not (tmp_path / "7").exists()
    assert (tmp_path / "7" / "x").read_text() == "x"
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "8") as temporary:
        (temporary / "x").write_text("x")
        _ = 1 / 0
    assert os.listdir(tmp_path) == ["7"]


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(FileError, match=r"cannot make the folder .*runs: a file stands there"):
        make_folder(tmp_path / "runs")
    with pytest.raises(FileError, match="x: a file stands where one of its parents should be"):
        write_json(tmp_path / "runs" / "x" / "result.json", 1)


def test_a_file_system_that_cannot_be_written():
    with pytest.raises(FileError, match=r"cannot make the folder /proc/attemper"):
        make_folder(Path("/proc/attemper"))
    with pytest.raises(FileError, match=r"cannot write into /proc"), whole_file(Path("/proc/x")):
        pass


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(FileError, match=r"cannot read .*none\.json: No such file"):
        read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FileError, match=r"bad\.json is not JSON"):
        read_json(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(FileError, match=r"list\.json is damaged: a JSON object was expected, found list"):
        read_json(tmp_path / "list.json")


def test_what_was_written_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.readlink(f"/proc/self/fd/{file}")), real(file)))
    with whole_file(tmp_path / "file") as temporary:
        temporary.write_text("x")
    assert synced == [str(temporary), str(tmp_path)]
    synced.clear()
    with whole_folder(tmp_path / "folder") as temporary:
        (temporary / "x").write_text("x")
    assert synced == [str(temporary / "x"), str(temporary), str(tmp_path)]
