"""Answers computed task by task are those of the whole network."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import afaf
from afaf.evaluation.by_task import predictor_by_task
from conftest import small_stream

QUICK: dict[str, Any] = {"learn.epochs": 1, "learn.batch_size": 16, "method.strict": True, "sparse.density": 100, "sparse.alloc": 30}


@pytest.mark.parametrize(("network", "width"), [("mlp", 200), ("small-cnn", 20), ("resnet10", 12), ("mobilenet-like", 12)])
def test_isolated_tasks_are_answered_by_their_own_parts(network: str, width: int) -> None:
    settings = {**QUICK, "network.name": network, "network.width": width}
    results = afaf.run(small_stream([2, 2, 1], per_class=8), "spacenet", device="cpu", settings=settings)
    assert results.model is not None
    learner, x = results.model.learner, torch.randn(5, 1, 8, 8)
    predict = predictor_by_task(learner)
    assert predict is not learner.network
    assert torch.allclose(predict(x), learner.network(x), atol=1e-5)


def test_a_network_whose_tasks_share_neurons_answers_as_a_whole() -> None:
    results = afaf.run(small_stream([2, 2], per_class=8), "finetune", device="cpu", settings={"learn.epochs": 1, "network.name": "mlp"})
    assert results.model is not None
    assert predictor_by_task(results.model.learner) is results.model.learner.network
