"""A network described as data: neuron layers 1..L in topological order, and edges W_1..W_E that hold the weights.

A *neuron* is a unit of a dense layer or a map of a convolution. A layer is one product (a convolution or a dense layer) of an earlier
layer, or the sum of earlier layers, joined by identity edges, which hold no weights. An edge with its own norm leads into its own layer,
which the sum then adds. Layers joined by identity edges, as in a residual network, form a *group*: neuron i is the same neuron in all of
them, free or fixed in all at once. A depthwise convolution also stays within a group: its connections join neuron i to neuron i. A group is
identified by the number of its first layer. The `groups` of a convolution are PyTorch's and unrelated.

A *connection* joins two neurons and holds a `block` of weights: one between dense neurons, a kernel between maps, one per position
between a map and a dense neuron. Numbers count from 1, as in the paper, whose network is the simplest graph:
W_l joins layers l and l+1.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from afaf.bounds import Count, Portion, Within
from afaf.checked import build, check_fields
from afaf.errors import ConfigError
from afaf.network.ops import Operation, parse_operations
from afaf.network.products import Convolution, Dense, Depthwise, Product

Role = Literal["input", "conv", "fc", "output", "classes"]
Kind = Literal["conv", "depthwise", "dense", "sum"]
Extent = Annotated[int, Within(1, 1 << 12)]


@dataclass(frozen=True)
class Layer:
    """A hidden neuron layer of an architecture: its neurons, its product or sum, and the operations that follow, in order.

    `inputs` are the numbers of the layers that it reads (1 is the input): one for a product, any number for a sum; by default the previous
    layer.
    """

    kind: Kind
    neurons: Count
    ops: tuple[str, ...] = ("relu",)
    kernel: Extent = 3
    stride: Extent = 1
    padding: Annotated[int, Within(0, 1 << 12)] = 0
    inputs: tuple[Count, ...] = ()
    groups: Count = 1  # of a convolution

    def __post_init__(self) -> None:
        check_fields(self)  # here, not when the trained model is read back

    @property
    def product(self) -> Product | None:
        if self.kind == "sum":
            return None
        if self.kind == "dense":
            return Dense()
        return (Depthwise if self.kind == "depthwise" else Convolution)(self.kernel, self.stride, self.padding, groups=self.groups)

    @property
    def carries_on(self) -> bool:
        """Whether neuron i of this layer is neuron i of its inputs: a sum, a depthwise convolution."""
        return self.kind in ("sum", "depthwise")

    def to_dict(self) -> dict[str, Any]:
        """Default values of stride, padding, inputs and groups are left out, as in files written before they existed."""
        data = {"kind": self.kind, "neurons": self.neurons, "then": list(self.ops), "kernel": self.kernel}
        more = {"stride": self.stride, "padding": self.padding, "inputs": list(self.inputs), "groups": self.groups}
        defaults = {field.name: field.default for field in fields(self)}
        return data | {name: value for name, value in more.items() if value not in (defaults[name], [])}


@dataclass(frozen=True)
class NeuronLayer:
    """Layer l: `role` says which percentage of the settings applies ('output' is the last hidden layer's group, as in the paper)."""

    name: str
    size: int
    role: Role
    positions: int  # values of one neuron after its operations: height x width of a map, 1 of a dense neuron
    inputs: tuple[int, ...]  # layers that it reads
    edge: int | None  # l of the W_l that leads into it; None: it is the sum of its inputs
    ops: tuple[Operation, ...]
    group: int  # the first layer of its group

    @property
    def has_norm(self) -> bool:
        return any(operation.has_norm for operation in self.ops)


@dataclass(frozen=True)
class Edge:
    """W_l: (outputs, inputs, block) weights from the layer `source` to the layer `target`; of a depthwise convolution `inputs` is 1."""

    name: str
    product: Product
    source: int
    target: int
    source_group: int
    target_group: int
    inputs: int
    outputs: int
    block: int
    positions: int  # places the block is applied at: output positions of a convolution, 1 of a dense layer
    role: Role  # which density applies

    @property
    def diagonal(self) -> bool:
        return self.product.diagonal

    @property
    def groups(self) -> int:
        return self.product.groups

    def pairs(self, sources: int, targets: int) -> int:
        """How many connections are possible between this many neurons, if they are those of the same groups."""
        if self.groups == 1:
            return targets if self.diagonal else sources * targets
        inputs, outputs = self.inputs // self.groups, self.outputs // self.groups  # of a group
        filled = [(min(inputs, sources - i * inputs), min(outputs, targets - i * outputs)) for i in range(self.groups)]
        return sum(max(0, below) * max(0, above) for below, above in filled)

    def exists(self) -> Tensor:
        """(outputs, inputs): whether two neurons can be connected at all."""
        above, below = (torch.arange(size) * self.groups // size for size in (self.outputs, self.inputs))
        return above[:, None] == below

    def forward(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product, for all neurons or for gathered ones, whose groups may be incomplete: weights of pairs that do not exist are 0."""
        gathered = self.groups > 1 and weight.shape[:2] != (self.outputs, self.inputs)
        return (replace(self.product, groups=1) if gathered else self.product).forward(h, weight, bias)

    def columns(self, sources: Tensor) -> Tensor:
        """The columns of W_l that belong to these source neurons; a single column if each neuron leads into itself alone."""
        return sources.new_zeros(1) if self.diagonal else sources

    @property
    def fan_in(self) -> int:
        return self.inputs // self.groups * self.block

    @property
    def weights(self) -> int:
        """The weights of all pairs that exist; the tensor has `shape`."""
        return self.outputs * self.fan_in

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.outputs, self.inputs, self.block)


@dataclass(frozen=True)
class NetworkSpec:
    """An architecture together with the shape of its input and the number of its output rows."""

    name: str
    input_shape: tuple[Count, ...]
    hidden: tuple[Layer, ...]
    n_classes: Count
    dropout: Portion = 0.2

    @cached_property
    def _built(self) -> Built:
        return _build(self)

    @property
    def layers(self) -> tuple[NeuronLayer, ...]:
        return self._built[0]

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self._built[1]

    @property
    def L(self) -> int:
        """The number of neuron layers, including input and output."""
        return len(self.hidden) + 2

    @property
    def E(self) -> int:
        """The number of edges with weights: W_E leads into the output."""
        return len(self.edges)

    @property
    def edge_numbers(self) -> range:
        return range(1, self.E + 1)

    def layer(self, l: int) -> NeuronLayer:
        return self.layers[l - 1]

    def edge(self, l: int) -> Edge:
        return self.edges[l - 1]

    @cached_property
    def groups(self) -> dict[int, tuple[int, ...]]:
        """The layers of each group, by its number, in order."""
        found: dict[int, tuple[int, ...]] = {}
        for number, layer in enumerate(self.layers, 1):
            found[layer.group] = (*found.get(layer.group, ()), number)
        return found

    @property
    def hidden_groups(self) -> tuple[int, ...]:
        return tuple(self.groups)[1:-1]

    @property
    def last_hidden(self) -> int:
        """The group that the output reads."""
        return self.edges[-1].source_group

    @cached_property
    def normed_layers(self) -> tuple[int, ...]:
        return tuple(number for number, layer in enumerate(self.layers, 1) if layer.has_norm)

    @cached_property
    def is_chain(self) -> bool:
        """Whether each layer reads only the one before, without strides, padding or groups: the networks that the CUDA kernels support."""
        return all(edge.source == edge.target - 1 and edge.product.plain for edge in self.edges) and self.E == self.L - 1

    def groups_from(self, l: int) -> tuple[int, ...]:
        """The hidden groups that W_l and the edges after it start from or lead into."""
        ends = {group for edge in self.edges[l - 1 :] for group in (edge.source_group, edge.target_group)}
        return tuple(group for group in self.hidden_groups if group in ends)

    def reached_from(self, layers: set[int]) -> set[int]:
        """These layers and all later ones that depend on them."""
        reached = set(layers)
        for number, layer in enumerate(self.layers, 1):
            if reached & set(layer.inputs):
                reached.add(number)
        return reached

    def read_as_maps(self, layer: int) -> bool:
        """Whether a later layer reads this one as maps, not as a row of values."""
        readers = [reader for reader in self.layers if layer in reader.inputs]
        return any(reader.edge is None or self.edge(reader.edge).product.maps for reader in readers)

    def cut_below(self, l: int) -> int:
        """The last layer before W_l's target on which all later layers depend alone: a constant part can end there."""
        return max(cut for cut in self._cuts if cut < self.edge(l).target)

    @cached_property
    def _cuts(self) -> tuple[int, ...]:
        found, lowest = [], self.L  # the lowest layer that is read from above the cut
        for cut in range(self.L - 1, 0, -1):
            lowest = min(lowest, *self.layers[cut].inputs)
            found += [cut] if lowest >= cut else []
        return tuple(found)

    @cached_property
    def last_readers(self) -> dict[int, int]:
        """For each layer the last one that reads it."""
        return {source: number for number, layer in enumerate(self.layers, 1) for source in layer.inputs}

    @property
    def dense_params(self) -> int:
        """Weights of the dense network, biases not counted, as in the paper."""
        return sum(edge.weights for edge in self.edges)

    @property
    def dense_products(self) -> int:
        """Multiplications in one pass of an image through the dense network."""
        return sum(edge.weights * edge.positions for edge in self.edges)

    def with_classes(self, n_classes: int) -> NetworkSpec:
        return replace(self, n_classes=n_classes)

    def ends(self, l: int) -> tuple[str, str]:
        """The names of the layers that W_l joins."""
        return self.layer(self.edge(l).source).name, self.layer(self.edge(l).target).name

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "input_shape": list(self.input_shape),
            "hidden": [layer.to_dict() for layer in self.hidden],
            "n_classes": self.n_classes,
            "dropout": self.dropout,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NetworkSpec:
        """Raises ConfigError if the data does not describe a network."""
        hidden = [{"ops" if name == "then" else name: value for name, value in layer.items()} for layer in data["hidden"]]
        spec: NetworkSpec = build(cls, {**data, "hidden": hidden}, "network")
        return spec


Built = tuple[tuple[NeuronLayer, ...], tuple[Edge, ...]]


def _build(spec: NetworkSpec) -> Built:
    """Follow the shapes through the layers; a shape that does not fit raises an error that names the layer."""
    sizes, shapes = [_input(spec)[0]], [_input(spec)[1]]
    hidden = [*spec.hidden, Layer("dense", spec.n_classes, ())]
    inputs = [_inputs(spec, number, layer) for number, layer in enumerate(hidden, 2)]
    products = [layer.product for layer in hidden]
    groups, roles = _groups(hidden, inputs), _roles(products, inputs)
    counts = Counter[str]()
    layers = [NeuronLayer("input", sizes[0], "input", prod(shapes[0]), (), None, (), 1)]
    edges: list[Edge] = []
    for number, (layer, below) in enumerate(zip(hidden, inputs, strict=True), 2):
        counts[layer.kind] += 1
        name = "classes" if number == spec.L else f"{layer.kind} {counts[layer.kind]}"
        ops = _operations(spec, name, layer)
        group = groups[number - 1]
        role: Role = "classes" if number == spec.L else "output" if group == groups[inputs[-1][0] - 1] else roles[group - 1]
        size, edge = shapes[below[0] - 1], None
        product = products[number - 2]
        if layer.carries_on:
            _check_alike(spec, name, [(sizes[i - 1], shapes[i - 1]) for i in below], layer.neurons)
        if product is not None:
            edge, source = len(edges) + 1, below[0]
            block = product.block(prod(size))
            _check_groups(spec, name, layer, sizes[source - 1])
            size = _fitting(spec, name, product.output_size(*size))
            density = "output" if number == spec.L else role if source == 1 else roles[source - 1]
            ends = (source, number, groups[source - 1], group)
            columns = 1 if product.diagonal else sizes[source - 1]
            edges.append(Edge(f"W_{edge}", product, *ends, columns, layer.neurons, block, prod(size), density))
        for operation in ops:
            size = _fitting(spec, name, operation.output_size(*size))
        layers.append(NeuronLayer(name, layer.neurons, role, prod(size), below, edge, ops, group))
        sizes.append(layer.neurons)
        shapes.append(size)
    return tuple(layers), tuple(edges)


def _operations(spec: NetworkSpec, name: str, layer: Layer) -> tuple[Operation, ...]:
    try:
        return parse_operations(layer.ops, spec.dropout)
    except ValueError as error:
        raise ConfigError(f"network '{spec.name}', {name}: {error}") from None


def _inputs(spec: NetworkSpec, number: int, layer: Layer) -> tuple[int, ...]:
    inputs = layer.inputs or (number - 1,)
    if not all(1 <= source < number for source in inputs) or (layer.kind != "sum" and len(inputs) != 1):
        raise ConfigError(
            f"network '{spec.name}': layer {number} ({layer.kind}) is reached from layers {list(inputs)}: "
            "name earlier layers, and one alone unless it is a sum"
        )
    if layer.carries_on and 1 in inputs:
        raise ConfigError(f"network '{spec.name}': layer {number} carries the input itself on: lead it through a convolution first")
    return inputs


def _groups(hidden: list[Layer], inputs: list[tuple[int, ...]]) -> list[int]:
    """The group of each layer: sums and depthwise convolutions share the neurons of the layers below."""
    first = list(range(len(hidden) + 2))  # an earlier layer of the same group, or the layer itself

    def find(number: int) -> int:
        while first[number] != number:
            first[number] = first[first[number]]
            number = first[number]
        return number

    for number, (layer, below) in enumerate(zip(hidden, inputs, strict=True), 2):
        if layer.carries_on:
            joined = [find(i) for i in (*below, number)]
            for other in joined:
                first[other] = min(joined)
    return [find(number) for number in range(1, len(hidden) + 2)]


def _roles(products: list[Product | None], inputs: list[tuple[int, ...]]) -> list[Role]:
    """For each layer the role of its product, or of the first layer that it adds."""
    roles: list[Role] = ["input"]
    for product, below in zip(products, inputs, strict=True):
        roles.append(roles[below[0] - 1] if product is None else product.role)
    return roles


def _input(spec: NetworkSpec) -> tuple[int, tuple[int, int]]:
    if not spec.hidden:
        raise ConfigError(f"network '{spec.name}' has no hidden layer")
    first = spec.hidden[0].product
    if first is not None and not first.maps:  # every pixel is a neuron of the input
        return prod(spec.input_shape), (1, 1)
    if len(spec.input_shape) == 1:
        features = spec.input_shape[0]
        raise ConfigError(f"network '{spec.name}' reads images, but the stream brings vectors of {features} features: use network.name=mlp")
    channels, height, width = spec.input_shape
    return channels, (height, width)


def _check_alike(spec: NetworkSpec, name: str, added: list[tuple[int, tuple[int, int]]], neurons: int) -> None:
    if {(neurons, added[0][1])} != set(added):
        shapes = ", ".join(f"{size} neurons of {height}x{width}" for size, (height, width) in added)
        raise ConfigError(f"network '{spec.name}': {name} ({neurons} neurons) carries on other neurons: {shapes}")


def _check_groups(spec: NetworkSpec, name: str, layer: Layer, inputs: int) -> None:
    if layer.groups > 1 and (layer.kind != "conv" or inputs % layer.groups or layer.neurons % layer.groups):
        given = f"groups = {layer.groups} of {layer.neurons} neurons with {inputs} inputs"
        raise ConfigError(f"network '{spec.name}', {name}: {given}: a convolution (conv) can have groups, of a number that divides both")


def _fitting(spec: NetworkSpec, name: str, size: tuple[int, int]) -> tuple[int, int]:
    if min(size) < 1:
        pixels = "x".join(map(str, spec.input_shape[1:]))
        raise ConfigError(
            f"images of {pixels} pixels do not fit network '{spec.name}': nothing is left at {name}; "
            "use larger images, or network.name=small-cnn or mlp"
        )
    return size
