"""Export of a model for production, verified before it is handed over."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from afaf.encoders.runtime import onnx_session
from afaf.errors import ConfigError, FileError
from afaf.files import fill, write_output
from afaf.files.marks import Format
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.encoded_module import encoded_program
from afaf.lifelong.life import Label
from afaf.lifelong.model import Lifelong
from afaf.lifelong.model_store import AnyModel
from afaf.lifelong.parts_module import PartsModule
from afaf.storage.compacted import Inference, InferenceModule, for_inference, random_pixels
from afaf.storage.exported import exported_program, need, onnx_bytes, torch_bytes

Kind = Literal["onnx", "torch"]
FORMATS: dict[Kind, Format] = {"onnx": "onnx", "torch": "pt2"}
BYTES = {"onnx": onnx_bytes, "torch": torch_bytes}
Answer = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]  # pixels -> logits, probabilities
RANDOM = 64  # images of noise that an export is tried on, in batches of different sizes
ENCODED_RANDOM = 5  # the same, for a model with an encoder
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its answers lie from the model's."""

    path: Path
    bytes: int
    weights: int
    dense_weights: int
    images: int  # real ones it was tried on
    difference: float  # the largest of any logit or probability


def inference_of(model: Lifelong, *, dense: bool = False) -> Inference:
    if model.method.predictor(model.learner) is not model.learner.network:
        raise ConfigError(f"method '{model.model.method}' answers with a head that is no part of the network, and cannot be exported")
    if model.identity is not None:
        raise ConfigError(f"a network on features of an encoder ({model.identity.name}) cannot be exported: a head in closed form can")
    every_row: dict[Label, int] = {row: row for row in range(model.spec.n_classes)}
    return for_inference(
        model.learner,
        every_row if model.parts.any else model.life.known,  # the parts need all output rows, the network alone those of its classes
        model.preparation,
        bytes_in=model.life.pixels == "uint8",
        temperature=model.temperature,
        dense=dense,
    )


@dataclass(frozen=True)
class Prepared:
    """A model as the bytes of a file, and images of noise to try it on."""

    data: bytes
    noise: NDArray[Any]
    weights: int
    dense_weights: int


def export(
    model: AnyModel,
    path: Path,
    kind: Kind,
    real: NDArray[Any] | None = None,
    *,
    dense: bool = False,
    inputs: Sequence[Path] = (),
    force: bool = False,
) -> Exported:
    """Write the inference network, read it back, and compare its answers with the model's; only one that agrees gets its name.

    A model with an encoder is written with it, and `real` images are prepared as it takes them. `inputs` are files that must not be
    replaced; `force` allows to replace any other file.
    """
    if kind == "onnx":
        need("onnxruntime")
    ready = _with_encoder(model, kind) if isinstance(model, EncodedModel) else _network(model, kind, dense)
    tried = [ready.noise, *([] if real is None else [as_taken(real, ready.noise)])]
    differences: list[float] = []

    def write(temporary: Path) -> None:
        fill(temporary, ready.data)
        answer = open_onnx(temporary) if kind == "onnx" else open_torch(temporary)
        differences.extend(difference_of(model, answer, pixels) for pixels in tried)
        if not max(differences) <= TOLERANCE:
            said = f"its answers differ from the model's by {max(differences):.2g}, more than {TOLERANCE:g}"
            raise FileError(f"{path} was not written: {said}")

    write_output(path, FORMATS[kind], write, inputs, force=force)
    images = 0 if real is None else len(real)
    return Exported(path, len(ready.data), ready.weights, ready.dense_weights, images, max(differences))


def _network(model: Lifelong, kind: Kind, dense: bool) -> Prepared:
    inference = inference_of(model, dense=dense)
    module = PartsModule(inference, model, dense=dense) if model.parts.any else InferenceModule(inference)
    about = {
        "method": model.model.method,
        "network": model.spec.name,
        "input": list(inference.input_shape),
        "temperature": model.temperature,
    }
    program, noise = exported_program(module, random_pixels(inference, 2)), random_pixels(inference, RANDOM).numpy()
    weights = number_of_weights(program) if model.parts.any else inference.weights
    return Prepared(BYTES[kind](program, list(model.life.known), about), noise, weights, model.spec.dense_params)


def _with_encoder(model: EncodedModel, kind: Kind) -> Prepared:
    size = model.identity.preprocessing.size
    about = {
        "encoder": model.identity.to_dict(),
        "head": model.head.name,
        "input": [size, size, 3],
        "temperature": model.temperature,
    }
    program = encoded_program(model)
    noise = np.random.default_rng(0).integers(0, 256, (ENCODED_RANDOM, size, size, 3), dtype=np.uint8)
    weights = number_of_weights(program)
    return Prepared(BYTES[kind](program, list(model.life.known), about), noise, weights, weights)


def as_taken(real: NDArray[Any], noise: NDArray[Any]) -> NDArray[Any]:
    """Images as the written network takes them. A model taught floats reads the bytes of image files as numbers 0..255, as in `predict`."""
    return real if noise.dtype == np.uint8 else real.astype(noise.dtype)


def number_of_weights(program: Any) -> int:
    """All numbers that a program computes with."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())


def difference_of(model: AnyModel, answer: Answer, pixels: NDArray[Any]) -> float:
    """The largest difference of any logit, relative to the largest logit where that exceeds 1, or of any probability."""
    if isinstance(model, EncodedModel):
        parts = [model.scores(model.encoder.encode(part)) for part in np.array_split(pixels, -(-len(pixels) // model.encoder.batch))]
        return difference_from(torch.cat(parts).numpy(), model.temperature, answer, pixels)
    return difference_from(model.logits(pixels), model.temperature, answer, pixels)


def difference_from(logits: NDArray[Any], temperature: float, answer: Answer, pixels: NDArray[Any]) -> float:
    """The same from the model's logits, where they are known."""
    probabilities = torch.softmax(torch.from_numpy(logits).double() / temperature, 1).numpy()
    found = [answer(part) for part in (pixels[:1], pixels[1:]) if len(part)]  # the batch is of any size
    got = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    scale = max(1.0, float(np.abs(logits).max()))
    return max(float(np.abs(got[0] - logits).max()) / scale, float(np.abs(got[1] - probabilities).max()))


def open_torch(path: Path) -> Answer:
    module = torch.export.load(io.BytesIO(path.read_bytes())).module()

    def answer(pixels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        with torch.no_grad():
            logits, probabilities = module(torch.from_numpy(np.ascontiguousarray(pixels)))
        return logits.numpy(), probabilities.numpy()

    return answer


def open_onnx(path: Path, threads: int = 0) -> Answer:
    session = onnx_session(path, threads)

    def answer(pixels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        logits, probabilities = session.run(["logits", "probabilities"], {"images": np.ascontiguousarray(pixels)})
        return logits, probabilities

    return answer
