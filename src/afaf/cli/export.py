"""`afaf export`: a model for production."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from afaf.cli.answers import image_size
from afaf.cli.consoles import say
from afaf.errors import ConfigError
from afaf.files import check_output
from afaf.lifelong.export import FORMATS, Kind, export
from afaf.lifelong.model_store import check_place, open_model
from afaf.streams.own import read_images
from afaf.streams.sources.class_folders import image_files


def export_model(
    path: Path, *, onnx: Path | None, torch: Path | None, images: Sequence[Path], dense: bool, force: bool, out: Console
) -> None:
    if onnx is None and torch is None:
        raise ConfigError("name what to write: --onnx OUT.onnx or --torch OUT.pt2")
    files = [file for source in images for file in image_files(source)]
    model = open_model(path)
    asked: list[tuple[Kind, Path | None]] = [("onnx", onnx), ("torch", torch)]
    kinds = [(kind, target) for kind, target in asked if target is not None]
    inputs = [path, *files]
    for kind, target in kinds:
        check_output(target, FORMATS[kind], inputs, force=force)
        check_place(target)
    real = read_images(files, *image_size(path, model), remedy="name others with --images")[0] if files else None
    for kind, target in kinds:
        found = export(model, target, kind, real, dense=dense, inputs=inputs, force=force)
        say(
            out,
            f"wrote {found.path}: {found.bytes / 1e6:.2f} MB, {found.weights:,} weights (the network has {found.dense_weights:,})",
        )
        tried = f"64 random and {found.images} real images" if found.images else "64 random images (--images FOLDER also tries real ones)"
        say(out, f"verified against the model on {tried}: answers differ by at most {found.difference:.1e}")
