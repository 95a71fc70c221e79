"""A user's module becomes the same network: layers, operations and sums, and it learns."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import afaf
from afaf.errors import ConfigError, RunError, StoppedError
from afaf.network import trace
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.network.zoo import describe, find_network, module_values
from afaf.runs.events import EpochEnded
from afaf.runs.stop import StopToken
from afaf.streams.benchmarks import open_stream
from conftest import small_stream
from modules import ResNet10, ResNeXt
from worlds import probe

CODE = """
from torch import nn
from afaf.extend import Layer

def module():
    return nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 60),
                         nn.ReLU(), nn.Linear(60, 99))

def layers(width=40):
    return (Layer("conv", width, padding=1), Layer("sum", width, inputs=(2,)), Layer("dense", 80))

number = 3
def nothing(): return 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(CODE)
    about = tmp_path / "own_networks-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-networks\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[afaf.networks]\nmine = own_networks:layers\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)


def test_a_resnet_as_people_write_it_is_the_zoos() -> None:
    traced = NetworkSpec("traced", (3, 32, 32), trace(ResNet10(8, 7), torch.zeros(1, 3, 32, 32)), 10)
    zoo = describe("resnet10", (3, 32, 32), 10, width=8)
    assert [edge.weights for edge in traced.edges] == [edge.weights for edge in zoo.edges]
    assert len(traced.groups) == len(zoo.groups)
    assert [layer.ops for layer in traced.layers] == [layer.ops for layer in zoo.layers]
    assert [set(layer.inputs) for layer in traced.layers] == [set(layer.inputs) for layer in zoo.layers]


class Own(nn.Module):
    """With functions instead of modules, a value that is read twice, and a residual sum in pre-activation order."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(1, width, 3, 2, 1), nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(F.relu(self.norm(x)))
        z = F.max_pool2d(x + y, 3, stride=2, padding=1)
        return self.head(self.drop(F.adaptive_avg_pool2d(z.relu(), 1).view(x.shape[0], -1)))  # type: ignore[no-any-return]


def test_functions_and_shared_values() -> None:
    layers = trace(Own(), torch.zeros(1, 1, 8, 8))
    assert layers == (
        Layer("conv", 6, (), 3, 2, 1),
        Layer("sum", 6, ("norm", "relu"), inputs=(2,)),
        Layer("conv", 6, (), 3, 1, 1),
        Layer("sum", 6, ("pool(3,2,1)", "relu", "global-mean", "dropout"), inputs=(2, 4)),
    )


class Averaged(nn.Module):
    """Ends as many residual networks for CIFAR-10 do, and counts images with size()."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.conv(x)))
        out += out
        return self.fc(F.avg_pool2d(out, 8).view(out.size(0), -1))  # type: ignore[no-any-return]


def filled(module: nn.Module) -> nn.Module:
    """With norms as a trained module has them."""
    draw = torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.weight, part.bias, part.running_mean, part.running_var):
                assert tensor is not None
                tensor.data.copy_(torch.rand(tensor.shape, generator=draw) + 0.5)
    return module.eval()


@pytest.mark.parametrize("make", [lambda: ResNet10(4, 5), lambda: Own(), lambda: Averaged(), lambda: ResNeXt(8, 4)])
def test_a_network_with_a_modules_weights_computes_what_the_module_does(make: Any) -> None:
    """Up to its last layer: that of the network is of another stream's classes, and drawn from the seed."""
    module = filled(make())
    computes_the_same(module, (3, 16, 16) if isinstance(module, ResNet10) else (1, 8, 8))


def computes_the_same(module: nn.Module, shape: tuple[int, ...]) -> None:
    spec = describe(module, shape, 3)
    network = Network(spec, seed=1, initial=module_values(module, spec))
    for l in spec.edge_numbers:
        network.initialise(l, torch.ones(1, 1, 1, dtype=torch.bool))
    head = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
    features: list[Tensor] = []
    head.register_forward_hook(lambda _, inputs, __: features.append(inputs[0]))
    x = probe(spec)
    module(x)
    expected = F.linear(features[0], network.weight(spec.E).flatten(1), network.bias(spec.E))
    assert torch.allclose(network(x), expected, atol=1e-5)
    assert torch.equal(network.weight(spec.E), Network(spec, seed=1).initial_weights(spec.E))
    assert not module.training


@pytest.mark.parametrize("method", ["finetune", "afaf"])
def test_a_run_begins_with_the_modules_weights(method: str, tmp_path: Path) -> None:
    """Weights that a task begins with, before it moves them; a resumed run ends with the same bits, and another module is refused."""
    torch.manual_seed(0)
    stream, module = small_stream([2, 2, 2]), filled(Own(40))
    settings = {"network.weights": "module", "learn.epochs": 2, "learn.lr": 1e-12, "learn.batch_size": 8, "run.checkpoint": 0}
    settings |= {"sparse.drop": 0} if method == "afaf" else {}  # a connection that grows begins at 0
    ended = []
    for out, stops in ((tmp_path / "a", False), (tmp_path / "b", True)):
        stop, after = StopToken(), count(1)

        def listen(event: Any, stop: StopToken = stop, after: Any = after, stops: bool = stops) -> None:
            if stops and isinstance(event, EpochEnded) and next(after) == 3:
                stop.ask()

        try:
            afaf.run(stream, method, network=module, out=out, settings=settings, device="cpu", on_event=listen, stop=stop)
        except StoppedError:
            with pytest.raises(RunError, match="network="):
                afaf.resume(out, stream=stream)
            with pytest.raises(RunError, match="Own"):
                afaf.resume(out, stream=stream, network=Own(40))
            afaf.resume(out, stream=stream, network=module)
        ended.append(afaf.Model.load(out / "model.safetensors").learner)
    for l in range(1, ended[0].network.spec.E):
        assert torch.equal(ended[0].network.weight(l), ended[1].network.weight(l))
        owned = (ended[0].ledger.owner(l) > 0).expand_as(ended[0].network.weight(l))
        kept = [module.first, module.second][l - 1].weight.reshape(ended[0].network.weight(l).shape)
        assert torch.allclose(ended[0].network.weight(l)[owned], kept[owned], atol=1e-6)


@pytest.mark.parametrize("bad", ["norm", "numbers", "layers"])
def test_weights_that_cannot_be_kept_are_named(bad: str) -> None:
    module: Any = Own()
    if bad == "norm":
        module.norm.eps = 0.1
    elif bad == "numbers":
        module.second.weight.data[0] = float("nan")
    named = {"norm": "'norm'.*eps", "numbers": "'second'.*finite", "layers": "network.weights"}[bad]
    network = (Layer("conv", 6),) if bad == "layers" else module
    with pytest.raises(ConfigError, match=named):
        afaf.run(small_stream([2, 2]), "finetune", network=network, settings={"network.weights": "module"}, device="cpu")


@pytest.mark.parametrize(
    ("method", "make"), [("afaf", ResNet10), pytest.param("finetune", ResNet10, marks=pytest.mark.slow), ("afaf", ResNeXt)]
)
def test_a_residual_module_learns_digits(method: str, make: Any) -> None:
    """As people write it, given to run as it is: each task is learned."""
    module = make(32, 99, channels=1) if make is ResNet10 else ResNeXt(64, 8)
    settings = {"learn.epochs": 10, "learn.lr": 0.1, "run.images": 40}
    results = afaf.run(open_stream("split-digits")[:3], method, network=module, settings=settings, device="cpu")
    assert min(results.R_task_il[i][i] for i in range(3)) > 80


@pytest.mark.slow
@pytest.mark.realdata
def test_torchvisions_resnet18_learns_two_tasks_of_cifar10() -> None:
    """With random weights: nothing is downloaded."""
    module = pytest.importorskip("torchvision.models").resnet18(num_classes=10)
    settings = {"learn.epochs": 8, "learn.momentum": 0.9, "learn.lr": 0.02, "run.images": 400}
    results = afaf.run(open_stream("split-cifar10")[:2], "afaf", network=module, settings=settings, device="cpu")
    assert min(results.R_task_il[i][i] for i in range(2)) > 60


class Rows(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, self.width)


class Broadcast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + F.adaptive_avg_pool2d(x, 1)


class ByValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 2)), "'1'.*Sigmoid"),
        (nn.Sequential(nn.Conv2d(1, 4, 3, groups=1, dilation=2), nn.Flatten(), nn.Linear(64, 2)), "'0'.*dilation"),
        (nn.Sequential(nn.Conv2d(1, 4, (3, 5)), nn.Flatten(), nn.Linear(96, 2)), "'0'.*kernel_size"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), "Linear"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(9, 2)), "'2'.*do not fit"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2)), "'0'.*do not fit"),
        (nn.Sequential(nn.Flatten(), *[nn.Linear(64, 64)] * 2, nn.Linear(64, 2)), "'1'.*twice"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(64, 2)), "'1'.*padding"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(ByValue()), nn.Flatten(), nn.Linear(144, 2)), "'1.0'.*cannot be traced"),
        (ByValue(), "cannot be traced"),
    ],
)
def test_what_is_not_supported_is_named(module: nn.Module, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        trace(module, torch.zeros(1, 1, 8, 8))


class Ordered(nn.Module):
    """Two convolutions of which the second reads the first's value in one way or another, then a step of `then`, and a Linear layer."""

    def __init__(self, then: str) -> None:
        super().__init__()
        self.then, self.changes, self.plain = then, nn.ReLU(inplace=True), nn.ReLU()
        self.first, self.second, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(144, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(getattr(self, self.then)(self.first(x)).flatten(1))  # type: ignore[no-any-return]

    def module_skip(self, x: Tensor) -> Tensor:
        return self.second(self.changes(x)) + x  # type: ignore[no-any-return]

    def function_skip(self, x: Tensor) -> Tensor:
        return self.second(F.relu(x, True)) + x  # type: ignore[no-any-return]

    def method_skip(self, x: Tensor) -> Tensor:
        return self.second(x.relu_()) + x  # type: ignore[no-any-return]

    def view_skip(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        return self.second(self.changes(x)).flatten(1) + rows  # type: ignore[no-any-return]

    def kept_sum(self, x: Tensor) -> Tensor:
        kept = x
        x += self.second(x)
        return self.plain(x) + kept  # type: ignore[no-any-return]

    def last_reader(self, x: Tensor) -> Tensor:
        return self.second(x) + self.changes(x)  # type: ignore[no-any-return]

    def last_reader_of_a_sum(self, x: Tensor) -> Tensor:
        y = self.second(x)
        y += x
        return self.changes(y)  # type: ignore[no-any-return]

    def alone(self, x: Tensor) -> Tensor:
        return self.second(self.changes(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("then", "named"),
    [
        ("module_skip", "'changes'.*'add'"),
        ("function_skip", "'relu'.*'add'"),
        ("method_skip", "'relu_'.*'add'"),
        ("view_skip", "'changes'.*'add'"),
        ("kept_sum", "'iadd'.*'add'"),
    ],
)
def test_a_value_that_is_changed_before_it_is_read_is_refused(then: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        trace(Ordered(then), torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize("then", ["last_reader", "last_reader_of_a_sum", "alone"])
def test_a_value_that_is_read_before_it_is_changed_is_read_unchanged(then: str) -> None:
    torch.manual_seed(0)
    computes_the_same(Ordered(then).eval(), (1, 8, 8))


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ([nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(144), nn.Linear(144, 2)], "'3'.*144"),
        ([nn.Conv2d(1, 4, 3), nn.Linear(6, 3), nn.Flatten(), nn.Linear(72, 2)], "'1'.*flatten"),
        ([nn.Linear(8, 3), nn.Flatten(), nn.Linear(24, 2)], "'0'.*flatten"),
        ([nn.Conv2d(1, 4, 3), Rows(72), nn.Linear(72, 2)], "'view'.*72"),
        ([nn.Conv2d(1, 4, 3), Broadcast(), nn.Flatten(), nn.Linear(144, 2)], "'add'.*shapes"),
    ],
)
def test_values_of_another_shape_than_the_described_layers_are_refused(modules: list[nn.Module], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        trace(nn.Sequential(*modules), torch.zeros(1, 1, 8, 8))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["own_networks:module", "own_networks:layers", "mine"])
def test_a_network_of_another_package_learns(name: str) -> None:
    settings: dict[str, Any] = {"network.name": name, "learn.epochs": 1, "run.images": 20}
    results = afaf.run("split-digits", "afaf", settings=settings, device="cpu")
    assert len(results.R) == 5


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["own_networks:missing", "nowhere:function", "own_networks:number", "own_networks:nothing"])
def test_a_network_that_cannot_be_used_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        describe(name, (1, 8, 8), 2)
    with pytest.raises(ConfigError, match="resnet18"):
        find_network("resnet8")


def test_a_module_learns_with_the_parts_beyond_the_paper() -> None:
    settings = {"learn.epochs": 1, "learn.batch_size": 32, "run.images": 10, "run.precision": "fp32"}
    results = afaf.run(open_stream("split-digits")[:2], "afaf-plus", network=Own(40), settings=settings, device="cpu")
    assert len(results.R) == 2
