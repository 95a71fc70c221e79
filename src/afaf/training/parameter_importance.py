"""The importance of each parameter: squared or absolute gradients of a measure of the network's outputs.

Two estimators, for any measure m(x) that is one number per image (a log-likelihood for EWC, the size of the output for MAS), with
a(g) = g^2 or |g| and N images:

    batch       1/N  sum over batches B  |B| a( 1/|B| sum over x in B of dm(x)/dw )
    per-sample  1/N  sum over images  x      a( dm(x)/dw )

`batch` is FACIL's estimator (the paper's strengths are for it): one more epoch in training mode, with augmentation, dropout and batch
statistics. Gradients of different images cancel within a batch, so with squares it is up to |B| times smaller than `per-sample`, the
textbook definition, which uses un-augmented images in evaluation mode. Parameters are those of `named.protected_parameters`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from afaf.network.forward import Mode, Parameters, Training, forward
from afaf.network.net import Network
from afaf.network.ops import EPSILON, Norm, Operation, Size
from afaf.network.spec import Edge, NetworkSpec
from afaf.randomness import Key, uniform_at
from afaf.training.named import Named, protected_parameters
from afaf.training.task_data import RngScope, TaskData


class Measure(Protocol):
    """(logits, true labels, numbers of the images) -> one number per image."""

    def __call__(self, logits: Tensor, true: Tensor, samples: Tensor) -> Tensor: ...


Labels = Literal["model", "true", "sampled"]

FLOATS_AT_ONCE = 1 << 25  # gradients of single images held at a time: 128 MiB of float32
BATCHES_AT_ONCE = 32  # batches whose images are drawn together


# Measures.


def negative_log_likelihood(columns: Tensor, labels: Labels, key: Key) -> Measure:
    """-log p(y|x) among the outputs `columns`, where y is the model's own answer, the true label, or drawn from the model's p(y|x).

    Draws are keyed by image: they do not depend on the order or the batches.
    """

    def measure(logits: Tensor, true: Tensor, samples: Tensor) -> Tensor:
        log_p = F.log_softmax(logits[:, columns], 1)
        if labels == "model":
            chosen = log_p.argmax(1)
        elif labels == "true":
            chosen = (true[:, None] == columns).to(torch.int64).argmax(1)
        else:
            below = log_p.detach().exp().cumsum(1)[:, :-1]  # an answer is passed over while the draw is not below its upper bound
            chosen = (uniform_at(key, samples)[:, None] >= below).sum(1)
        return -log_p.gather(1, chosen[:, None])[:, 0]

    return measure


def output_size(columns: Tensor, *, squared: bool) -> Measure:
    """The Euclidean norm of the outputs `columns`, or its square; no label is needed."""

    def measure(logits: Tensor, true: Tensor, samples: Tensor) -> Tensor:
        outputs = logits[:, columns]
        return outputs.square().sum(1) if squared else torch.linalg.vector_norm(outputs, dim=1)

    return measure


# Estimators.


def batch_importance(
    network: Network, data: TaskData, measure: Measure, size: Size, *, batch_size: int, scope: RngScope, norm_moves: bool = True
) -> Named:
    """The importance of each protected parameter from the gradients of whole batches, with the random draws of `scope`."""
    total = {name: torch.zeros_like(tensor) for name, tensor in protected_parameters(network.parameters).items()}
    for drawn in data.order(scope).split(batch_size * BATCHES_AT_ONCE):
        for samples, x, labels in zip(*(part.split(batch_size) for part in (drawn, *data.batch(drawn, scope))), strict=True):
            leaves = _leaves(network.parameters)
            mode = _training(network.spec, scope, samples, norm_moves)
            mean = measure(forward(network.spec, leaves, x, mode=mode), labels, samples).mean()
            gradients = torch.autograd.grad(mean, list(protected_parameters(leaves).values()))
            torch._foreach_add_(list(total.values()), [size(gradient) for gradient in gradients], alpha=len(samples))
    return {name: tensor / len(data) for name, tensor in total.items()}


def per_sample_importance(network: Network, data: TaskData, measure: Measure, size: Size) -> Named:
    """The importance of each protected parameter from the gradients of single images, many images at a time."""
    total = {name: torch.zeros_like(tensor) for name, tensor in protected_parameters(network.parameters).items()}
    for samples in torch.arange(len(data), device=data.device).split(images_at_once(network.spec)):
        x, labels = data.batch(samples)
        measured = partial(measure, true=labels, samples=samples)
        for name, gradient in _sizes_of_gradients(network, x, measured, size).items():
            total[name] += gradient
    return {name: tensor / len(data) for name, tensor in total.items()}


def images_at_once(spec: NetworkSpec) -> int:
    """How many images fit: dense layers need no gradients per image, a convolution needs a kernel stack and its unfolded input."""
    needed = [edge.product.sample_floats(edge.weights, edge.inputs * edge.block * edge.positions) for edge in spec.edges]
    return max(1, min(512, FLOATS_AT_ONCE // max([*needed, 1])))


class _Watching(Mode):
    """Evaluation that stores the inputs and the result of each product and each norm."""

    def __init__(self) -> None:
        self.products: dict[int, tuple[Tensor, Tensor]] = {}  # by the layer that a product leads into
        self.normed: dict[int, tuple[Tensor, Tensor]] = {}

    def reach(self, edge: Edge, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        z = super().reach(edge, h, weight, bias)
        self.products[edge.target] = (h.detach(), z if z.requires_grad else z.requires_grad_())
        return z

    def apply(self, operation: Operation, layer: int, h: Tensor, norm: Norm | None) -> Tensor:
        y = super().apply(operation, layer, h, norm)
        if operation.has_norm:
            self.normed[layer] = (h, y)
        return y


def _sizes_of_gradients(network: Network, x: Tensor, measure: Callable[[Tensor], Tensor], size: Size) -> Named:
    """Sum over the images of a(gradient). In evaluation mode images do not mix: one backward pass gives each image's deltas."""
    spec, parameters, watching = network.spec, network.parameters, _Watching()
    logits = forward(spec, parameters, x, mode=watching)
    products = [(l, edge, *watching.products[edge.target]) for l, edge in enumerate(spec.edges[:-1], 1)]
    watched = [*(z for *_, z in products), *(y for _, y in watching.normed.values())]
    deltas = iter(torch.autograd.grad(measure(logits).sum(), watched))
    found: Named = {}
    for l, edge, inputs, _ in products:
        delta = next(deltas)
        found[f"weight/{l}"] = edge.product.sample_importance(inputs, delta, size).reshape(edge.shape)
        found[f"bias/{l}"] = size(_over_positions(delta)).sum(0)
    for layer, (entered, _) in watching.normed.items():
        norm, delta = parameters.norms[layer], next(deltas)
        shape = (-1, *[1] * (delta.dim() - 2))
        normalised = (entered.detach() - norm.mean.reshape(shape)) / (norm.var + EPSILON).sqrt().reshape(shape)
        found[f"gain/{layer}"] = size(_over_positions(delta * normalised)).sum(0)
        found[f"shift/{layer}"] = size(_over_positions(delta)).sum(0)
    return found


def _over_positions(delta: Tensor) -> Tensor:
    return delta.flatten(2).sum(2) if delta.dim() > 2 else delta


def _training(spec: NetworkSpec, scope: RngScope, samples: Tensor, norm_moves: bool) -> Training:
    keys = {layer: scope.key("dropout", layer) for layer in range(2, spec.L)}
    return Training(keys, samples.to(torch.int32), norm_moves=norm_moves)


def _leaves(parameters: Parameters) -> Parameters:
    """Parameters that require gradients; running statistics are copies, so that the originals do not change."""
    norms = {
        layer: Norm(norm.gain.detach().requires_grad_(), norm.shift.detach().requires_grad_(), norm.mean.clone(), norm.var.clone())
        for layer, norm in parameters.norms.items()
    }
    return Parameters(
        [weight.detach().requires_grad_() for weight in parameters.weights],
        [bias.detach().requires_grad_() for bias in parameters.biases],
        norms,
    )
