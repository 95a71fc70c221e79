"""User text in matplotlib figures: no math mode, and one warning for all glyphs that the font lacks."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from functools import cache

from afaf.text import printable_name

MISSING = re.compile(r"Glyph \d+ .*missing from")  # matplotlib's warning, for each glyph each time it is drawn


class MissingLetters(UserWarning):
    """Warns that a figure shows boxes instead of letters."""


def as_written(words: str) -> str:
    """Escape dollar signs, which matplotlib would take for math mode."""
    return printable_name(words).replace("$", r"\$")


@contextlib.contextmanager
def warn_once_of_missing_letters() -> Iterator[None]:
    """Replace matplotlib's warnings about missing glyphs by one; pass on all others."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        if MISSING.match(str(warning.message)):
            _warn_of_missing_letters()
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@cache
def _warn_of_missing_letters() -> None:
    """Warn once per process: the figures of all seeds lack the same glyphs."""
    warnings.warn(
        "the font of the figures lacks letters of some names and draws boxes instead; the page of afaf report shows them",
        MissingLetters,
        stacklevel=4,
    )
