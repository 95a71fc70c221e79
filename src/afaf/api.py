"""The package's front door: `afaf.run` learns a stream and, given a folder, leaves everything there, pictures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afaf.methods.base import Method
from afaf.report.pictures import draw_run
from afaf.runs import resume as resuming
from afaf.runs import runner
from afaf.runs.results import Results
from afaf.runs.runner import Listener
from afaf.runs.stop import Stop
from afaf.streams.tasks import Stream


def run(
    stream: str | Stream,
    method: str | type[Method[Any]],
    *,
    seed: int = 0,
    device: str = "auto",
    out: str | Path | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    data: str | Path | None = None,
    listener: Listener | None = None,
    resume: bool = False,
    stop: Stop | None = None,
) -> Results:
    """Learn a stream with a method, task by task, and evaluate on all tasks seen so far after each.

    Args:
        stream: A name (`afaf streams` lists them) or a `Stream`.
        method: A name (`afaf methods` lists them) or a `Method` class.
        seed: Decides every random number of the run.
        device: "auto", "cpu", "cuda" or "mps".
        out: Folder for configuration, log, checkpoints, results, model and pictures. None: nothing is written.
        config: A TOML file of settings, which override the stream's preset.
        settings: Single settings such as {"learn.epochs": 5}, which override both.
        data: Folder of the published datasets.
        listener: Is told of each epoch and task.
        resume: Continue the run in `out` if there is one, instead of refusing. A finished run returns its results.
        stop: When requested from another thread or a signal, the run finishes its epoch, saves, and raises StoppedError.
    """
    given: dict[str, Any] = {"seed": seed, "device": device, "config": config, "settings": settings, "data": data}
    given |= {"listener": listener, "stop": stop}
    if resume and out is not None:
        results = resuming.run_or_resume(stream, method, out=Path(out), **given)
    else:
        results = runner.run(stream, method, out=out, **given)
    return _drawn(results)


def resume(
    run: str | Path,
    *,
    device: str | None = None,
    data: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    stream: Stream | None = None,
    method: type[Method[Any]] | None = None,
    listener: Listener | None = None,
    stop: Stop | None = None,
) -> Results:
    """Continue an interrupted run from its newest valid checkpoint. It ends with the same bits as without the interruption.

    Args:
        run: The run folder. A finished run returns its results.
        device: Continue on another device; the last bits may then differ.
        data: Another folder of the published datasets.
        settings: Only run.checkpoint and run.chunk, which do not affect results.
        stream: Needed again if the run was started with a `Stream` object.
        method: Needed again if the run was started with a `Method` class that is not registered.
        listener: Is told of each epoch and task.
        stop: As in `run`.
    """
    results = resuming.resume(run, device=device, data=data, settings=settings, stream=stream, method=method, listener=listener, stop=stop)
    return _drawn(results)


def _drawn(results: Results) -> Results:
    """With its pictures in its folder, if it has one."""
    if results.run is not None:
        draw_run(Path(results.run))
    return results
