"""The workspace of steps on CUDA, as far as it can be looked at without one."""

from __future__ import annotations

import pytest
import torch

from afaf.methods.base import Lesson
from afaf.methods.dense import DenseOptions
from afaf.methods.finetune import Finetune
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.training.cuda.kernels import tile_of_logits
from afaf.training.cuda.workspace import Shadowed
from afaf.training.learner import Learner
from afaf.training.settings import LearnSettings, Settings
from afaf.training.step import Workspace
from afaf.training.task_data import Feed
from conftest import small_stream


@pytest.mark.parametrize(("batch_size", "judged"), [(64, True), (8192, True), (8193, False)])
def test_batches_too_large_for_a_tile_are_judged_by_the_loss_itself(batch_size: int, judged: bool) -> None:
    """Triton's largest tile has 2**20 numbers; a batch of 8193 takes the room of 16384, 100 classes that of 128."""
    assert tile_of_logits(batch_size, 100) == {64: 1 << 13, 8192: 1 << 20, 8193: 1 << 21}[batch_size]
    task = small_stream([2])[0]
    learner = Learner.fresh(Network(NetworkSpec("wide", (1, 8, 8), (Layer("dense", 4), Layer("dense", 4)), 100)))
    lesson = Lesson(1, task.classes, Feed([(task.train, task.preparation)]))
    method = Finetune(DenseOptions(), Settings(LearnSettings(batch_size=batch_size)))
    learner.begin(1, task.classes)
    method.start(learner, lesson, 0)
    work = Shadowed.of(Workspace.whole(learner, method.plan(learner, lesson, 0)), torch.float32)
    work.open_court(torch.zeros(1, dtype=torch.int64), torch.zeros(1), torch.zeros(1, dtype=torch.int32))
    assert (work.court is not None) == judged
