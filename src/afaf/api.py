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
    """Learn a stream with a method, one task after the other, and judge it after each.

    stream: a name (`afaf streams` lists them) or a `Stream`.
    method: a name (`afaf methods` lists them) or a `Method` class.
    out: a folder for configuration, log, checkpoints, results, model and pictures; nothing is written without it.
    config, settings: a TOML file, and single values such as {"learn.epochs": 5}; both override the stream's preset.
    resume: go on with this very run if `out` holds it already, instead of refusing; a finished one only tells its results.
    stop: asked from outside (another thread, a signal), the run finishes its epoch, is saved, and ends in a StoppedError.
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
    """Go on with an interrupted run from its newest good checkpoint, to the same bits that it would have ended with.

    run: the run's folder, from which everything is read; a finished run only tells its results.
    device, data: where to go on instead; on another device the last bits may differ.
    settings: only run.checkpoint and run.chunk, on which no result depends.
    stream, method: needed again for a `Stream` or a `Method` class that has no name to find it by.
    """
    results = resuming.resume(run, device=device, data=data, settings=settings, stream=stream, method=method, listener=listener, stop=stop)
    return _drawn(results)


def _drawn(results: Results) -> Results:
    """With its pictures in its folder, if it has one."""
    if results.run is not None:
        draw_run(Path(results.run))
    return results
