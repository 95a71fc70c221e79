"""What an epoch of each kind of task costs, against an epoch of dense fine-tuning, in one process.

    python -m benchmarks.step [--images 320] [--device auto]

The paper's network at split-CIFAR10's sizes, on random images: a task without reuse (the first and the second), a reusing task, a
reusing task without augmentation (the trunk's features computed once), and the same reusing task on the eager engine. Prints a table
and writes JSON with device and commit; the ratios are the result, not the seconds.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from afaf.engine import CompactEngine, EagerEngine, Engine, find_engine
from afaf.learning.feed import Feed
from afaf.learning.learner import Learner
from afaf.methods.base import Lesson
from afaf.network.net import Network
from afaf.runs.device import device_name, find_device
from afaf.runs.runner import Setup, set_up
from afaf.streams.benchmarks import outline_of
from afaf.streams.tasks import Preparation, Split
from benchmarks.provenance import write_results

EPOCHS = 3  # the median of their times is taken


def random_feed(task: int, images: int, augment: bool, device: torch.device) -> Feed:
    rng = np.random.default_rng(task)
    pixels = rng.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    labels = np.array([2 * task - 2, 2 * task - 1])[np.arange(images) % 2]
    preparation = Preparation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201), augment="crop-flip" if augment else "none")
    return Feed([(Split(pixels, labels), preparation)], device)


def seconds_per_epoch(learner: Learner, setup: Setup, task: int, feed: Feed, engine: Engine) -> float:
    """Learn a task for a few epochs and consolidate it; the median time of an epoch, rewiring included."""
    lesson = Lesson(task, (2 * task - 2, 2 * task - 1), feed)
    learner.begin(task, lesson.classes)
    setup.method.start(learner, lesson, 0)
    times = [time.perf_counter()]

    def mark(_: Any) -> None:
        if feed.device.type == "cuda":
            torch.cuda.synchronize(feed.device)
        times.append(time.perf_counter())

    engine.learn(learner, setup.method.plan(learner, lesson, 0), feed, mark)
    setup.method.finish(learner, lesson)
    learner.end(task)
    return float(np.median(np.diff(times)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/step.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    outline = outline_of("split-cifar10")
    table: dict[str, Any] = {"learn": {"epochs": EPOCHS}}
    dense, sparse = set_up(outline, "finetune", table), set_up(outline, "afaf", table)

    def feed(task: int, augment: bool = True) -> Feed:
        return random_feed(task, options.images, augment, device)

    fast = find_engine("auto", device)
    baseline = Learner.fresh(Network(dense.spec, 0, device))
    seconds = {"dense fine-tuning": seconds_per_epoch(baseline, dense, 1, feed(1), fast)}
    learner = Learner.fresh(Network(sparse.spec, 0, device))
    seconds["task 1, no reuse"] = seconds_per_epoch(learner, sparse, 1, feed(1), fast)
    seconds["task 2, no reuse"] = seconds_per_epoch(learner, sparse, 2, feed(2), fast)
    before = copy.deepcopy(learner)
    seconds["task 3, reusing"] = seconds_per_epoch(learner, sparse, 3, feed(3), fast)
    seconds["task 3, reusing, not augmented"] = seconds_per_epoch(copy.deepcopy(before), sparse, 3, feed(3, False), CompactEngine())
    seconds["task 3, reusing, eager engine"] = seconds_per_epoch(before, sparse, 3, feed(3), EagerEngine())
    rows = [{"what": name, "seconds": value, "over_dense": value / seconds["dense fine-tuning"]} for name, value in seconds.items()]
    shown = Table("an epoch of", "seconds", "over dense", title=f"{fast.name} engine, {device_name(device)}, {options.images} images")
    for row in rows:
        shown.add_row(str(row["what"]), f"{row['seconds']:.3f}", f"{row['over_dense']:.3f}")
    Console().print(shown)
    ratio = seconds["task 3, reusing, eager engine"] / seconds["task 3, reusing"]
    print(f"eager over {fast.name}, same reusing task: {ratio:.2f}")
    write_results(options.out, rows, device)


if __name__ == "__main__":
    main()
