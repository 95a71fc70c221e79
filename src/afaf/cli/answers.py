"""Answers of a model of either kind on image files, for `afaf predict`, `evaluate` and `learn --evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from afaf.cli.consoles import ERR
from afaf.encoders.cache import CachedEncoder
from afaf.encoders.encoder import Encoder
from afaf.encoders.find import find_encoder
from afaf.encoders.identity import Identity
from afaf.errors import ConfigError
from afaf.lifelong.base import inputs
from afaf.lifelong.encode_files import FileParts, OnBatch
from afaf.lifelong.evaluate import Evaluation, check_some_known, evaluate
from afaf.lifelong.life import Label
from afaf.lifelong.model import Lifelong
from afaf.lifelong.model_store import AnyModel, load_any
from afaf.runs.device import find_device
from afaf.streams.own import Unreadable, read_images

SKIP = "--skip-unreadable leaves them out"
Files = Sequence[tuple[Path, Label]]
Answers = tuple[list[Path], NDArray[Any], NDArray[Any] | None]  # files that were read, probabilities, whether each is of no known class


def if_unreadable(skip: bool) -> Unreadable:
    return "skip" if skip else "error"


def open_ready(path: Path, device: str, encoder: str | None = None, cache: Path | None = None) -> AnyModel:
    """The model in a file, ready to answer. `encoder` is where its encoder is now, if not where the model says."""
    model = load_any(path, find_device(device))
    if model.identity is None:
        if encoder is not None or cache is not None:
            raise ConfigError(f"{'--encoder' if encoder else '--cache'}: {path} has no encoder: leave that out")
        return model
    model.attach(encoder_at(encoder or model.identity.name, device, cache, model.identity))
    return model


def encoder_at(source: str, device: str, cache: Path | None, taught_with: Identity | None = None) -> Encoder:
    """An encoder by name or file, with the preprocessing that a model was taught with; `cache` is a folder to keep features in."""
    encoder = find_encoder(source, find_device(device), None if taught_with is None else taught_with.preprocessing)
    return encoder if cache is None else CachedEncoder(encoder, cache.expanduser())


def read_encoded(encoder: Encoder, files: Files, unreadable: Unreadable) -> tuple[NDArray[Any], list[Path]]:
    """A network's inputs, encoder features of image files, and the files that were read."""
    with counted("looking at images", len(files)) as on_batch:
        parts = FileParts(encoder, files, unreadable, SKIP, on_batch)
        found = [inputs(encoded) for _, encoded, _ in parts]
    return np.concatenate(found), [*map(Path, parts.read)]


def answers(path: Path, model: AnyModel, files: Files, skip_unreadable: bool) -> Answers:
    """Answers to images, in the order of `life.known`. Only a closed-form head can detect images of no known class."""
    unreadable = if_unreadable(skip_unreadable)
    if isinstance(model, Lifelong):
        if model.identity is not None:
            images, read = read_encoded(model.encoder, files, unreadable)
        else:
            images, read = read_images([file for file, _ in files], *image_size(path, model), unreadable, SKIP)
        return read, model.probabilities(images), None
    with counted("looking at images", len(files)) as on_batch:
        parts = FileParts(model.encoder, files, unreadable, SKIP, on_batch)
        found = [model.answers(encoded) for _, encoded, _ in parts]
    probabilities, distances = (torch.cat(values).numpy() for values in zip(*found, strict=True))
    return [*map(Path, parts.read)], probabilities, None if model.unknown_above is None else distances.min(1) > model.unknown_above


def evaluated(path: Path, model: AnyModel, files: Files, skip_unreadable: bool) -> Evaluation:
    """Evaluate a model on labelled files; it must know at least one of their classes."""
    labels = {file: str(label) for file, label in files}
    check_some_known(map(str, model.life.known), labels.values())  # before images are read
    read, probabilities, unknown = answers(path, model, files, skip_unreadable)
    return evaluate(model.life, read, [labels[file] for file in read], probabilities, unknown)


def image_size(path: Path, model: Lifelong) -> tuple[int, int]:
    """(side, channels) of the images that a network reads."""
    shape = model.spec.input_shape
    if len(shape) != 3 or shape[1] != shape[2] or shape[0] not in (1, 3):
        raise ConfigError(f"{path} does not read square grey or colour images but {shape}: use it from Python, with AFAFClassifier.load")
    return shape[1], shape[0]


@contextmanager
def counted(words: str, total: int) -> Iterator[OnBatch]:
    """A progress bar of images on a terminal, with the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=28), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as progress:
        bar = progress.add_task(words, total=total)
        yield lambda n: progress.advance(bar, n)
