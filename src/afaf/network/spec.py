"""A network described as data: neuron layers 1..L, and W_l, the connections that join layer l to layer l+1.

A *neuron* is a unit of a dense layer or a feature map of a convolution; a *connection* joins two neurons of neighbouring layers
and holds a `block` of weights: one between dense neurons, a kernel between maps, one per position between a map and a dense
neuron. Numbers count from 1, as in the paper: `spec.layer(4)` is the neuron layer conv 3, `spec.connections(3)` is W_3 into it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

from afaf.errors import ConfigError
from afaf.network.ops import OPERATIONS, Convolution, Dense, Dropout, Operation, Product

OperationName = Literal["relu", "dropout", "pool", "norm"]
Group = Literal["input", "conv", "fc", "output", "classes"]


@dataclass(frozen=True)
class Layer:
    """A hidden neuron layer as an architecture states it: how many neurons, how they are reached, and what follows, in order."""

    kind: Literal["conv", "dense"]
    neurons: int
    then: tuple[OperationName, ...] = ("relu",)
    kernel: int = 3  # of a convolution: stride 1, no padding

    @property
    def product(self) -> Product:
        return Convolution(self.kernel) if self.kind == "conv" else Dense()

    def operations(self, dropout: float) -> tuple[Operation, ...]:
        return tuple(Dropout(dropout) if name == Dropout.name else OPERATIONS[name]() for name in self.then)


@dataclass(frozen=True)
class NeuronLayer:
    """Layer l: `group` says which percentage of the settings applies ('output' is the last hidden layer, as in the paper)."""

    name: str
    size: int
    group: Group
    positions: int  # values of one neuron once its operations are done: height x width of a map, 1 of a dense neuron


@dataclass(frozen=True)
class Connections:
    """W_l: (outputs, inputs, block) weights, and what happens to the neurons it leads into."""

    name: str
    product: Product
    inputs: int
    outputs: int
    block: int
    positions: int  # places the block is applied at: output positions of a convolution, 1 of a dense layer
    then: tuple[Operation, ...]
    group: Group  # which density applies

    @property
    def fan_in(self) -> int:
        return self.inputs * self.block

    @property
    def weights(self) -> int:
        return self.outputs * self.fan_in

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.outputs, self.inputs, self.block)

    @property
    def has_norm(self) -> bool:
        return any(operation.has_norm for operation in self.then)


@dataclass(frozen=True)
class NetworkSpec:
    """An architecture together with the shape of its input and the number of its output rows."""

    name: str
    input_shape: tuple[int, ...]
    hidden: tuple[Layer, ...]
    n_classes: int
    dropout: float = 0.2

    @cached_property
    def layers(self) -> tuple[NeuronLayer, ...]:
        return _chain(self)[0]

    @cached_property
    def joins(self) -> tuple[Connections, ...]:
        return _chain(self)[1]

    @property
    def L(self) -> int:
        """The number of neuron layers, input and output among them."""
        return len(self.hidden) + 2

    def layer(self, l: int) -> NeuronLayer:
        return self.layers[l - 1]

    def connections(self, l: int) -> Connections:
        return self.joins[l - 1]

    @property
    def dense_params(self) -> int:
        """Weights of the dense network, biases not counted, as in the paper."""
        return sum(join.weights for join in self.joins)

    def with_classes(self, n_classes: int) -> NetworkSpec:
        return replace(self, n_classes=n_classes)

    def to_dict(self) -> dict[str, Any]:
        hidden = [{"kind": h.kind, "neurons": h.neurons, "then": list(h.then), "kernel": h.kernel} for h in self.hidden]
        return {
            "name": self.name,
            "input_shape": list(self.input_shape),
            "hidden": hidden,
            "n_classes": self.n_classes,
            "dropout": self.dropout,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NetworkSpec:
        hidden = tuple(Layer(h["kind"], h["neurons"], tuple(h["then"]), h["kernel"]) for h in data["hidden"])
        return cls(data["name"], tuple(data["input_shape"]), hidden, data["n_classes"], data["dropout"])


def _chain(spec: NetworkSpec) -> tuple[tuple[NeuronLayer, ...], tuple[Connections, ...]]:
    """Follow the shapes through the layers; an input that does not fit is an error that names the layer."""
    size, height, width = _input(spec)
    layers = [NeuronLayer("input", size, "input", height * width)]
    joins: list[Connections] = []
    counts = Counter[str]()
    for index, hidden in enumerate(spec.hidden):
        product, then, below = hidden.product, hidden.operations(spec.dropout), layers[-1]
        counts[product.name] += 1
        name = f"{product.name} {counts[product.name]}"
        group: Group = "output" if index == len(spec.hidden) - 1 else product.group
        block = product.block(below.positions)
        height, width = _fitting(spec, name, product.output_size(height, width))
        density = group if below.group == "input" else below.group
        joins.append(Connections(f"W_{len(layers)}", product, below.size, hidden.neurons, block, height * width, then, density))
        for operation in then:
            height, width = _fitting(spec, name, operation.output_size(height, width))
        layers.append(NeuronLayer(name, hidden.neurons, group, height * width))
    below = layers[-1]
    joins.append(Connections(f"W_{len(layers)}", Dense(), below.size, spec.n_classes, below.positions, 1, (), "output"))
    layers.append(NeuronLayer("classes", spec.n_classes, "classes", 1))
    return tuple(layers), tuple(joins)


def _input(spec: NetworkSpec) -> tuple[int, int, int]:
    if not spec.hidden:
        raise ConfigError(f"network '{spec.name}' has no hidden layer")
    if not spec.hidden[0].product.maps:  # every pixel is a neuron of the input
        return prod(spec.input_shape), 1, 1
    if len(spec.input_shape) == 1:
        features = spec.input_shape[0]
        raise ConfigError(f"network '{spec.name}' reads images, but the stream brings vectors of {features} features: use network.name=mlp")
    channels, height, width = spec.input_shape
    return channels, height, width


def _fitting(spec: NetworkSpec, name: str, size: tuple[int, int]) -> tuple[int, int]:
    if min(size) < 1:
        pixels = "x".join(map(str, spec.input_shape[1:]))
        raise ConfigError(
            f"images of {pixels} pixels do not fit network '{spec.name}': nothing is left at {name}; "
            "use larger images, or network.name=small-cnn or mlp"
        )
    return size
