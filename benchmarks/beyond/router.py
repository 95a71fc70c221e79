"""What the mirror and the router's features are worth, on validation images: one run of afaf-plus, its logits combined in several ways.

    python -m benchmarks.beyond.router --set learn.epochs=30 --data FOLDER

Trains split-CIFAR10 (or `--stream`) once, without a router, fits each candidate router to the training images of all tasks in turn, and
prints the accuracy of each alone and added to the logits with each weight. Reads no test image.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.evaluation.activations import first_task_activations
from afaf.evaluation.by_task import predictor_by_task
from afaf.evaluation.router import WEIGHTS, add_images
from afaf.evaluation.self_labels import class_logits
from afaf.heads import ridge
from afaf.heads.patches import patch_features, whitened_filters
from afaf.heads.sums import Linear, Sums
from afaf.randomness import generator
from afaf.runs.job import Job
from afaf.runs.resume import run_or_resume
from afaf.runs.setup import restrict, set_up
from afaf.training.learner import Learner
from afaf.training.task_data import TaskData
from benchmarks.provenance import write_results

Features = Callable[[Tensor], Tensor]
BASE = [
    "network.name=resnet18",
    "parts.router=none",
    "parts.activations=false",
    "parts.mirror=false",
    "run.validation=0.1",
    "run.evaluate_on=validation",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", default="split-cifar10")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None, help="a JSON file for the table")
    arguments = parser.parse_args()
    job = Job(arguments.stream, "afaf-plus", settings=[*BASE, *arguments.set], data=arguments.data)
    stream = job.open()
    results = run_or_resume(job, stream=stream)
    assert results.model is not None
    tasks = list(restrict(stream, set_up(stream.outline, job.method_class, *job.tables).config))
    rows = measure(results.model.learner, *([_data(results.model.learner, t, p) for t in tasks] for p in ("train", "validation")))
    for name, accuracies in rows.items():
        print(f"{name:32}", *(f"{accuracy:6.2f}" for accuracy in accuracies))
    if arguments.out is not None:
        how = {"stream": arguments.stream, "settings": [*BASE, *arguments.set]}
        named = [
            {"features": name, "alone": found[0], **dict(zip(map(str, WEIGHTS), found[1:], strict=True))} for name, found in rows.items()
        ]
        write_results(arguments.out, [{**how, **row} for row in named], results.model.learner.network.device)


def _data(learner: Learner, task: Any, part: str) -> TaskData:
    split = task.train if part == "train" else task.held_out(part)
    return TaskData([(split, task.preparation)], learner.network.device, learner.network.dtype)


@torch.no_grad()
def measure(learner: Learner, train: list[TaskData], validation: list[TaskData]) -> dict[str, list[float]]:
    """By features and whether mirrored: the accuracy of the head alone, then of logits and head with each of the router's weights."""
    predict, rows = class_logits(predictor_by_task(learner), learner), {}
    for name, features in candidates(learner, train[0]).items():
        sums: Sums | None = None
        for data in train:
            sums = add_images(sums, features, data)
        assert sums is not None
        head = ridge.solve(sums, balance=False)
        for mirrored in (False, True):
            parts = [_scores(data, predict, features, head, mirrored) for data in validation]
            spread = torch.stack([logits[:, labels.unique()].std() for logits, _, labels in parts]).mean()
            combined = [[logits / spread + weight * scores for logits, scores, _ in parts] for weight in WEIGHTS]
            labels = [part[2] for part in parts]
            ways = [[scores for _, scores, _ in parts], *combined]
            rows[name + (", mirrored" if mirrored else "")] = [round(_accuracy(way, labels), 2) for way in ways]
    return rows


def candidates(learner: Learner, first: TaskData) -> dict[str, Features]:
    """The features to compare: so many filters, with and without the first task's neurons."""
    activations = first_task_activations(learner)
    found: dict[str, Features] = {}
    for count in (128, 256):
        weight, bias = whitened_filters(first, count, 6, generator(learner.seed, "router"))

        def patches(x: Tensor, weight: Tensor = weight, bias: Tensor = bias) -> Tensor:
            return patch_features(x, weight, bias)

        def both(x: Tensor, patches: Features = patches) -> Tensor:
            return torch.cat([patches(x), activations(x)], 1)

        found |= {f"{count} filters": patches, f"{count} filters, activations": both}
    return {"activations": activations, **found}


def _scores(data: TaskData, predict: Features, features: Features, head: Linear, mirrored: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(logits, the head's scores, labels) of all images; mirrored, means over an image and its mirror image."""
    weights, bias = (tensor.to(data.device, data.dtype) for tensor in (head.weights, head.bias))
    parts: list[tuple[Tensor, ...]] = []
    for samples in torch.arange(len(data), device=data.device).split(512):
        x, labels = data.batch(samples)
        views = (x, x.flip(3)) if mirrored else (x,)
        logits = torch.stack([predict(view) for view in views]).mean(0)
        parts.append((logits, torch.stack([F.linear(features(view), weights, bias) for view in views]).mean(0), labels))
    logits, scores, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return logits, scores, labels


def _accuracy(scores: list[Tensor], labels: list[Tensor]) -> float:
    """The mean over tasks of the percentage that is right among all classes."""
    right = [(score.argmax(1) == truth).double().mean() for score, truth in zip(scores, labels, strict=True)]
    return 100 * float(torch.stack(right).mean())


if __name__ == "__main__":
    main()
