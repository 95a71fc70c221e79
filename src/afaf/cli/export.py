"""`afaf export`: a model for production."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from afaf.cli.learn import image_size, say
from afaf.errors import ConfigError
from afaf.runs.export import Kind, export
from afaf.runs.keeping import make_place, open_model
from afaf.streams.own import image_files, read_images


def export_model(path: Path, *, onnx: Path | None, torch: Path | None, images: Sequence[Path], dense: bool, out: Console) -> None:
    if onnx is None and torch is None:
        raise ConfigError("name what to write: --onnx OUT.onnx or --torch OUT.pt2")
    model = open_model(path)
    real = None
    if images:
        files = [file for source in images for file in image_files(source)]
        real = read_images(files, *image_size(path, model))[0]
    kinds: list[tuple[Kind, Path | None]] = [("onnx", onnx), ("torch", torch)]
    for kind, target in kinds:
        if target is None:
            continue
        make_place(target)
        found = export(model, target, kind, real, dense=dense)
        say(
            out,
            f"wrote {found.path}: {found.bytes / 1e6:.2f} MB, {found.weights:,} weights (the network has {found.dense_weights:,})",
        )
        tried = f"64 random and {found.images} real images" if found.images else "64 random images (--images FOLDER also tries real ones)"
        say(out, f"verified against the model on {tried}: answers differ by at most {found.difference:.1e}")
