"""Output of commands: consoles that print any name safely, and standard streams that accept any text."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from afaf.errors import WriteError
from afaf.files import reason
from afaf.text import printable


class SafeConsole(Console):
    """A console that sends no control character of a name to the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def new_console(*, stderr: bool = False) -> Console:
    """A console without emoji codes: a class may be called :dog:."""
    return SafeConsole(stderr=stderr, emoji=False)


class OutputError(WriteError):
    """Standard output cannot be written; `reader_left` if the reading process has ended, which needs no message."""

    def __init__(self, error: OSError):
        super().__init__(f"the output of this command cannot be written: {reason(error)}")
        self.reader_left = error.errno == errno.EPIPE


class SafeStdout:
    """Standard output, closed or not: characters that its encoding lacks are escaped, and failures raise `OutputError`."""

    def __init__(self, stream: Any):
        self._stream = stream
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        with self._explained():
            return int(self._stream.write(text))

    def flush(self) -> None:
        with self._explained():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """Discard the buffered output, so that Python does not try again when it ends."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        raise OutputError(error) from None


class SafeStderr(SafeStdout):
    """Standard error: failures are ignored, since there is nowhere to report them."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OutputError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OutputError):
            super().flush()

    def _failed(self, error: OSError) -> None:
        raise OutputError(error) from None


class Closed:
    """Stands for a stream that was closed before the program began (`>&-`)."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")

    def flush(self) -> None: ...
    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "it is closed")


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Within the block, everything can be printed."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = SafeStdout(sys.stdout or Closed()), SafeStderr(sys.stderr or Closed())  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def work_is_done() -> Iterator[None]:
    """The command's files are written: if the rest cannot be printed, the command does not fail, so that no script repeats it."""
    try:
        yield
        sys.stdout.flush()
    except OutputError as error:
        if not error.reader_left:
            warn(f"all is done, but {error}")


OUT = new_console()
ERR = new_console(stderr=True)


def say(words: str, console: Console = OUT) -> None:
    """Print a line as it is; it is not cut at the window's edge, so that paths can be copied."""
    console.print(words, markup=False, soft_wrap=True, highlight=False)


def say_styled(words: str, console: Console = OUT) -> None:
    """The same with rich's markup."""
    console.print(words, soft_wrap=True, highlight=False)


def warn(words: str, console: Console = ERR) -> None:
    say_styled(f"[yellow]warning:[/] {escape(words)}", console)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print text in columns, as it is."""
    table = Table(*headings)
    for row in rows:
        table.add_row(*map(escape, row))
    OUT.print(table)
