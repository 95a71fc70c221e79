"""Files appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from afaf.errors import WriteError
from afaf.files import PART, append_line, fill, remove_parts, write_whole


def test_until_it_is_whole_the_old_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_whole(path, lambda temporary: fill(temporary, [b"old"]))

    def write(temporary: Path) -> None:
        fill(temporary, [b"half of "])
        assert path.read_bytes() == b"old"
        assert temporary.suffix == path.suffix  # some writers go by it
        fill(temporary, [b"new", b"", b"er" * 100_000, b"!"])
        assert path.read_bytes() == b"old"

    write_whole(path, write)
    assert path.read_bytes() == b"new" + b"er" * 100_000 + b"!"
    assert list(tmp_path.iterdir()) == [path]


def test_it_is_on_the_disk_before_it_gets_its_name_and_so_is_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(handle: int) -> None:
        done.append(f"sync {'folder' if os.path.isdir(f'/proc/self/fd/{handle}') else 'file'}")
        sync(handle)

    def replace(source: Path, target: Path) -> None:
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_whole(tmp_path / "file", lambda temporary: fill(temporary, [b"new"]))
    assert done == ["sync file", "rename", "sync folder"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("a mistake")])
def test_what_fails_leaves_the_old_file_and_nothing_else(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(temporary: Path) -> None:
        fill(temporary, [b"half"])
        raise error

    with pytest.raises(WriteError if isinstance(error, OSError) else type(error)):
        write_whole(path, write)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_takes_little_at_a_time_gets_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, bytes(data)[:7]))
    fill(tmp_path / "file", [b"0123456789" * 3, bytes(70_000)])
    assert (tmp_path / "file").read_bytes() == b"0123456789" * 3 + bytes(70_000)


def test_a_line_is_appended_in_one_write_unless_the_disk_takes_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, path = os.write, tmp_path / "file"
    sizes: list[int] = []

    def taking(at_most: int) -> None:
        monkeypatch.setattr(os, "write", lambda handle, data: sizes.append(len(data)) or write(handle, bytes(data)[:at_most]))

    taking(100)
    append_line(path, "whole")
    taking(4)
    append_line(path, "in parts")
    assert path.read_text() == "whole\nin parts\n"
    assert sizes == [6, 9, 5, 1]


APPEND = """
import resource, sys
from pathlib import Path
from afaf.errors import WriteError
from afaf.runs.folder import RunFolder
from afaf.sweeps.store import Store
folder, which = Path(sys.argv[1]), sys.argv[2]
put = RunFolder(folder).log if which == "log" else lambda record: Store(folder).append("log", record)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
put({"n": 1})
for _ in range(2):
    try:
        put({"n": "x" * 100})
    except WriteError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
put({"n": 3})
"""


@pytest.mark.parametrize("which", ["log", "results"])
def test_a_line_the_disk_has_no_room_for_is_an_error_and_the_next_is_whole(which: str, tmp_path: Path) -> None:
    """The system itself takes some of the line and refuses the rest."""
    done = subprocess.run([sys.executable, "-c", APPEND, str(tmp_path), which], capture_output=True, text=True, check=True)
    path = tmp_path / "log.jsonl"
    assert done.stdout.splitlines() == [f"cannot write {path}: File too large"] * 2
    first, half, last = path.read_text().splitlines()
    assert first.replace(" ", "") == '{"n":1}'
    assert half.startswith('{"n":')
    assert last.replace(" ", "") == '{"n":3}'


def test_what_dead_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (f".model.ab12{PART}.safetensors", f".config.ab12{PART}.json", "model.safetensors", ".lock"):
        (tmp_path / name).write_text("")
    remove_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "model.safetensors"]
