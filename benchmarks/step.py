"""What an epoch of each kind of task costs, against an epoch of dense fine-tuning, in one process.

    python -m benchmarks.step [--images 320] [--device auto]

The paper's network at split-CIFAR10's sizes, on random images: a task without reuse (the first and the second), a reusing task, a
reusing task without augmentation (the trunk's features computed once), and the same reusing task on the eager engine. One more epoch
is taken apart, each part on its own: what runs ahead of the steps, the steps, drop and grow. Prints a table and writes JSON with device
and commit; the ratios are the result, not the seconds.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from afaf.methods.base import TaskContext
from afaf.network.net import Network
from afaf.runs.device import device_name, find_device
from afaf.runs.setup import Setup, set_up
from afaf.streams.benchmarks import outline_of
from afaf.streams.tasks import Preparation, Split
from afaf.training.compact import Trunk
from afaf.training.engines import EagerEngine, Engine, find_engine
from afaf.training.learner import Learner
from afaf.training.report import EpochReport
from afaf.training.task_data import TaskData
from benchmarks.provenance import write_results

EPOCHS = 4  # the median of the times of all but the last is taken; the last is taken apart, which makes it wait


def random_data(task: int, images: int, augment: bool, device: torch.device) -> TaskData:
    rng = np.random.default_rng(task)
    pixels = rng.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    labels = np.array([2 * task - 2, 2 * task - 1])[np.arange(images) % 2]
    preparation = Preparation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201), augment="crop-flip" if augment else "none")
    return TaskData([(Split(pixels, labels), preparation)], device)


@dataclass
class Epoch:
    """Seconds of an epoch, and of its parts: what runs ahead of the steps (images, trunk), the steps, drop and grow."""

    seconds: float
    ahead: float
    rewiring: float
    whole: float  # of the epoch that was taken apart
    steps: int

    @property
    def step_microseconds(self) -> float:
        return (self.whole - self.ahead - self.rewiring) / self.steps * 1e6


def now(device: torch.device) -> float:
    """The time, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Apart:
    """Takes the time of a part while it is switched on; a GPU is waited for, before and after."""

    def __init__(self, device: torch.device):
        self.device, self.on, self.seconds = device, False, 0.0

    def timed(self, part: Callable[..., Any]) -> Callable[..., Any]:
        def taken_apart(*arguments: Any) -> Any:
            if not self.on:
                return part(*arguments)
            started = now(self.device)
            result = part(*arguments)
            self.seconds += now(self.device) - started
            return result

        return taken_apart


def measure_epoch(learner: Learner, setup: Setup, task: int, data: TaskData, engine: Engine) -> Epoch:
    """Learn a task for a few epochs and consolidate it."""
    context = TaskContext(task, (2 * task - 2, 2 * task - 1), data)
    learner.begin(task, context.classes)
    setup.method.start(learner, context, 0)
    plan = setup.method.plan(learner, context, 0)
    ahead, rewiring = Apart(data.device), Apart(data.device)
    plan.epochs += plan.rewire is not None  # after the last epoch nothing is rewired
    if plan.rewire is not None:
        plan.rewire = rewiring.timed(plan.rewire)
    times = [now(data.device)]

    def mark(report: EpochReport) -> None:
        times.append(now(data.device))
        ahead.on = rewiring.on = report.epoch == EPOCHS - 2

    features = Trunk.features
    Trunk.features = ahead.timed(features)  # type: ignore[method-assign]
    try:
        engine.learn(learner, plan, data, mark)
    finally:
        Trunk.features = features  # type: ignore[method-assign]
    setup.method.finish(learner, context)
    learner.end(task)
    spent = np.diff(times)[:EPOCHS]
    return Epoch(float(np.median(spent[:-1])), ahead.seconds, rewiring.seconds, float(spent[-1]), -(-len(data) // plan.batch_size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/step.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    outline = outline_of("split-cifar10")
    table: dict[str, Any] = {"learn": {"epochs": EPOCHS}}
    dense, sparse = set_up(outline, "finetune", table), set_up(outline, "afaf", table)

    def data(task: int, augment: bool = True) -> TaskData:
        return random_data(task, options.images, augment, device)

    fast = find_engine("auto", device, options.precision)
    baseline = Learner.fresh(Network(dense.spec, 0, device))
    found = {"dense fine-tuning": measure_epoch(baseline, dense, 1, data(1), fast)}
    learner = Learner.fresh(Network(sparse.spec, 0, device))
    found["task 1, no reuse"] = measure_epoch(learner, sparse, 1, data(1), fast)
    found["task 2, no reuse"] = measure_epoch(learner, sparse, 2, data(2), fast)
    before = copy.deepcopy(learner)
    found["task 3, reusing"] = measure_epoch(learner, sparse, 3, data(3), fast)
    found["task 3, reusing, not augmented"] = measure_epoch(copy.deepcopy(before), sparse, 3, data(3, False), fast)
    found["task 3, reusing, eager engine"] = measure_epoch(before, sparse, 3, data(3), EagerEngine())
    dense_seconds = found["dense fine-tuning"].seconds
    rows = [
        {
            "what": name,
            "over_dense": epoch.seconds / dense_seconds,
            "step_microseconds": epoch.step_microseconds,
            "threads": torch.get_num_threads(),
            **asdict(epoch),
        }
        for name, epoch in found.items()
    ]
    title = f"{fast.name} engine, {device_name(device)}, {options.images} images"
    shown = Table("an epoch of", "seconds", "over dense", "µs a step", "ahead, s", "drop and grow, s", title=title)
    for row in rows:
        shown.add_row(
            str(row["what"]),
            f"{row['seconds']:.3f}",
            f"{row['over_dense']:.3f}",
            f"{row['step_microseconds']:.0f}",
            f"{row['ahead']:.3f}",
            f"{row['rewiring']:.3f}",
        )
    Console().print(shown)
    ratio = found["task 3, reusing, eager engine"].seconds / found["task 3, reusing"].seconds
    print(f"eager over {fast.name}, same reusing task: {ratio:.2f}")
    write_results(options.out, rows, device)


if __name__ == "__main__":
    main()
