"""`afaf export`: a model for production."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from afaf.cli.answers import image_size, open_ready
from afaf.cli.consoles import say
from afaf.errors import ConfigError
from afaf.files import check_output
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.export import FORMATS, Kind, export
from afaf.lifelong.model_store import AnyModel, check_place
from afaf.streams.own import read_images
from afaf.streams.sources.class_folders import image_files


def export_model(
    path: Path,
    *,
    onnx: Path | None,
    torch: Path | None,
    images: Sequence[Path],
    dense: bool,
    encoder: str | None,
    force: bool,
    out: Console,
) -> None:
    if onnx is None and torch is None:
        raise ConfigError("name what to write: --onnx OUT.onnx or --torch OUT.pt2")
    files = [file for source in images for file in image_files(source)]
    model = open_ready(path, "cpu", encoder)
    asked: list[tuple[Kind, Path | None]] = [("onnx", onnx), ("torch", torch)]
    kinds = [(kind, target) for kind, target in asked if target is not None]
    inputs = [path, *files]
    for kind, target in kinds:
        check_output(target, FORMATS[kind], inputs, force=force)
        check_place(target)
    real = _real_images(path, model, files) if files else None
    for kind, target in kinds:
        found = export(model, target, kind, real, dense=dense, inputs=inputs, force=force)
        whole = f"with its encoder, {found.weights:,}" if isinstance(model, EncodedModel) else f"{found.weights:,}"
        of = "" if found.weights == found.dense_weights else f" (the network has {found.dense_weights:,})"
        say(out, f"wrote {found.path}: {found.bytes / 1e6:.2f} MB, {whole} weights{of}")
        tried = f"random and {found.images} real images" if found.images else "random images (--images FOLDER also tries real ones)"
        say(out, f"verified against the model on {tried}: answers differ by at most {found.difference:.1e}")


def _real_images(path: Path, model: AnyModel, files: Sequence[Path]) -> NDArray[Any]:
    if isinstance(model, EncodedModel):
        return np.concatenate([model.encoder.read(file) for file in files])
    return read_images(files, *image_size(path, model), remedy="name others with --images")[0]
