"""A wish to stop. Whoever wants runs to stop (the command line, on a signal) asks; each run looks when an epoch or a task has ended."""

from __future__ import annotations

import signal


class Stop:
    """Shared by those who ask and the runs that listen; asking only sets a flag, so that a signal handler may do it."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def ask(self, by: int = signal.SIGINT) -> None:
        self.signal = by

    @property
    def asked(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What a program that ended for this reason tells its parent."""
        return 128 + (self.signal or signal.SIGINT)

    @property
    def cause(self) -> str:
        return "Ctrl-C" if self.signal in (None, signal.SIGINT) else signal.Signals(self.signal).name
