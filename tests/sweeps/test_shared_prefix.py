"""Runs that differ only in what comes later learn their first tasks once, and end as if each had learned them itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import afaf
from afaf.errors import ConfigError
from afaf.runs.events import EpochEnded, Event, JobFinished, JobStarted, raise_failure, to_all
from afaf.runs.job import Job, settings_tables
from afaf.runs.progress import RunProgress, RunState
from afaf.runs.runner import Run
from afaf.runs.setup import Setup, set_up
from afaf.streams.benchmarks import outline_of
from afaf.sweeps.executor import LocalExecutor
from afaf.sweeps.experiments import read_experiment
from afaf.sweeps.reproduce import Reproduction
from afaf.sweeps.shared_prefix import SharedPrefix, shared_prefix
from afaf.sweeps.store import Store

CPU = torch.device("cpu")
QUICK = {"learn.epochs": 2, "run.images": 10}
AFAF = {
    "most": {},
    "random": {"method.candidates": "random"},
    "lowest": {"method.candidates": "lowest"},
    "half": {"method.candidate_share": 50},
    "last": {"method.candidates_in_last_hidden": True},
    "ablation": {"method.l_reuse": 3},
}
EWC = {
    "paper": {},
    "weak": {"method.strength": 1.0},
    "tuned": {"method.strength": "tuned", "method.strengths.tuned": 3.0},
    "proximal": {"method.penalty": "proximal"},
}
LWF = {"paper": {}, "strong": {"method.strength": 9.0}, "known": {"method.strengths.paper": 2.0}, "hot": {"method.temperature": 5.0}}


class Counting:
    """Counts the epochs that are learned of each task."""

    def __init__(self) -> None:
        self.epochs: Counter[int] = Counter()

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            self.epochs[event.report.task] += 1


def experiment(folder: Path, method: str, variants: dict[str, dict[str, object]], seeds: int) -> Path:
    rows = [
        f"{name} = {{ {', '.join(f'{key!r} = {_toml(value)}' for key, value in settings.items())} }}" for name, settings in variants.items()
    ]
    lines = [
        'title = "t"',
        'feeds = "f"',
        "[[grid]]",
        'streams = ["split-digits"]',
        f'methods = ["{method}"]',
        f"seeds = {seeds}",
        "[grid.variants]",
    ]
    path = folder / "late.toml"
    path.write_text("\n".join([*lines, *rows]).replace("'", '"'))
    return path


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@pytest.mark.parametrize(
    ("method", "variants", "at_once", "seeds", "shared"),
    [("afaf", AFAF, 1, 1, 2), ("afaf", AFAF, 3, 2, 2), ("ewc", EWC, 2, 1, 1), ("lwf", LWF, 1, 1, 1)],
)
def test_runs_end_as_they_would_alone(
    tmp_path: Path, method: str, variants: dict[str, dict[str, object]], at_once: int, seeds: int, shared: int
) -> None:
    """With every option that the method calls late: one that made a difference earlier would show here."""
    late = {f"method.{name}" for name in built(method).method.late_options()[1]}
    assert late == {".".join(name.split(".")[:2]) for settings in variants.values() for name in settings}
    counting = Counting()
    chosen = read_experiment(experiment(tmp_path, method, variants, seeds)).with_settings(QUICK)
    reproduction = Reproduction([chosen], Store(tmp_path / "results"), LocalExecutor("cpu", jobs_at_once=at_once))
    reproduction.carry_out(on_event=counting)
    assert not reproduction.states  # each is dropped when the last run that needs it starts
    lines = Store(tmp_path / "results").read()
    assert len(lines) == seeds * len(variants)
    assert counting.epochs == {task: 2 * seeds * (1 if task <= shared else len(variants)) for task in range(1, 6)}
    for line in lines.values():
        alone = afaf.run("split-digits", method, seed=line["seed"], device="cpu", settings={**QUICK, **line["settings"]})
        assert line["R"] == [[round(value, 4) for value in row if value is not None] for row in alone.R]
        assert line["confusion"] == alone.confusion
    assert sorted(line.get("shared_tasks", 0) for line in lines.values()) == [0] * seeds + [shared] * (len(lines) - seeds)


def built(method: str, **settings: object) -> Setup:
    return set_up(outline_of("split-digits"), method, *settings_tables(None, settings))


def shared(method: str, seed: int = 0, **settings: object) -> SharedPrefix | None:
    setup = built(method, **settings)
    return shared_prefix(setup.method, setup.config, "split-digits", 5, seed)


def test_only_runs_that_are_the_same_before_share() -> None:
    plain = shared("afaf")
    assert plain is not None
    assert plain.tasks == 2
    assert all(shared("afaf", **settings) == plain for settings in AFAF.values())
    for other in (
        shared("afaf", seed=1),
        shared("afaf", **{"learn.lr": 0.0123}),
        shared("afaf", **{"run.precision": "bf16"}),
        shared("afaf", **{"method.orthogonal_output": False}),
        shared("afaf", **{"method.first_reuse": 4}),
    ):
        assert other is not None
        assert other != plain
    assert shared("spacenet") is None
    assert shared("finetune") is None


def state_of(digits: afaf.Stream) -> RunState:
    run = Run(Job(digits, "afaf", device="cpu"), digits, set_up(digits.outline, "afaf", *settings_tables(None, QUICK)))
    return RunState.of(2, run.learner, RunProgress.fresh(5))


def test_a_run_changes_a_copy_of_the_state_it_starts_from(digits: afaf.Stream) -> None:
    state = state_of(digits)
    sums = []
    for _ in range(2):
        learner, progress = state.restore(5, CPU)
        assert progress.R[0] == [None]
        progress.R[0][0] = 1.0
        sums.append(float(learner.network.bias(1).sum()))
        learner.network.bias(1).add_(1)
    assert sums[0] == sums[1]


def test_a_run_that_fails_while_it_learns_a_prefix_leaves_it_to_the_next(tmp_path: Path) -> None:
    class Failing(Counting):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, EpochEnded) and self.epochs.total() == 1:
                raise ConfigError("once")

    chosen = read_experiment(
        experiment(tmp_path, "afaf", {name: AFAF[name] for name in ("most", "lowest", "random")}, seeds=1)
    ).with_settings(QUICK)
    reproduction = Reproduction([chosen], Store(tmp_path / "results"), LocalExecutor("cpu", jobs_at_once=3))
    reproduction.carry_out(on_event=Failing())
    assert [str(error) for _, error in reproduction.errors] == ["once"]
    assert sorted(line.get("shared_tasks", 0) for line in Store(tmp_path / "results").read().values()) == [0, 2]


def test_at_a_deadline_a_run_that_waits_is_judged_by_what_is_left_of_it(tmp_path: Path) -> None:
    """A whole run would not end in time, the rest of one does: it is not given up while its prefix is being learned."""
    executor = LocalExecutor("cpu", jobs_at_once=2, deadline=time.monotonic() + 60)
    chosen = read_experiment(experiment(tmp_path, "afaf", {name: AFAF[name] for name in ("most", "lowest")}, seeds=1)).with_settings(QUICK)
    counting = Counting()
    reproduction = Reproduction([chosen], Store(tmp_path / "results"), executor)

    def expect(event: Event) -> None:
        if isinstance(event, JobStarted):
            reproduction.expectation.add("split-digits", "afaf", 600)
            reproduction.expectation.add("split-digits", "afaf", 1, shared=True)

    reproduction.carry_out(on_event=to_all(expect, counting))
    assert len(Store(tmp_path / "results").read()) == 2
    assert counting.epochs[1] == 2


def test_an_executor_asks_again_for_a_job_that_is_not_ready() -> None:
    asked, done = [], []

    def jobs() -> Iterator[Job | None]:
        yield Job("split-digits", "ridge", 0, QUICK)
        yield None
        asked.append("again")
        yield Job("split-digits", "ridge", 1, QUICK)

    def note(event: Event) -> None:
        if isinstance(event, JobFinished):
            done.append(event.job.seed)

    LocalExecutor("cpu", jobs_at_once=2).carry_out(jobs(), to_all(note, raise_failure))
    assert asked == ["again"]
    assert sorted(done) == [0, 1]
