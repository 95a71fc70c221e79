"""`afaf run`: the runs of one command, and their numbers side by side."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Column, Table

from afaf.cli.consoles import ERR, OUT, say, work_is_done
from afaf.cli.progress import GridDisplay, ProgressDisplay
from afaf.cli.signals import stopping
from afaf.errors import ConfigError, StoppedError
from afaf.files.urls import is_url
from afaf.methods import method_of_command
from afaf.methods.base import Method
from afaf.report.figures import draw_run
from afaf.report.tensorboard import TensorBoard, check_installed
from afaf.runs.events import Event, JobFinished, JobStarted, OnEvent, raise_failure, to_all
from afaf.runs.folder import RunFolder, read_json
from afaf.runs.job import Job, method_class
from afaf.runs.results import Results, Spread, Summary
from afaf.runs.stop import StopToken
from afaf.sweeps.executor import Executor, find_executor

AGAIN = "all runs: the same command again goes on with what is missing"
COLUMNS = {"ACC": "acc", "BWT": "bwt", "LA": "la", "task-IL": "acc_task_il", "task\nid": "task_id_accuracy"}


def run_methods(
    like: Job, methods: Sequence[str], seeds: Sequence[int] | None, on: str, jobs_at_once: int | None, *, as_json: bool, tensorboard: bool
) -> None:
    """Carry out one run, or every method with every seed, and print the numbers."""
    if len(set(methods)) < len(methods):
        raise ConfigError(f"{' '.join(methods)}: name each method once")
    several = seeds is not None or len(methods) > 1  # then finished runs are not repeated
    jobs = [
        replace(like, method=method, seed=seed, out=_folder(like.out, str(like.stream), _name(method), seed, several), resume=several)
        for method in map(method_of_command, methods)
        for seed in ([like.seed] if seeds is None else seeds)
    ]
    if tensorboard:
        check_installed()
    for job in jobs:
        job.check()
    with stopping(AGAIN if several else "") as stop:
        executor = find_executor(on, like.device, jobs_at_once=1 if len(jobs) == 1 else jobs_at_once, stop=stop)
        for job in jobs:  # before any data is read
            if job.folder is not None and not job.resume:
                RunFolder.refuse_taken(job.folder)
        display = ProgressDisplay(ERR) if len(jobs) == 1 else GridDisplay(ERR, len(jobs), jobs_at_once=executor.jobs_at_once)
        with contextlib.closing(executor), display:
            results = run_all(jobs, executor, display.on_event, stop, tensorboard=tensorboard)
    summaries = [Summary([result for result in results if result.method == method]) for method in dict.fromkeys(r.method for r in results)]
    show_results(summaries)
    if as_json:
        table = [summary.to_dict() for summary in summaries]
        one = table[0] if len(methods) == 1 else {"methods": {s.runs[0].method: t for s, t in zip(summaries, table, strict=True)}}
        print(json.dumps(one if several else results[0].to_dict(), allow_nan=False))


def run_all(jobs: Sequence[Job], executor: Executor, display: OnEvent, stop: StopToken, *, tensorboard: bool = False) -> list[Results]:
    """Carry out jobs with folders of their own, with pictures and TensorBoard files; the first failure ends them all."""
    finished: dict[str, Results] = {}
    boards: dict[str, TensorBoard] = {}

    def collect(event: Event) -> None:
        name = str(event.job)
        if isinstance(event, JobStarted) and tensorboard and event.job.folder is not None:
            boards[name] = TensorBoard(event.job.folder)
        if name in boards:
            boards[name].on_event(event)
        if isinstance(event, JobFinished):
            results = finished[name] = event.results
            results.model = None  # it is in the folder: several at once would fill a GPU
            if results.run is not None and not is_url(results.run):
                draw_run(Path(results.run))
            if name in boards:
                boards[name].finish(results)

    executor.carry_out(jobs, to_all(display, collect, raise_failure))
    if stop.asked and len(finished) < len(jobs):  # between two runs
        raise StoppedError(f"stopped by {stop.cause}; the runs so far are complete", stop.exit_code)
    return [finished[str(job)] for job in jobs]


def resume_run(folder: str, device: str | None, settings: list[str], data: Path | None, *, as_json: bool) -> None:
    """Resume one run and print its numbers."""
    from afaf.api import resume

    finished = (Path(folder) / "results.json").exists()
    with stopping() as stop, ProgressDisplay(ERR) as display:
        result = resume(folder, device=device, data=data, settings=settings, on_event=display.on_event, stop=stop)
    if finished:
        say("the run was finished already: these are its results", ERR)
    show_results([Summary([result])])
    if as_json:
        print(json.dumps(result.to_dict(), allow_nan=False))


def _name(method: str | type[Method[Any]]) -> str:
    return method if isinstance(method, str) else method_class(method).name


def _folder(given: str | Path | None, stream: str, method: str, seed: int, several: bool) -> str | Path:
    """The folder of a run: `--out` itself, OUT/METHOD/SEED for several runs, or a name under runs/."""
    if given is None:
        return Path("runs") / f"{file_name(stream)}-{method}-{seed}"
    if is_url(given):
        return f"{str(given).rstrip('/')}/{method}/{seed}" if several else given
    out = Path(given)
    old = out / f"seed-{seed}"  # where earlier versions put the seeds of one method
    if several and (old / "config.json").exists() and read_json(old / "config.json").get("method") == method:
        return old
    return out / method / str(seed) if several else out


def file_name(stream: str) -> str:
    """A stream's name as a file name: folder:PATH has slashes."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in stream).strip("-.")


def show_results(summaries: Sequence[Summary]) -> None:
    """The headline numbers of runs, method by method and compared, and their folders."""
    with work_is_done():
        for summary in summaries:
            OUT.print(results_table(summary))
        if len(summaries) > 1:
            OUT.print(comparison_table(summaries))
        for result in (result for summary in summaries for result in summary.runs):
            say(f"run folder: {result.run}")


def results_table(summary: Summary) -> Table:
    """The headline numbers of one or more runs of one method."""
    first = summary.runs[0]
    columns = dict(COLUMNS)
    if any(run.R_task_il_unmasked is not None for run in summary.runs):
        columns["task-IL\nall"] = "acc_task_il_unmasked"
    names = (*columns, "#params", "share", "time\n(s)")  # the share of the dense network's parameters
    table = _table(f"{first.stream}: {first.method}", "seed", names)
    for result in summary.runs:
        numbers = [_number(getattr(result, attribute)) for attribute in columns.values()]
        share = result.params / result.dense_params
        table.add_row(str(result.seed), *numbers, f"{result.params:,}", f"{share:.3f}", f"{result.seconds:.1f}")
    if len(summary.runs) > 1:
        table.add_section()
        for name, over_seeds in (("mean", summary.mean), ("std", summary.std)):
            table.add_row(name, *(_number(over_seeds[attribute]) for attribute in columns.values()), "", "", "")
    return table


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """Mean and spread of each method, and its ACC minus that of the first over the same seeds."""
    first = summaries[0].runs[0]
    names = ("runs", *COLUMNS, f"ACC minus\n{escape(first.method)}")
    table = _table(f"{first.stream}: mean ± standard deviation over seeds", "method", names)
    for summary in summaries:
        numbers = [_spread(summary.spread(name)) for name in COLUMNS.values()]
        difference = "" if summary is summaries[0] else _spread(summary.minus(summaries[0], "acc"), sign="+")
        table.add_row(escape(summary.runs[0].method), str(len(summary.runs)), *numbers, difference)
    return table


def _table(title: str, first: str, names: Sequence[str]) -> Table:
    numbers = [Column(name, justify="right", overflow="fold") for name in names]
    return Table(Column(first, no_wrap=True), *numbers, title=escape(title), box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _spread(spread: Spread | None, sign: str = "") -> str:
    return "-" if spread is None else format(spread, sign)
