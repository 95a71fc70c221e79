"""A request to stop runs. Each run checks it at the end of an epoch and of a task."""

from __future__ import annotations

import signal
import time


class StopToken:
    """Shared between the runs and the code that stops them. `ask` only stores a number, so a signal handler may call it.

    A token is also asked once its `parent` is asked or its `deadline` (seconds of `time.monotonic`) has passed.
    """

    def __init__(self, parent: StopToken | None = None, deadline: float | None = None) -> None:
        self.parent, self.deadline = parent, deadline
        self.signal: int | None = None

    def ask(self, by: int = signal.SIGINT) -> None:
        self.signal = by

    @property
    def asked(self) -> bool:
        if self.signal is not None or (self.deadline is not None and time.monotonic() >= self.deadline):
            return True
        return self.parent is not None and self.parent.asked

    @property
    def exit_code(self) -> int:
        """The exit code of a program that was stopped for this reason."""
        return 128 + (self._by or signal.SIGINT)

    @property
    def cause(self) -> str:
        by = self._by
        return "Ctrl-C" if by in (None, signal.SIGINT) else signal.Signals(by).name

    @property
    def _by(self) -> int | None:
        return self.signal if self.signal is not None or self.parent is None else self.parent._by
