"""Losses against their definitions, written out."""

from __future__ import annotations

import math

import torch

from afaf.network.forward import Parameters
from afaf.training.losses import SupervisedContrastive
from afaf.training.plan import Step


def contrastive(features: torch.Tensor, labels: list[int]) -> torch.Tensor:
    step = Step(torch.empty(0), torch.tensor(labels), torch.zeros(len(labels), 1, dtype=features.dtype), Parameters([], []), features)
    return SupervisedContrastive(0.5, temperature=0.2)(step)


def test_the_contrastive_loss_is_that_of_its_paper() -> None:
    features, labels = torch.rand(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), [0, 1, 0, 0, 2]
    z = [row / row.norm() for row in features]
    expected = 0.0
    for i, label in enumerate(labels):
        others = [k for k in range(5) if k != i]
        alike = [k for k in others if labels[k] == label]
        whole = sum(math.exp(float(z[i] @ z[k]) / 0.2) for k in others)
        expected -= sum(float(z[i] @ z[k]) / 0.2 - math.log(whole) for k in alike) / max(1, len(alike))
    assert math.isclose(float(contrastive(features, labels)), 0.5 * expected / 5, rel_tol=1e-9)


def test_a_batch_without_pairs_teaches_nothing() -> None:
    for labels in ([3], [0, 1, 2]):
        features = torch.rand(len(labels), 4).requires_grad_()
        loss = contrastive(features, labels)
        loss.backward()
        assert float(loss.detach()) == 0
        assert features.grad is not None
        assert bool(torch.isfinite(features.grad).all())
