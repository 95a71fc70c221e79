"""Choosing how strongly to hold on to the past, shown trial by trial."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from afaf.runs.tune import Tuned


def show_tuned(console: Console, tuned: Tuned, *, as_json: bool) -> None:
    """Print what was tried and what was found."""
    table = Table("task", "learn.lr", tuned.option, "task-IL on validation", title=f"{tuned.stream}: {tuned.method}")
    for trial in tuned.trials:
        accuracy = "diverged" if trial.accuracy is None else f"{trial.accuracy:.2f}"
        table.add_row(str(trial.task), f"{trial.lr:g}", f"{trial.value:g}", accuracy)
    console.print(table)
    how = "the strongest within" if tuned.within else "the weakest tried; none was within"
    found = f"{tuned.option} = {tuned.value:g} ({how} {100 * tuned.tolerance:g} % of the best)"
    console.print(f"{found}: use it with --set {tuned.option}={tuned.value:g}", soft_wrap=True, highlight=False)
    if as_json:
        print(json.dumps(tuned.to_dict()))
