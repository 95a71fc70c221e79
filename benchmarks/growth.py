"""Whether learning slows down as tasks pile up: seconds per task and peak memory for streams of 5, 10, 20 and 50 tasks.

    python -m benchmarks.growth [--tasks 5 10 20 50] [--device auto]

The paper's network with AFAF on random images, 2 % of the last hidden layer to each task, so that fifty fit. Evaluation is timed apart: it
looks at all tasks so far and so must grow. Each stream has a process of its own, and so a peak of memory of its own. The ratio of the
longest stream's median seconds per reusing task to the shortest's is the result, and likewise its last tasks' to its first reusing ones'.
Prints a table and writes JSON with device and commit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from afaf.evaluation.predict import EvaluateSettings, score_task
from afaf.methods.base import TaskContext
from afaf.network.net import Network
from afaf.runs.device import device_name, find_device
from afaf.runs.setup import Setup, set_up
from afaf.streams.tasks import Outline
from afaf.training.engines import Engine, find_engine
from afaf.training.learner import Learner
from afaf.training.task_data import TaskData
from benchmarks.provenance import write_results
from benchmarks.step import now, random_data

FIRST_REUSE = 3
SETTINGS: dict[str, Any] = {
    "network": {"name": "alexnet"},
    "sparse": {
        "alloc": {"conv": 30, "fc": 5, "output": 2},
        "density": {"conv": 10, "fc": 20, "output": 70},
        "fixed": {"conv": 1, "fc": 5, "output": 100},
    },
    "method": {"first_reuse": FIRST_REUSE, "l_reuse": 4},
}


def learn_task(learner: Learner, setup: Setup, task: int, engine: Engine, data: TaskData) -> float:
    """Seconds from the task's arrival until it is consolidated."""
    device = data.device
    started = now(device)
    context = TaskContext(task, (2 * task - 2, 2 * task - 1), data)
    learner.begin(task, context.classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convolutions running short of free neurons: nothing is fixed there after task 2 with reuse
        setup.method.start(learner, context, 0)
    engine.learn(learner, setup.method.plan(learner, context, 0), data)
    setup.method.finish(learner, context)
    learner.end(task)
    return now(device) - started


def evaluate(learner: Learner, datasets: list[TaskData], device: torch.device) -> float:
    """Seconds to judge all tasks so far."""
    started = now(device)
    for task, data in enumerate(datasets, 1):
        score_task(learner.network, data, (2 * task - 2, 2 * task - 1), learner.seen_classes, EvaluateSettings())
    return now(device) - started


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(tasks: int, images: int, epochs: int, device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    names = tuple((f"{2 * task}", f"{2 * task + 1}") for task in range(tasks))
    outline = Outline(f"{tasks} tasks", (3, 32, 32), names, (images,) * tasks)
    setup = set_up(outline, "afaf", SETTINGS, {"learn": {"epochs": epochs}})
    learner = Learner.fresh(Network(setup.spec, 0, device))
    engine = find_engine("auto", device)
    test = [random_data(task, 32, True, device) for task in range(1, tasks + 1)]
    learning, judging = [], []
    for task in range(1, tasks + 1):
        learning.append(learn_task(learner, setup, task, engine, random_data(task, images, True, device)))
        judging.append(evaluate(learner, test[:task], device))
    return {"tasks": tasks, "learning": learning, "judging": judging, "peak_bytes": peak_bytes(device)}


def measure_alone(tasks: int, images: int, epochs: int, device: torch.device) -> dict[str, Any]:
    """Measured in a process of its own, once libraries are loaded and kernels compiled."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(measure, FIRST_REUSE, images, 1, device).result()
        return process.submit(measure, tasks, images, epochs, device).result()


def reusing(row: dict[str, Any]) -> list[float]:
    times: list[float] = row["learning"][FIRST_REUSE - 1 :]
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[5, 10, 20, 50])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/growth.json"))
    options = parser.parse_args()
    device = find_device(options.device)
    rows = [measure_alone(tasks, options.images, options.epochs, device) for tasks in options.tasks]
    shown = Table(
        "tasks", "s per reusing task", "first reusing", "last", "evaluation after the last, s", "peak GB", title=device_name(device)
    )
    for row in rows:
        times = reusing(row)
        row |= {"median": statistics.median(times), "first": statistics.median(times[:3]), "last": statistics.median(times[-3:])}
        cells = [row["median"], row["first"], row["last"], row["judging"][-1], row["peak_bytes"] / 1e9]
        shown.add_row(str(row["tasks"]), *(f"{value:.3f}" for value in cells))
    Console().print(shown)
    longest, shortest = rows[-1], rows[0]
    print(f"seconds per reusing task, {longest['tasks']} tasks over {shortest['tasks']}: {longest['median'] / shortest['median']:.2f}")
    print(f"last reusing tasks over the first, {longest['tasks']} tasks: {longest['last'] / longest['first']:.2f}")
    print(f"peak memory, {longest['tasks']} tasks over {shortest['tasks']}: {longest['peak_bytes'] / shortest['peak_bytes']:.2f}")
    write_results(options.out, rows, device)


if __name__ == "__main__":
    main()
