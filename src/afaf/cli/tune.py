"""`afaf tune`: the trials and the chosen value."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from afaf.sweeps.tune import Tuned


def show_tuned(console: Console, tuned: Tuned, command: str, *, as_json: bool) -> None:
    """Print the trials, the chosen value and the command that uses it."""
    table = Table("task", "learn.lr", tuned.option, "task-IL on validation", title=f"{tuned.stream}: {tuned.method}")
    for trial in tuned.trials:
        accuracy = "diverged" if trial.accuracy is None else f"{trial.accuracy:.2f}"
        table.add_row(str(trial.task), f"{trial.lr:g}", f"{trial.value:g}", accuracy)
    console.print(table)
    how = "the strongest within" if tuned.within else "the weakest tried; none was within"
    first = tuned.within and tuned.value == max(trial.value for trial in tuned.trials)
    stronger = "; it was the first that was tried, and --start begins with a stronger one" if first else ""
    found = f"{tuned.option} = {tuned.value:g} ({how} {100 * tuned.tolerance:g} % of the best{stronger})"
    console.print(f"{found}: use it with\n{command}", soft_wrap=True, highlight=False, markup=False)
    if as_json:
        print(json.dumps(tuned.to_dict()))


def run_command(stream: str, tuned: Tuned, settings: Sequence[str], config: Path | None, data: Path | None) -> str:
    """The command of the tuned run: the settings given to `afaf tune` and those that it chose."""
    words = ["afaf", "run", stream, tuned.method]
    for option, given in (("--config", config), ("--data", data)):
        words += [] if given is None else [option, str(given)]
    for setting in (*settings, *(f"{name}={value}" for name, value in tuned.settings.items())):
        words += ["--set", setting]
    return shlex.join(words)
