"""`afaf reproduce`: one view over the whole grid of runs, and a line for each that ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich import box
from rich.markup import escape
from rich.table import Column, Table

from afaf.cli.consoles import ERR, OUT, say, say_styled
from afaf.cli.options import SEEDS, AtOnceOption, DataOption, DeviceOption, OnOption, PrecisionOption, SetOption
from afaf.errors import ConfigError, unknown

if TYPE_CHECKING:
    from afaf.sweeps.experiments import Experiment, Planned
    from afaf.sweeps.reproduce import Reproduction

SAFETY = 0.97  # of the time limit: the rest is for writing and exiting


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments by name, or `all`; without a name they are listed.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds 0..N-1 for every run (default: as each experiment says).", **SEEDS)] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show which are complete; of those named also which runs are missing.")] = False,
    missing: Annotated[bool, typer.Option("--missing/--again", help="Only runs not yet in the results, or all of them again.")] = True,
    limit_minutes: Annotated[float | None, typer.Option(help="Start no run that would not end within this many minutes.")] = None,
    jobs_at_once: AtOnceOption = None,
    on: OnOption = "local",
    device: DeviceOption = "auto",
    precision: PrecisionOption = None,
    results: Annotated[
        Path | None, typer.Option(help="The folder of results (default: as \\[tool.afaf] of pyproject.toml says, else results).")
    ] = None,
    experiments: Annotated[
        Path | None, typer.Option(help="The folder of experiments (default: as \\[tool.afaf] of pyproject.toml says, else experiments).")
    ] = None,
    set_: SetOption = [],
    data: DataOption = None,
) -> None:
    """Carry out the runs of experiments that the results folder lacks; each result is stored as soon as its run ends.

    `afaf report RESULTS` shows them.
    """
    from afaf.cli.progress import GridDisplay, headline
    from afaf.cli.signals import stopping
    from afaf.runs.events import Event, Warned
    from afaf.sweeps.executor import find_executor
    from afaf.sweeps.reproduce import LineStored, Reproduction
    from afaf.sweeps.store import Store
    from afaf.training.precision import Precision

    experiments, results = experiments or folder_for("experiments"), results or folder_for("results")
    if list_ or not names:
        list_experiments(experiments, results, names or [], seeds, set_)
        return
    if limit_minutes is not None and not limit_minutes > 0:
        raise ConfigError(f"--limit-minutes {limit_minutes:g}: give a number above 0")
    if precision is not None and precision not in get_args(Precision):
        raise ConfigError(unknown("precision", precision, get_args(Precision)))
    deadline = None if limit_minutes is None else time.monotonic() + SAFETY * 60 * limit_minutes
    chosen = asked_for(experiments, names, seeds, set_)
    with stopping() as stop:
        executor = find_executor(on, device, jobs_at_once=jobs_at_once, deadline=deadline, stop=stop)
        Store(results).prepare([experiment.name for experiment in chosen])
        reproduction = Reproduction(chosen, Store(results), executor, data=data, again=not missing)
        already = reproduction.already
        total = already + len(reproduction.missing)
        display, failures = GridDisplay(ERR, total, already=already, seconds_left=lambda: reproduction.seconds_left), 0

        def on_event(event: Event) -> None:
            nonlocal failures
            if isinstance(event, LineStored):
                failures += "failed" in event.line
                metrics = {"ACC": event.line.get("acc"), "BWT": event.line.get("bwt"), "task-IL": event.line.get("acc_task_il")}
                done = headline(metrics, event.line["seconds"], len(event.line.get("warnings", ())))
                display.ended(event.job, str(event.line.get("failed", done)))
            elif not isinstance(event, Warned):  # the line has the warnings
                display.on_event(event)

        try:
            with contextlib.closing(executor), display:
                reproduction.carry_out({} if precision is None else {"run.precision": precision}, on_event)
        finally:
            done = len(reproduction.done) if not missing else reproduction.written  # an interrupt may fall between a line and its count
            left = len(reproduction.missing) - done
            failed = f" ({failures} of them diverged or had no room)" if failures else ""
            summary = f"{done} runs done{failed}, {already} were done before, {left} left; results in {results}/"
            say(summary + _how_to_go_on(reproduction, done, left, again=not missing))
    for message, runs in reproduction.errors_by_message().items():
        say_styled(f"[red]not done:[/] {len(runs)} runs, the first {escape(str(runs[0]))}: {escape(message)}")
    if reproduction.errors:
        raise typer.Exit(1)


def _how_to_go_on(reproduction: Reproduction, done: int, left: int, *, again: bool) -> str:
    """Say what the same command would do next, if that helps."""
    if not left or reproduction.errors:  # they are printed next
        return ""
    if again:
        return "; the same command again goes on with those done longest ago"
    if not done and reproduction.executor.deadline is not None and not reproduction.executor.stop.asked:
        return "; no run ended in that time: give it more with --limit-minutes"
    return "; the same command again goes on"


def asked_for(experiments: Path, names: Sequence[str], seeds: int | None, settings: Sequence[str]) -> list[Experiment]:
    """Experiments by name, with as many seeds and the further settings that were asked for."""
    from afaf.runs.config import parse_set
    from afaf.sweeps.experiments import read_experiments
    from afaf.sweeps.store import canonical

    chosen, more = read_experiments(experiments, names, seeds), canonical(parse_set(settings))
    return [experiment.with_settings(more) for experiment in chosen] if more else chosen


def list_experiments(experiments: Path, results: Path, names: Sequence[str], seeds: int | None, settings: Sequence[str]) -> None:
    """Print which experiments are complete; for those named also which runs are missing."""
    from afaf.report.measured import failure
    from afaf.sweeps.experiments import seeds_by
    from afaf.sweeps.store import Store

    lines = Store(results).read()
    numbers = [Column(heading, justify="right", no_wrap=True) for heading in ("runs", "failed", "missing")]
    table = Table(Column("experiment", no_wrap=True), *numbers, "what it is, and what it feeds", box=box.SIMPLE_HEAD, pad_edge=False)
    chosen = asked_for(experiments, names or ["all"], seeds, settings)
    for experiment in chosen:
        missing = len(experiment.missing(lines))
        total = len(experiment.runs)
        state = "[green]complete[/]" if missing == 0 else str(missing)
        failed = sum(run.key in lines and failure(lines[run.key]) is not None for run in experiment.runs)
        about = f"{experiment.title} ({experiment.feeds})"
        table.add_row(escape(experiment.name), str(total), str(failed or ""), state, escape(about))
    OUT.print(table)
    if names:
        for experiment in chosen:
            for shape, missing_seeds in seeds_by(without_seed, experiment.missing(lines)).items():
                say(f"missing: {shape}, seeds {' '.join(map(str, missing_seeds))}")


def folder_for(purpose: str) -> Path:
    """The folder of experiments or results that [tool.afaf] of ./pyproject.toml names; without it, ./experiments or ./results."""
    from afaf.runs.config import read_toml

    path = Path("pyproject.toml")
    table = read_toml(path) if path.exists() else {}
    named = table.get("tool", {}).get("afaf", {}).get(purpose, purpose)
    if not isinstance(named, str):
        raise ConfigError(f"{path.absolute()}: tool.afaf.{purpose} must be the path of a folder, not {named!r}")
    return Path(named)


def without_seed(run: Planned) -> str:
    """A run in words, the same for all runs that differ only in their seed."""
    return str(run).rpartition(", seed")[0]
