"""The package's front door: `afaf.run` learns a stream and, given a folder, leaves everything there, pictures included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afaf.methods.base import Method
from afaf.report.pictures import draw_run
from afaf.runs import runner
from afaf.runs.results import Results
from afaf.runs.runner import Listener
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
) -> Results:
    """Learn a stream with a method, one task after the other, and judge it after each.

    stream: a name (`afaf streams` lists them) or a `Stream`.
    method: a name (`afaf methods` lists them) or a `Method` class.
    out: a folder for configuration, log, results, model and pictures; nothing is written without it.
    config, settings: a TOML file, and single values such as {"learn.epochs": 5}; both override the stream's preset.
    """
    results = runner.run(stream, method, seed=seed, device=device, out=out, config=config, settings=settings, data=data, listener=listener)
    if results.run is not None:
        draw_run(Path(results.run))
    return results
