"""The described networks: exact sizes, shapes that fit, initial values, growing outputs, cut gradients, keyed dropout."""

from __future__ import annotations

import pytest
import torch

from afaf.errors import ConfigError
from afaf.network.forward import Training, forward
from afaf.network.net import Network
from afaf.network.ops import Dropout
from afaf.network.spec import Layer, NetworkSpec
from afaf.network.zoo import describe
from afaf.randomness import key


def test_the_papers_network_is_exact() -> None:
    spec = describe("alexnet", (3, 32, 32), 10)
    assert [layer.size for layer in spec.layers] == [3, 64, 128, 256, 2048, 2048, 10]
    assert [edge.positions for edge in spec.edges] == [30 * 30, 28 * 28, 12 * 12, 1, 1, 1]
    assert [edge.block for edge in spec.edges] == [9, 9, 9, 36, 1, 1]
    assert [describe("alexnet", (3, 32, 32), n).dense_params for n in (10, 16, 40)] == [23_459_520, 23_471_808, 23_520_960]
    assert spec.L == 7
    assert [edge.role for edge in spec.edges] == ["conv", "conv", "conv", "conv", "fc", "output"]


def test_it_computes_what_pytorch_modules_compute() -> None:
    spec = describe("alexnet", (3, 32, 32), 10)
    network = Network(spec, seed=1)
    for l in range(1, spec.L):
        network.initialise(l, torch.ones(1, 1, 1, dtype=torch.bool))
    nn = torch.nn
    modules = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(128, 256, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10),
    )  # fmt: skip
    with_weights = [module for module in modules if hasattr(module, "weight")]
    with torch.no_grad():
        for l, module in enumerate(with_weights, 1):
            module.weight.copy_(network.weight(l).reshape(module.weight.shape))
            module.bias.copy_(network.bias(l))
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(network(x), modules(x), atol=1e-6)


def test_initial_values_have_pytorchs_default_spread() -> None:
    network = Network(describe("alexnet", (3, 32, 32), 10), seed=0)
    for l in (2, 5, 6):
        bound = network.spec.edge(l).fan_in ** -0.5
        weights = network.initial_weights(l)
        assert float(weights.abs().max()) <= bound
        assert float(weights.std()) == pytest.approx(bound / 3**0.5, rel=0.03)
        assert float(network.bias(l).abs().max()) <= bound
    assert all(float(network.weight(l).abs().max()) == 0 for l in range(1, 7))


def test_grown_output_rows_equal_reserved_ones() -> None:
    reserved = Network(describe("mlp", (64,), 6), seed=5)
    grown = Network(describe("mlp", (64,), 2), seed=5)
    grown.grow_outputs(1)
    grown.grow_outputs(3)
    assert grown.spec == reserved.spec
    assert torch.equal(grown.parameters.biases[-1], reserved.parameters.biases[-1])
    assert torch.equal(grown.initial_weights(3), reserved.initial_weights(3))
    assert grown.weight(3).shape == reserved.weight(3).shape


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="9x9 pixels do not fit network 'alexnet': nothing is left at conv 3"):
        describe("alexnet", (3, 9, 9), 10)
    with pytest.raises(ConfigError, match=r"network\.name=mlp"):
        describe("small-cnn", (64,), 10)
    with pytest.raises(ConfigError, match="did you mean 'alexnet'"):
        describe("alexnett", (3, 32, 32), 10)


def training(samples: torch.Tensor, **more: object) -> Training:
    return Training({l: key(0, "dropout", l) for l in range(2, 9)}, samples, **more)  # type: ignore[arg-type]


def test_dropout_belongs_to_the_image_not_to_the_batch() -> None:
    spec = NetworkSpec("s", (1, 6, 6), (Layer("conv", 5, ("relu", "dropout", "pool")), Layer("dense", 7, ("relu", "dropout"))), 3, 0.5)
    network = Network(spec, seed=0)
    for l in range(1, spec.L):
        network.initialise(l, torch.ones(1, 1, 1, dtype=torch.bool))
    x = torch.randn(10, 1, 6, 6)
    numbers = torch.arange(10, dtype=torch.int32)
    whole = network(x, training(numbers))
    order = torch.tensor([7, 2, 9])
    assert torch.allclose(network(x[order], training(numbers[order])), whole[order], atol=1e-6)
    assert not torch.allclose(network(x, training(numbers + 1)), whole)


def test_dropout_keeps_the_mean() -> None:
    h = torch.ones(200, 50, 3, 3)
    dropped = Dropout(0.2).train(h, None, 2, training(torch.arange(200, dtype=torch.int32)))
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.01)
    assert sorted(set(dropped.flatten().tolist())) == [0.0, 1.25]


def test_no_gradient_passes_a_fixed_neuron() -> None:
    spec = NetworkSpec("s", (4,), (Layer("dense", 3), Layer("dense", 3)), 2)
    network = Network(spec, seed=0)
    for l in range(1, spec.L):
        network.initialise(l, torch.ones(1, 1, 1, dtype=torch.bool))
    network.parameters.biases[0] += 5  # every first-layer neuron is active
    for weight in network.parameters.weights:
        weight.requires_grad_()
    grad_mask = {2: torch.tensor([1.0, 0.0, 1.0])}
    forward(spec, network.parameters, torch.rand(6, 4), mode=training(torch.arange(6), grad_mask=grad_mask)).sum().backward()
    gradient = network.weight(1).grad
    assert gradient is not None
    assert bool((gradient[1] == 0).all())
    assert bool((gradient[[0, 2]] != 0).any())


def test_no_layer_is_run_where_the_last_is_below_the_first() -> None:
    spec = NetworkSpec("s", (4,), (Layer("dense", 3),), 2)
    x = torch.rand(6, 4)
    assert forward(spec, Network(spec).parameters, x, stop=1) is x
