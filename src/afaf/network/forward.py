"""The forward pass of a described network, as one function that every engine and every measurement calls.

A `Mode` holds the differences between evaluation and training: dropout, batch statistics, gradients cut at fixed neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from afaf.network.ops import Norm, Operation
from afaf.network.spec import Edge, NetworkSpec
from afaf.randomness import Key, keep_at

Observer = Callable[[int, Tensor], None]  # (neuron layer, its activation)
Operations = tuple[Operation, ...]


@dataclass
class Parameters:
    """Weights (outputs, inputs, block) and biases, those of W_l at index l - 1; norms by neuron layer."""

    weights: list[Tensor]
    biases: list[Tensor]
    norms: dict[int, Norm] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> Parameters:
        norms = {layer: Norm(*(tensor.to(device) for tensor in norm.tensors().values())) for layer, norm in self.norms.items()}
        return Parameters([weight.to(device) for weight in self.weights], [bias.to(device) for bias in self.biases], norms)


class Mode:
    """Evaluation: no dropout, running statistics, no gradients cut."""

    def neurons_above(
        self, edge: Edge, h: Tensor, weight: Tensor, bias: Tensor, operations: Operations, norms: dict[int, Norm], observe: Observer | None
    ) -> Tensor:
        """Apply an edge's product to h, then the operations of the edge's target layer."""
        layer = edge.target
        return self.operate(operations, layer, self.cut(layer, self.reach(edge, h, weight, bias)), norms, observe)

    def reach(self, edge: Edge, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The values of an edge's product, before any operation."""
        return edge.forward(h, weight, bias)

    def operate(self, operations: Operations, layer: int, h: Tensor, norms: dict[int, Norm], observe: Observer | None = None) -> Tensor:
        """Apply the operations of a neuron layer in order."""
        for operation in operations:
            h = self.apply(operation, layer, h, norms.get(layer))
            if operation.activates and observe is not None:
                observe(layer, h)
        if observe is not None and not any(operation.activates for operation in operations):
            observe(layer, h)
        return h

    def add(self, values: list[Tensor]) -> Tensor:
        """The sum of layers, always a new tensor."""
        return reduce(torch.add, values) if len(values) > 1 else values[0].clone()

    def apply(self, operation: Operation, layer: int, h: Tensor, norm: Norm | None) -> Tensor:
        return operation.evaluate(h, norm)

    def cut(self, layer: int, z: Tensor) -> Tensor:
        return z


EVALUATION = Mode()


@dataclass
class Training(Mode):
    """Learning: dropout keyed by image and neuron, batch statistics if norms move, no gradient through fixed neurons."""

    keys: Mapping[int, Key | Tensor]  # one per neuron layer, of this epoch
    samples: Tensor  # image numbers within the task, int32: draws are keyed by image, not by place in the batch
    grad_mask: dict[int, Tensor] = field(default_factory=dict)  # neuron layer -> 1 where gradients pass, 0 where they are cut
    norm_moves: bool = True
    neurons: dict[int, Tensor] = field(default_factory=dict)  # indices of the kept neurons; absent if all are kept
    norm_neurons: Mapping[int, Tensor | bool] | None = None  # neuron layer -> which use batch statistics, if norms move; None: all

    def cut(self, layer: int, z: Tensor) -> Tensor:
        if layer in self.grad_mask and z.requires_grad:
            grad_mask = self.grad_mask[layer].reshape(-1, *[1] * (z.dim() - 2))
            z.register_hook(lambda gradient: gradient * grad_mask.to(gradient.dtype))
        return z

    def apply(self, operation: Operation, layer: int, h: Tensor, norm: Norm | None) -> Tensor:
        return operation.train(h, norm, layer, self)

    def batch_statistics(self, layer: int) -> Tensor | bool:
        """Which neurons are normalised by the batch's statistics: all, none, or those of a mask."""
        if not self.norm_moves or self.norm_neurons is None:
            return self.norm_moves
        return self.norm_neurons.get(layer, False)

    def dropout_factors(self, layer: int, rate: float, h: Tensor) -> Tensor:
        """The factors of dropout, shaped like h: 0 or 1 / (1 - rate)."""
        positions = h[0, 0].numel()
        neurons = self.neurons.get(layer, torch.arange(h.shape[1], dtype=torch.int32, device=h.device))
        kept = keep_at(self.keys[layer], rate, self.samples, neurons, positions)
        return kept.to(h.dtype).mul_(1 / (1 - rate)).reshape(h.shape)


def forward(
    spec: NetworkSpec,
    parameters: Parameters,
    x: Tensor,
    *,
    mode: Mode = EVALUATION,
    observe: Observer | None = None,
    start: int = 1,
    stop: int | None = None,
    last_operations: Operations | None = None,
) -> Tensor:
    """The values of layer `stop` (by default the logits) after its operations, from x, the values of layer `start` (the images).

    Sizes are read from the tensors, so `parameters` may be a part of the network. `last_operations` replaces those of layer `stop`.
    """
    stop, values = spec.L if stop is None else stop, {start: x}
    for number in range(start + 1, stop + 1):
        layer = spec.layer(number)
        operations = last_operations if number == stop and last_operations is not None else layer.ops
        below = [values[source] for source in layer.inputs]
        if layer.edge is None:
            values[number] = mode.operate(operations, number, mode.cut(number, mode.add(below)), parameters.norms, observe)
        else:
            weight, bias = parameters.weights[layer.edge - 1], parameters.biases[layer.edge - 1]
            edge = spec.edge(layer.edge)
            values[number] = mode.neurons_above(edge, below[0], weight, bias, operations, parameters.norms, observe)
        for source in layer.inputs:
            if spec.last_readers[source] == number and source in values:
                del values[source]
    return values[stop]
