"""A run: one method learns one stream with one seed, is judged after every task, and leaves a folder behind."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from afaf.engine import find_engine
from afaf.engine.lanes import GATE
from afaf.engine.report import EpochReport
from afaf.errors import ConfigError
from afaf.evaluation.costs import Costs, predict_costs
from afaf.evaluation.predict import TaskScore, score_task
from afaf.learning.feed import Feed
from afaf.learning.learner import Learner
from afaf.methods import find_method
from afaf.methods.base import Lesson, Method
from afaf.model.file import Model
from afaf.network.net import Network
from afaf.network.spec import NetworkSpec
from afaf.network.zoo import describe
from afaf.runs.config import Config, StreamSettings, Table, build_config, parse_set, read_config_file
from afaf.runs.device import device_name, find_device, suitable_threads
from afaf.runs.folder import RunFolder, write_whole
from afaf.runs.presets import preset_tables
from afaf.runs.results import Results
from afaf.streams.benchmarks import open_stream, outline_of
from afaf.streams.tasks import Outline, Stream, Task

_ONE_STARTS = threading.Lock()  # warnings are caught for the whole process: of runs side by side one allocates at a time


class Listener:
    """Told what happens during a run; a progress display overrides what it wants to show."""

    def run_started(self, outline: Outline, method: str, seed: int, epochs: int) -> None: ...
    def lesson_started(self, tasks: tuple[int, ...], class_names: tuple[str, ...]) -> None: ...
    def epoch_ended(self, report: EpochReport) -> None: ...
    def lesson_ended(self, tasks: tuple[int, ...], row: list[float | None], row_task_il: list[float | None]) -> None: ...
    def warned(self, message: str) -> None: ...


@dataclass(frozen=True)
class Setup:
    """A method, its configuration and its network for a stream: checked, nothing built yet."""

    method: Method[Any]
    config: Config
    spec: NetworkSpec  # with the output rows of the whole stream


def set_up(outline: Outline, method: str | type[Method[Any]], *tables: Mapping[str, Any]) -> Setup:
    """Build and check everything that needs no data; the tables override the stream's preset."""
    kind = method_class(method)
    config = build_config(kind.Options, *preset_tables(outline, kind), *tables)
    network = config.network
    spec = describe(
        network.name,
        outline.input_shape,
        outline.n_classes,
        norm=network.norm,
        dropout=network.dropout,
        dropout_at=network.dropout_at,
    )
    built = kind(config.method, config.settings)
    built.check(spec, outline)
    return Setup(built, config, spec)


def method_class(method: str | type[Method[Any]]) -> type[Method[Any]]:
    """A method by name or as it is."""
    if isinstance(method, str):
        return find_method(method)
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ConfigError(f"a method is a name or a subclass of Method, not {method!r}")
    return method


def settings_table(config: str | Path | None, settings: Mapping[str, Any] | Sequence[str] | None) -> list[Table]:
    """A config file and single settings, as tables."""
    tables = [] if config is None else [read_config_file(Path(config))]
    if isinstance(settings, str):
        raise ConfigError("settings are a table such as {'learn.epochs': 5}, or a list of 'section.key=value'")
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            for part in reversed(name.split(".")):
                value = {part: value}
            tables.append(value)
    elif settings is not None:
        tables.append(parse_set(settings))
    return tables


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
    """Learn a stream with a method.

    `stream` is a name (`afaf streams`) or a `Stream`; `settings` are single values such as {"learn.epochs": 5}; `config` is a TOML file.
    With `out` the run leaves a folder there: configuration, log, results and model.
    """
    where = find_device(device)
    method = method_class(method)
    if out is not None:
        RunFolder.refuse_taken(Path(out))
    tables = settings_table(config, settings)
    opened = open_with(stream, tables, data)
    setup = set_up(opened.outline, method, *tables)
    if setup.config.run.images:
        opened = opened.with_at_most(setup.config.run.images)
    if setup.config.run.validation:
        opened = opened.with_validation(setup.config.run.validation)
    folder = None if out is None else RunFolder.create(Path(out))
    return Run(opened, setup, seed, where, folder, listener or Listener()).carry_out()


def costs(
    stream: str | Stream,
    method: str | type[Method[Any]],
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    data: str | Path | None = None,
) -> Costs:
    """Parameters and FLOPs of a method on a stream, without training; the paper's streams need no data for it."""
    tables = settings_table(config, settings)
    outline = stream.outline if isinstance(stream, Stream) else outline_of(stream, **_stream_options(tables, data))
    setup = set_up(outline, method, *tables)
    return predict_costs(setup.spec, outline, setup.method)


def open_with(stream: str | Stream, tables: Sequence[Table], data: str | Path | None) -> Stream:
    return stream if isinstance(stream, Stream) else open_stream(stream, **_stream_options(tables, data))


def _stream_options(tables: Sequence[Table], data: str | Path | None) -> dict[str, Any]:
    """The `stream` section, which must be known before the stream, and so before its preset."""
    given = build_config(_NoOptions, *({"stream": table["stream"]} for table in tables if "stream" in table)).stream
    changed = {name: value for name, value in asdict(given).items() if value != getattr(StreamSettings(), name)}
    return {"data": None if data is None else Path(data), **changed}


@dataclass(frozen=True)
class _NoOptions:
    pass


class Run:
    """The way of the data, once through: stream, method, plan, engine, evaluation, folder."""

    def __init__(self, stream: Stream, setup: Setup, seed: int, device: torch.device, folder: RunFolder | None, listener: Listener):
        self.stream, self.setup, self.seed, self.device = stream, setup, seed, device
        self.method, self.config = setup.method, setup.config
        self.folder, self.listener = folder, listener
        rows = outline_rows(setup, stream.outline)
        self.learner = Learner.fresh(Network(setup.spec.with_classes(rows), seed, device), self.method.unit)
        self.engine = find_engine(self.config.run.engine, device, self.config.run.precision)
        self.warnings: list[str] = []
        self.last_epoch: EpochReport | None = None
        self.seconds_learning = 0.0
        n_tasks = len(stream)
        self.R: list[list[float | None]] = [[None] * (j + 1) for j in range(n_tasks)]
        self.R_task_il: list[list[float | None]] = [[None] * (j + 1) for j in range(n_tasks)]
        self.R_task_il_unmasked: list[list[float | None]] = [[None] * (j + 1) for j in range(n_tasks)]
        self.task_id: list[float | None] = [None] * n_tasks
        self.before: list[float | None] = [None] * n_tasks
        self.confusion = np.zeros((0, 0), dtype=np.int64)

    def carry_out(self) -> Results:
        with GATE.inside(), suitable_threads(self.setup.spec, self.config.learn.batch_size):
            return self._carry_out()

    def _carry_out(self) -> Results:
        started = time.perf_counter()
        if self.folder is not None:
            about = {"stream": self.stream.name, "method": self.method.name, "seed": self.seed, "device": str(self.device)}
            self.folder.write_json("config.json", {**about, "config": self.config.to_dict()})
        self.listener.run_started(self.stream.outline, self.method.name, self.seed, self.config.learn.epochs)
        for tasks in self.method.lessons(len(self.stream)):
            self._learn(tasks)
            self._judge(tasks)
        results = self._results(time.perf_counter() - started)
        if self.folder is not None and results.model is not None:
            write_whole(self.folder.path / "model.safetensors", results.model.save)
            self.folder.write_json("results.json", results.to_dict())  # last: a folder with results is complete
        return results

    def learn_task(self, number: int) -> float:
        """Learn one task, and say how well the model does on it when the task is known."""
        self._learn((number,))
        return self._score(self.stream[number - 1]).task_il

    def _learn(self, numbers: tuple[int, ...]) -> None:
        tasks = [self.stream[number - 1] for number in numbers]
        classes = tuple(c for task in tasks for c in task.classes)
        self.listener.lesson_started(numbers, tuple(name for task in tasks for name in task.class_names))
        started = time.perf_counter()
        feed = self._feed([(task.train, task.preparation) for task in tasks])
        lesson = Lesson(numbers[-1], classes, feed)
        self.learner.begin(lesson.task, classes)
        for phase in range(self.method.phases):
            with _ONE_STARTS, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.method.start(self.learner, lesson, phase)
            for warning in caught:
                self._warn(str(warning.message))
            plan = self.method.plan(self.learner, lesson, phase)
            plan.check(self.learner)
            self.engine.learn(self.learner, plan, feed, self._epoch_ended)
        self.method.finish(self.learner, lesson)
        self.learner.end(lesson.task)
        self.seconds_learning += time.perf_counter() - started
        self._warn_if_not_learned(lesson)

    def _judge(self, numbers: tuple[int, ...]) -> None:
        """Fill the rows of R that this lesson makes known, and look ahead at the next task for forward transfer."""
        last = numbers[-1]
        scores = [self._score(self.stream[i]) for i in range(last)]
        self.R[last - 1] = [score.class_il for score in scores]
        self.R_task_il[last - 1] = [score.task_il for score in scores]
        self.R_task_il_unmasked[last - 1] = [score.task_il_unmasked for score in scores]
        lengths = [len(self.stream[i].held_out(self.config.run.evaluate_on)) for i in range(last)]
        self.task_id[last - 1] = float(np.average([score.task_id for score in scores], weights=lengths))
        self.confusion = np.concatenate([score.confusion for score in scores])
        if last < len(self.stream) and self.learner.network.spec.n_classes > self.stream[last].classes[-1]:
            self.before[last] = self._score(self.stream[last]).task_il
        self.listener.lesson_ended(numbers, self.R[last - 1], self.R_task_il[last - 1])
        if self.folder is not None:
            row = {"R": self.R[last - 1], "R_task_il": self.R_task_il[last - 1], "task_id": self.task_id[last - 1]}
            self.folder.log({"event": "task", "task": last, **row, "seconds_learning": round(self.seconds_learning, 3)})

    def _score(self, task: Task) -> TaskScore:
        feed = self._feed([(task.held_out(self.config.run.evaluate_on), task.preparation)])
        general, known = self.method.predictor(self.learner), self.method.predictor(self.learner, task.number)
        same = general is known
        return score_task(general, feed, task.classes, self.learner.seen_classes, self.config.evaluate, None if same else known)

    def _feed(self, parts: list[Any]) -> Feed:
        return Feed(parts, self.device, self.learner.network.dtype)

    def _warn_if_not_learned(self, lesson: Lesson) -> None:
        chance = 100 / len(lesson.classes)
        if self.last_epoch is not None and len(lesson.classes) > 1 and self.last_epoch.accuracy < min(1.2 * chance, chance + 10):
            self._warn(
                f"task {lesson.task} was hardly learned: {self.last_epoch.accuracy:.0f} % right on its training images, "
                f"chance is {chance:.0f} %; raise learn.epochs or learn.lr, or sparse.density"
            )

    def _epoch_ended(self, report: EpochReport) -> None:
        self.last_epoch = report
        self.listener.epoch_ended(report)
        if self.folder is not None:
            self.folder.log({"event": "epoch", **asdict(report)})

    def _warn(self, message: str) -> None:
        self.warnings.append(message)
        self.listener.warned(message)

    def _results(self, seconds: float) -> Results:
        return Results(
            stream=self.stream.name,
            method=self.method.name,
            seed=self.seed,
            R=self.R,
            R_task_il=self.R_task_il,
            task_id=self.task_id,
            before=self.before,
            confusion=self.confusion.tolist(),
            class_names=[list(task.class_names) for task in self.stream],
            params=self.learner.params,
            dense_params=self.setup.spec.dense_params,
            seconds=seconds,
            seconds_learning=self.seconds_learning,
            device=device_name(self.device),
            warnings=self.warnings,
            run=None if self.folder is None else str(self.folder.path),
            R_task_il_unmasked=self.R_task_il_unmasked if self.R_task_il_unmasked != self.R_task_il else None,
            model=self._model(),
        )

    def _model(self) -> Model:
        return Model(
            self.learner,
            self.method.name,
            [list(task.class_names) for task in self.stream],
            [task.preparation for task in self.stream],
            self.config.to_dict(),
            self.stream.name,
        )


def outline_rows(setup: Setup, outline: Outline) -> int:
    """Output rows the network begins with: all the stream will need, or those of the first lesson."""
    if setup.config.network.outputs == "reserved":
        return outline.n_classes
    first = setup.method.lessons(len(outline))[0]
    return sum(outline.classes_per_task[task - 1] for task in first)
