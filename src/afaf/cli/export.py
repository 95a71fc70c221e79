"""`afaf export`: a model for production."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from afaf.cli.consoles import say
from afaf.cli.options import EncoderOption, ForceOption, ModelFile
from afaf.errors import ConfigError


def export(
    file: ModelFile,
    onnx: Annotated[Path | None, typer.Option(help="Write an ONNX model to this file (needs afaf\\[onnx]).")] = None,
    torch: Annotated[Path | None, typer.Option(help="Write a torch.export program (.pt2) to this file.")] = None,
    images: Annotated[list[Path], typer.Option(help="Verify on these real images or folders too, besides random ones.")] = [],
    dense: Annotated[bool, typer.Option("--dense", help="Keep all neurons, also those that reach no output: for comparison.")] = False,
    encoder: EncoderOption = None,
    force: ForceOption = False,
) -> None:
    """Write the network for production: unused neurons removed, normalisation and calibration included, verified against the model.

    It takes pixels as they are in image files: bytes, (images, height, width, channels); of a model that was taught floats, floats. A
    model with an encoder is written with it.

    It answers with logits and probabilities; the labels are in the file's metadata.
    """
    import numpy as np

    from afaf.cli.answers import image_size, open_ready
    from afaf.files import check_output
    from afaf.lifelong.encoded import EncodedModel
    from afaf.lifelong.export import FORMATS, Kind
    from afaf.lifelong.export import export as export_model
    from afaf.lifelong.model_store import check_place
    from afaf.streams.own import read_images
    from afaf.streams.sources.class_folders import image_files

    if onnx is None and torch is None:
        raise ConfigError("name what to write: --onnx OUT.onnx or --torch OUT.pt2")
    files = [image for source in images for image in image_files(source)]
    model = open_ready(file, "cpu", encoder)
    asked: list[tuple[Kind, Path | None]] = [("onnx", onnx), ("torch", torch)]
    kinds = [(kind, target) for kind, target in asked if target is not None]
    inputs = [file, *files]
    for kind, target in kinds:
        check_output(target, FORMATS[kind], inputs, force=force)
        check_place(target)
    if not files:
        real = None
    elif model.identity is not None:
        real = np.concatenate([model.encoder.read(image) for image in files])
    else:
        real = read_images(files, *image_size(file, model), remedy="name others with --images")[0]
    for kind, target in kinds:
        found = export_model(model, target, kind, real, dense=dense, inputs=inputs, force=force)
        whole = f"with its encoder, {found.weights:,}" if isinstance(model, EncodedModel) else f"{found.weights:,}"
        of = "" if found.weights == found.dense_weights else f" (the network has {found.dense_weights:,})"
        say(f"wrote {found.path}: {found.bytes / 1e6:.2f} MB, {whole} weights{of}")
        tried = f"random and {found.images} real images" if found.images else "random images (--images FOLDER also tries real ones)"
        say(f"verified against the model on {tried}: answers differ by at most {found.difference:.1e}")
