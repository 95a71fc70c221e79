"""How commands end: errors a user can mend are one message without a traceback, and an exit code that scripts can use."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import typer
from rich.markup import escape

from afaf.cli.consoles import new_console
from afaf.errors import AfafError, StoppedError

P = ParamSpec("P")
T = TypeVar("T")


def for_people(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap a command: `AfafError` is printed to stderr and sets the exit code, Ctrl-C exits with 130; warnings are lines of their own."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with warnings_for_people():
                return command(*args, **kwargs)
        except StoppedError as error:
            new_console(stderr=True).print(escape(str(error)), soft_wrap=True, highlight=False)
            raise typer.Exit(error.exit_code) from None
        except AfafError as error:
            new_console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(error.exit_code) from None
        except OSError as error:
            if error.errno != errno.ENOSPC or not _stdout_is_full():  # a file's own troubles are told where it is written
                raise
            new_console(stderr=True).print("[bold red]error:[/] what this command prints cannot be written: no space is left there")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            new_console(stderr=True).print("interrupted: no file is half-written; to do it, give the same command again", soft_wrap=True)
            raise typer.Exit(130) from None

    return wrapped


def _stdout_is_full() -> bool:
    """Tried with an empty line, for the error does not say what could not be written. What waits to be printed is given up then."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False


@contextlib.contextmanager
def warnings_for_people() -> Iterator[None]:
    """Our own warnings are shown without the place in the program that gave them."""
    show = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not category.__module__.startswith("afaf."):
            show(message, category, *place, **more)
            return
        new_console(stderr=True).print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True, highlight=False)

    warnings.showwarning = tell
    try:
        yield
    finally:
        warnings.showwarning = show
