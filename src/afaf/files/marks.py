"""Marks by which this program recognises its own outputs; without one, a file is the user's and is not replaced.

Each format carries the mark where its readers expect the name of the program that wrote it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from afaf.files.read import open_regular

Format = Literal["html", "png", "svg", "pdf", "onnx", "pt2", "safetensors"]
PROGRAM = "afaf"
HTML_MARK = f'<meta name="generator" content="{PROGRAM}'
LOOKED_AT = 8192  # bytes at either end of a file

# The first bytes of a file of the format, and the mark, near its beginning or its end.
MARKS: dict[Format, tuple[bytes, bytes]] = {
    "html": (b"<!doctype html>", HTML_MARK.encode()),
    "png": (b"\x89PNG\r\n\x1a\n", b"tEXtSoftware\0afaf"),
    "svg": (b"<?xml", b"<dc:title>afaf</dc:title>"),
    "pdf": (b"%PDF-", b"/Creator (afaf)"),
    "onnx": (b"\x08", b"\x12\x04afaf"),  # ModelProto's fields 1, ir_version, and 2, producer_name
    "pt2": (b"PK\x03\x04", b"afaf.json"),  # in the zip file's table of contents, at its end
    "safetensors": (b"", b'{"__metadata__":{"afaf":'),
}


def is_ours(path: Path, kind: Format) -> bool:
    """Whether this program wrote the file, as an output of this format."""
    begins, mark = MARKS[kind]
    with open_regular(path) as file:
        head = file.read(LOOKED_AT)
        file.seek(max(len(head), path.stat().st_size - LOOKED_AT))
        tail = file.read(LOOKED_AT)
    return head.startswith(begins) and (mark in head or mark in tail)


def figure_metadata(suffix: str) -> dict[str, Any]:
    """Metadata for matplotlib's savefig: the mark, and no date, so that the same results give the same file."""
    kinds: dict[str, dict[str, Any]] = {
        ".png": {"Software": PROGRAM},
        ".svg": {"Creator": PROGRAM, "Date": None},
        ".pdf": {"Creator": PROGRAM, "CreationDate": None},
    }
    return kinds.get(suffix.lower(), {})


def format_of(path: Path) -> Format:
    """The format of a picture, from its suffix; PNG if the suffix is another."""
    suffix = path.suffix.lower()
    return "svg" if suffix == ".svg" else "pdf" if suffix == ".pdf" else "png"
