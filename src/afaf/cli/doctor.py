"""`afaf doctor`: the checks of a run folder or a model file, printed."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from afaf.doctor import examine

WRONG = 1  # the exit code when something is wrong


def show_diagnosis(console: Console, path: Path, *, as_json: bool) -> int:
    """Print sound files, problems and advice; return the exit code."""
    diagnosis = examine(path)
    for mark, lines in (("[green]ok[/]   ", diagnosis.sound), ("[red]wrong[/]", diagnosis.wrong), ("[bold]to do[/]", diagnosis.advice)):
        for line in lines:
            console.print(f"{mark} {escape(line)}", soft_wrap=True, highlight=False)
    if diagnosis.well:
        console.print("nothing is wrong", highlight=False)
    if as_json:
        print(json.dumps(diagnosis.to_dict()))
    return 0 if diagnosis.well else WRONG
