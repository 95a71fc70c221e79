"""Output of commands: consoles that print any name safely, and standard streams that accept any text."""

from __future__ import annotations

import contextlib
import errno
import io
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


class OutputError(WriteError):
    """Standard output cannot be written; `reader_left` if the reading process has ended, which needs no message."""

    def __init__(self, error: OSError):
        super().__init__(f"the output of this command cannot be written: {reason(error)}")
        self.reader_left = error.errno == errno.EPIPE


class _Closed(io.TextIOBase):
    """Replaces a standard stream that was closed before the program began (`>&-`)."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


class SafeStream:
    """A standard stream that escapes characters its encoding lacks.

    A failure raises `OutputError`, unless `ignore_failures`. `stream` is None if it was closed before the program began.
    """

    def __init__(self, stream: Any, *, ignore_failures: bool = False):
        self._stream, self._ignore_failures = _Closed() if stream is None else stream, ignore_failures
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        with self._explained():
            self._stream.write(text)
        return len(text)

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
            if self._ignore_failures:
                return
            with contextlib.suppress(OSError, ValueError, AttributeError):  # so that Python does not write the rest when it ends
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            raise OutputError(error) from None


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Within the block, everything can be printed; errors of stderr are ignored, since there is nowhere to report them."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = SafeStream(sys.stdout), SafeStream(sys.stderr, ignore_failures=True)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def work_is_done() -> Iterator[None]:
    """For a command whose files are written: if the rest cannot be printed, it does not fail, so that no script repeats it."""
    try:
        yield
        sys.stdout.flush()
    except OutputError as error:
        if not error.reader_left:
            warn(f"all is done, but {error}")


OUT = SafeConsole(emoji=False)  # a class may be called :dog:
ERR = SafeConsole(stderr=True, emoji=False)


def say(words: str, console: Console = OUT) -> None:
    """Print a line as it is; it is not cut at the window's edge, so that paths can be copied."""
    console.print(words, markup=False, soft_wrap=True, highlight=False)


def say_styled(words: str, console: Console = OUT) -> None:
    """As `say`, with rich's markup."""
    console.print(words, soft_wrap=True, highlight=False)


def warn(words: str, console: Console = ERR) -> None:
    say_styled(f"[yellow]warning:[/] {escape(words)}", console)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print text in columns, as it is."""
    table = Table(*headings)
    for row in rows:
        table.add_row(*map(escape, row))
    OUT.print(table)
