"""A run: one method learns one stream with one seed, is judged after every task, and leaves a folder behind."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from afaf.costing.predict import Costs, predict_costs
from afaf.errors import ConfigError, StoppedError
from afaf.evaluation.metrics import has_collapsed
from afaf.evaluation.predict import TaskScore, score_task
from afaf.methods import find_method
from afaf.methods.base import Method, TaskContext
from afaf.network.net import Network
from afaf.network.spec import NetworkSpec
from afaf.network.zoo import describe
from afaf.randomness import check_seed
from afaf.runs.checkpoint import Checkpoints, Restored
from afaf.runs.config import Config, StreamSettings, Table, build_config, check_names, nested, parse_set, read_config_file
from afaf.runs.device import device_name, find_device, suitable_threads
from afaf.runs.failure import honest_failure
from afaf.runs.folder import RunFolder, resume_command
from afaf.runs.guessing import hardly_learned
from afaf.runs.plateau import Patient, check_patience
from afaf.runs.presets import preset_tables
from afaf.runs.progress import Position, Progress
from afaf.runs.results import Results
from afaf.runs.shared_prefix import Beginning, Beginnings, shared_by
from afaf.runs.stop import Stop
from afaf.runs.train_task import train_task
from afaf.storage.model_file import Model
from afaf.streams.benchmarks import check_name, open_stream, outline_of
from afaf.streams.tasks import Outline, Stream, Task
from afaf.training.engines import Engine, find_engine
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.training.precision import at_work
from afaf.training.report import EpochReport
from afaf.training.task_data import TaskData
from afaf.version import __version__

LEARN_MORE = "raise learn.epochs (or sparse.density, where sub-networks are sparse), or try another learn.lr"
ALL_IMAGES = "all:"  # begins the digest of all images
SAMPLED = 64  # images of each part of a task that earlier versions digested


class Listener:
    """Told what happens during a run; a progress display overrides what it wants to show."""

    def run_started(self, outline: Outline, method: str, seed: int, epochs: int) -> None: ...  # epochs: of the whole run
    def run_resumed(self, where: str, epochs_done: int) -> None: ...
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
    check_patience(config, built)
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
    tables = [] if config is None else read_config_file(Path(config))
    if isinstance(settings, str):
        raise ConfigError("settings are a table such as {'learn.epochs': 5}, or a list of 'section.key=value'")
    if isinstance(settings, Mapping):
        tables += [nested(name.split("."), value) for name, value in settings.items()]
    elif settings is not None:
        tables.append(parse_set(settings))
    return tables


def check_typed(
    stream: str | Stream,
    method: str | type[Method[Any]],
    config: str | Path | None,
    settings: Mapping[str, Any] | Sequence[str] | None,
) -> tuple[type[Method[Any]], list[Table]]:
    """The method and the tables of settings. What was typed is judged in its order, before anything is read: stream, method, settings."""
    if isinstance(stream, str):
        check_name(stream)
    kind = method_class(method)
    tables = settings_table(config, settings)
    check_names(kind.Options, *tables)
    return kind, tables


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
    stop: Stop | None = None,
    beginning: Beginning | None = None,
    beginnings: Beginnings | None = None,
) -> Results:
    """Learn a stream with a method.

    `stream` is a name (`afaf streams`) or a `Stream`; `settings` are single values such as {"learn.epochs": 5}; `config` is a TOML file.
    With `out` the run leaves a folder there: configuration, log, checkpoints, results and model. Once `stop` is asked, the run finishes
    its epoch, is saved, and ends in a `StoppedError`. A run without a folder may share its beginning with others: it goes on from
    `beginning`, and leaves its own with `beginnings`.
    """
    method, tables = check_typed(stream, method, config, settings)
    check_seed(seed)
    where = find_device(device)
    if out is not None:
        RunFolder.refuse_taken(Path(out))  # before the data is read, which may take long
    opened = open_with(stream, tables, data)
    setup = set_up(opened.outline, method, *tables)
    opened = as_configured(opened, setup.config)
    if out is None:
        apart = Run(opened, setup, seed, where, None, listener or Listener(), stop, beginnings)
        if beginning is not None:
            apart.begin_from(beginning)
        return apart.carry_out()
    with RunFolder.create(Path(out)) as folder:
        folder.write_json("config.json", about_run(opened, stream, data, setup, seed, where))
        return Run(opened, setup, seed, where, folder, listener or Listener(), stop).carry_out()


def as_configured(stream: Stream, config: Config) -> Stream:
    """The stream with as many images, and with the validation part, that the run asks for."""
    if config.run.images:
        stream = stream.with_at_most(config.run.images)
    return stream.with_validation(config.run.validation) if config.run.validation else stream


def about_run(opened: Stream, stream: str | Stream, data: str | Path | None, setup: Setup, seed: int, device: torch.device) -> Table:
    """What config.json says: all that is needed to go on with a run, or to repeat it."""
    kind = type(setup.method)
    return {
        "afaf": __version__,
        "torch": torch.__version__,
        "stream": opened.name,
        "source": source_of(stream),  # what to open; None: a stream that only the program that started the run has
        "data": None if data is None else str(Path(data).absolute()),
        "train_counts": list(opened.outline.train_counts),
        "data_digest": data_digest(opened),
        "method": kind.name,
        "method_class": f"{kind.__module__}.{kind.__qualname__}",
        "seed": seed,
        "device": str(device),
        "device_name": device_name(device),
        "config": setup.config.to_dict(),
    }


def data_digest(stream: Stream, *, sampled: bool = False) -> str:
    """A checksum of all labels and images; `sampled`, as earlier versions wrote it, of some of the images."""
    digest = hashlib.blake2b(digest_size=16)
    for task in stream:
        for split in (task.train, task.test):
            images = split.images[:: max(1, len(split) // SAMPLED)] if sampled else split.images
            digest.update(np.ascontiguousarray(split.labels).tobytes())
            for start in range(0, len(images), 1024):
                digest.update(np.ascontiguousarray(images[start : start + 1024]).tobytes())
    return digest.hexdigest() if sampled else f"{ALL_IMAGES}{digest.hexdigest()}"


def is_same_data(stream: Stream, digest: object) -> bool:
    """Whether a digest in a config.json, also one of an earlier version, is of this stream."""
    return digest == data_digest(stream, sampled=not str(digest).startswith(ALL_IMAGES))


def source_of(stream: str | Stream) -> str | None:
    """The name a stream can be opened by from any folder."""
    if isinstance(stream, Stream):
        return stream.source
    kind, colon, path = stream.partition(":")
    return f"{kind}:{Path(path).expanduser().absolute()}" if colon and kind in ("folder", "npz") else stream


def costs(
    stream: str | Stream,
    method: str | type[Method[Any]],
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | Sequence[str] | None = None,
    data: str | Path | None = None,
) -> Costs:
    """Parameters and FLOPs of a method on a stream, without training; the paper's streams need no data for it."""
    method, tables = check_typed(stream, method, config, settings)
    outline = outline_with(stream, tables, data)
    setup = set_up(outline, method, *tables)
    return predict_costs(setup.spec, outline, setup.method)


def outline_with(stream: str | Stream, tables: Sequence[Table], data: str | Path | None) -> Outline:
    return stream.outline if isinstance(stream, Stream) else outline_of(stream, **_stream_options(tables, data))


def open_with(stream: str | Stream, tables: Sequence[Table], data: str | Path | None) -> Stream:
    if isinstance(stream, Stream):
        return stream
    opened = open_stream(stream, **_stream_options(tables, data))
    opened.source = source_of(stream)
    return opened


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

    def __init__(
        self,
        stream: Stream,
        setup: Setup,
        seed: int,
        device: torch.device,
        folder: RunFolder | None,
        listener: Listener,
        stop: Stop | None = None,
        beginnings: Beginnings | None = None,
    ):
        self.stream, self.setup, self.seed, self.device = stream, setup, seed, device
        self.method, self.config = setup.method, setup.config
        self.folder, self.listener, self.stop = folder, listener, stop or Stop()
        rows = outline_rows(setup, stream.outline)
        self.learner = Learner.fresh(Network(setup.spec.with_classes(rows), seed, device), self.method.unit)
        self.engine = find_engine(self.config.run.engine, device, self.config.run.precision)
        if self.config.run.chunk is not None and hasattr(self.engine, "chunk_bytes"):
            self.engine.chunk_bytes = self.config.run.chunk << 20
        self.progress = Progress.fresh(len(stream))
        self.position = Position()
        self.checkpoints = None if folder is None else Checkpoints(folder, self.config.run.checkpoint)
        self.beginnings = beginnings
        self.shared = None if beginnings is None else shared_by(self.method, self.config, stream.name, len(stream), seed)
        self._started = self._learning = time.perf_counter()

    def carry_out(self) -> Results:
        computing = at_work(self.config.run.precision, self.device)
        with computing, suitable_threads(self.setup.spec, self.config.learn.batch_size), honest_failure(self):
            try:
                return self._carry_out()
            finally:
                if self.checkpoints is not None:
                    self.checkpoints.close()

    def go_on_from(self, restored: Restored) -> None:
        """Take a run up where a checkpoint left it."""
        self.learner, self.position, self.progress = restored.learner, restored.position, restored.progress

    def begin_from(self, beginning: Beginning) -> None:
        """Begin where another run stood that was the same up to there."""
        self.learner, self.progress = beginning.again(len(self.stream), self.device)
        self.position = Position(beginning.lessons)

    def _carry_out(self) -> Results:
        self._started = time.perf_counter() - self.progress.seconds
        lessons = self.method.lessons(len(self.stream))
        planned = self._planned_epochs()
        self.listener.run_started(self.stream.outline, self.method.name, self.seed, sum(planned))
        if self.position != Position():
            behind = planned[: self.position.lesson * self.method.phases + self.position.phase]
            self.listener.run_resumed(str(self.position), sum(behind) + self.position.epochs)
        elif self.checkpoints is not None:
            self.checkpoints.begin(self.learner)
        for tasks in lessons[self.position.lesson :]:
            self._learn(tasks)
            self._judge(tasks)
            self._lesson_ended()
        return self._finish()

    def _planned_epochs(self) -> list[int]:
        """Of every phase of every lesson; a method that does not say what it costs is taken to learn for as many epochs each time."""
        lessons = len(self.method.lessons(len(self.stream)))
        try:
            return [footprint.epochs for footprint in self.method.footprints(self.setup.spec, self.stream.outline)]
        except ConfigError:
            return [self.config.learn.epochs] * (lessons * self.method.phases)

    def _finish(self) -> Results:
        results = self._results()
        if self.folder is not None and self.checkpoints is not None and results.model is not None:
            results.model.save(self.folder.path / "model.safetensors")
            self.checkpoints.wait()
            self.folder.write_json("results.json", results.to_dict())  # last: a folder with results is complete
        return results

    def learn_task(self, number: int) -> float:
        """Learn one task, and say how well the model does on it when the task is known."""
        with at_work(self.config.run.precision, self.device):
            self._learn((number,))
            return self._score(self.stream[number - 1]).task_il

    def _learn(self, numbers: tuple[int, ...]) -> None:
        """Learn a lesson, or what is left of it."""
        tasks = [self.stream[number - 1] for number in numbers]
        classes = tuple(c for task in tasks for c in task.classes)
        self.listener.lesson_started(numbers, tuple(name for task in tasks for name in task.class_names))
        self._learning = time.perf_counter()
        feed = self._feed([(task.train, task.preparation) for task in tasks])
        context = TaskContext(numbers[-1], classes, feed, self._warn)
        train_task(self.learner, self.method, self._engine_for(tasks), context, self._after_epoch, self.position)
        self.progress.seconds_learning += time.perf_counter() - self._learning

    def _engine_for(self, tasks: Sequence[Task]) -> Engine:
        learn = self.config.learn
        if not learn.patience:
            return self.engine
        held_out = self._feed([(task.held_out("validation"), task.preparation) for task in tasks])
        return Patient(self.engine, learn.patience, held_out, self.config.evaluate.batch_size)

    def _judge(self, numbers: tuple[int, ...]) -> None:
        """Fill the rows of R that this lesson makes known, and look ahead at the next task for forward transfer."""
        last, found = numbers[-1], self.progress
        scores = [self._score(self.stream[i]) for i in range(last)]
        found.R[last - 1] = [score.class_il for score in scores]
        found.R_task_il[last - 1] = [score.task_il for score in scores]
        found.R_task_il_unmasked[last - 1] = [score.task_il_unmasked for score in scores]
        found.task_id[last - 1] = float(np.mean([score.task_id for score in scores]))
        found.confusion = np.concatenate([score.confusion for score in scores]).tolist()
        if last < len(self.stream) and self.learner.network.spec.n_classes > self.stream[last].classes[-1]:
            found.before[last] = self._score(self.stream[last]).task_il
        self._warn_if_guessing(numbers)
        self.listener.lesson_ended(numbers, found.R[last - 1], found.R_task_il[last - 1])
        if self.folder is not None:
            row = {"R": found.R[last - 1], "R_task_il": found.R_task_il[last - 1], "task_id": found.task_id[last - 1]}
            self.folder.log({"event": "task", "task": last, **row, "seconds_learning": round(found.seconds_learning, 3)})

    def _lesson_ended(self) -> None:
        """Checkpoint the run between two lessons, and stop there if asked to."""
        self.position = Position(self.position.lesson + 1)
        self.progress.seconds = time.perf_counter() - self._started
        if self.checkpoints is not None:
            self.checkpoints.save_whole(self.learner, self.position, self.progress)
        if self.beginnings is not None and self.shared is not None and self.position.lesson == self.shared.lessons:
            self.beginnings.leave(self.shared, self.learner, self.progress)
        if self.stop.asked and self.position.lesson < len(self.method.lessons(len(self.stream))):
            self._stop()

    def _after_epoch(self, plan: LearningPlan) -> Callable[[EpochReport], None]:
        """What is done when an epoch has ended: tell of it, checkpoint if it is time, stop if asked to."""

        def ended(report: EpochReport) -> None:
            self.progress.last_epoch = report
            self.listener.epoch_ended(report)
            if self.folder is not None:
                self.folder.log({"event": "epoch", **asdict(report)})
            here = Position(self.position.lesson, True, plan.phase, report.epoch + 1)
            if self.checkpoints is not None and (self.checkpoints.due() or self.stop.asked):
                now = time.perf_counter()
                learning = self.progress.seconds_learning + now - self._learning
                so_far = replace(self.progress, seconds=now - self._started, seconds_learning=learning)
                self.checkpoints.save_within(self.learner, plan, here, so_far)
            if self.stop.asked:
                self._stop()

        return ended

    def _stop(self) -> None:
        """End the run here, all of it saved."""
        words = f"stopped by {self.stop.cause}"
        if self.folder is not None and self.checkpoints is not None:
            self.checkpoints.wait()
            words += f"; everything up to here is saved. Go on with: {resume_command(self.folder.path)}"
        raise StoppedError(words, self.stop.exit_code)

    def _score(self, task: Task) -> TaskScore:
        feed = self._feed([(task.held_out(self.config.run.evaluate_on), task.preparation)])
        general, known = self.method.predictor(self.learner), self.method.predictor(self.learner, task.number)
        same = general is known
        return score_task(general, feed, task.classes, self.learner.seen_classes, self.config.evaluate, None if same else known)

    def _feed(self, parts: list[Any]) -> TaskData:
        return TaskData(parts, self.device, self.learner.network.dtype)

    def _warn_if_guessing(self, numbers: tuple[int, ...]) -> None:
        """Told once: that the network has died. Of each lesson before: that it was hardly learned, for want of steps or connections."""
        task, last, R, sizes = numbers[-1], self.progress.last_epoch, self.progress.R_task_il, self.stream.outline.classes_per_task
        classes = sum(sizes[number - 1] for number in numbers)
        if has_collapsed(R[: task - 1], sizes):
            return
        if has_collapsed(R[:task], sizes):
            self._warn(
                f"after task {task} the answers to all tasks are no better than guessing: the network has collapsed, "
                "as it does when steps are too large, and will hardly learn again; lower learn.lr"
            )
        elif last is not None and (words := hardly_learned(task, last.accuracy, classes, LEARN_MORE)):
            self._warn(words)

    def _warn(self, message: str) -> None:
        self.progress.warnings.append(message)
        self.listener.warned(message)

    def _results(self) -> Results:
        found = self.progress
        return Results(
            stream=self.stream.name,
            method=self.method.name,
            seed=self.seed,
            R=found.R,
            R_task_il=found.R_task_il,
            task_id=found.task_id,
            before=found.before,
            confusion=found.confusion,
            class_names=[list(task.class_names) for task in self.stream],
            params=self.learner.params,
            dense_params=self.setup.spec.dense_params,
            seconds=time.perf_counter() - self._started,
            seconds_learning=found.seconds_learning,
            device=device_name(self.device),
            warnings=found.warnings,
            run=None if self.folder is None else str(self.folder.path),
            R_task_il_unmasked=found.R_task_il_unmasked if found.R_task_il_unmasked != found.R_task_il else None,
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
