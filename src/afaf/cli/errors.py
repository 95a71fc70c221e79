"""How commands end: errors a user can mend are one message without a traceback, and an exit code that scripts can use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console

from afaf.errors import AfafError, StoppedError

P = ParamSpec("P")
T = TypeVar("T")


def for_people(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap a command: `AfafError` is printed to stderr and sets the exit code, Ctrl-C exits with 130."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except StoppedError as error:
            Console(stderr=True).print(_escaped(str(error)), soft_wrap=True, highlight=False)
            raise typer.Exit(error.exit_code) from None
        except AfafError as error:
            Console(stderr=True).print(f"[bold red]error:[/] {_escaped(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(130) from None

    return wrapped


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
