"""`afaf doctor`: the checks of a run folder or a model file, printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from afaf.cli.consoles import say_styled
from afaf.cli.options import JsonOption

WRONG = 1  # the exit code when something is wrong


def doctor(
    path: Annotated[Path, typer.Argument(help="A run folder, or a model or checkpoint file.")],
    json_: JsonOption = False,
) -> None:
    """Check a run or a model: checksums, shapes, the ledger's invariants, and how to recover. Exit code 1 if something is wrong."""
    from afaf.doctor import examine

    diagnosis = examine(path)
    for mark, lines in (("[green]ok[/]   ", diagnosis.sound), ("[red]wrong[/]", diagnosis.wrong), ("[bold]to do[/]", diagnosis.advice)):
        for line in lines:
            say_styled(f"{mark} {escape(line)}")
    if diagnosis.well:
        say_styled("nothing is wrong")
    if json_:
        print(json.dumps(diagnosis.to_dict()))
    raise typer.Exit(0 if diagnosis.well else WRONG)
