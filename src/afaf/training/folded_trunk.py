"""The trunk (the constant layers below l_reuse) with its constant neurons folded into the biases of the layer above.

A neuron without incoming connections has the same value at every position of every image, computed from its bias. Its contribution to the
layer above is constant too and is added to the biases there (no convolution is padded). The remaining layers need no gradient: they are
computed in place, with ReLU after the pool, which leaves a quarter of the values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from afaf.network.forward import Observer, Operations, Parameters, Training
from afaf.network.ops import Norm, Operation, relu_late
from afaf.network.spec import Edge, NetworkSpec

ROUND_TO = 8  # matrix products are fastest when the numbers of neurons are multiples of this
ROUND_TO_GPU = 16
ROUND_MAPS_TO_GPU = 32  # cuDNN computes gradients of kernels between other numbers of maps more slowly
WORTH_ROUNDING = 64  # smaller layers are not rounded


@dataclass
class FoldedTrunk:
    """The trunk restricted to the neurons that vary from image to image, and the constants of its last layer.

    Neurons that vary by dropout alone come last: they have biases but no rows in W_l.
    """

    parameters: Parameters
    neurons: dict[int, Tensor]  # layer -> indices of the neurons that vary; absent if all do
    varying: Tensor | None = None  # indices of the varying neurons among the kept ones of the last layer; None if all vary
    constant: Tensor | None = None  # value of each neuron of the last layer, 0 where it varies

    def whole(self, h: Tensor) -> Tensor:
        """The last layer with all its kept neurons, from those that vary."""
        if self.varying is None or self.constant is None:
            return h
        everywhere = self.constant.expand(len(h), *h.shape[2:], -1).clone()
        everywhere.index_copy_(everywhere.dim() - 1, self.varying, h.movedim(1, -1))
        return everywhere.movedim(-1, 1)


@torch.no_grad()
def fold_trunk(spec: NetworkSpec, parameters: Parameters, kept: dict[int, Tensor], entry: int) -> FoldedTrunk:
    """Fold the layers up to `entry`; `kept` holds the indices of the kept neurons of layers where not all are kept.

    Nothing is folded where layers meet, or where a padded convolution would see a constant map change at its border.
    """
    if not spec.is_chain:
        return FoldedTrunk(parameters, dict(kept))
    weights, biases = list(parameters.weights), list(parameters.biases)
    norms, neurons = dict(parameters.norms), dict(kept)
    top = FoldedTrunk(parameters, neurons)
    for l in range(1, entry):
        layer, operations = l + 1, spec.layer(l + 1).ops
        reached = rounded_up(weights[l - 1].flatten(1).any(dim=1), round_to(spec, layer, biases[l - 1].device))
        if len(reached) == len(biases[l - 1]):
            continue
        varying = reached
        constant = of_constant(operations, biases[l - 1], norms.get(layer)).index_fill(0, reached, 0)
        if any(operation.random for operation in operations):
            varying, constant = torch.cat([reached, torch.nonzero(constant).flatten()]), torch.zeros_like(constant)
        weights[l - 1], biases[l - 1] = weights[l - 1][reached], biases[l - 1][varying]
        neurons[layer] = kept[layer][varying] if layer in kept else varying
        if layer in norms:
            norms[layer] = norms[layer].part(varying)
        if layer < entry:
            biases[l] = biases[l] + weights[l].sum(dim=2) @ constant
            weights[l] = weights[l][:, varying]
        else:
            top.varying, top.constant = varying, constant
    top.parameters = Parameters(weights, biases, norms)
    return top


def dead_neurons(spec: NetworkSpec, parameters: Parameters, l: int) -> Tensor:
    """Whether each neuron of layer l of a chain is 0 for every image: no incoming connections, and 0 computed from its bias."""
    if l == 1:
        return torch.zeros(spec.layer(1).size, dtype=torch.bool, device=parameters.biases[0].device)
    value = of_constant(spec.layer(l).ops, parameters.biases[l - 2], parameters.norms.get(l))
    return (value == 0) & ~parameters.weights[l - 2].flatten(1).any(dim=1)


def of_constant(operations: Operations, value: Tensor, norm: Norm | None) -> Tensor:
    """The result of the operations for neurons that have one value everywhere, if nothing is dropped."""
    for operation in operations:
        value = operation.of_constant(value, norm)
    return value


def round_to(spec: NetworkSpec, l: int, device: torch.device) -> int:
    """Layer sizes are padded to a multiple of this."""
    if spec.layer(l).size < WORTH_ROUNDING:
        return 1
    if device.type != "cuda":
        return ROUND_TO
    return ROUND_MAPS_TO_GPU if spec.layer(l).role == "conv" else ROUND_TO_GPU


def rounded_up(marked: Tensor, to: int) -> Tensor:
    """Indices of the marked neurons, sorted, with others added up to a multiple of `to`; at least one."""
    count = int(marked.sum())
    wanted = min(len(marked), max(1, -(-count // to) * to))
    order = torch.sort(marked.to(torch.int8), descending=True, stable=True).indices  # marked ones first
    return torch.sort(order[:wanted]).values


@dataclass
class InplaceForward(Training):
    """Training-mode forward without gradients: values change in place. Neurons without a row in W_l take the value of their bias."""

    def reach(self, edge: Edge, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        reached, rest = bias.tensor_split([len(weight)])
        z = super().reach(edge, h, weight, reached)
        if not len(rest):
            return z
        return torch.cat([z, rest.view(1, -1, *[1] * (z.dim() - 2)).expand(len(z), -1, *z.shape[2:])], dim=1)

    def operate(self, operations: Operations, layer: int, h: Tensor, norms: dict[int, Norm], observe: Observer | None = None) -> Tensor:
        return super().operate(relu_late(operations), layer, h, norms, observe)

    def apply(self, operation: Operation, layer: int, h: Tensor, norm: Norm | None) -> Tensor:
        return operation.train_inplace(h, norm, layer, self)
