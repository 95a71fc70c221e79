"""The end of every command: an error is one message without a traceback, and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from afaf.cli.consoles import ERR, OutputError, safe_streams, say, say_styled, warn
from afaf.errors import ConfigError, StoppedError
from afaf.explain import explained
from afaf.text import printable, printable_name

TRACEBACK = "AFAF_TRACEBACK"  # an environment variable: set, errors show where in the program they came from
PACKAGE = Path(__file__).resolve().parents[1]
FAULT = 70  # the exit code of a fault of this program, as sysexits.h has it


class Commands(TyperGroup):
    """All commands, with one handler around them: errors, warnings and Ctrl-C are lines on stderr."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with safe_streams(), warnings_as_lines():
            try:
                with _flushed():
                    return super().main(*args, **kwargs)
            except Exception as error:
                sys.exit(print_error(error))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # here, because typer handles it itself otherwise
            say("interrupted: no file is half-written; to do it, give the same command again", ERR)
            raise typer.Exit(130) from None


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Flush standard output before the command ends, so that a failure is reported."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def print_error(error: Exception) -> int:
    """Print what went wrong and return the exit code."""
    if os.environ.get(TRACEBACK):
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
    known = explained(error)
    if known is None:
        if place := _in_users_code(error):
            _error(f"{place}: {type(error).__name__}: {printable_name(error)[:300]}. {TRACEBACK}=1 shows the calls that led there")
            return ConfigError.exit_code
        _error(
            f"a bug in afaf: {type(error).__name__}: {printable_name(error)[:300]}. Please report it, "
            f"with what the same command prints when {TRACEBACK}=1 is set"
        )
        return FAULT
    if isinstance(known, StoppedError):
        say(str(known), ERR)
    elif not (isinstance(known, OutputError) and known.reader_left):
        _error(str(known))
    return known.exit_code


def _in_users_code(error: Exception) -> str | None:
    """Where the error arose, if that is in a method, network or encoder of the user's own; it may have called a library."""
    libraries = [Path(path) for path in sysconfig.get_paths().values()]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(PACKAGE):
            return None
        if file.is_file() and not any(file.is_relative_to(library) for library in libraries):
            return f"{printable_name(file)}, line {frame.lineno}, in {frame.name}"
    return None


def _error(words: str) -> None:
    say_styled(f"[bold red]error:[/] {escape(words)}", ERR)


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Show warnings of this package without file and line number."""
    show = warnings.showwarning

    def show_line(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category.__module__.startswith("afaf."):
            warn(str(message))
        else:
            show(message, category, *place, **more)

    warnings.showwarning = show_line
    try:
        yield
    finally:
        warnings.showwarning = show
