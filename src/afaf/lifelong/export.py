"""Export of a model for production, verified before it is handed over."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from afaf.errors import ConfigError, FileError
from afaf.files import fill, write_output
from afaf.files.marks import Format
from afaf.lifelong.model import Lifelong
from afaf.storage.compacted import Inference, InferenceModule, for_inference, random_pixels
from afaf.storage.onnx_file import need, onnx_bytes

Kind = Literal["onnx", "torch"]
FORMATS: dict[Kind, Format] = {"onnx": "onnx", "torch": "pt2"}
Answer = Callable[[NDArray[Any]], tuple[NDArray[Any], NDArray[Any]]]  # pixels -> logits, probabilities
RANDOM = 64  # images of noise that an export is tried on, in batches of different sizes
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
    return for_inference(
        model.learner,
        model.life.known,
        model.preparation,
        bytes_in=model.life.pixels == "uint8",
        temperature=model.temperature,
        dense=dense,
    )


def export(
    model: Lifelong,
    path: Path,
    kind: Kind,
    real: NDArray[Any] | None = None,
    *,
    dense: bool = False,
    inputs: Sequence[Path] = (),
    force: bool = False,
) -> Exported:
    """Write the inference network, read it back, and compare its answers with the model's; only one that agrees gets its name.

    `inputs` are files that must not be replaced; `force` allows to replace any other file.
    """
    if kind == "onnx":
        need("onnxruntime")
    inference = inference_of(model, dense=dense)
    about = {
        "method": model.model.method,
        "network": model.spec.name,
        "input": list(inference.input_shape),
        "temperature": model.temperature,
    }
    data = (onnx_bytes if kind == "onnx" else torch_bytes)(inference, about)
    tried = [random_pixels(inference, RANDOM).numpy(), *([] if real is None else [real])]
    differences: list[float] = []

    def write(temporary: Path) -> None:
        fill(temporary, data)
        answer = open_onnx(temporary) if kind == "onnx" else open_torch(temporary)
        differences.extend(difference_of(model, answer, pixels) for pixels in tried)
        if not max(differences) <= TOLERANCE:
            said = f"its answers differ from the model's by {max(differences):.2g}, more than {TOLERANCE:g}"
            raise FileError(f"{path} was not written: {said}")

    write_output(path, FORMATS[kind], write, inputs, force=force)
    return Exported(path, len(data), inference.weights, model.spec.dense_params, 0 if real is None else len(real), max(differences))


def difference_of(model: Lifelong, answer: Answer, pixels: NDArray[Any]) -> float:
    """The largest difference of any logit, relative to the largest logit where that exceeds 1, or of any probability."""
    return difference_from(model.logits(pixels), model.temperature, answer, pixels)


def difference_from(logits: NDArray[Any], temperature: float, answer: Answer, pixels: NDArray[Any]) -> float:
    """The same from the model's logits, where they are known."""
    probabilities = torch.softmax(torch.from_numpy(logits).double() / temperature, 1).numpy()
    found = [answer(part) for part in (pixels[:1], pixels[1:]) if len(part)]  # the batch is of any size
    got = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    scale = max(1.0, float(np.abs(logits).max()))
    return max(float(np.abs(got[0] - logits).max()) / scale, float(np.abs(got[1] - probabilities).max()))


def torch_bytes(inference: Inference, about: dict[str, Any]) -> bytes:
    """A torch.export program with a dynamic batch; labels.json and afaf.json are among its extra files."""
    module = InferenceModule(inference).eval()
    example = random_pixels(inference, 2)
    program = torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=1 << 20)},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"labels.json": json.dumps(inference.labels), "afaf.json": json.dumps(about)})
    return buffer.getvalue()


def open_torch(path: Path) -> Answer:
    with path.open("rb") as file:
        module = torch.export.load(io.BytesIO(file.read())).module()

    def answer(pixels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        with torch.no_grad():
            logits, probabilities = module(torch.from_numpy(np.ascontiguousarray(pixels)))
        return logits.numpy(), probabilities.numpy()

    return answer


def open_onnx(path: Path, threads: int = 0) -> Answer:
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(pixels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        logits, probabilities = session.run(["logits", "probabilities"], {"images": np.ascontiguousarray(pixels)})
        return logits, probabilities

    return answer
