"""Only regular files are read, each up to its size, and no link leads out of a run folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from afaf.files import open_regular, read_bytes, read_text


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "folder", "socket", "nothing"])
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    if "pipe" in kind:
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
        path = path if "link" in kind else tmp_path / "pipe"
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind("file")
    with pytest.raises(OSError, match=str(path)):
        open_regular(path)


def test_a_file_larger_than_its_kind_can_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(OSError, match=str(path)):
        read_bytes(path, 4)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("é,\r\nb\n", encoding="utf-8-sig", newline="")
    assert read_text(tmp_path / "file") == "é,\nb\n"


def test_a_link_may_lead_within_a_folder_but_not_out_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret").write_text("secret")
    (run / "config.json").write_text("{}")
    (run / "out").symlink_to("../secret")
    (run / "within").symlink_to("config.json")
    assert read_text(run / "within", within=run) == "{}"
    assert read_text(run / "out") == "secret"
    with pytest.raises(OSError, match="out"):
        read_text(run / "out", within=run)
