"""One run as data. The API, the command line, sweeps and tuning all describe a run by a `Job`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from afaf.checked import build
from afaf.errors import ConfigError
from afaf.files.urls import is_url
from afaf.methods import check_own_name, find_method
from afaf.methods.base import Method
from afaf.network.spec import Layer
from afaf.randomness import check_seed
from afaf.runs.config import StreamSettings, Table, check_names, merge, nested, parse_set, read_config_file
from afaf.runs.progress import RunState
from afaf.streams.benchmarks import check_name, open_stream, outline_of
from afaf.streams.tasks import Outline, Stream


@dataclass(frozen=True)
class Job:
    """A run of one method on one stream with one seed.

    `stream` and `method` are names or objects. `config` (a file) and `settings` override the stream's preset; `settings` win over `config`.
    """

    stream: str | Stream
    method: str | type[Method[Any]]
    seed: int = 0
    settings: Mapping[str, Any] | Sequence[str] | None = None
    config: str | Path | None = None
    device: str = "auto"
    data: str | Path | None = None
    out: str | Path | None = None  # the run folder; None: nothing is written
    resume: bool = False  # continue the run that `out` holds
    start: RunState | None = None  # begin from this state instead of the first task
    until: int | None = None  # stop after this many tasks, as after a stop request
    snapshot_after: int | None = None  # after this many tasks, emit a StateReached event; only without a run folder
    tag: Any = None  # identifies the job for the caller; displays print it
    network: nn.Module | tuple[Layer, ...] | None = None  # instead of the network that the settings name

    def __str__(self) -> str:
        stream = self.stream if isinstance(self.stream, str) else self.stream.name
        return f"{stream} {self.method_class.name}, seed {self.seed}"

    def check(self) -> None:
        """Raise ConfigError for a stream, method, setting or seed that does not exist. Reads no data."""
        if isinstance(self.stream, str):
            check_name(self.stream)
        check_names(self.method_class.Options, *self.tables)
        check_seed(self.seed)

    @cached_property
    def method_class(self) -> type[Method[Any]]:
        return method_class(self.method)

    @cached_property
    def tables(self) -> list[Table]:
        """The settings in the order in which they override each other."""
        return settings_tables(self.config, self.settings)

    @property
    def folder(self) -> Path | None:
        """The run folder, unless it is behind a URL (runs/mirror.py)."""
        return None if self.out is None or is_url(self.out) else Path(self.out)

    @property
    def source(self) -> str | None:
        """The name under which the stream can be opened from any folder; None for a stream made by a program."""
        if isinstance(self.stream, Stream):
            return self.stream.source
        kind, colon, path = self.stream.partition(":")
        return f"{kind}:{Path(path).expanduser().absolute()}" if colon and kind in ("folder", "npz") else self.stream

    def outline(self) -> Outline:
        """The stream's tasks and classes; the built-in streams need no data for it."""
        return self.stream.outline if isinstance(self.stream, Stream) else outline_of(self.stream, **self._open_options())

    def open(self) -> Stream:
        if isinstance(self.stream, Stream):
            return self.stream
        opened = open_stream(self.stream, **self._open_options())
        opened.source = self.source
        return opened

    def _open_options(self) -> dict[str, Any]:
        return {"data": None if self.data is None else Path(self.data), **stream_options(*self.tables)}


def stream_options(*tables: Table) -> dict[str, Any]:
    """The options that the `stream` section of these tables changes. They are needed before the stream and its preset are known."""
    given = build(StreamSettings, merge(*tables).get("stream", {}), "stream")
    return {name: value for name, value in asdict(given).items() if value != getattr(StreamSettings(), name)}


def method_class(method: str | type[Method[Any]]) -> type[Method[Any]]:
    """The class of a method given by name or as a class."""
    if isinstance(method, str):
        return find_method(method)
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ConfigError(f"a method is a name or a subclass of Method, not {method!r}")
    check_own_name(method)
    return method


def settings_tables(config: str | Path | None, settings: Mapping[str, Any] | Sequence[str] | None) -> list[Table]:
    """A config file and single settings, as tables."""
    tables = [] if config is None else read_config_file(Path(config))
    if isinstance(settings, str):
        raise ConfigError("settings are a table such as {'learn.epochs': 5}, or a list of 'section.key=value'")
    if isinstance(settings, Mapping):
        tables += [nested(name, value) for name, value in settings.items()]
    elif settings is not None:
        tables.append(parse_set(settings))
    return tables
