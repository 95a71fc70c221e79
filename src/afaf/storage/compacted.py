"""A model for production: the neurons from which an output can be reached, as small dense tensors, with normalisation and calibration.

It takes pixels as stored in an image file and returns logits and calibrated probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from afaf.network.forward import Parameters, forward
from afaf.network.spec import NetworkSpec
from afaf.network.subnetwork import neurons_that_answer, part_of
from afaf.streams.tasks import Preparation
from afaf.training.learner import Learner
from afaf.training.named import as_parameters, state_dict


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
    spec, whole = learner.network.spec, learner.network.parameters.to("cpu")
    rows = torch.tensor(list(labels.values()))
    everything = {s: torch.arange(spec.layer(s).size) for s in spec.groups} | {spec.L: rows}
    parameters = part_of(spec, whole, everything if dense else neurons_that_answer(spec, whole, rows))
    return Inference(spec, parameters, tuple(labels), preparation, bytes_in, temperature)


class FromPixels(nn.Module):
    """Turns pixels as stored in an image file into a network's inputs."""

    scale: Tensor
    shift: Tensor

    def __init__(self, inference: Inference):
        super().__init__()
        self.channels = inference.spec.input_shape[0] if len(inference.spec.input_shape) == 3 else None
        scale, shift = inference.scale_and_shift()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, images: Tensor) -> Tensor:
        h = images.to(torch.float32) * self.scale + self.shift
        if self.channels is not None:
            h = h.permute(0, 3, 1, 2)
            if h.shape[1] != self.channels:
                h = h.expand(-1, self.channels, -1, -1)
        return h


class InferenceModule(nn.Module):
    """The network for inference as a module, from pixels to (logits, probabilities), made of operations that exporters support."""

    def __init__(self, inference: Inference):
        super().__init__()
        self.spec, self.temperature = inference.spec, inference.temperature
        self.prepare = FromPixels(inference)
        named = state_dict(inference.parameters)
        self.names = {name.replace("/", "_"): name for name in named}  # by buffer
        for buffer, name in self.names.items():
            self.register_buffer(buffer, named[name])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.logits(self.prepare(images))
        return logits, torch.softmax(logits / self.temperature, 1)

    def logits(self, x: Tensor) -> Tensor:
        return forward(self.spec, as_parameters({name: getattr(self, buffer) for buffer, name in self.names.items()}), x)


def random_pixels(inference: Inference, n: int, seed: int = 0) -> Tensor:
    """Images of noise in the model's input format: bytes, or numbers around the mean of its training images."""
    draw = torch.Generator().manual_seed(seed)
    shape = (n, *inference.input_shape)
    if inference.bytes_in:
        return torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    mean, std = (torch.tensor(values) for values in (inference.preparation.mean, inference.preparation.std))
    return torch.randn(prod(shape), generator=draw).reshape(shape) * std + mean
