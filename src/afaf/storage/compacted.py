"""A model for production: the neurons from which an output can be reached, as small dense tensors, with normalisation and calibration.

Pixels go in as an image file has them, logits and calibrated probabilities come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from afaf.network.forward import Parameters, forward
from afaf.network.ledger import reached_back
from afaf.network.ops import Norm
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Preparation
from afaf.training.learner import Learner


@dataclass(frozen=True)
class Inference:
    """A network for inference: parameters of the kept neurons, for the output rows of `labels`."""

    spec: NetworkSpec  # of the whole network: kinds, kernels, operations
    parameters: Parameters
    labels: tuple[str | int | float | bool, ...]
    preparation: Preparation
    bytes_in: bool  # whether pixels are bytes
    temperature: float

    @property
    def weights(self) -> int:
        return sum(weight.numel() for weight in self.parameters.weights)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one image as given: (height, width, channels), or (features,)."""
        shape = self.spec.input_shape
        if len(shape) == 1:
            return shape
        repeated = self.preparation.channels is not None and len(self.preparation.mean) == 1
        return (shape[1], shape[2], 1 if repeated else shape[0])

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Normalisation as x * scale + shift, one number a channel."""
        unit = 255.0 if self.bytes_in else 1.0
        mean, std = (torch.tensor(values, dtype=torch.float64) for values in (self.preparation.mean, self.preparation.std))
        return (1 / (std * unit)).float(), (-mean / std).float()


def for_inference(
    learner: Learner,
    labels: dict[str | int | float | bool, int],
    preparation: Preparation,
    *,
    bytes_in: bool,
    temperature: float = 1.0,
    dense: bool = False,
) -> Inference:
    """The part of a network that computes the outputs; `labels` maps the labels to keep to their rows. `dense` keeps all neurons."""
    spec = learner.network.spec
    rows = torch.tensor(list(labels.values()))
    kept = {s: torch.arange(spec.layer(s).size) for s in spec.groups} if dense else neurons_that_answer(learner, rows)
    kept[spec.L] = rows
    whole, edges = learner.network.parameters, spec.edges
    weights = [
        weight.detach().cpu()[kept[edge.target_group]][:, edge.columns(kept[edge.source_group])].clone()
        for weight, edge in zip(whole.weights, edges, strict=True)
    ]
    biases = [b.detach().cpu()[kept[e.target_group]].clone() for b, e in zip(whole.biases, edges, strict=True)]
    norms = {
        layer: Norm(*(t.detach().cpu()[kept[spec.layer(layer).group]] for t in norm.tensors().values()))
        for layer, norm in whole.norms.items()
    }
    return Inference(spec, Parameters(weights, biases, norms), tuple(labels), preparation, bytes_in, temperature)


def neurons_that_answer(learner: Learner, rows: Tensor) -> dict[int, Tensor]:
    """The neurons of each group from which one of these outputs can be reached through live connections; of the input, all."""
    spec = learner.network.spec
    reach = {s: torch.zeros(spec.layer(s).size, dtype=torch.bool) for s in spec.groups}
    reach[spec.L][rows] = True
    live = [(weight.detach().cpu() != 0).any(dim=2) for weight in learner.network.parameters.weights]
    reach = reached_back(spec, live, reach)
    kept = {s: torch.nonzero(marked).flatten() for s, marked in reach.items()} | {1: torch.arange(spec.layer(1).size)}
    return {s: index if len(index) else torch.zeros(1, dtype=torch.int64) for s, index in kept.items()}  # a layer cannot be empty


class InferenceModule(nn.Module):
    """The same as a module, from pixels to (logits, probabilities), made of operations that exporters know."""

    scale: Tensor
    shift: Tensor

    def __init__(self, inference: Inference):
        super().__init__()
        self.spec, self.temperature = inference.spec, inference.temperature
        self.channels = inference.spec.input_shape[0] if len(inference.spec.input_shape) == 3 else None
        scale, shift = inference.scale_and_shift()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.norm_layers = tuple(inference.parameters.norms)
        for l, (weight, bias) in enumerate(zip(inference.parameters.weights, inference.parameters.biases, strict=True), 1):
            self.register_buffer(f"weight_{l}", weight)
            self.register_buffer(f"bias_{l}", bias)
        for layer, norm in inference.parameters.norms.items():
            for name, tensor in norm.tensors().items():
                self.register_buffer(f"norm_{layer}_{name}", tensor)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        h = images.to(torch.float32) * self.scale + self.shift
        if self.channels is not None:
            h = h.permute(0, 3, 1, 2)
            if h.shape[1] != self.channels:
                h = h.expand(-1, self.channels, -1, -1)
        logits = forward(self.spec, self.numbers(), h)
        return logits, torch.softmax(logits / self.temperature, 1)

    def numbers(self) -> Parameters:
        weights, biases = ([getattr(self, f"{kind}_{l}") for l in self.spec.edge_numbers] for kind in ("weight", "bias"))
        norms = {l: Norm(*(getattr(self, f"norm_{l}_{name}") for name in ("gain", "shift", "mean", "var"))) for l in self.norm_layers}
        return Parameters(weights, biases, norms)


def random_pixels(inference: Inference, n: int, seed: int = 0) -> Tensor:
    """Images of noise, as the model takes them: bytes, or numbers around the mean of its training images."""
    draw = torch.Generator().manual_seed(seed)
    shape = (n, *inference.input_shape)
    if inference.bytes_in:
        return torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    mean, std = (torch.tensor(values) for values in (inference.preparation.mean, inference.preparation.std))
    return torch.randn(prod(shape), generator=draw).reshape(shape) * std + mean
