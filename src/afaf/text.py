"""Text from outside, such as names of classes and files, made safe to print: on a terminal, in a page, in a spreadsheet; and durations."""

from __future__ import annotations

import math
import re

# Control characters (escape sequences begin with one), marks that change the direction of text, line separators, and halves of surrogate
# pairs, which stand for bytes of a file name that is not UTF-8 and cannot be encoded.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = re.compile(r"\s*[=+\-@|%\t\r]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(e[+-]?\d+)?", re.IGNORECASE)


def printable(text: str) -> str:
    """The text with unsafe characters as escapes such as \\x1b; lines and tabs stay."""
    return _UNSAFE.sub(_escape, text)


def printable_name(name: object) -> str:
    """A name on one line."""
    return printable(str(name)).replace("\n", "\\n").replace("\t", "\\t")


def csv_cell(text: str) -> str:
    """A CSV cell that spreadsheets do not read as a formula: text that begins like one gets an apostrophe."""
    text = printable(text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def duration(seconds: float) -> str:
    """A duration in the unit that keeps it short, such as 95 s, 12 min or 3 h 05 min; only zero is 0 s."""
    whole = round(seconds) or math.ceil(seconds)
    if whole < 120:
        return f"{whole} s"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours >= 2 else f"{60 * hours + minutes} min"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python represents a byte that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
