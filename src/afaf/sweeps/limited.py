"""Work that may never end, with a limit of time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from afaf.errors import AfafError, ConfigError


def within(seconds: float, problem: str, work: Callable[[], Any]) -> Any:
    """The result of work in a thread. Raise ConfigError, which begins with `problem`, if it fails or takes longer."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def do() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise ConfigError(f"{problem}: no answer within {seconds:g} s")
    if errors and isinstance(errors[0], AfafError):
        raise errors[0]
    if errors:
        first = (str(errors[0]).strip() or type(errors[0]).__name__).splitlines()[0]
        raise ConfigError(f"{problem}: {first}") from None
    return results[0]
