"""A ridge head on fixed features: the same whether its images come task by task or all at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import afaf
from afaf.errors import ConfigError
from afaf.heads.patches import patch_features, whitened_filters
from afaf.heads.ridge import STRENGTHS, least_squares
from afaf.heads.sums import Sums
from afaf.methods.base import TaskContext
from afaf.methods.ridge import Ridge, RidgeOptions
from afaf.streams.tasks import Preparation
from afaf.training.learner import Learner
from afaf.training.task_data import TaskData
from small_worlds import world_of

BOTH: list[Any] = [RidgeOptions(features="trunk"), RidgeOptions(features="patches", filters=5, patch=4)]


def joint_head(features: Tensor, labels: Tensor, rows: int, strength: float) -> tuple[Tensor, Tensor]:
    """argmin sum |y - W f - b|^2 + lambda |W|^2 over all images at once, as least squares with d more rows."""
    f, y = features.double(), F.one_hot(labels, rows).double()
    centred = f - f.mean(0)
    lam = strength * float(torch.linalg.eigvalsh(centred.T @ centred).clamp(min=0).mean())
    d = f.shape[1]
    stacked = torch.cat([centred, lam**0.5 * torch.eye(d, dtype=f.dtype)])
    weights = torch.linalg.lstsq(stacked, torch.cat([y - y.mean(0), torch.zeros(d, rows, dtype=f.dtype)])).solution.T
    return weights, y.mean(0) - weights @ f.mean(0)


@pytest.mark.parametrize("options", BOTH, ids=["trunk", "patches"])
def test_task_by_task_equals_all_at_once(options: RidgeOptions) -> None:
    """Features are fixed after the first task; the head after the last is the joint closed form's, to 1e-5."""
    from dataclasses import replace

    world = world_of(Ridge, replace(options, strength=0.01))
    learner = world.learn()
    data = TaskData([(task.train, task.preparation) for task in world.stream])
    x, labels = data.batch(torch.arange(len(data)))
    features = world.method._features(learner)(x)  # type: ignore[attr-defined]
    weights, bias = joint_head(features, labels, 6, 0.01)
    assert torch.allclose(learner.memory["weights/head"].double(), weights, atol=1e-5)
    assert torch.allclose(learner.memory["biases/head"].double(), bias, atol=1e-5)
    assert torch.allclose(world.method.predictor(learner)(x).double(), features.double() @ weights.T + bias, atol=1e-5)
    assert float(weights.abs().max()) > 0.01


@pytest.mark.parametrize("options", BOTH, ids=["trunk", "patches"])
def test_features_are_fixed_and_no_image_is_kept(options: RidgeOptions) -> None:
    """After the first task only sums and head change, and their size does not depend on how many images there were."""
    kept: list[dict[str, Tensor]] = []
    networks: list[list[Tensor]] = []

    def watch(learner: Learner, context: TaskContext) -> None:
        kept.append({name: tensor.clone() for name, tensor in learner.memory.items()})
        networks.append([tensor.clone() for tensor in learner.network.parameters.weights + learner.network.parameters.biases])

    world = world_of(Ridge, options)
    learner = world.learn(after_task=watch)
    for later in (1, 2):
        assert all(torch.equal(a, b) for a, b in zip(networks[0], networks[later], strict=True))
        assert {name: tensor.shape for name, tensor in kept[later].items()} == {name: tensor.shape for name, tensor in kept[0].items()}
    changing = {"weights/head", "biases/head", "sums/gram", "sums/cross", "sums/total", "sums/counts"}
    assert all(torch.equal(kept[0][name], kept[2][name]) for name in kept[0].keys() - changing)
    d = learner.memory["weights/head"].shape[1]
    assert learner.kept_bytes == 8 * (d * d + d * 6 + d + 6) == sum(world.method.kept(world.spec, world.stream.outline).values())
    assert learner.memory["sums/gram"].dtype == torch.float64


def test_the_order_of_tasks_does_not_matter() -> None:
    draw = torch.Generator().manual_seed(0)
    features, labels = torch.randn(60, 7, generator=draw), torch.arange(60) % 4
    parts = [labels < 2, labels == 2, labels == 3]

    def head(order: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        sums = Sums.empty(7)
        for number in order:
            sums = sums + Sums.of(features[parts[number]], labels[parts[number]], 4)
        return least_squares(sums, None)

    for a, b in zip(head((0, 1, 2)), head((2, 0, 1)), strict=True):
        assert torch.allclose(a, b, atol=1e-10)


def test_output_rows_that_come_later_begin_empty() -> None:
    draw = torch.Generator().manual_seed(0)
    features, labels = torch.randn(60, 7, generator=draw), torch.arange(60) % 4
    early = labels < 2
    late = Sums.of(features[~early], labels[~early], 4)
    grown, reserved = ((Sums.of(features[early], labels[early], rows) + late).to_tensors() for rows in (2, 4))
    assert all(torch.equal(grown[name], reserved[name]) for name in reserved)


def test_cross_validation_from_the_sums_is_that_of_the_residuals() -> None:
    """The strength chosen is the one whose n RSS / (n - df)^2, worked out on the images themselves, is least."""
    draw = torch.Generator().manual_seed(2)
    features, labels = torch.randn(80, 20, generator=draw, dtype=torch.float64), torch.randint(3, (80,), generator=draw)
    features[:, 0] += labels
    sums = Sums.of(features, labels, 3)
    y = F.one_hot(labels, 3).double()
    centred = features - features.mean(0)
    unit = float(torch.linalg.eigvalsh(centred.T @ centred).mean())
    errors = []
    for strength in STRENGTHS.tolist():
        weights, bias = joint_head(features, labels, 3, strength)
        hat = centred @ torch.linalg.inv(centred.T @ centred + strength * unit * torch.eye(20).double()) @ centred.T
        residual = float((y - features @ weights.T - bias).square().sum())
        errors.append(80 * residual / (80 - 1 - float(hat.trace())) ** 2)
    best = STRENGTHS.tolist()[errors.index(min(errors))]
    assert 0 < errors.index(min(errors)) < len(errors) - 1
    for a, b in zip(least_squares(sums, None), least_squares(sums, best), strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_filters_are_whitened_patches_of_the_feed() -> None:
    """Their answers to patches of the images are uncorrelated where the filters are: z = u' Z (p - mean), so E[z] = 0, E[z^2] = |u|^2."""
    from conftest import small_stream

    task = small_stream([2], per_class=80)[0]
    data = TaskData([(task.train, Preparation((0.2,), (0.05,)))], dtype=torch.float64)  # pixels far from mean 0 and spread 1
    weight, bias = whitened_filters(data, 12, 3, torch.Generator().manual_seed(0))
    z = F.conv2d(data.batch(torch.arange(len(data)))[0], weight, bias).movedim(1, 0).flatten(1)
    assert weight.shape == (12, 1, 3, 3)
    assert torch.allclose(z.mean(1), torch.zeros(12, dtype=torch.float64), atol=0.1)
    assert torch.allclose(z.std(1), torch.ones(12, dtype=torch.float64), atol=0.15)


def test_it_remembers_digits() -> None:
    results = afaf.run("split-digits", "ridge", settings={"learn.epochs": 2}, device="cpu")
    assert results.acc is not None
    assert results.acc > 90  # where fine-tuning is right on the last task only, 20 %


def test_settings_that_cannot_work_are_refused() -> None:
    import numpy as np

    vectors = afaf.Stream.from_arrays(np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32), np.arange(40) % 4)
    for stream, settings, message in (
        ("split-digits", {"method.features": "patches", "method.patch": 9}, r"at least method\.patch = 9 pixels"),
        (vectors, {"method.features": "patches"}, r"inputs of shape \(5,\)"),
        ("split-digits", {"method.strength": 0.0}, "greater than 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            afaf.costs(stream, "ridge", settings=settings)


def test_a_strength_too_weak_to_fit_a_head_is_refused_by_name() -> None:
    """Border pixels of digits never vary, so that without any strength there is no one head."""
    with pytest.raises(ConfigError, match=r"method\.strength=1e-17"):
        afaf.run("split-digits", "ridge", settings={"learn.epochs": 1, "method.strength": 1e-17}, device="cpu")


def test_an_image_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known task changes no logit, so that both accuracies come from the same answer."""
    from conftest import small_stream

    seen: list[int] = []

    def counted(x: Tensor, *filters: Tensor) -> Tensor:
        seen.append(len(x))
        return patch_features(x, *filters)

    monkeypatch.setattr("afaf.methods.ridge.patch_features", counted)
    stream = small_stream([2])
    settings = {"network.name": "mlp", "learn.epochs": 1, "method.features": "patches", "method.filters": 5, "method.patch": 4}
    results = afaf.run(stream, "ridge", settings=settings, device="cpu")
    assert sum(seen) == len(stream[0].train) + len(stream[0].test)
    assert results.R_task_il == results.R
