"""Resume an interrupted run from its folder alone, with the same bits as an uninterrupted one."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afaf.checked import build
from afaf.errors import ConfigError, RunError
from afaf.files.urls import is_url
from afaf.methods import method_at, method_names, place_of
from afaf.methods.base import Method
from afaf.network.spec import Layer
from afaf.runs import runner
from afaf.runs.checkpoint import changed_settings
from afaf.runs.config import Config, RunSettings, Table, merge
from afaf.runs.device import device_name, find_device
from afaf.runs.events import OnEvent, Warned, ignore
from afaf.runs.folder import FREE, RunFolder, began_with, flat, read_json, read_results
from afaf.runs.job import Job, method_class, settings_tables
from afaf.runs.mirror import local_copy
from afaf.runs.progress import RunState
from afaf.runs.results import Results
from afaf.runs.runner import Run, is_same_data, precision_used
from afaf.runs.setup import Setup, restrict, set_up
from afaf.runs.stop import StopToken
from afaf.streams.tasks import Stream

IMPORT_AGAIN = (
    "put the class back where it was when the run began (PYTHONPATH=FOLDER names the folder of a file), or go on with "
    "afaf.resume(..., method=...)"
)


def run_or_resume(job: Job, *, on_event: OnEvent = ignore, stop: StopToken | None = None, stream: Stream | None = None) -> Results:
    """Carry out a job. With `job.resume`, continue the run that its folder holds; a different run there is refused."""
    if is_url(job.out):
        with local_copy(str(job.out)) as here:
            return replace(run_or_resume(replace(job, out=here), on_event=on_event, stop=stop, stream=stream), run=str(job.out))
    out = job.folder
    if not job.resume or out is None or not (out / "config.json").exists():
        return runner.run(job, on_event=on_event, stop=stop, stream=stream)
    job.check()
    stream = stream or job.open()
    setup = set_up(stream.outline, job.method_class, *job.tables, network=job.network)
    asked = {"stream": stream.name, "method": setup.method.name, "seed": job.seed, "config": setup.config.to_dict()}
    _refuse_another(out, asked, setup.method.Options)
    device = None if job.device == "auto" else job.device
    finished = (out / "results.json").exists()  # then settings have no effect
    if isinstance(job.method, str) and not finished:
        _refuse_another_class(out, job.method_class)
    free = None if finished else {name: value for name, value in flat(setup.config.to_dict()).items() if name in FREE}
    given: dict[str, Any] = {"data": job.data, "stream": stream, "method": job.method_class, "network": job.network}
    return resume(out, device=device, settings=free, **given, start=job.start, until=job.until, on_event=on_event, stop=stop)


def resume(
    run: str | Path,
    *,
    device: str | None = None,
    data: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    stream: Stream | None = None,
    method: type[Method[Any]] | None = None,
    network: nn.Module | tuple[Layer, ...] | None = None,
    start: RunState | None = None,
    until: int | None = None,
    on_event: OnEvent = ignore,
    stop: StopToken | None = None,
) -> Results:
    """Continue an interrupted run from its newest valid checkpoint. It ends with the same bits as without the interruption.

    Args:
        run: The run folder, or its URL. A finished run returns its results.
        device: Continue on another device; the last bits may then differ.
        data: Another folder of the published datasets.
        settings: Only run.checkpoint, run.chunk and evaluate.batch_size, which do not affect results.
        stream: Needed again if the run was started with a `Stream` object.
        method: Needed again if the run was started with a `Method` class that a script or a function has made; others are imported.
        network: Needed again if the run was started with one.
        start: Needed again if the run was started from a state.
        until: Stop after this many tasks.
        on_event: As in `afaf.run`.
        stop: As in `afaf.run`.
    """
    with local_copy(run) as path, RunFolder.reopen(path) as folder:
        about = read_json(path / "config.json")
        if (path / "results.json").exists():
            if settings:
                raise ConfigError(f"the run in {path} is finished: settings change nothing; start another run to use others")
            if stream is not None:
                _check_was_learned(about, path, stream)
            return replace(read_results(path), run=str(run))  # it may have been moved
        _check_stored(about, path)
        _check_free(settings)
        find_device(device or about["device"])
        _check_same_settings(about, path)
        if network is None and about.get("network_object") is not None:
            raise RunError(f"the network '{about['network_object']}' was given by a program: go on with afaf.resume(..., network=...)")
        job = Job(
            stream or _source(about),
            method or _same_method(about, path),
            about["seed"],
            settings,
            config=path / "config.json",  # replaces the preset
            device=device or about["device"],
            data=data or about["data"],
            out=path,
            resume=True,
            start=start,
            until=until,
            network=network,
        )
        opened = job.open()
        setup = set_up(opened.outline, job.method_class, *job.tables, network=network)
        _check_same_network(about, setup)
        opened = restrict(opened, setup.config)
        _check_same_data(about, opened)
        resumed = Run(job, opened, setup, folder, on_event, stop)
        _restore(resumed, folder)
        _warn_if_elsewhere(about, resumed)
        return replace(resumed.carry_out(), run=str(run))


def _restore(run: Run, folder: RunFolder) -> None:
    """Restore a run and its log from the newest good checkpoint."""
    assert run.checkpoints is not None
    skipped: list[str] = []

    def warn(message: str) -> None:
        skipped.append(message)
        run.emit(Warned(run.job, message))

    restored = run.checkpoints.restore(run.device, len(run.stream), warn)
    folder.cut_log(0 if restored is None else restored.log_bytes)
    if restored is not None:
        run.restore(restored)
    folder.log({"event": "resumed", "position": asdict(run.position), "passed_over": skipped})


def _refuse_another(out: Path, asked: Table, options: type[Any]) -> None:
    """Raise RunError if the folder's run differs in anything that its results depend on."""
    about = read_json(out / "config.json")
    here, stored = began_with(json.loads(json.dumps(asked))), began_with({name: about.get(name) for name in asked})
    if isinstance(about.get("config"), dict):
        stored = flat(_newer_settings(about["config"], options)) | stored
    here["stream"], stored["stream"] = _known_by(asked["stream"]), _known_by(str(about.get("stream")))
    for name in dict.fromkeys([*here, *stored]):
        if stored.get(name) != here.get(name):
            raise RunError(
                f"{out} holds another run than the one asked for: {name} is {stored.get(name, 'not set')} there, "
                f"{here.get(name, 'not set')} here; choose another folder with --out"
            )


def _refuse_another_class(out: Path, kind: type[Method[Any]]) -> None:
    """Raise RunError if the folder's run has a class that only shares the method's name."""
    there = _method_place(read_json(out / "config.json"))
    if not _is_place_of(there, kind):
        raise RunError(
            f"{out} holds another run than the one asked for: method is {there}, not {place_of(kind)}; choose another folder with --out"
        )


def _method_place(about: Mapping[str, Any]) -> str:
    place = str(about.get("method_class"))
    return place if ":" in place else ":".join(place.rsplit(".", 1))  # as earlier versions wrote it


def _is_place_of(place: str, kind: type[Method[Any]]) -> bool:
    """Whether a run's record names this class; a built-in method may have moved to another module since."""
    here = place_of(kind)
    return place == here or (place.startswith("afaf.") and here.startswith("afaf."))


def _newer_settings(stored: Mapping[str, Any], options: type[Any]) -> Table:
    """The defaults of the settings that a stored configuration does not have; `options` is the type of the section `method`."""
    kinds = {**typing.get_type_hints(Config), "method": options}
    newer = {section: _defaults(kind, stored.get(section, {})) for section, kind in kinds.items()}
    found: Table = json.loads(json.dumps(newer))
    return found


def _defaults(kind: type[Any], given: Mapping[str, Any]) -> Table:
    """The defaults of a section's settings, except for settings that are given or have no default."""
    fields = [field for field in dataclasses.fields(kind) if field.name not in given]
    values = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    made = {field.name: field.default_factory() for field in fields if field.default_factory is not dataclasses.MISSING}
    return {**values, **made}


def _known_by(stream: str) -> str:
    """A stream's name; for the user's own data without its parent folders, which may differ."""
    kind, colon, path = stream.partition(":")
    return f"{kind}:{Path(path).expanduser().absolute().name}" if colon and kind in ("folder", "npz") else stream


def _check_stored(about: Mapping[str, Any], path: Path) -> None:
    needed = {"config": dict, "seed": int, "device": str, "method": str, "stream": str, "train_counts": list}
    for name, kind in needed.items():
        if not isinstance(about.get(name), kind):
            raise RunError(f"{path / 'config.json'} does not say all that is needed to go on ({name}): the run must be started anew")


def _check_free(settings: Mapping[str, Any] | Sequence[str] | None) -> None:
    if not flat(merge(*settings_tables(None, settings))).keys() <= FREE:
        raise ConfigError(f"a run continues with the settings it began with; only {', '.join(sorted(FREE))} can be changed")


def _source(about: Mapping[str, Any]) -> str:
    if not isinstance(about.get("source"), str):
        raise RunError(
            f"the stream '{about['stream']}' was made by a program and has no name to open it by: go on with afaf.resume(..., stream=...)"
        )
    return str(about["source"])


def _same_method(about: Mapping[str, Any], path: Path) -> type[Method[Any]]:
    """The method of that name if it is the run's, else the class that the run began with, imported again."""
    name, place = str(about["method"]), _method_place(about)
    if name in method_names() and _is_place_of(place, kind := method_class(name)):
        return kind
    try:
        if place.partition(":")[0] in ("__main__", "None"):  # another script has another __main__; None: the record names no class
            raise ConfigError(f"its class was made by a script ({place}), which cannot be imported: {IMPORT_AGAIN}")
        kind = method_at(place, IMPORT_AGAIN)
        if kind.name != name:
            raise ConfigError(f"{place} has another name, '{kind.name}': {IMPORT_AGAIN}")
    except ConfigError as error:
        raise RunError(f"the run in {path} cannot go on with its method '{name}': {error}") from error
    return kind


def _check_was_learned(about: Mapping[str, Any], path: Path, stream: Stream) -> None:
    """Raise RunError unless this is the stream that the finished run learned."""
    _check_stored(about, path)
    run = build(RunSettings, about["config"].get("run", {}), "run")
    _check_same_data(about, restrict(stream, Config(None, run=run)))


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
            f"now they have {list(opened.outline.train_counts)}; put the data, or the order of classes (stream.order), back, or start anew"
        )
    if not is_same_data(opened, about.get("data_digest")):
        raise RunError(
            "the data is not what the run began with: labels or images have changed, or stream.order gives another order of classes; "
            "put the data or the order back, or start anew"
        )


def _check_same_network(about: Mapping[str, Any], setup: Setup) -> None:
    """Compare the network's digest, which earlier versions did not write."""
    if about.get("network_digest") not in (None, setup.network_digest):
        raise RunError(
            f"the network '{setup.spec.name}' is not what the run began with: its layers, or the module's weights, have changed; "
            "give the same module, or a function that always returns it with the same weights"
        )


def _warn_if_elsewhere(about: Mapping[str, Any], run: Run) -> None:
    """Warn if device, PyTorch version or precision differ: the bits may differ then."""
    precision = precision_used(run.config, run.device)
    for what, before, now in (
        ("device", about.get("device_name"), device_name(run.device)),
        ("PyTorch", about.get("torch"), torch.__version__),
        ("precision", about.get("precision", precision), precision),  # earlier versions did not write it
    ):
        if before != now:
            message = f"the run began with {what} {before} and continues with {now}: the last bits of its numbers may differ"
            run.emit(Warned(run.job, message))
