"""Where words for people go. No emoji codes: a class may be called :dog:, and is shown as it is called."""

from __future__ import annotations

from rich.console import Console


def new_console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, emoji=False)
