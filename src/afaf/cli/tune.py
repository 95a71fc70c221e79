"""`afaf tune`: the trials, the chosen value, and the command that uses it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from afaf.cli.consoles import ERR, OUT, say, work_is_done
from afaf.cli.options import (
    AtOnceOption,
    ConfigOption,
    DataOption,
    DeviceOption,
    JsonOption,
    MethodName,
    OnOption,
    SeedOption,
    SetOption,
    StreamName,
)
from afaf.cli.sweep import command_for

if TYPE_CHECKING:
    from afaf.sweeps.tune import Tuned

AGAIN = "the same command again goes on with the search"


def tune(
    stream: StreamName,
    method: MethodName,
    tasks: Annotated[int, typer.Option(help="Tune on the first N tasks; the second is the first with earlier tasks to protect.")] = 2,
    start: Annotated[float | None, typer.Option(help="The strongest value to try (default: the method's).")] = None,
    decay: Annotated[float, typer.Option(help="Each value tried is this part of the one before.")] = 0.5,
    searches: Annotated[int, typer.Option(help="How many values to try at most.")] = 12,
    tolerance: Annotated[float, typer.Option(help="How far accuracy may fall, as a part of the best.")] = 0.2,
    lr: Annotated[list[float], typer.Option(help="A learning rate to try; may be repeated (default: the preset's).")] = [],
    out: Annotated[Path | None, typer.Option(help="The folder of the trials (default: runs/tune-STREAM-METHOD).")] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    jobs_at_once: AtOnceOption = None,
    on: OnOption = "local",
    set_: SetOption = [],
    config: ConfigOption = None,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Choose the strength of a method's penalty (ewc, mas, lwf) without looking at future tasks, by FACIL's protocol.

    Repeat the command to continue.
    """
    from afaf.cli.progress import trial_display
    from afaf.cli.runs import file_name
    from afaf.cli.signals import stopping
    from afaf.cluster import is_cluster
    from afaf.runs.folder import report_command
    from afaf.runs.job import Job
    from afaf.sweeps.executor import find_executor
    from afaf.sweeps.outcome import FILE, PRESET
    from afaf.sweeps.tune import Search, Stability

    job = Job(stream, method, seed, set_, config, device, data)
    folder = out or Path("runs") / f"tune-{file_name(stream)}-{job.method_class.name}"
    stability = Stability(job, Search(start, decay, searches, tolerance, tasks, lr), folder)
    at_once = jobs_at_once or (None if is_cluster(on) else 1)
    with stopping(AGAIN) as stop, contextlib.closing(find_executor(on, job.device, jobs_at_once=at_once, stop=stop)) as executor:
        most = stability.search.most_trials
        with trial_display(ERR, most, already=len(stability.known), jobs_at_once=executor.jobs_at_once) as show:
            tuned = stability.carry_out(executor, show)
    with work_is_done():
        _show_tuned(tuned)
        say(f"use it with\n{command_for(job, folder)}")
        say(f"all trials: {folder / FILE}; as a page: {report_command(folder)}", ERR)
    if json_:
        print(json.dumps({**tuned.to_dict(), "preset": str(folder / PRESET)}))


def _show_tuned(tuned: Tuned) -> None:
    table = Table("task", "learn.lr", tuned.option, "task-IL on validation", title=f"{tuned.stream}: {tuned.method}")
    for trial in tuned.trials:
        accuracy = "diverged" if trial.accuracy is None else f"{trial.accuracy:.2f}"
        table.add_row(str(trial.task), f"{trial.lr:g}", f"{trial.value:g}", accuracy)
    OUT.print(table)
    how = "the strongest within" if tuned.within else "the weakest tried; none was within"
    first = tuned.within and tuned.value == max(trial.value for trial in tuned.trials)
    stronger = "; it was the first that was tried, and --start begins with a stronger one" if first else ""
    say(f"{tuned.option} = {tuned.value:g} ({how} {100 * tuned.tolerance:g} % of the best{stronger}):")
