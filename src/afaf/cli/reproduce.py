"""`afaf reproduce`: one view over the whole grid of runs, and a line for each that ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from afaf.cli.progress import RunBars, run_name
from afaf.cli.signals import stopping
from afaf.errors import ConfigError, unknown
from afaf.runs.config import parse_set, read_toml
from afaf.runs.events import EpochEnded, Event, JobFailed, JobStopped
from afaf.sweeps.executor import LocalExecutor
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
        executor = LocalExecutor(device, jobs_at_once=jobs_at_once, deadline=deadline, stop=stop)
        Store(results).prepare([experiment.name for experiment in chosen])
        reproduction = Reproduction(chosen, Store(results), executor, data=data, again=again)
        display = GridDisplay(display_console, reproduction)
        try:
            with display:
                reproduction.carry_out({} if precision is None else {"run.precision": precision}, display.on_event)
        finally:
            done = len(reproduction.done) if again else reproduction.written  # an interrupt may fall between a line and its count
            left = len(reproduction.missing) - done
            failed = f" ({display.failures} of them diverged or had no room)" if display.failures else ""
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


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min left" if hours else f"{minutes} min {rest:02d} s left"


class GridDisplay:
    """On a terminal a bar for the grid and one for each run in progress; everywhere a line for each run that ends."""

    def __init__(self, console: Console, reproduction: Reproduction):
        self.console, self.reproduction = console, reproduction
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.ended = reproduction.already
        self.total = self.ended + len(reproduction.missing)
        self.whole = self.progress.add_task("[bold]all runs[/]", total=self.total, completed=self.ended, note="")
        self.bars = RunBars(self.progress)
        self.messages: set[str] = set()
        self.failures = 0

    def __enter__(self) -> GridDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def on_event(self, event: Event) -> None:
        self.bars.on_event(event)
        match event:
            case EpochEnded():
                self._show_time_left()
            case LineStored(line=line):
                self.bars.remove(event.job)
                self.ended += 1
                self.failures += "failed" in line
                self._show_time_left()
                outcome = line["failed"] if "failed" in line else _headline(line)
                left = duration(self.reproduction.seconds_left)
                self._print(f"[{self.ended}/{self.total}] {run_name(event.job)}: {outcome}; {left}")
            case JobFailed(error=error):
                self.bars.remove(event.job)
                if str(error) not in self.messages:  # one cause often stops all runs of a stream
                    self._print(f"not done: {run_name(event.job)}: {error}")
                self.messages.add(str(error))
            case JobStopped():
                self.bars.remove(event.job)
                self._print(f"stopped before its end: {run_name(event.job)}")

    def _print(self, message: str) -> None:
        self.console.print(message, soft_wrap=True, highlight=False, markup=False)

    def _show_time_left(self) -> None:
        self.progress.update(self.whole, completed=self.ended, note=duration(self.reproduction.seconds_left))


def _headline(line: Line) -> str:
    names = {"ACC": "acc", "BWT": "bwt", "task-IL": "acc_task_il"}
    parts = [f"{name} {line[key]:.2f}" for name, key in names.items() if line[key] is not None]
    warnings = f", {len(line['warnings'])} warnings (see its line)" if line.get("warnings") else ""
    return f"{', '.join(parts)}, {line['seconds']:.0f} s{warnings}"
