"""The process that learns: it receives images from the server, writes the model file as `afaf learn` does, and reports its progress."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from afaf.encoders.find import find_encoder
from afaf.errors import RunError
from afaf.lifelong.base import inputs
from afaf.lifelong.encoded import EncodedModel, Part
from afaf.lifelong.life import Label
from afaf.lifelong.model import Lifelong
from afaf.lifelong.model_store import AnyModel, checksum_of, load_any, make_place, replace_model
from afaf.lifelong.settings import LifelongSettings
from afaf.lifelong.training import Progress
from afaf.runs.device import find_device
from afaf.serve.decoder import end_with_parent
from afaf.serve.errors import refusal
from afaf.streams.sources.source import Pixels
from afaf.training.report import EpochReport

NICE = 10
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class LearnTask:
    """One call of learn; the images follow, class by class."""

    path: Path
    before: str | None  # checksum of the model file that the server has
    encoder: str | None  # of a new model; None: a network is trained
    device: str
    counts: dict[str, int]  # images by class
    shape: tuple[int, int, int]  # of an image


def run(pipe: Connection) -> None:
    """The process's work: receive a LearnTask and images, learn, and send events; the last has `learned` or `error`."""
    end_with_parent()
    if hasattr(os, "nice"):
        os.nice(NICE)
    torch.set_num_threads(1)
    try:
        task: LearnTask = pipe.recv()
        images = np.concatenate([np.frombuffer(pipe.recv_bytes(), np.uint8).reshape(-1, *task.shape) for _ in task.counts])
        labels = [name for name, count in task.counts.items() for _ in range(count)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe.send({"learned": learn(task, images, labels, pipe.send)})
    except (EOFError, BrokenPipeError):  # the server has gone
        return
    except Exception as error:
        refused = refusal(error)
        if refused.status == 500:
            traceback.print_exc(file=sys.stderr)
        pipe.send({"error": {"type": refused.kind, "message": refused.message}})


def learn(task: LearnTask, images: Pixels, labels: Sequence[Label], tell: Tell) -> dict[str, Any]:
    """Teach the model in the file, or a new one, and write it."""
    if checksum_of(task.path) != task.before:
        raise RunError("the model file was changed by another program meanwhile: nothing was learned; teach again")
    model = taught(task, images, labels, tell)
    make_place(task.path)
    tell({"stage": "writing"})
    replace_model(task.path, model, task.before, keep_undo=True)
    return learned(model)


def learned(model: AnyModel) -> dict[str, Any]:
    """The result of the last call, for the client."""
    note = model.life.tasks[-1]
    warned = model.warnings() if isinstance(model, EncodedModel) else []
    return {"images": note.images + note.held_out, "held_out": note.held_out, "accuracy": note.accuracy, "warnings": warned}


def taught(task: LearnTask, images: Pixels, labels: Sequence[Label], tell: Tell) -> AnyModel:
    device = find_device(task.device)
    model: AnyModel
    if task.path.exists():
        model = load_any(task.path)
        if model.identity is not None:
            model.attach(model.identity.name, device)
    elif task.encoder is not None:
        model = EncodedModel.begin(find_encoder(task.encoder, device))
    else:
        model = Lifelong.begin(images, labels, LifelongSettings(), device)
    if isinstance(model, EncodedModel):
        return model.learn(_parts(model, images, [model.life.label_of(str(label)) for label in labels], tell))
    learned_from: NDArray[Any] = images
    if model.identity is not None:
        learned_from = np.concatenate([inputs(encoded) for _, encoded, _ in _parts(model, images, labels, tell)])
    return model.learn(learned_from, labels, _Epochs(tell), device)


def _parts(model: AnyModel, images: Pixels, labels: Sequence[Label], tell: Tell) -> Iterator[Part]:
    batch = model.encoder.batch
    for start in range(0, len(images), batch):
        some = slice(start, start + batch)
        yield images[some], model.encoder.encode(images[some]), labels[some]
        tell({"stage": "learning", "unit": "images", "done": min(start + batch, len(images)), "total": len(images)})


class _Epochs(Progress):
    def __init__(self, tell: Tell):
        self.tell = tell

    def epoch_ended(self, report: EpochReport) -> None:
        self.tell({"stage": "learning", "unit": "epochs", "done": report.epoch + 1, "total": report.epochs})

    def warned(self, message: str) -> None:
        self.tell({"warning": message})
