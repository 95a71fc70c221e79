"""An epoch of every method on the paper's four streams, from the real files: `AFAF_DATA=FOLDER pytest -m "realdata and slow"`.

With a GPU every image is learned from. Without one each class is cut to its first 32 training and 8 test images, so that a CPU gets through
in minutes: every task, every phase and every kind of batch (whole and partial) is still met.
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest
import torch

import afaf
from afaf.methods import BUILT_IN
from afaf.streams.tasks import Split, Stream, Task

pytestmark = [pytest.mark.slow, pytest.mark.realdata]
GPU = torch.cuda.is_available()


def cut(stream: Stream, train: int, test: int) -> Stream:
    """The same stream with few images: of each class the first `train` to learn and `test` to judge."""

    def few(split: Split, count: int) -> Split:
        return split.take(np.concatenate([np.flatnonzero(split.labels == c)[:count] for c in np.unique(split.labels)]))

    tasks = [
        Task(task.number, task.classes, task.class_names, few(task.train, train), few(task.test, test), task.preparation) for task in stream
    ]
    return Stream(stream.name, tasks, stream.label_map)


@cache
def real(name: str) -> Stream:
    folder = os.environ.get("AFAF_DATA")
    if not folder:
        pytest.skip("AFAF_DATA names no folder of the real datasets")
    stream = afaf.open_stream(name, data=folder)
    return stream if GPU else cut(stream, 32, 8)


@pytest.mark.parametrize("name", ["split-cifar10", "sim-cifar10", "sim-cifar100", "mix"])
@pytest.mark.parametrize("method", BUILT_IN)
def test_an_epoch_of_every_method_on_every_real_stream(name: str, method: str) -> None:
    """The presets and the paper's full network; everything is judged, and the costs are those foretold."""
    settings: dict[str, object] = {"learn.epochs": 1}
    if not GPU:
        settings["learn.batch_size"] = 48
    if method in ("ewc", "mas"):  # so early importances are large, and the explicit penalty of the paper's strength is refused
        settings["method.penalty"] = "proximal"
    if method == "packnet":
        settings["method.retrain_epochs"] = 1
    results = afaf.run(real(name), method, settings=settings)
    assert results.params == afaf.costs(name, method, settings=settings).params
    assert all(value is not None for value in results.R[-1])
