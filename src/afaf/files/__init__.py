"""Every file is written by `write`, read by `read` and locked by `lock`; `marks` tells which outputs are this program's own."""

from afaf.files.read import open_regular, read_bytes, read_text
from afaf.files.write import (
    REFUSED,
    append_line,
    check_output,
    check_replaceable,
    fill,
    is_part,
    make_folder,
    make_folders,
    reason,
    remove_parts,
    sync,
    write_output,
    write_whole,
    writing,
)

__all__ = [
    "REFUSED",
    "append_line",
    "check_output",
    "check_replaceable",
    "fill",
    "is_part",
    "make_folder",
    "make_folders",
    "open_regular",
    "read_bytes",
    "read_text",
    "reason",
    "remove_parts",
    "sync",
    "write_output",
    "write_whole",
    "writing",
]
