"""The public functions: `run` and `resume` learn a stream, `costs` predicts, `tune` chooses a method's trade-off."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from torch import nn

from afaf.costing.predict import Costs
from afaf.files.urls import is_url
from afaf.methods.base import Method
from afaf.network.spec import Layer
from afaf.report.figures import draw_run
from afaf.runs import resume as resuming
from afaf.runs.events import OnEvent, ignore
from afaf.runs.job import Job
from afaf.runs.results import Results
from afaf.runs.setup import costs_of
from afaf.runs.stop import StopToken
from afaf.streams.tasks import Stream
from afaf.sweeps.executor import LocalExecutor
from afaf.sweeps.tune import Search, Stability, Tuned

P = ParamSpec("P")


def _with_pictures(learn: Callable[P, Results]) -> Callable[P, Results]:
    """Also draw the pictures of the run's folder, if it has one."""

    @wraps(learn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Results:
        results = learn(*args, **kwargs)
        if results.run is not None and not is_url(results.run):
            draw_run(Path(results.run))
        return results

    return wrapped


@_with_pictures
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
    network: nn.Module | tuple[Layer, ...] | None = None,
    resume: bool = False,
    on_event: OnEvent = ignore,
    stop: StopToken | None = None,
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
        network: A `torch.nn.Module` that classifies images, or a tuple of `Layer`, instead of a network by name (`network.name`). The last
            Linear layer of a module becomes the output; with {"network.weights": "module"} the other layers begin with its weights.
        resume: Continue the run in `out` if there is one, instead of refusing. A finished run returns its results.
        on_event: Called with each event of the run (`afaf.extend` has their types).
        stop: After `stop.ask()`, called by another thread or a signal handler, the run finishes its epoch, saves, and raises StoppedError.
    """
    job = Job(stream, method, seed, settings, config, device, data, out, resume, network=network)
    return resuming.run_or_resume(job, on_event=on_event, stop=stop)


resume = _with_pictures(resuming.resume)


def costs(
    stream: str | Stream,
    method: str | type[Method[Any]],
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    data: str | Path | None = None,
    network: nn.Module | tuple[Layer, ...] | None = None,
) -> Costs:
    """Parameters and FLOPs of a method on a stream, without training; the paper's streams need no data for it."""
    return costs_of(Job(stream, method, settings=settings, config=config, data=data, network=network))


def tune(
    stream: str | Stream,
    method: str | type[Method[Any]],
    *,
    tasks: int = Search.tasks,
    start: float | None = None,
    decay: float = Search.decay,
    searches: int = Search.searches,
    tolerance: float = Search.tolerance,
    learning_rates: Sequence[float] = (),
    seed: int = 0,
    device: str = "auto",
    out: str | Path | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    data: str | Path | None = None,
    on_event: OnEvent = ignore,
) -> Tuned:
    """Choose the trade-off of a method on the first `tasks` tasks of a stream, task by task.

    Use all `settings` of the result together with the settings given here: that is the run that was tuned. Trials are kept in the
    folder `out`, if given; the same call continues with them.
    """
    search = Search(start, decay, searches, tolerance, tasks, list(learning_rates))
    with tempfile.TemporaryDirectory() as temporary:
        stability = Stability(Job(stream, method, seed, settings, config, device, data), search, Path(out or temporary))
        return stability.carry_out(LocalExecutor(device, jobs_at_once=1), on_event)
