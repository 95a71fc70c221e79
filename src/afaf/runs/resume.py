"""Going on with a run that was interrupted: from its folder alone, to the same bits that it would have ended with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from afaf.errors import ConfigError, RunError
from afaf.methods.base import Method
from afaf.runs import runner
from afaf.runs.checkpoint import changed_settings
from afaf.runs.config import Config, RunSettings, Table, build, instead_of_preset, merge
from afaf.runs.device import device_name, find_device
from afaf.runs.folder import FREE, RunFolder, flat
from afaf.runs.results import Results
from afaf.runs.runner import Listener, Run, as_configured, check_typed, is_same_data, method_class, open_with, set_up, settings_table
from afaf.runs.stop import Stop
from afaf.streams.tasks import Stream


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
    """Go on with the run in this folder from its newest good checkpoint; a finished one only tells its results.

    Everything is read from the folder; `device` and `data` override what it says. A run of a `Stream` or a `Method` class that has no
    name needs them here again; a stream that is given must be the one that the run learns, or has learned.
    """
    path, listener = Path(run), listener or Listener()
    with RunFolder.reopen(path) as folder:
        if folder.finished:
            if settings:
                raise ConfigError(
                    f"the run in {path} is finished: settings change nothing any more; start another run to learn with others"
                )
            if stream is not None:
                _check_was_learned(folder.read_json("config.json"), path, stream)
            return replace(Results.from_dict(folder.read_json("results.json")), run=str(path))  # it may have been moved
        about = folder.read_json("config.json")
        tables = [*instead_of_preset(_stored(about, path)), *_free_settings(settings)]
        where = find_device(device or about["device"])
        _check_same_settings(about, path)
        kind = method or _same_method(about)
        opened = open_with(stream or _source(about), tables, data or about["data"])
        setup = set_up(opened.outline, kind, *tables)
        opened = as_configured(opened, setup.config)
        _check_same_data(about, opened)
        again = Run(opened, setup, about["seed"], where, folder, listener, stop)
        take_up(again, folder, listener)
        _warn_if_elsewhere(about, where, listener)
        return again.carry_out()


def take_up(run: Run, folder: RunFolder, listener: Listener) -> None:
    """Bring a run to its newest good checkpoint, and its log with it."""
    assert run.checkpoints is not None
    passed_over: list[str] = []

    def warn(message: str) -> None:
        passed_over.append(message)
        listener.warned(message)

    restored = run.checkpoints.restore(run.device, len(run.stream), warn)
    folder.cut_log(0 if restored is None else restored.log_bytes)
    if restored is not None:
        run.go_on_from(restored)
    folder.log({"event": "resumed", "position": run.position.to_dict(), "passed_over": passed_over})


def run_or_resume(
    stream: str | Stream,
    method: str | type[Method[Any]],
    *,
    out: Path,
    seed: int,
    device: str,
    config: str | Path | None,
    settings: Mapping[str, Any] | Sequence[str] | None,
    data: str | Path | None,
    listener: Listener | None,
    stop: Stop | None,
) -> Results:
    """Go on with the run that the folder holds, provided that it is the one asked for; begin it where there is none."""
    if not (out / "config.json").exists():
        given: dict[str, Any] = {"seed": seed, "device": device, "config": config, "settings": settings, "data": data}
        return runner.run(stream, method, out=out, listener=listener, stop=stop, **given)
    kind, tables = check_typed(stream, method, config, settings)
    opened = open_with(stream, tables, data)
    setup = set_up(opened.outline, kind, *tables)
    _refuse_another(out, {"stream": opened.name, "method": kind.name, "seed": seed, "config": setup.config.to_dict()})
    return resume(
        out,
        device=None if device == "auto" else device,
        data=data,
        stream=opened,
        method=None if isinstance(method, str) else method,
        listener=listener,
        stop=stop,
    )


def _refuse_another(out: Path, asked: Table) -> None:
    """The folder's run must be the one asked for in all that its results depend on: in settings that only one of them has, too."""
    about = RunFolder(out).read_json("config.json")
    here = flat(json.loads(json.dumps(asked)))
    there = flat({name: about.get(name) for name in asked})
    here["stream"], there["stream"] = _known_by(here["stream"]), _known_by(str(there["stream"]))
    for name in dict.fromkeys([*here, *there]):
        if there.get(name) != here.get(name) and name.removeprefix("config.run.") not in FREE:
            raise RunError(
                f"{out} holds another run than the one asked for: {name.removeprefix('config.')} is "
                f"{there.get(name, 'not set')} there, {here.get(name, 'not set')} here; choose another folder with --out"
            )


def _known_by(stream: str) -> str:
    """A stream's name, of own data without the way there: it may have been moved, or be asked for from another folder."""
    kind, colon, path = stream.partition(":")
    return f"{kind}:{Path(path).expanduser().absolute().name}" if colon and kind in ("folder", "npz") else stream


def _stored(about: Mapping[str, Any], path: Path) -> Table:
    needed = {"config": dict, "seed": int, "device": str, "method": str, "stream": str, "train_counts": list}
    for name, kind in needed.items():
        if not isinstance(about.get(name), kind):
            raise RunError(f"{path / 'config.json'} does not say all that is needed to go on ({name}): the run must be started anew")
    return dict(about["config"])


def _free_settings(settings: Mapping[str, Any] | Sequence[str] | None) -> list[Table]:
    tables = settings_table(None, settings)
    merged: Table = {}
    for table in tables:
        merged = merge(merged, table)
    for section, values in merged.items():
        if section != "run" or not set(values) <= FREE:
            free = " and ".join(f"run.{name}" for name in sorted(FREE))
            raise ConfigError(f"a run goes on with the settings it began with; only {free} can be set anew")
    return tables


def _source(about: Mapping[str, Any]) -> str:
    if not isinstance(about.get("source"), str):
        raise RunError(
            f"the stream '{about['stream']}' was made by a program and has no name to open it by: go on with afaf.resume(..., stream=...)"
        )
    return str(about["source"])


def _same_method(about: Mapping[str, Any]) -> type[Method[Any]]:
    kind = method_class(str(about["method"]))
    if about.get("method_class") != f"{kind.__module__}.{kind.__qualname__}":
        raise RunError(
            f"the run's method was {about.get('method_class')}, which is not what '{about['method']}' names: "
            "go on with afaf.resume(..., method=...)"
        )
    return kind


def _check_was_learned(about: Mapping[str, Any], path: Path, stream: Stream) -> None:
    """A finished run tells its results for the stream that it has learned only."""
    run = build(RunSettings, _stored(about, path).get("run", {}), "run")
    _check_same_data(about, as_configured(stream, Config(None, run=run)))


def _check_same_settings(about: Mapping[str, Any], path: Path) -> None:
    changed = changed_settings(path, about)
    if changed:
        raise RunError(
            f"{path / 'config.json'} is not what the run began with: {', '.join(changed)}; "
            "set it back, or start another run with other settings in a folder of its own"
        )


def _check_same_data(about: Mapping[str, Any], opened: Stream) -> None:
    if list(opened.outline.train_counts) != about["train_counts"]:
        raise RunError(
            f"the data is not what the run began with: its tasks had {about['train_counts']} training images, "
            f"now they have {list(opened.outline.train_counts)}; put the data back, or start anew"
        )
    if not is_same_data(opened, about.get("data_digest")):
        raise RunError("the data is not what the run began with: labels or images have changed; put the data back, or start anew")


def _warn_if_elsewhere(about: Mapping[str, Any], device: torch.device, listener: Listener) -> None:
    """The same bits come from the same device and version only."""
    for what, before, now in (
        ("device", about.get("device_name"), device_name(device)),
        ("PyTorch", about.get("torch"), torch.__version__),
    ):
        if before != now:
            listener.warned(f"the run began with {what} {before} and goes on with {now}: the last bits of its numbers may differ")
