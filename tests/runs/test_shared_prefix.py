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
from afaf.runs.progress import Progress as Found
from afaf.runs.runner import Listener, Run, Setup, set_up, settings_table
from afaf.runs.shared_prefix import Beginnings, Shared, shared_by
from afaf.streams.benchmarks import outline_of
from afaf.sweeps.executor import Job, LocalExecutor, Watch
from afaf.sweeps.experiments import Planned, read_experiment
from afaf.sweeps.reproduce import Progress, Reproduction
from afaf.sweeps.store import Store
from afaf.training.learner import Learner
from afaf.training.report import EpochReport

CPU = torch.device("cpu")
QUICK = {"learn.epochs": 2, "run.images": 20}
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


class Counting(Progress, Listener):
    """Counts the epochs that are learned of each task."""

    def __init__(self) -> None:
        self.epochs: Counter[int] = Counter()

    def started(self, run: Planned) -> Listener:
        return self

    def epoch_ended(self, report: EpochReport) -> None:
        self.epochs[report.task] += 1


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
    ("method", "variants", "at_once", "lessons"), [("afaf", AFAF, 1, 2), ("afaf", AFAF, 3, 2), ("ewc", EWC, 2, 1), ("lwf", LWF, 1, 1)]
)
def test_runs_end_as_they_would_alone(
    tmp_path: Path, method: str, variants: dict[str, dict[str, object]], at_once: int, lessons: int
) -> None:
    """With every option that the method calls late: one that made a difference earlier would show here."""
    late = {f"method.{name}" for name in built(method).method.late_options()[1]}
    assert late == {".".join(name.split(".")[:2]) for settings in variants.values() for name in settings}
    counting = Counting()
    chosen = read_experiment(experiment(tmp_path, method, variants, seeds=2)).with_settings(QUICK)
    reproduction = Reproduction([chosen], Store(tmp_path / "results"), LocalExecutor("cpu", jobs_at_once=at_once), counting)
    reproduction.carry_out()
    lines = Store(tmp_path / "results").read()
    assert len(lines) == 2 * len(variants)
    assert counting.epochs == {task: 4 if task <= lessons else 4 * len(variants) for task in range(1, 6)}
    for line in lines.values():
        alone = afaf.run("split-digits", method, seed=line["seed"], device="cpu", settings={**QUICK, **line["settings"]})
        assert line["R"] == [[round(value, 4) for value in row if value is not None] for row in alone.R]
        assert line["confusion"] == alone.confusion
    assert sorted(line.get("shared_tasks", 0) for line in lines.values()) == [0] * 2 + [lessons] * (2 * len(variants) - 2)


def built(method: str, **settings: object) -> Setup:
    return set_up(outline_of("split-digits"), method, *settings_table(None, settings))


def shared(method: str, seed: int = 0, **settings: object) -> Shared | None:
    setup = built(method, **settings)
    return shared_by(setup.method, setup.config, "split-digits", 5, seed)


def test_only_runs_that_are_the_same_before_share() -> None:
    plain = shared("afaf")
    assert plain is not None
    assert plain.lessons == 2
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


def test_a_beginning_is_kept_as_long_as_it_is_wanted(digits: afaf.Stream) -> None:
    run = Run(digits, set_up(digits.outline, "afaf", *settings_table(None, QUICK)), 0, CPU, None, Listener())
    one, found, left = Shared(2, "one"), Found.fresh(5), ["second", "third"]
    known = Beginnings(lambda shared: bool(left))
    assert known.take(one) is None  # the first run has to learn it
    known.leave(one, run.learner, found)
    assert one in known
    left.remove("second")
    assert known.take(one) is not None
    assert one in known
    left.remove("third")
    assert known.take(one) is not None
    assert one not in known
    known.leave(one, run.learner, found)  # nobody is left who wants it
    assert one not in known


def test_what_a_run_does_with_a_beginning_does_not_come_back(digits: afaf.Stream) -> None:
    run = Run(digits, set_up(digits.outline, "afaf", *settings_table(None, QUICK)), 0, CPU, None, Listener())
    one = Shared(1, "one")
    known = Beginnings(lambda shared: True)
    known.leave(one, run.learner, run.progress)
    taken = known.take(one)
    assert taken is not None
    learners: list[Learner] = []
    for _ in range(2):
        learner, found = taken.again(5, CPU)
        assert found.R[0] == [None]
        learners.append(learner)
        found.R[0][0] = 1.0
        assert float(learner.network.bias(1).sum()) == float(run.learner.network.bias(1).sum())
        learner.network.bias(1).add_(1)


def test_a_run_that_fails_while_it_learns_a_beginning_leaves_it_to_the_next(tmp_path: Path) -> None:
    class Failing(Counting):
        def epoch_ended(self, report: EpochReport) -> None:
            super().epoch_ended(report)
            if self.epochs.total() == 1:
                raise ConfigError("once")

    chosen = read_experiment(
        experiment(tmp_path, "afaf", {name: AFAF[name] for name in ("most", "lowest", "random")}, seeds=1)
    ).with_settings(QUICK)
    reproduction = Reproduction([chosen], Store(tmp_path / "results"), LocalExecutor("cpu", jobs_at_once=3), Failing())
    reproduction.carry_out()
    assert [str(error) for _, error in reproduction.errors] == ["once"]
    assert sorted(line.get("shared_tasks", 0) for line in Store(tmp_path / "results").read().values()) == [0, 2]


def test_at_a_deadline_a_run_that_waits_is_judged_by_what_is_left_of_it(tmp_path: Path) -> None:
    """A whole run would not end in time, the rest of one does: it is not given up while its beginning is being learned."""
    executor = LocalExecutor("cpu", jobs_at_once=2, deadline=time.monotonic() + 60)
    chosen = read_experiment(experiment(tmp_path, "afaf", {name: AFAF[name] for name in ("most", "lowest")}, seeds=1)).with_settings(QUICK)
    counting = Counting()
    reproduction = Reproduction([chosen], Store(tmp_path / "results"), executor, counting)
    begin = counting.started

    def started(run: Planned) -> Listener:
        reproduction.expectation.learn("split-digits", "afaf", 600)
        reproduction.expectation.learn("split-digits", "afaf", 1, begun=True)
        return begin(run)

    counting.started = started  # type: ignore[method-assign]
    reproduction.carry_out()
    assert len(Store(tmp_path / "results").read()) == 2
    assert counting.epochs[1] == 2


def test_an_executor_asks_again_for_a_job_that_is_not_ready(tmp_path: Path) -> None:
    asked, done = [], []

    def jobs() -> Iterator[Job | None]:
        yield Job("split-digits", "ridge", 0, QUICK)
        yield None
        asked.append("again")
        yield Job("split-digits", "ridge", 1, QUICK)

    class Note(Watch):
        def finished(self, job: Job, results: afaf.Results) -> None:
            done.append(job.seed)

    LocalExecutor("cpu", jobs_at_once=2).carry_out(jobs(), Note())
    assert asked == ["again"]
    assert sorted(done) == [0, 1]
