"""`afaf reproduce`: one view over the whole grid of runs, and a line for each that ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from afaf.cli.signals import stopping
from afaf.errors import ConfigError, unknown
from afaf.runs.config import parse_set, read_toml
from afaf.runs.runner import Listener
from afaf.streams.tasks import Outline
from afaf.sweeps.executor import LocalExecutor
from afaf.sweeps.experiments import Experiment, Planned, read_experiments
from afaf.sweeps.reproduce import Progress, Reproduction
from afaf.sweeps.store import Key, Line, Store, canonical
from afaf.training.precision import Precision
from afaf.training.report import EpochReport

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
    with stopping() as stop, GridDisplay(display_console) as display:
        executor = LocalExecutor(device, data=data, jobs_at_once=jobs_at_once, deadline=deadline, stop=stop)
        Store(results).prepare([experiment.name for experiment in chosen])
        reproduction = Reproduction(chosen, Store(results), executor, display, again=again)
        display.reproduction = reproduction
        try:
            reproduction.carry_out({} if precision is None else {"run.precision": precision})
        finally:
            display.close()
            done = len(reproduction.done) if again else reproduction.written  # an interrupt may fall between a line and its count
            left = len(reproduction.missing) - done
            failed = f" ({display.failures} of them diverged or had no room)" if display.failures else ""
            told = f"{done} runs done{failed}, {reproduction.already} were there, {left} left; results in {results}/"
            console.print(escape(told) + _how_to_go_on(reproduction, done, left, again), soft_wrap=True)
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
    for heading in ("feeds", "runs", "done", "failed", "missing", "what it is"):
        table.add_column(heading, justify="left" if heading in ("feeds", "what it is") else "right", overflow="fold")
    chosen = asked_for(experiments, names or ["all"], seeds, settings)
    for experiment in chosen:
        missing = len(experiment.missing(lines))
        total = len(experiment.runs)
        state = "[green]complete[/]" if missing == 0 else str(missing)
        failed = sum(run.key in lines and failure(lines[run.key]) is not None for run in experiment.runs)
        counts = str(total), str(total - missing), str(failed or "")
        table.add_row(escape(experiment.name), escape(experiment.feeds), *counts, state, escape(experiment.title))
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


class GridDisplay(Progress):
    """On a terminal a bar for the grid and one for each run in progress; a line for each that ends, wherever it is shown."""

    def __init__(self, console: Console):
        self.console = console
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.reproduction: Reproduction | None = None
        self.whole: TaskID | None = None
        self.rows: dict[Key, TaskID] = {}
        self.total = self.ended = 0
        self.told: set[str] = set()
        self.failures = 0

    def __enter__(self) -> GridDisplay:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.bars.stop()

    def planned(self, runs: Sequence[Planned], already: int) -> None:
        self.total, self.ended = len(runs) + already, already
        self.whole = self.bars.add_task("[bold]all runs[/]", total=self.total, completed=already, note="")
        self._show_time_left()

    def started(self, run: Planned) -> Listener:
        self.rows[run.key] = self.bars.add_task(escape(str(run)), total=None, note="loading")
        return _Row(self, self.rows[run.key])

    def finished(self, run: Planned, line: Line, seconds_left: float | None) -> None:
        self._end(run)
        self.ended += 1
        if self.whole is not None:
            self.bars.update(self.whole, completed=self.ended)
        self._show_time_left()
        self.failures += "failed" in line
        found = line["failed"] if "failed" in line else _headline(line)
        message = f"[{self.ended}/{self.total}] {run}: {found}; {duration(seconds_left)}"
        self.console.print(message, soft_wrap=True, highlight=False, markup=False)

    def failed(self, run: Planned, error: Exception) -> None:
        """Told once: what ails one run often ails all of its stream."""
        self._end(run)
        if str(error) not in self.told:
            self.console.print(f"not done: {run}: {error}", soft_wrap=True, highlight=False, markup=False)
        self.told.add(str(error))

    def stopped(self, run: Planned) -> None:
        self._end(run)
        self.console.print(f"stopped before its end: {run}", soft_wrap=True, highlight=False, markup=False)

    def _end(self, run: Planned) -> None:
        row = self.rows.pop(run.key, None)
        if row is not None:
            self.bars.remove_task(row)

    def _show_time_left(self) -> None:
        if self.whole is not None and self.reproduction is not None:
            self.bars.update(self.whole, note=duration(self.reproduction.seconds_left))


class _Row(Listener):
    """The bar of one run: epochs of all its tasks."""

    def __init__(self, display: GridDisplay, row: TaskID):
        self.display, self.row = display, row

    def run_started(self, outline: Outline, method: str, seed: int, epochs: int) -> None:
        self.display.bars.update(self.row, total=epochs, note="epochs")

    def lesson_started(self, tasks: tuple[int, ...], class_names: tuple[str, ...]) -> None:
        self.display.bars.update(self.row, note=f"task {tasks[-1]}")

    def epoch_ended(self, report: EpochReport) -> None:
        self.display.bars.update(self.row, advance=1, note=f"task {report.task}  loss {report.loss:.3f}")
        self.display._show_time_left()


def _headline(line: Line) -> str:
    names = {"ACC": "acc", "BWT": "bwt", "task-IL": "acc_task_il"}
    parts = [f"{name} {line[key]:.2f}" for name, key in names.items() if line[key] is not None]
    warnings = f", {len(line['warnings'])} warnings (see its line)" if line.get("warnings") else ""
    return f"{', '.join(parts)}, {line['seconds']:.0f} s{warnings}"
