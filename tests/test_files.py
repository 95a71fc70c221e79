"""Files appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from afaf.errors import WriteError
from afaf.files import PART, fill, remove_parts, write_whole


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


def test_what_dead_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (f".model.ab12{PART}.safetensors", f".config.ab12{PART}.json", "model.safetensors", ".lock"):
        (tmp_path / name).write_text("")
    remove_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "model.safetensors"]
