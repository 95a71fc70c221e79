"""A run: one method learns one stream with one seed, is evaluated after every task, and writes a run folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from afaf.errors import ConfigError, StoppedError
from afaf.evaluation.by_task import predictor_of
from afaf.evaluation.metrics import hardly_learned, has_collapsed
from afaf.evaluation.predict import TaskScore, score_task
from afaf.methods import place_of
from afaf.methods.base import Predictor, TaskContext
from afaf.network.net import Network
from afaf.network.zoo import network_name, width_of
from afaf.runs.checkpoint import Checkpoints, Restored
from afaf.runs.config import Config, Table
from afaf.runs.device import device_name, find_device, suitable_threads
from afaf.runs.events import EpochEnded, OnEvent, RunResumed, RunStarted, StateReached, TaskEnded, TaskStarted, Warned, ignore
from afaf.runs.failure import explain_errors
from afaf.runs.folder import RunFolder, resume_command
from afaf.runs.job import Job
from afaf.runs.parts import Parts
from afaf.runs.progress import Position, RunProgress, RunState
from afaf.runs.provenance import commit
from afaf.runs.results import Results
from afaf.runs.setup import Setup, restrict, set_up
from afaf.runs.stop import StopToken
from afaf.runs.train_task import train_task
from afaf.storage.model_file import Model
from afaf.streams.tasks import Stream, Task
from afaf.training.engines import find_engine
from afaf.training.learner import Learner
from afaf.training.plan import LearningPlan
from afaf.training.precision import Precision, at_work, precision_on
from afaf.training.report import EpochReport
from afaf.training.task_data import TaskData
from afaf.version import __version__

LEARN_MORE = "raise learn.epochs (or sparse.density, where sub-networks are sparse), or try another learn.lr"
ALL_IMAGES = "all:"  # begins the digest of all images
SAMPLED = 64  # images of each part of a task that earlier versions digested


def run(job: Job, *, on_event: OnEvent = ignore, stop: StopToken | None = None, stream: Stream | None = None) -> Results:
    """Carry out a job from its first task, or from `job.start`.

    With a folder, the run writes its configuration, log, checkpoints, results and model there. Once `stop` is asked, the run finishes
    its epoch, is saved and raises StoppedError. `stream` is the job's stream, if it is already open.
    """
    job.check()
    device = find_device(job.device)
    if job.folder is not None:
        RunFolder.refuse_taken(job.folder)  # before the data is read, which may take long
    stream = stream or job.open()
    setup = set_up(stream.outline, job.method_class, *job.tables, network=job.network)
    stream = restrict(stream, setup.config)
    if job.folder is None:
        return Run(job, stream, setup, None, on_event, stop).carry_out()
    with RunFolder.create(job.folder) as folder:
        folder.write_json("config.json", _description(job, stream, setup, device))
        return Run(job, stream, setup, folder, on_event, stop).carry_out()


def _description(job: Job, stream: Stream, setup: Setup, device: torch.device) -> Table:
    """The contents of config.json: everything needed to resume or repeat a run."""
    kind = type(setup.method)
    return {
        "afaf": __version__,
        "torch": torch.__version__,
        "commit": commit(),
        "stream": stream.name,
        "source": job.source,  # None: only the program that started the run has the stream
        "data": None if job.data is None else str(Path(job.data).absolute()),
        "train_counts": list(stream.outline.train_counts),
        "data_digest": data_digest(stream),
        "method": kind.name,
        "method_class": place_of(kind),
        "network": setup.spec.name,
        "width": width_of(setup.spec),
        "network_object": None if job.network is None else network_name(job.network),  # only the program that started the run has it
        "network_digest": setup.network_digest,
        "seed": job.seed,
        "device": str(device),
        "device_name": device_name(device),
        "precision": precision_used(setup.config, device),
        "config": setup.config.to_dict(),
    }


def precision_used(config: Config, device: torch.device) -> Precision:
    """The precision of products while a run learns on this device."""
    return precision_on(config.run.precision, device, find_engine(config.run.engine, device).name)


def data_digest(stream: Stream, *, sampled: bool = False) -> str:
    """A checksum of all labels and images; with `sampled`, of only some of the images, as in earlier versions."""
    digest = hashlib.blake2b(digest_size=16)
    for task in stream:
        for split in (task.train, task.test):
            images = split.images[:: max(1, len(split) // SAMPLED)] if sampled else split.images
            digest.update(np.ascontiguousarray(split.labels).tobytes())
            for start in range(0, len(images), 1024):
                digest.update(np.ascontiguousarray(images[start : start + 1024]).tobytes())
    return digest.hexdigest() if sampled else f"{ALL_IMAGES}{digest.hexdigest()}"


def is_same_data(stream: Stream, digest: object) -> bool:
    """Whether the digest in a config.json, possibly of an earlier version, is that of this stream."""
    return digest == data_digest(stream, sampled=not str(digest).startswith(ALL_IMAGES))


class Run:
    """One run in progress: learns each task, scores the network, and writes log, checkpoints and results."""

    def __init__(
        self,
        job: Job,
        stream: Stream,
        setup: Setup,
        folder: RunFolder | None = None,
        on_event: OnEvent = ignore,
        stop: StopToken | None = None,
    ):
        self.job, self.stream, self.setup, self.device = job, stream, setup, find_device(job.device)
        self.commit = commit()  # now: the checkout may change during the run
        self.method, self.config = setup.method, setup.config
        self.folder, self.emit, self.stop = folder, on_event, stop or StopToken()
        self.task_groups = self.method.task_groups(len(stream))
        spec = setup.spec.with_classes(setup.first_output_rows(stream.outline))
        outputs_per_class = self.config.parts.outputs_per_class
        self.learner = Learner.fresh(Network(spec, job.seed, self.device, initial=setup.initial), self.method.unit, outputs_per_class)
        self.parts = Parts(self.config.parts, job.seed, self.device, self.learner.network.dtype)
        self.engine = find_engine(self.config.run.engine, self.device, self.config.run.precision)
        if self.config.run.chunk is not None and hasattr(self.engine, "chunk_bytes"):
            self.engine.chunk_bytes = self.config.run.chunk << 20
        self.progress, self.position = RunProgress.fresh(len(stream)), Position()
        if job.start is not None:
            self.learner, self.progress = job.start.restore(len(stream), self.device)
            self.learner.network.initial = setup.initial
            self.position = Position(job.start.tasks)
        self.checkpoints = None if folder is None else Checkpoints(folder, self.config.run.checkpoint)
        self._started = self._learning = time.perf_counter()

    def carry_out(self) -> Results:
        computing = at_work(self.config.run.precision, self.device)
        with computing, suitable_threads(self.setup.spec, self.config.learn.batch_size), explain_errors(self):
            try:
                return self._carry_out()
            finally:
                if self.checkpoints is not None:
                    self.checkpoints.close()

    def restore(self, restored: Restored) -> None:
        """Continue from a checkpoint."""
        self.learner, self.position, self.progress = restored.learner, restored.position, restored.progress
        self.learner.network.initial = self.setup.initial

    def _carry_out(self) -> Results:
        self._started = time.perf_counter() - self.progress.seconds
        epochs = self._planned_epochs()
        self.emit(RunStarted(self.job, self.stream.outline, self.method.name, self.job.seed, sum(epochs)))
        if self.position != Position():
            done = epochs[: self.position.tasks * self.method.phases + self.position.phase]
            self.emit(RunResumed(self.job, str(self.position), sum(done) + self.position.epochs))
        for numbers in self.task_groups[self.position.tasks : self.job.until]:
            self._learn(numbers)
            self._evaluate(numbers)
            self._end_task()
        if self.position.tasks < len(self.task_groups):
            self._stop(f"after task {self.job.until}")
        results = self._results()
        if self.folder is not None and self.checkpoints is not None and results.model is not None:
            results.model.save(self.folder.path / "model.safetensors")
            self.checkpoints.wait()
            self.folder.write_json("results.json", results.to_dict())  # last: a folder with results is complete
        return results

    def _planned_epochs(self) -> list[int]:
        """The epochs of every phase of every task; `learn.epochs` each for a method that does not predict its costs."""
        try:
            outputs = self.config.parts.outputs(self.stream.outline)
            return [footprint.epochs for footprint in self.method.footprints(self.setup.spec, outputs)]
        except ConfigError:
            return [self.config.learn.epochs] * (len(self.task_groups) * self.method.phases)

    def _learn(self, numbers: tuple[int, ...]) -> None:
        """Learn one task (all of them for joint training), or the rest of it after `self.position`."""
        tasks = [self.stream[number - 1] for number in numbers]
        self.emit(TaskStarted(self.job, numbers, tuple(name for task in tasks for name in task.class_names)))
        self._learning = time.perf_counter()
        prepared = self.parts.prepare(tasks)
        validation = [(task.held_out("validation"), task.preparation) for task in tasks] if self.config.learn.plateau else []
        held_out = self.parts.by_row(validation) if validation else None  # labelled like what is learned: the same loss judges it
        context = TaskContext(numbers[-1], prepared.rows, prepared.data, held_out, self._warn)
        train_task(self.learner, self.method, self.engine, context, self._after_epoch, self.position, self.parts.adjust)
        if self.parts.any:
            self.parts.finish(prepared, self.learner, predictor_of(self.method, self.learner))
        self.progress.seconds_learning += time.perf_counter() - self._learning

    def _evaluate(self, numbers: tuple[int, ...]) -> None:
        """Fill the rows of R after this task; score the next task, too, for forward transfer."""
        last, progress = numbers[-1], self.progress
        general = predictor_of(self.method, self.learner)
        scores = [self._score(self.stream[i], general) for i in range(last)]
        progress.R[last - 1] = [score.class_il for score in scores]
        progress.R_task_il[last - 1] = [score.task_il for score in scores]
        progress.R_task_il_unmasked[last - 1] = [score.task_il_unmasked for score in scores]
        progress.task_id[last - 1] = float(np.mean([score.task_id for score in scores]))
        progress.confusion = np.concatenate([score.confusion for score in scores]).tolist()
        rows = self.learner.network.spec.n_classes
        if last < len(self.stream) and rows > self.stream[last].classes[-1] * self.learner.outputs_per_class:
            progress.before[last] = self._score(self.stream[last], general).task_il
        self._warn_if_guessing(numbers)
        self.emit(TaskEnded(self.job, numbers, progress.R[last - 1], progress.R_task_il[last - 1]))
        if self.folder is not None:
            row = {"R": progress.R[last - 1], "R_task_il": progress.R_task_il[last - 1], "task_id": progress.task_id[last - 1]}
            self.folder.log({"event": "task", "task": last, **row, "seconds_learning": round(progress.seconds_learning, 3)})

    def _end_task(self) -> None:
        """Checkpoint the run between two tasks; stop there if asked to."""
        self.position = Position(self.position.tasks + 1)
        self.progress.seconds = time.perf_counter() - self._started
        if self.checkpoints is not None:
            self.checkpoints.save(self.learner, self.position, self.progress)
        if self.position.tasks == self.job.snapshot_after:
            self.emit(StateReached(self.job, RunState.of(self.position.tasks, self.learner, self.progress)))
        if self.stop.asked and self.position.tasks < len(self.task_groups):
            self._stop()

    def _after_epoch(self, plan: LearningPlan) -> Callable[[EpochReport], None]:
        """A function that reports an epoch, checkpoints if it is time, and stops if asked to."""

        def ended(report: EpochReport) -> None:
            self.progress.last_epoch = report
            self.emit(EpochEnded(self.job, report))
            if self.folder is not None:
                self.folder.log({"event": "epoch", **asdict(report)})
            here = Position(self.position.tasks, True, plan.phase, report.epoch + 1)
            if self.checkpoints is not None and (self.checkpoints.due() or self.stop.asked):
                now = time.perf_counter()
                learning = self.progress.seconds_learning + now - self._learning
                so_far = replace(self.progress, seconds=now - self._started, seconds_learning=learning)
                self.checkpoints.save(self.learner, here, so_far)
            if self.stop.asked:
                self._stop()

        return ended

    def _stop(self, why: str = "") -> None:
        words = f"stopped {why or f'by {self.stop.cause}'}"
        if self.folder is not None and self.checkpoints is not None:
            self.checkpoints.wait()
            words += f"; everything up to here is saved. Continue with: {resume_command(self.folder.path)}"
        raise StoppedError(words, self.stop.exit_code)

    def _score(self, task: Task, general: Predictor) -> TaskScore:
        feed = self._feed([(task.held_out(self.config.run.evaluate_on), task.preparation)])
        predict = self.parts.predictor(self.learner, general)
        known = self._predictor_knowing(task.number)
        predict_task = None if known is None else self.parts.predictor(self.learner, known)
        return score_task(predict, feed, task.classes, self.learner.seen_classes, self.config.evaluate, predict_task)

    def _predictor_knowing(self, task: int) -> Predictor | None:
        """The method's predictor for images of this task; None if it is the one for images of any task."""
        if not self.method.heeds_task:
            return None
        known = self.method.predictor(self.learner, task)
        return None if known is self.method.predictor(self.learner) else known

    def _feed(self, parts: list[Any]) -> TaskData:
        return TaskData(parts, self.device, self.learner.network.dtype)

    def _warn_if_guessing(self, numbers: tuple[int, ...]) -> None:
        """Warn once if the network has collapsed; until then, warn of each task that was hardly learned."""
        task, last, R, sizes = numbers[-1], self.progress.last_epoch, self.progress.R_task_il, self.stream.outline.classes_per_task
        classes = len(self.learner.classes_of[task])
        if has_collapsed(R[: task - 1], sizes):
            return
        if has_collapsed(R[:task], sizes):
            self._warn(
                f"after task {task} the answers to all tasks are no better than guessing: the network has collapsed, "
                "as it does when steps are too large, and will hardly learn again; lower learn.lr"
            )
        elif last is not None and (message := hardly_learned(task, last.accuracy, classes, LEARN_MORE)):
            self._warn(message)

    def _warn(self, message: str) -> None:
        self.progress.warnings.append(message)
        self.emit(Warned(self.job, message))

    def _results(self) -> Results:
        progress, names = self.progress, [list(task.class_names) for task in self.stream]
        preparations = [task.preparation for task in self.stream]
        return Results(
            stream=self.stream.name,
            method=self.method.name,
            seed=self.job.seed,
            R=progress.R,
            R_task_il=progress.R_task_il,
            task_id=progress.task_id,
            before=progress.before,
            confusion=progress.confusion,
            class_names=names,
            params=self.learner.params,
            dense_params=self.setup.spec.dense_params,
            seconds=time.perf_counter() - self._started,
            seconds_learning=progress.seconds_learning,
            device=device_name(self.device),
            warnings=progress.warnings,
            run=None if self.folder is None else str(self.folder.path),
            R_task_il_unmasked=progress.R_task_il_unmasked if progress.R_task_il_unmasked != progress.R_task_il else None,
            network=self.setup.spec.name,
            width=width_of(self.setup.spec),
            commit=self.commit,
            model=Model(self.learner, self.method.name, names, preparations, self.config.to_dict(), self.stream.name),
        )
