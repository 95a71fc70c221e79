"""Safe changes of model files: a new file is verified before it replaces the old one."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from afaf.errors import DataError, FileError, RunError, StoppedError, WriteError
from afaf.files import fill, make_folders, remove_parts, sync, write_whole, writing
from afaf.files.lock import one_at_a_time
from afaf.lifelong.encoded import KIND, EncodedModel
from afaf.lifelong.model import Lifelong
from afaf.storage import container

AnyModel = Lifelong | EncodedModel
UNDO = re.compile(r"\.undo-[0-9a-f]{16}")


def has_encoder(path: Path) -> bool:
    """Whether a file holds a model of an encoder and a head; False also for a file that is missing or unreadable."""
    try:
        return path.is_file() and container.description(path)[0].get("kind") == KIND
    except FileError:
        return False


def open_encoded(path: Path) -> EncodedModel:
    """The model of an encoder and a head in a file; the encoder is looked for when it is first used."""
    with _advised(path):
        return EncodedModel.load(path)


def checksum_of(path: Path) -> str | None:
    """The model file's checksum, from its header; None if there is no file."""
    return container.description(path)[1] if path.exists() else None


def open_model(path: Path, device: torch.device | str = "cpu") -> Lifelong:
    """The network in a file; the error for a file that cannot be used says what to do."""
    if path.is_dir():
        raise FileError(f"{path} is a folder: name a model file")
    if not path.exists():
        raise FileError(f"{path}: no such file: a model is made by afaf learn FOLDER --model {path}")
    with _advised(path):
        return Lifelong.load(path, device)


@contextlib.contextmanager
def _advised(path: Path) -> Iterator[None]:
    try:
        yield
    except FileError as error:
        advice = f"put a copy in its place, or name a new file for a new model; afaf doctor {path} says what is wrong with it"
        raise FileError(f"{error}. It is left as it is: {advice}") from None


@contextlib.contextmanager
def told_if_interrupted(path: Path) -> Iterator[str | None]:
    """On Ctrl-C within the block, raise StoppedError, which gives the state of the model file and what to do.

    Yields the file's checksum from before the block.
    """
    before = _state(path)
    try:
        yield before
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted: {_words(path, before, _state(path))}") from None


def _state(path: Path) -> str | None:
    """The file's checksum, or a fixed text if it is not a model; None if there is no file."""
    try:
        return checksum_of(path)
    except FileError:
        return "not a model"


def _words(path: Path, before: str | None, now: str | None) -> str:
    if before != now:
        return f"but {path} was written before that, and is whole: nothing is left to do"
    kept = "no model was written" if now is None else f"{path} is as it was before"
    return f"{kept}. To go on, give the same command again: it begins from the start"


def load_any(path: Path, device: torch.device | str = "cpu") -> AnyModel:
    """The model in a file, of either kind."""
    return open_encoded(path) if has_encoder(path) else open_model(path, device)


def replace_model(path: Path, model: AnyModel, before: str | None, *, keep_undo: bool = False) -> None:
    """Write a model to its file. `before` is the checksum from when the file was read: a file changed since is not overwritten.

    The new file is verified before it replaces the old one. `keep_undo` keeps the old one beside it, for `undo_change`.
    """
    path = path.resolve()  # change the link's target, not the link
    with one_at_a_time(path):
        _check_unchanged(path, before)
        remove_parts(path.parent)

        def write(part: Path) -> None:
            data = model.to_bytes()
            fill(part, data)
            _verify(part, data)
            _check_unchanged(path, before)
            if keep_undo:
                _keep_for_undo(path, checksum_of(part))

        write_whole(path, write)
        _remove_undo(path, but=checksum_of(path) if keep_undo else None)


# Undo of one step. The file before a change is kept as FILE.undo-CHECKSUM, with the checksum of the file after the change, so it is never
# taken for the past of another state, even if the process dies. An empty file means that there was no model.


def undo_of(path: Path) -> Path | None:
    """The file that holds the model before its last change; None if nothing can be undone."""
    path = path.resolve()
    try:
        kept = _undo_name(path, checksum_of(path))
    except FileError:
        return None
    return kept if kept.is_file() else None


def undo_change(path: Path, before: str | None) -> None:
    """Undo the last change; if it was the first one, there is no model afterwards. `before` is as in `replace_model`."""
    path = path.resolve()
    with one_at_a_time(path), writing(path):
        _check_unchanged(path, before)
        kept = undo_of(path)
        if kept is None:
            raise DataError("there is no change to take back: one step is kept, of changes made by afaf serve")
        if kept.stat().st_size:
            os.replace(kept, path)
        else:
            path.unlink()
        _remove_undo(path)
        sync(path.parent)


def _undo_name(path: Path, after: str | None) -> Path:
    return path.with_name(f"{path.name}.undo-{(after or 'none')[:16]}")


def _keep_for_undo(path: Path, after: str | None) -> None:
    kept = _undo_name(path, after)
    kept.unlink(missing_ok=True)
    if not path.exists():
        kept.touch()
        return
    try:
        os.link(path, kept)
    except OSError:  # a file system without hard links
        write_whole(kept, path.read_bytes())


def _remove_undo(path: Path, but: str | None = None) -> None:
    for old in path.parent.glob(f"{glob.escape(path.name)}.undo-*"):
        if old != _undo_name(path, but) and UNDO.fullmatch(old.name[len(path.name) :]):
            old.unlink(missing_ok=True)


def _check_unchanged(path: Path, before: str | None) -> None:
    if checksum_of(path) != before:
        raise RunError(f"{path} was changed by another program meanwhile: nothing was written; do it again")


def check_place(path: Path) -> None:
    """Raise WriteError if no file can be written there, before anything is computed; creates nothing."""
    path = path.resolve()
    there = next(above for above in path.parents if above.exists())
    if not there.is_dir():
        raise WriteError(f"cannot write {path}: {there} is a file, not a folder; choose another place")
    for needed in (there, path):
        if needed.exists() and not os.access(needed, os.W_OK):
            raise WriteError(f"cannot write {path}: no permission to change {needed}; change its permissions or choose another place")


def make_place(path: Path) -> None:
    """Create the folder of a new file."""
    check_place(path)
    make_folders(path.parent, "choose another place")


def _verify(path: Path, data: bytes) -> None:
    """Read the new file back: it must hold the same bytes, and keep the ledger's invariants. Sums were checked by `forget`."""
    written: AnyModel = EncodedModel.load(path) if has_encoder(path) else Lifelong.load(path)
    wrong = [] if isinstance(written, EncodedModel) else written.problems()
    if written.to_bytes() != data:
        wrong.append("what was read back is not what was written")
    if wrong:
        raise FileError(f"the model could not be verified after it was written, and its file is as it was before: {'; '.join(wrong[:3])}")
