"""Ctrl-C and SIGTERM during runs: the first signal asks them to stop after their epoch, the second ends the program at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from afaf.errors import StoppedError
from afaf.runs.stop import StopToken


@contextlib.contextmanager
def stopping(advice: str = "") -> Iterator[StopToken]:
    """Yield a StopToken that SIGINT and SIGTERM ask; `advice` is added to the message of a stopped run."""
    stop = StopToken()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked:  # files are written whole or not at all, so exiting now loses nothing
            _say("stopped at once; what was saved before is whole")
            os._exit(128 + number)
        stop.ask(number)
        _say("stopping when this epoch ends; once more to stop at once")

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except StoppedError as error:
        raise StoppedError(f"{error}\n{advice}".rstrip(), error.exit_code) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(words: str) -> None:
    """Write to stderr directly: a handler may interrupt another print."""
    cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
    with contextlib.suppress(OSError):
        os.write(2, f"{cursor}\n{words}\n".encode())
