"""Fisher and MAS importances against slow references: one image or one batch at a time, by torch.nn and plain autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from afaf.network.net import Network
from afaf.network.ops import BatchNorm, ReLU
from afaf.network.spec import Layer, NetworkSpec
from afaf.network.zoo import describe
from afaf.randomness import key, uniform_at
from afaf.training import parameter_importance as estimators
from afaf.training.parameter_importance import batch_importance, images_at_once, negative_log_likelihood, output_size, per_sample_importance
from afaf.training.task_data import RngScope, TaskData
from conftest import small_stream

SCOPE = RngScope(seed=3, task=1, epoch=2)
KEY = key(3, "fisher labels", 1)
SEEN = [0, 2, 3]


def tiny(norm: bool) -> tuple[Network, TaskData]:
    """conv - conv - pool (- norm) - dense - dense - 4 outputs, in float64, with norms that are not at their beginnings."""
    after = ("relu", "pool", "norm") if norm else ("relu", "pool")
    hidden = (Layer("conv", 3), Layer("conv", 4, after), Layer("dense", 6, ("relu", "norm") if norm else ("relu",)), Layer("dense", 5))
    network = Network(NetworkSpec("tiny", (1, 8, 8), hidden, 4, dropout=0.0), seed=5, dtype=torch.float64)
    draw = torch.Generator().manual_seed(1)
    for l in range(1, network.spec.L):
        network.initialise(l, torch.ones(1, 1, 1, dtype=torch.bool))
    for parameters in network.parameters.norms.values():
        for tensor in (parameters.gain, parameters.var):
            tensor += torch.rand(tensor.shape, generator=draw, dtype=torch.float64)
        for tensor in (parameters.shift, parameters.mean):
            tensor += 0.1 * torch.randn(tensor.shape, generator=draw, dtype=torch.float64)
    task = small_stream([4], per_class=5)[0]
    data = TaskData([(task.train, task.preparation)], dtype=torch.float64)
    keep = torch.isin(data.labels, torch.tensor(SEEN))
    data.images, data.labels, data._group = data.images[keep], data.labels[keep], data._group[keep]
    return network, data


def as_module(network: Network) -> nn.Sequential:
    """The same network, built of torch.nn."""
    parts: list[nn.Module] = []
    for l in range(1, network.spec.L):
        edge, weight = network.spec.edge(l), network.weight(l)
        layer: Any
        if edge.product.maps:
            layer = nn.Conv2d(edge.inputs, edge.outputs, math.isqrt(edge.block), dtype=torch.float64)
            layer.weight.data = weight.reshape(layer.weight.shape).clone()
        else:
            parts.append(nn.Flatten())
            layer = nn.Linear(edge.fan_in, edge.outputs, dtype=torch.float64)
            layer.weight.data = weight.flatten(1).clone()
        layer.bias.data = network.bias(l).clone()
        parts.append(layer)
        for operation in network.spec.layer(l + 1).ops:
            if isinstance(operation, BatchNorm):
                norm = network.parameters.norms[l + 1]
                kind = nn.BatchNorm2d if edge.product.maps else nn.BatchNorm1d
                made = kind(edge.outputs, dtype=torch.float64)
                made.weight.data, made.bias.data = norm.gain.clone(), norm.shift.clone()
                made.running_mean, made.running_var = norm.mean.clone(), norm.var.clone()  # type: ignore[assignment]
                parts.append(made)
            else:
                parts.append(nn.ReLU() if isinstance(operation, ReLU) else nn.MaxPool2d(2))
    return nn.Sequential(*parts)


def parameters_by_name(network: Network, module: nn.Sequential) -> dict[str, nn.Parameter]:
    """The module's parameters under the names that importances have."""
    named: dict[str, nn.Parameter] = {}
    weighted = [part for part in module if isinstance(part, (nn.Conv2d, nn.Linear))][:-1]
    normed = [part for part in module if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for l, part in enumerate(weighted, 1):
        named |= {f"weight/{l}": part.weight, f"bias/{l}": part.bias}  # type: ignore[dict-item]
    for layer, part in zip(network.parameters.norms, normed, strict=True):
        named |= {f"gain/{layer}": part.weight, f"shift/{layer}": part.bias}
    return named


def reference(
    network: Network, batches: list[tuple[Tensor, Tensor, Tensor]], value: Any, size: Any, *, training: bool
) -> dict[str, Tensor]:
    """1/N sum over batches of |B| a(gradient of the mean over B), with one backward pass for each."""
    module = as_module(network).train(training)
    named = parameters_by_name(network, module)
    total = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    for x, labels, samples in batches:
        mean = torch.stack([value(z, y, i) for z, y, i in zip(module(x), labels, samples, strict=True)]).mean()
        for name, gradient in zip(named, torch.autograd.grad(mean, list(named.values())), strict=True):
            total[name] += len(x) * size(gradient)
    return {name: tensor / sum(len(x) for x, _, _ in batches) for name, tensor in total.items()}


def fisher_value(labels: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def value(z: Tensor, y: Tensor, i: Tensor) -> Tensor:
        log_p = z[SEEN] - z[SEEN].logsumexp(0)
        if labels == "model":
            k = int(log_p.argmax())
        elif labels == "true":
            k = SEEN.index(int(y))
        else:
            bounds, u = log_p.exp().cumsum(0).tolist(), float(uniform_at(KEY, i[None]))
            k = next((j for j, bound in enumerate(bounds) if u < bound), len(SEEN) - 1)
        return -log_p[k]

    return value


def size_of_output(squared: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda z, y, i: z[SEEN].square().sum() if squared else z[SEEN].square().sum().sqrt()


COLUMNS = torch.tensor(SEEN)
LABELS: tuple[estimators.Labels, ...] = ("model", "true", "sampled")
CASES: dict[str, tuple[Any, Any, Any]] = {  # the measure, the same for a single image, and a(g)
    **{
        f"fisher, {labels} labels": (negative_log_likelihood(COLUMNS, labels, KEY), fisher_value(labels), torch.square) for labels in LABELS
    },
    "mas": (output_size(COLUMNS, squared=False), size_of_output(False), torch.abs),
    "mas, squared": (output_size(COLUMNS, squared=True), size_of_output(True), torch.abs),
}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name].flatten(), tensor.flatten(), rtol=1e-9, atol=1e-14), name
        assert bool((tensor > 0).any()), name


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("measure", "value", "size"), CASES.values(), ids=list(CASES))
def test_per_sample_estimate(measure: Any, value: Any, size: Any, norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = tiny(norm)
    singles = [(*data.batch(torch.tensor([i])), torch.tensor([i])) for i in range(len(data))]
    expected = reference(network, singles, value, size, training=False)
    assert_same(per_sample_importance(network, data, measure, size), expected)
    monkeypatch.setattr(estimators, "FLOATS_AT_ONCE", 4 * (3 * 9 * 4 + 3 * 9 * 16))  # a few images at a time: the same
    assert 1 < images_at_once(network.spec) < len(data)
    assert_same(per_sample_importance(network, data, measure, size), expected)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("measure", "value", "size"), CASES.values(), ids=list(CASES))
def test_batch_estimate(measure: Any, value: Any, size: Any, norm: bool) -> None:
    network, data = tiny(norm)
    before = {layer: parameters.clone() for layer, parameters in network.parameters.norms.items()}
    batches = [(*data.batch(part, SCOPE), part) for part in data.order(SCOPE).split(5)]
    expected = reference(network, batches, value, size, training=True)
    assert_same(batch_importance(network, data, measure, size, batch_size=5, scope=SCOPE), expected)
    for layer, parameters in network.parameters.norms.items():  # looking did not move the statistics
        assert torch.equal(parameters.mean, before[layer].mean)
        assert torch.equal(parameters.var, before[layer].var)


def test_batches_of_one_image_are_the_per_sample_estimate() -> None:
    network, data = tiny(norm=False)
    measure = negative_log_likelihood(torch.tensor(SEEN), "true", KEY)
    singles = batch_importance(network, data, measure, torch.square, batch_size=1, scope=SCOPE)
    assert_same(per_sample_importance(network, data, measure, torch.square), singles)


def test_memory_is_bounded_for_the_papers_network() -> None:
    """The gradients of single images of every convolution, and its unfolded input, stay within the bound; many images fit."""
    spec = describe("alexnet", (3, 32, 32), 10)
    at_once = images_at_once(spec)
    for edge in spec.edges:
        if edge.product.maps:
            assert at_once * (edge.weights + edge.fan_in * edge.positions) <= estimators.FLOATS_AT_ONCE
    assert at_once >= 32


def test_sampled_labels_follow_the_models_probabilities() -> None:
    logits = torch.log(torch.tensor([0.5, 0.0001, 0.3, 0.2])).expand(20000, 4)
    values = negative_log_likelihood(torch.tensor(SEEN), "sampled", KEY)(logits, torch.zeros(20000), torch.arange(20000))
    shares = [float((values - expected).abs().lt(1e-4).float().mean()) for expected in -torch.log(torch.tensor([0.5, 0.3, 0.2])).numpy()]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.02)


def test_the_batch_estimate_is_made_with_dropout() -> None:
    """All images in one batch: what differs from one moment to another is which neurons are dropped."""
    network, data = tiny(norm=False)
    measure = output_size(COLUMNS, squared=False)

    def estimate(epoch: int) -> Tensor:
        found = batch_importance(network, data, measure, torch.abs, batch_size=len(data), scope=RngScope(3, 1, epoch=epoch))
        return found["weight/3"]

    assert torch.allclose(estimate(0), estimate(1), rtol=1e-9)
    hidden = (*network.spec.hidden[:2], Layer("dense", 6, ("relu", "dropout")), network.spec.hidden[3])
    network.spec = NetworkSpec("tiny", (1, 8, 8), hidden, 4, dropout=0.5)
    assert not torch.allclose(estimate(0), estimate(1), rtol=1e-3)
