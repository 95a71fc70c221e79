"""Model files that are changed again and again, and never harmed: the old one stays beside the new until that is verified."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

from afaf.errors import FileError, RunError, WriteError
from afaf.files import fill, reason, write_whole
from afaf.model import container
from afaf.model.invariants import broken_promises
from afaf.runs.lifelong import Lifelong


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def checksum_of(path: Path) -> str | None:
    """What tells two states of a model file apart; None where there is no file."""
    return container.description(path)[1] if path.exists() else None


def open_model(path: Path, device: torch.device | str = "cpu") -> Lifelong:
    """The model in a file; the message for one that cannot be used says where to go on."""
    if path.is_dir():
        raise FileError(f"{path} is a folder: name a model file")
    if not path.exists():
        raise FileError(f"{path}: no such file: a model is made by afaf learn FOLDER --model {path}")
    try:
        return Lifelong.load(path, device)
    except FileError as error:
        advice = "it is left as it is; choose another name for a new model"
        if backup_of(path).exists():
            advice = f"{backup_of(path)} holds the model as it was before it was last changed: rename it to {path.name}"
        raise FileError(f"{error}; {advice}") from None


def replace_model(path: Path, model: Lifelong, before: str | None) -> None:
    """Put a model into its file. `before` is the checksum of what was read from there: a file changed since is not written over."""
    if checksum_of(path) != before:
        raise RunError(f"{path} was changed by another program meanwhile: nothing was written; do it again")
    backup = backup_of(path)
    if before is not None:
        kept = path.read_bytes()
        write_whole(backup, lambda temporary: fill(temporary, [kept]))
    try:
        model.save(path)
        _verify(path, model)
    except BaseException:
        if before is not None:
            os.replace(backup, path)
        raise
    with contextlib.suppress(OSError):
        backup.unlink()


def make_place(path: Path) -> None:
    """The folder of a new model file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot make {path.parent}: {reason(error)}") from None
    if not os.access(path.parent, os.W_OK):
        raise WriteError(f"cannot write to {path.parent}: no permission; choose another place for the model")


def _verify(path: Path, model: Lifelong) -> None:
    """What was written is read back: the same bytes again, and the ledger's promises hold."""
    written = Lifelong.load(path)
    wrong = broken_promises(written.learner)
    if written.to_bytes() != model.to_bytes():
        wrong.append("what was read back is not what was written")
    if wrong:
        raise FileError(f"{path} could not be verified, and is as it was before: {'; '.join(wrong[:3])}")
