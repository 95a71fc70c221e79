"""All files are written by `write`, read by `read` and locked by `lock`; `marks` recognises the outputs of this program."""

from afaf.files.read import open_regular as open_regular, read_bytes as read_bytes, read_text as read_text
from afaf.files.write import (
    REFUSED as REFUSED,
    append_line as append_line,
    check_output as check_output,
    check_replaceable as check_replaceable,
    fill as fill,
    is_part as is_part,
    make_folder as make_folder,
    make_folders as make_folders,
    reason as reason,
    remove_parts as remove_parts,
    sync as sync,
    write_output as write_output,
    write_whole as write_whole,
    writing as writing,
)
