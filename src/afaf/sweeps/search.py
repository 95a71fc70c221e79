"""A search for settings: trials are runs scored on validation images of the tasks seen so far; Optuna proposes and stores them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import statistics
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from afaf.cluster import within
from afaf.errors import CapacityError, ConfigError, DivergedError, unknown
from afaf.files import make_folders, writing
from afaf.files.lock import FolderLock, is_locked, one_at_a_time
from afaf.randomness import generator
from afaf.runs.events import Event, JobFailed, JobFinished, JobStarted, JobStopped, OnEvent, TaskEnded, ignore
from afaf.runs.job import Job
from afaf.sweeps.executor import Executor
from afaf.sweeps.outcome import FILE, TRIALS, Outcome, TrialEnded, TrialRecord, describe_search, discard_weights, judged_on, write_outcome
from afaf.sweeps.space import Range, Space, check_space

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
    from optuna.trial import FrozenTrial, Trial, TrialState
except ImportError:
    raise ConfigError("afaf sweep needs Optuna, which is not installed: pip install 'afaf[sweep]'") from None

BEFORE_PRUNING = 5  # trials that must have learned a task before a poor trial is stopped after it
ANSWER = 10.0  # seconds within which a storage must answer
SEARCHES = ("random", "tpe")
JOURNAL, DRIVERS = "journal.log", "drivers"
ELSEWHERE = "choose another folder with --out"
OBJECTIVE = "mean class-IL accuracy on validation images of the tasks seen so far"


class KeyedSampler(optuna.samplers.RandomSampler):
    """Random search in which a trial's values are a function of the seed and its number, in any process."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.seed = seed

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        seed = generator(self.seed, "sweep", trial.number, param_name).initial_seed() % (1 << 32)
        return optuna.samplers.RandomSampler(seed).sample_independent(study, trial, param_name, param_distribution)


class BelowMedian(optuna.pruners.BasePruner):
    """Stop a trial whose objective after a task is below the median of the others' after the same task."""

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        others = [one.intermediate_values for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        values = [steps[step] for steps in others if step in steps]
        return step is not None and len(values) >= BEFORE_PRUNING and trial.intermediate_values[step] < statistics.median(values)


def open_storage(storage: str | None, folder: Path) -> tuple[Any, Path]:
    """An Optuna storage, and a path whose folder is locked so that processes take turns. `storage` is a URL or a journal's path."""
    if storage is not None and "://" in storage:

        def connect() -> Any:
            if storage.startswith("redis"):
                return optuna.storages.JournalStorage(JournalRedisBackend(storage))
            return optuna.storages.get_storage(storage)

        return within(ANSWER, f"--storage {storage}: it cannot be used", connect), folder / FILE
    if storage is None:
        make_folders(folder, ELSEWHERE)
        with writing(folder / JOURNAL, ELSEWHERE):
            return _journal(folder / JOURNAL), folder / JOURNAL
    try:
        Path(storage).parent.mkdir(parents=True, exist_ok=True)
        return _journal(Path(storage)), Path(storage)
    except OSError as error:
        raise ConfigError(f"--storage {storage}: it cannot be written: {error.strerror}") from None


def _journal(path: Path) -> Any:
    with path.open("ab"):
        pass
    return optuna.storages.JournalStorage(JournalFileBackend(str(path)))


class Sweep:
    """A search in a folder: sweep.json (all trials), best.toml (a preset), trials/ (a run folder each), and the journal."""

    def __init__(
        self,
        job: Job,
        space: Space,
        folder: Path,
        executor: Executor,
        *,
        search: str = "random",
        storage: str | None = None,
        tasks: int | None = None,
    ):
        if search not in SEARCHES:
            raise ConfigError(unknown("search", search, SEARCHES))
        self.job, self.space, self.folder, self.executor, self.search, self.tasks = job, space, folder.absolute(), executor, search, tasks
        self.n_tasks = check_job(job, space, tasks)
        self.about = describe_search(self.folder, job, OBJECTIVE, space, tasks)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        opened, self.lock = open_storage(storage, self.folder)
        digest = hashlib.blake2b(json.dumps(self.about, sort_keys=True).encode(), digest_size=6).hexdigest()
        name = f"{self.about['stream']} {job.method_class.name} {digest}"
        problem = f"--storage {storage or self.lock}: it cannot be used"
        self.study: optuna.Study = within(ANSWER, problem, lambda: self._study(name, opened))
        self.driver = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.running: dict[int, Trial] = {}
        self.decided: dict[int, tuple[TrialState, float | None]] = {}
        self.emit: OnEvent = ignore

    def _study(self, name: str, storage: Any) -> optuna.Study:
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True, pruner=BelowMedian())
        seed = self.job.seed + len(study.get_trials(deepcopy=False))  # so that proposals differ from earlier ones
        study.sampler = KeyedSampler(self.job.seed) if self.search == "random" else optuna.samplers.TPESampler(seed=seed)
        return study

    def carry_out(self, trials: int, on_event: OnEvent = ignore) -> Outcome:
        """Carry out trials until there are `trials`, including those of earlier calls and of other processes."""
        self.emit = on_event
        home = self.folder / DRIVERS / self.driver
        make_folders(home, ELSEWHERE)
        try:
            with FolderLock(home):
                self.executor.carry_out(self._next_jobs(trials), self._handle)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        return self._write(importance=True)

    def records(self) -> list[TrialRecord]:
        return [_record(trial) for trial in self.study.get_trials(deepcopy=False)]

    def _next_jobs(self, trials: int) -> Iterator[Job]:
        while True:
            with one_at_a_time(self.lock):
                trial = self._abandoned() or self._new(trials)
            if trial is None:
                return
            settings = {name: _suggest(trial, name, values) for name, values in self.space.items()}
            self.running[trial.number] = trial
            job = self._job(trial.number, settings)
            steps = _frozen(trial).intermediate_values
            if self.tasks in steps:  # it had ended, but its process died before reporting it
                self._tell(job, TrialState.COMPLETE, steps[self.tasks or 0])
            else:
                yield job

    def _abandoned(self) -> Trial | None:
        """A trial of this folder whose process died before it ended."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            driver = frozen.user_attrs.get("driver")
            if driver == self.driver or frozen.user_attrs.get("folder", str(self.folder)) != str(self.folder):
                continue
            if driver is None or not is_locked(self.folder / DRIVERS / driver):
                return self._mine(Trial(self.study, frozen._trial_id))
        return None

    def _new(self, trials: int) -> Trial | None:
        begun = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
        return self._mine(self.study.ask()) if len(begun) < trials else None

    def _mine(self, trial: Trial) -> Trial:
        trial.set_user_attr("folder", str(self.folder))
        trial.set_user_attr("driver", self.driver)
        return trial

    def _job(self, number: int, settings: Mapping[str, Any]) -> Job:
        shared = self.about["settings"]
        settings_of = {**shared, **settings, **judged_on(shared.get("run", {}).get("validation"))}
        tag = TrialRecord(number, "running", None, dict(settings))
        return replace(self.job, settings=settings_of, out=self.folder / TRIALS / str(number), resume=True, tag=tag)

    def _handle(self, event: Event) -> None:
        number = event.job.tag.number
        match event:
            case TaskEnded(tasks=tasks, row=row):
                self._report(event.job, self.running[number], tasks[-1], statistics.fmean(value for value in row if value is not None))
            case JobFinished(results=results):
                value = self.decided.get(number, (None, None))[1]
                self._tell(event.job, TrialState.COMPLETE, results.acc if value is None else value)  # a trial to be stopped may end first
                return
            case JobStopped() if number in self.decided:
                self._tell(event.job, *self.decided[number])
                return
            case JobFailed(error=error):
                if not isinstance(error, (CapacityError, DivergedError)):
                    raise error
                self.running[number].set_user_attr("why", str(error))
                self._tell(event.job, TrialState.FAIL, None)
                return
            case JobStarted():
                self.decided.pop(number, None)  # its worker died: decide again
        self.emit(event)

    def _report(self, job: Job, trial: Trial, task: int, value: float) -> None:
        if task not in _frozen(trial).intermediate_values:
            trial.report(value, task)
        if self.decided.get(trial.number, (None,))[0] is TrialState.COMPLETE:
            return
        if self.tasks is not None and task >= self.tasks:
            self.decided[trial.number] = (TrialState.COMPLETE, value)
            self.executor.cancel(job)
        elif task < self.n_tasks and trial.should_prune():
            self.decided[trial.number] = (TrialState.PRUNED, None)
            self.executor.cancel(job)

    def _tell(self, job: Job, state: TrialState, value: float | None) -> None:
        number = job.tag.number
        self.study.tell(number, value, state, skip_if_finished=True)
        self.running.pop(number, None)
        discard_weights(self.folder / TRIALS / str(number))
        outcome = self._write()
        self.emit(TrialEnded(job, next(trial for trial in outcome.trials if trial.number == number)))

    def _write(self, *, importance: bool = False) -> Outcome:
        """Write sweep.json and the preset of the best trial."""
        with one_at_a_time(self.folder / FILE):
            outcome = Outcome(self.records(), self._importance() if importance else {})
            write_outcome(self.folder, self.about, outcome)
        return outcome

    def _importance(self) -> dict[str, float]:
        complete = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]
        if len(complete) < BEFORE_PRUNING or len({trial.value for trial in complete}) < 2:
            return {}
        return {name: float(value) for name, value in optuna.importance.get_param_importances(self.study).items()}


def check_job(job: Job, space: Space, tasks: int | None) -> int:
    """Check everything that needs no data; return the number of tasks."""
    job.check()
    check_space(space, job)
    n_tasks = len(job.outline())
    if tasks is not None and not 1 <= tasks <= n_tasks:
        raise ConfigError(f"--tasks {tasks}: from 1 to the {n_tasks} of the stream")
    return n_tasks


def _suggest(trial: Trial, name: str, values: Range) -> Any:
    """A value for a trial, or the one that it already has."""
    if values.choices:
        return json.loads(str(trial.suggest_categorical(name, [json.dumps(value) for value in values.choices])))
    assert values.low is not None
    assert values.high is not None
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high), step=int(values.step or 1), log=values.log)
    return trial.suggest_float(name, values.low, values.high, step=values.step, log=values.log)


def _frozen(trial: Trial) -> FrozenTrial:
    return trial.storage.get_trial(trial._trial_id)


def _record(trial: FrozenTrial) -> TrialRecord:
    steps = [trial.intermediate_values.get(step) for step in range(1, max(trial.intermediate_values, default=0) + 1)]
    settings = {
        name: json.loads(value) if isinstance(trial.distributions[name], optuna.distributions.CategoricalDistribution) else value
        for name, value in trial.params.items()
    }
    seconds = trial.duration.total_seconds() if trial.duration is not None else None
    return TrialRecord(trial.number, trial.state.name.lower(), trial.value, settings, steps, seconds, trial.user_attrs.get("why", ""))
