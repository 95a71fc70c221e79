"""`afaf sweep`: trials as they end, the best settings, and the command that uses them."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from afaf.cli.consoles import work_is_done
from afaf.cli.progress import GridDisplay, ProgressDisplay
from afaf.cli.runs import file_name
from afaf.cli.signals import stopping
from afaf.cluster import is_cluster
from afaf.errors import ConfigError
from afaf.runs.events import Event, Warned
from afaf.runs.job import Job
from afaf.sweeps.executor import find_executor
from afaf.sweeps.outcome import FILE, PRESET, Outcome, TrialRecord
from afaf.sweeps.space import Space, check_space, read_space, shipped_space
from afaf.sweeps.tune import search_stability

STABILITY = "stability"  # the search of `afaf tune`
SHOWN = 10  # trials in the table, the best first
AGAIN = "the same command again goes on with the sweep"


def sweep_settings(
    console: Console,
    stderr: Console,
    job: Job,
    *,
    space: Path | None,
    trials: int,
    search: str,
    storage: str | None,
    tasks: int | None,
    out: Path | None,
    on: str,
    jobs_at_once: int | None,
    as_json: bool,
) -> None:
    """Carry out trials until there are so many, and print what was found."""
    job.check()
    ranges = None if space is None else read_space(space)
    folder = out or Path("runs") / f"sweep-{file_name(str(job.stream))}-{job.method_class.name}"
    if search == STABILITY:
        outcome = _stability(stderr, job, ranges, folder, trials, tasks, on, storage)
    else:
        how: Any = {"trials": trials, "search": search, "storage": storage, "tasks": tasks, "on": on, "jobs_at_once": jobs_at_once}
        outcome = _trials(stderr, job, ranges or shipped_space(job.method_class), folder, **how)
    with work_is_done():
        _show_outcome(console, outcome, job, folder)
    if as_json:
        best = None if outcome.best is None else asdict(outcome.best)
        table = {"trials": [asdict(trial) for trial in outcome.trials], "importance": outcome.importance, "best": best}
        print(json.dumps({**table, "preset": str(folder / PRESET)}, allow_nan=False))


def _stability(
    stderr: Console, job: Job, space: Space | None, folder: Path, trials: int, tasks: int | None, on: str, storage: str | None
) -> Outcome:
    if is_cluster(on) or storage is not None:
        raise ConfigError(f"--search {STABILITY} learns task by task in this process: leave out --on and --storage")
    check_space(space or {}, job)
    with ProgressDisplay(stderr) as display:
        return search_stability(job, space, folder, trials=trials, tasks=tasks or 2, on_event=display.on_event)


def _trials(
    stderr: Console,
    job: Job,
    space: Space,
    folder: Path,
    *,
    trials: int,
    search: str,
    storage: str | None,
    tasks: int | None,
    on: str,
    jobs_at_once: int | None,
) -> Outcome:
    from afaf.sweeps.search import Sweep, TrialEnded, check_job

    def show(event: Event) -> None:
        if isinstance(event, TrialEnded):
            display.ended(event.job, _words(event.record))
        elif not isinstance(event, Warned):  # poor trials warn
            display.on_event(event)

    check_job(job, space, tasks)
    with stopping(AGAIN) as stop, contextlib.closing(find_executor(on, job.device, jobs_at_once=jobs_at_once, stop=stop)) as executor:
        sweep = Sweep(job, space, folder, executor, search=search, storage=storage, tasks=tasks)
        ended = sum(trial.state != "running" for trial in sweep.records())
        with GridDisplay(stderr, max(trials, ended), already=ended, jobs_at_once=executor.jobs_at_once) as display:
            return sweep.carry_out(trials, show)


def _words(trial: TrialRecord) -> str:
    if trial.state == "fail":
        return trial.why
    value = "-" if trial.value is None else f"{trial.value:.2f} %"
    return f"{value}{f', stopped after task {len(trial.steps)}' if trial.state == 'pruned' else ''}"


def _show_outcome(console: Console, outcome: Outcome, job: Job, folder: Path) -> None:
    complete = sorted((t for t in outcome.trials if t.state == "complete"), key=lambda t: -(t.value or 0))
    names = list(dict.fromkeys(name for trial in outcome.trials for name in trial.settings))
    table = Table(title=escape(f"{job.stream}: {job.method_class.name}, the best trials"), box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("trial", "validation %", *names):
        table.add_column(escape(name.replace(".", "\n").replace(" ", "\n")), justify="right")
    for trial in complete[:SHOWN]:
        table.add_row(str(trial.number), f"{trial.value:.2f}", *(escape(_shown(trial.settings.get(name))) for name in names))
    console.print(table)
    states = [trial.state for trial in outcome.trials]
    counted = ", ".join(f"{states.count(state)} {word}" for state, word in _STATES.items() if state in states)
    lines = [f"{len(states)} trials: {counted}"]
    if outcome.importance:
        lines.append("importance: " + ", ".join(f"{name} {value:.2f}" for name, value in outcome.importance.items()))
    if outcome.best is not None:
        lines.append(f"run the best settings, and see them on the test images, with\n{_command(job, folder)}")
    lines.append(f"all trials: {folder / FILE}; as a page: afaf report {shlex.quote(str(folder))}")
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


_STATES = {"complete": "complete", "pruned": "stopped early", "fail": "without room or diverged", "running": "elsewhere"}


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _command(job: Job, folder: Path) -> str:
    words: Sequence[str] = ["afaf", "run", str(job.stream), job.method_class.name, "--config", str(folder / PRESET)]
    return shlex.join([*words, *(["--data", str(job.data)] if job.data is not None else [])])
