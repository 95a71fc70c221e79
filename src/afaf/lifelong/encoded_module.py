"""An encoder and its head as one module, from prepared images to logits and probabilities, for export."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afaf.encoders.find import tensor_of
from afaf.errors import ConfigError
from afaf.heads.features import evened
from afaf.lifelong.encoded import EncodedModel
from afaf.storage.onnx_file import need


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
        self.register_buffer("projection", None if model.projection is None else model.projection.matrix)
        self.register_buffer("weights", model.linear.weights[known].float())
        self.register_buffer("bias", model.linear.bias[known].float())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = tensor_of(self.encoder((images.permute(0, 3, 1, 2).float() - self.mean) / self.std))
        features = evened(features.mean((2, 3)) if features.ndim == 4 else features)
        if self.projection is not None:
            features = F.relu(features @ self.projection)
        logits = features @ self.weights.T + self.bias
        return logits, torch.softmax(logits / self.temperature, 1)


def exported_program(model: EncodedModel) -> Any:
    """The module as a torch.export program, for a batch of any size."""
    size = model.identity.preprocessing.size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    module = EncodedModule(model).eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    try:
        with torch.no_grad():
            return torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    except Exception as error:  # torch.export has many, and an encoder may be anything
        raise ConfigError(f"PyTorch cannot export the encoder {model.identity.name}: {str(error)[:200]}") from None


def torch_bytes(program: Any, labels: list[Any], about: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors that are views, which are saved whole
        torch.export.save(program, buffer, extra_files={"labels.json": json.dumps(labels), "afaf.json": json.dumps(about)})
    return buffer.getvalue()


def onnx_bytes(program: Any, labels: list[Any], about: dict[str, Any]) -> bytes:
    """Written by PyTorch's own exporter, which needs onnxscript."""
    need("onnxscript")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that it does not need
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = torch.onnx.export(program, dynamo=True, input_names=["images"], output_names=["logits", "probabilities"], verbose=False)
    assert written is not None
    proto = written.model_proto
    need("onnx").helper.set_model_props(proto, {"labels": json.dumps(labels), "afaf": json.dumps(about)})
    data: bytes = proto.SerializeToString()
    return data
