"""A user's module becomes the same network: layers, operations and sums, and it learns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import afaf
from afaf.errors import ConfigError
from afaf.network import trace
from afaf.network.spec import Layer, NetworkSpec
from afaf.network.zoo import describe, find_network
from modules import ResNet10

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
    assert len(traced.streams) == len(zoo.streams)
    assert [layer.ops for layer in traced.layers] == [layer.ops for layer in zoo.layers]
    assert [set(layer.inputs) for layer in traced.layers] == [set(layer.inputs) for layer in zoo.layers]


class Own(nn.Module):
    """With functions instead of modules, a value that is read twice, and a residual sum in pre-activation order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(1, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, 1, 1), nn.BatchNorm2d(6)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(6, 4)

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
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(9, 2)), "cannot be traced"),
        (ByValue(), "cannot be traced"),
    ],
)
def test_what_is_not_supported_is_named(module: nn.Module, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        trace(module, torch.zeros(1, 1, 8, 8))


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
