"""`afaf reproduce`: one view over the whole grid of runs, and a line for each that ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from afaf.cli.progress import GridDisplay, headline
from afaf.cli.signals import stopping
from afaf.errors import ConfigError, unknown
from afaf.runs.config import parse_set, read_toml
from afaf.runs.events import Event, Warned
from afaf.sweeps.executor import find_executor
from afaf.sweeps.experiments import Experiment, Planned, read_experiments
from afaf.sweeps.reproduce import LineStored, Reproduction
from afaf.sweeps.store import Line, Store, canonical
from afaf.training.precision import Precision

SAFETY = 0.97  # of the time limit: what is left is for writing and leaving


def reproduce_experiments(
    console: Console,
    display_console: Console,
    experiments: Path,
    results: Path,
    names: Sequence[str],
    *,
    seeds: int | None,
    again: bool,
    limit_minutes: float | None,
    jobs_at_once: int | None,
    on: str,
    device: str,
    precision: str | None,
    settings: Sequence[str],
    data: Path | None,
) -> bool:
    """Carry out what is missing; whether everything asked for is there now, or was only stopped by the time limit."""
    if limit_minutes is not None and not limit_minutes > 0:
        raise ConfigError(f"--limit-minutes {limit_minutes:g}: give a number above 0")
    if precision is not None and precision not in get_args(Precision):
        raise ConfigError(unknown("precision", precision, get_args(Precision)))
    deadline = None if limit_minutes is None else time.monotonic() + SAFETY * 60 * limit_minutes
    chosen = asked_for(experiments, names, seeds, settings)
    with stopping() as stop:
        executor = find_executor(on, device, jobs_at_once=jobs_at_once, deadline=deadline, stop=stop)
        Store(results).prepare([experiment.name for experiment in chosen])
        reproduction = Reproduction(chosen, Store(results), executor, data=data, again=again)
        display, failures = _display(display_console, reproduction), 0

        def on_event(event: Event) -> None:
            nonlocal failures
            if isinstance(event, LineStored):
                failures += "failed" in event.line
                display.ended(event.job, _outcome(event.line))
            elif not isinstance(event, Warned):  # the line has the warnings
                display.on_event(event)

        try:
            with contextlib.closing(executor), display:
                reproduction.carry_out({} if precision is None else {"run.precision": precision}, on_event)
        finally:
            done = len(reproduction.done) if again else reproduction.written  # an interrupt may fall between a line and its count
            left = len(reproduction.missing) - done
            failed = f" ({failures} of them diverged or had no room)" if failures else ""
            summary = f"{done} runs done{failed}, {reproduction.already} were there, {left} left; results in {results}/"
            console.print(escape(summary) + _how_to_go_on(reproduction, done, left, again), soft_wrap=True)
    for message, runs in reproduction.errors_by_message().items():
        console.print(f"[red]not done:[/] {len(runs)} runs, the first {escape(str(runs[0]))}: {escape(message)}", soft_wrap=True)
    return not reproduction.errors


def _how_to_go_on(reproduction: Reproduction, done: int, left: int, again: bool) -> str:
    """What the same command would do, where that helps."""
    if not left or reproduction.errors:  # which are told next
        return ""
    if again:
        return "; the same command again goes on with those done longest ago"
    if not done and reproduction.executor.deadline is not None and not reproduction.executor.stop.asked:
        return "; no run ended in that time: give it more with --limit-minutes"
    return "; the same command again goes on"


def asked_for(experiments: Path, names: Sequence[str], seeds: int | None, settings: Sequence[str]) -> list[Experiment]:
    """Experiments by name, with as many seeds and the further settings that were asked for."""
    chosen, more = read_experiments(experiments, names, seeds), canonical(parse_set(settings))
    return [experiment.with_settings(more) for experiment in chosen] if more else chosen


def list_experiments(
    console: Console, experiments: Path, results: Path, names: Sequence[str], seeds: int | None, settings: Sequence[str] = ()
) -> None:
    """What is complete; of the experiments named also which runs are missing."""
    from afaf.report.measured import failure

    lines = Store(results).read()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("experiment", no_wrap=True)
    for heading in ("runs", "failed", "missing"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("what it is, and what it feeds")
    chosen = asked_for(experiments, names or ["all"], seeds, settings)
    for experiment in chosen:
        missing = len(experiment.missing(lines))
        total = len(experiment.runs)
        state = "[green]complete[/]" if missing == 0 else str(missing)
        failed = sum(run.key in lines and failure(lines[run.key]) is not None for run in experiment.runs)
        about = f"{experiment.title} ({experiment.feeds})"
        table.add_row(escape(experiment.name), str(total), str(failed or ""), state, escape(about))
    console.print(table)
    if names:
        for experiment in chosen:
            for shape, missing_seeds in by_shape(experiment.missing(lines)).items():
                console.print(f"missing: {escape(shape)}, seeds {missing_seeds}", soft_wrap=True, highlight=False)


def folder_for(purpose: str) -> Path:
    """The folder of experiments or results that [tool.afaf] of ./pyproject.toml names; without it, ./experiments or ./results."""
    path = Path("pyproject.toml")
    table = read_toml(path) if path.exists() else {}
    named = table.get("tool", {}).get("afaf", {}).get(purpose, purpose)
    if not isinstance(named, str):
        raise ConfigError(f"{path.absolute()}: tool.afaf.{purpose} must be the path of a folder, not {named!r}")
    return Path(named)


def by_shape(runs: Sequence[Planned]) -> dict[str, str]:
    """Runs that differ in their seed alone, as one."""
    shapes: dict[str, list[str]] = {}
    for run in runs:
        shapes.setdefault(str(run).rpartition(", seed")[0], []).append(str(run.seed))
    return {shape: " ".join(seeds) for shape, seeds in shapes.items()}


def _display(console: Console, reproduction: Reproduction) -> GridDisplay:
    total = reproduction.already + len(reproduction.missing)
    return GridDisplay(console, total, already=reproduction.already, seconds_left=lambda: reproduction.seconds_left)


def _outcome(line: Line) -> str:
    if "failed" in line:
        return str(line["failed"])
    metrics = {"ACC": line["acc"], "BWT": line["bwt"], "task-IL": line["acc_task_il"]}
    return headline(metrics, line["seconds"], len(line.get("warnings", ())))
