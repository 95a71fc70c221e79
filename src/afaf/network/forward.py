"""The forward pass of a described network, as one function that every engine and every measurement calls.

What differs between using a network and training it (dropout, batch statistics, gradients cut at fixed neurons) is a `Mode`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.network.spec import Connections, NetworkSpec, Operation
from afaf.randomness import Key, keep_at

Observer = Callable[[int, Tensor], None]  # (neuron layer, its activation after ReLU)


@dataclass
class Norm:
    """Batch normalisation of one neuron layer."""

    gain: Tensor
    shift: Tensor
    mean: Tensor
    var: Tensor

    def clone(self) -> Norm:
        return Norm(self.gain.clone(), self.shift.clone(), self.mean.clone(), self.var.clone())

    def part(self, neurons: Tensor) -> Norm:
        return Norm(self.gain[neurons], self.shift[neurons], self.mean[neurons], self.var[neurons])

    def leaf(self, moves: bool) -> Norm:
        """The same numbers, with gain and shift as leaves of a new graph."""
        return Norm(self.gain.detach().requires_grad_(moves), self.shift.detach().requires_grad_(moves), self.mean, self.var)

    def tensors(self) -> dict[str, Tensor]:
        return {"gain": self.gain, "shift": self.shift, "mean": self.mean, "var": self.var}


@dataclass
class Parameters:
    """Weights (outputs, inputs, block) and biases by l of W_l, minus 1; norms by neuron layer."""

    weights: list[Tensor]
    biases: list[Tensor]
    norms: dict[int, Norm] = field(default_factory=dict)


class Mode:
    """Evaluation: no dropout, running statistics, nothing cut."""

    def neurons_above(
        self,
        join: Connections,
        layer: int,
        h: Tensor,
        weight: Tensor,
        bias: Tensor,
        operations: tuple[Operation, ...],
        norms: dict[int, Norm],
        observe: Observer | None,
    ) -> Tensor:
        """Carry h through W_l into the neurons of `layer`, and through the operations that follow there."""
        return self.operate(operations, layer, self.cut(layer, self.reach(join, h, weight, bias)), norms, observe)

    def reach(self, join: Connections, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """What arrives at the neurons above, before anything follows."""
        return product(join, h, weight, bias)

    def operate(
        self, operations: tuple[Operation, ...], layer: int, h: Tensor, norms: dict[int, Norm], observe: Observer | None = None
    ) -> Tensor:
        """What follows the weights into a neuron layer, in order."""
        for operation in operations:
            if operation == "relu":
                h = F.relu(h)
                if observe is not None:
                    observe(layer, h)
            elif operation == "pool":
                h = F.max_pool2d(h, 2)
            elif operation == "dropout":
                h = self.dropout(layer, h)
            else:
                h = self.norm(layer, h, norms[layer])
        return h

    def cut(self, layer: int, z: Tensor) -> Tensor:
        return z

    def dropout(self, layer: int, h: Tensor) -> Tensor:
        return h

    def norm(self, layer: int, h: Tensor, norm: Norm) -> Tensor:
        return F.batch_norm(h, norm.mean, norm.var, norm.gain, norm.shift, training=False)


EVALUATION = Mode()


@dataclass
class Training(Mode):
    """Learning: dropout keyed by image and neuron, batch statistics if norms move, no gradient through fixed neurons."""

    rate: float
    keys: Mapping[int, Key | Tensor]  # one per neuron layer, of this epoch
    samples: Tensor  # the images' numbers within the task, int32: a draw belongs to an image, not to a place in a batch
    grad_mask: dict[int, Tensor] = field(default_factory=dict)  # neuron layer -> 1 where gradients pass, 0 where they are cut
    norm_moves: bool = True
    neurons: dict[int, Tensor] = field(default_factory=dict)  # numbers of the neurons that are there, where not all are

    def cut(self, layer: int, z: Tensor) -> Tensor:
        if layer in self.grad_mask and z.requires_grad:
            grad_mask = self.grad_mask[layer].reshape(-1, *[1] * (z.dim() - 2))
            z.register_hook(lambda gradient: gradient * grad_mask.to(gradient.dtype))
        return z

    def dropout(self, layer: int, h: Tensor) -> Tensor:
        return h if self.rate == 0 else h * self.factors(layer, h)

    def factors(self, layer: int, h: Tensor) -> Tensor:
        """What dropout multiplies h with: 0, or what makes up for the zeros."""
        positions = h[0, 0].numel()
        neurons = self.neurons.get(layer, torch.arange(h.shape[1], dtype=torch.int32, device=h.device))
        kept = keep_at(self.keys[layer], self.rate, self.samples, neurons, positions)
        return kept.to(h.dtype).mul_(1 / (1 - self.rate)).reshape(h.shape)

    def norm(self, layer: int, h: Tensor, norm: Norm) -> Tensor:
        if not self.norm_moves or h.numel() == h.shape[1]:  # one value a neuron has no spread: a last batch of a single image
            return super().norm(layer, h, norm)
        return F.batch_norm(h, norm.mean, norm.var, norm.gain, norm.shift, training=True)


def forward(
    spec: NetworkSpec,
    parameters: Parameters,
    x: Tensor,
    *,
    mode: Mode = EVALUATION,
    observe: Observer | None = None,
    first: int = 1,
    last: int | None = None,
    last_operations: tuple[Operation, ...] | None = None,
) -> Tensor:
    """Carry x through W_first..W_last (all of them by default): the logits, or the last layer once its operations are done.

    Sizes are read off the tensors, so that a part of the network may be given; `last_operations` may leave out the last layer's last ones.
    """
    h = x
    last = spec.L - 1 if last is None else last
    for l in range(first, last + 1):
        join = spec.connections(l)
        operations = last_operations if l == last and last_operations is not None else join.then
        weight, bias = parameters.weights[l - 1], parameters.biases[l - 1]
        h = mode.neurons_above(join, l + 1, h, weight, bias, operations, parameters.norms, observe)
    return h


def product(join: Connections, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W_l h + b: a convolution (channels last: the layout it is fastest with) or a product of matrices."""
    if join.kind == "dense":
        return F.linear(h.flatten(1), weight.flatten(1), bias)
    kernels = weight.reshape(*weight.shape[:2], join.kernel, join.kernel)
    return F.conv2d(h.contiguous(memory_format=torch.channels_last), kernels, bias)
