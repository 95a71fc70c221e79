"""Words of the user's in matplotlib's pictures: drawn as they are written, with one warning where the font lacks their letters."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from functools import cache

from afaf.text import printable_name

MISSING = re.compile(r"Glyph \d+ .*missing from")  # what matplotlib says of each letter, each time it is drawn


class MissingLetters(UserWarning):
    """A picture shows boxes in place of letters."""


def as_written(words: str) -> str:
    """For matplotlib, which would otherwise take what is between two dollars for a formula."""
    return printable_name(words).replace("$", r"\$")


@contextlib.contextmanager
def missing_letters_told_once() -> Iterator[None]:
    """Many warnings of matplotlib become one of ours; any others are passed on."""
    with warnings.catch_warnings(record=True) as told:
        yield
    for one in told:
        if MISSING.match(str(one.message)):
            _tell_of_missing_letters()
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


@cache
def _tell_of_missing_letters() -> None:
    """Once in a process: every seed's pictures lack the same letters."""
    warnings.warn(
        "the pictures' font lacks letters of some names, which are drawn as boxes; the page of afaf report shows them",
        MissingLetters,
        stacklevel=4,
    )
