"""Errors of a run, explained: what happened, what is saved, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from afaf.errors import DeviceError, DivergedError, FileError, RunError, WriteError
from afaf.explain import is_out_of_memory
from afaf.files import reason
from afaf.runs.folder import resume_command

if TYPE_CHECKING:
    from afaf.runs.runner import Run


@contextlib.contextmanager
def explain_errors(run: Run) -> Iterator[None]:
    """Turn low-level errors of a run into errors that say what happened, what is saved and what to do."""
    try:
        yield
    except DivergedError as error:
        if run.folder is not None:
            with contextlib.suppress(WriteError):
                run.folder.log({"event": "diverged", "why": str(error)})
        raise DivergedError(f"{error}{_kept(run, 'The last good checkpoint is kept')}") from None
    except WriteError as error:
        raise WriteError(f"{error}{_resume_advice(run)}") from error
    except OSError as error:
        what = f"cannot use {error.filename}: {reason(error)}" if error.filename else reason(error)
        raise RunError(f"{what}{_resume_advice(run)}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceError(_out_of_memory(run)) from error


def _out_of_memory(run: Run) -> str:
    config = run.config
    chunk = getattr(run.engine, "chunk_bytes", None)
    smaller_chunk = f"run.chunk (now {chunk >> 20} MiB; it changes no result), " if chunk else ""
    return (
        f"{run.device} ran out of memory in task {max(run.learner.classes_of, default=1)}: lower {smaller_chunk}evaluate.batch_size "
        f"(now {config.evaluate.batch_size}) or learn.batch_size (now {config.learn.batch_size}; the results will be others)"
        f"{_kept(run, 'The last checkpoint is kept')}"
    )


def _kept(run: Run, words: str) -> str:
    """Name the newest checkpoint, once any unfinished write has ended."""
    if run.checkpoints is None:
        return ""
    with contextlib.suppress(WriteError, FileError):
        run.checkpoints.wait()
    return "" if run.checkpoints.newest is None else f". {words}: {run.checkpoints.newest}"


def _resume_advice(run: Run) -> str:
    if run.folder is None:
        return ""
    if not (run.folder.path / "config.json").exists():
        return f". The run folder {run.folder.path} was removed or moved during the run, with what was saved in it"
    return f". What was saved before is still there; then continue with: {resume_command(run.folder.path)}"
