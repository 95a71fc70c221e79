"""An encoder and its head as one module, from prepared images to logits and probabilities, for export."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afaf.encoders.encoder import tensor_of
from afaf.errors import ConfigError
from afaf.heads.features import evened
from afaf.lifelong.encoded import EncodedModel
from afaf.storage.exported import exported_program


class EncodedModule(nn.Module):
    """Takes bytes (n, size, size, 3): the middle square of an image, scaled to the encoder's size."""

    mean: Tensor
    std: Tensor
    weights: Tensor
    bias: Tensor
    projection: Tensor | None

    def __init__(self, model: EncodedModel):
        super().__init__()
        module = model.encoder.module
        if module is None:
            raise ConfigError(
                f"the encoder {model.identity.name} is an ONNX file, which cannot be joined with the head: name it as timm:NAME, "
                "torchvision:NAME or a .pt2 file when a model is begun, to export it"
            )
        known, how = list(model.life.known.values()), model.identity.preprocessing
        self.encoder, self.temperature = copy.deepcopy(module).cpu(), model.temperature
        self.register_buffer("mean", torch.tensor(how.mean).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(how.std).reshape(3, 1, 1))
        self.register_buffer("projection", None if model.projection is None else model.projection.matrix.float())
        self.register_buffer("weights", model.linear.weights[known].float())
        self.register_buffer("bias", model.linear.bias[known].float())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = tensor_of(self.encoder((images.permute(0, 3, 1, 2).float() - self.mean) / self.std))
        features = evened(features.mean((2, 3)) if features.ndim == 4 else features)
        if self.projection is not None:
            features = F.relu(features @ self.projection)
        logits = features @ self.weights.T + self.bias
        return logits, torch.softmax(logits / self.temperature, 1)


def encoded_program(model: EncodedModel) -> Any:
    """The module as a torch.export program, for a batch of any size."""
    size = model.identity.preprocessing.size
    module = EncodedModule(model).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    try:
        return exported_program(module, torch.zeros(2, size, size, 3, dtype=torch.uint8))
    except Exception as error:  # torch.export raises many kinds, and an encoder may be any module
        raise ConfigError(f"PyTorch cannot export the encoder {model.identity.name}: {str(error)[:200]}") from None
