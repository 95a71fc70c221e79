"""`afaf sweep`: trials as they end, the best settings, and the command that uses them."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from afaf.cli.consoles import ERR, OUT, say, work_is_done
from afaf.cli.options import AtOnceOption, ConfigOption, DataOption, DeviceOption, JsonOption, MethodName, OnOption, SetOption, StreamName

if TYPE_CHECKING:
    from afaf.runs.job import Job
    from afaf.sweeps.outcome import Outcome

SHOWN = 10  # trials in the table, the best first
AGAIN = "the same command again goes on with the sweep"


def sweep(
    stream: StreamName,
    method: MethodName,
    space: Annotated[Path | None, typer.Option(help="A TOML file of ranges and choices (default: the method's own).")] = None,
    trials: Annotated[int, typer.Option(help="As many in all, with those done before.", min=1, max=1_000_000)] = 20,
    search: Annotated[str, typer.Option(help="random; or tpe, which learns from trials.")] = "random",
    storage: Annotated[str | None, typer.Option(help="An Optuna storage URL, or a journal (default: journal.log in --out).")] = None,
    tasks: Annotated[int | None, typer.Option(help="Judge a trial after the first N tasks (default: all).")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the sweep (default: runs/sweep-STREAM-METHOD).")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the runs, and of random search.", min=0)] = 0,
    device: DeviceOption = "auto",
    jobs_at_once: AtOnceOption = None,
    on: OnOption = "local",
    set_: SetOption = [],
    config: ConfigOption = None,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Search for settings, judged on validation images of the tasks seen so far. Repeat the command to continue the search.

    Several processes may share a sweep.
    """
    from afaf.cli.progress import trial_display
    from afaf.cli.runs import file_name
    from afaf.cli.signals import stopping
    from afaf.runs.job import Job
    from afaf.sweeps.executor import find_executor
    from afaf.sweeps.outcome import PRESET
    from afaf.sweeps.search import Sweep, check_job
    from afaf.sweeps.space import read_space, shipped_space

    job = Job(stream, method, seed, set_, config, device, data)
    job.check()
    folder = out or Path("runs") / f"sweep-{file_name(stream)}-{method}"
    ranges = shipped_space(job.method_class) if space is None else read_space(space, job)
    check_job(job, ranges, tasks)
    with stopping(AGAIN) as stop, contextlib.closing(find_executor(on, job.device, jobs_at_once=jobs_at_once, stop=stop)) as executor:
        searched = Sweep(job, ranges, folder, executor, search=search, storage=storage, tasks=tasks)
        ended = sum(trial.state != "running" for trial in searched.records())
        with trial_display(ERR, max(trials, ended), already=ended, jobs_at_once=executor.jobs_at_once) as show:
            outcome = searched.carry_out(trials, show)
    with work_is_done():
        _show_outcome(outcome, job, folder)
    if json_:
        best = None if outcome.best is None else asdict(outcome.best)
        table = {"trials": [asdict(trial) for trial in outcome.trials], "importance": outcome.importance, "best": best}
        print(json.dumps({**table, "preset": str(folder / PRESET)}, allow_nan=False))


def _show_outcome(outcome: Outcome, job: Job, folder: Path) -> None:
    from afaf.runs.folder import report_command
    from afaf.sweeps.outcome import FILE, shown

    complete = sorted(outcome.complete, key=lambda trial: -(trial.value or 0))
    names = list(dict.fromkeys(name for trial in outcome.trials for name in trial.settings))
    table = Table(title=escape(f"{job.stream}: {job.method_class.name}, the best trials"), box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("trial", "validation %", *names):
        table.add_column(escape(name.replace(".", "\n").replace(" ", "\n")), justify="right")
    for trial in complete[:SHOWN]:
        table.add_row(str(trial.number), f"{trial.value:.2f}", *(escape(shown(trial.settings.get(name, ""))) for name in names))
    OUT.print(table)
    lines = [f"{len(outcome.trials)} trials: {outcome.counts}"]
    if outcome.importance:
        lines.append("importance: " + ", ".join(f"{name} {value:.2f}" for name, value in outcome.importance.items()))
    if outcome.best is not None:
        lines.append(f"run the best settings, and see them on the test images, with\n{command_for(job, folder)}")
    lines.append(f"all trials: {folder / FILE}; as a page: {report_command(folder)}")
    say("\n".join(lines))


def command_for(job: Job, folder: Path) -> str:
    """The command of a run with the settings that a search has found."""
    from afaf.sweeps.outcome import PRESET

    words: Sequence[str] = ["afaf", "run", str(job.stream), job.method_class.name, "--config", str(folder / PRESET)]
    return shlex.join([*words, *(["--data", str(job.data)] if job.data is not None else [])])
