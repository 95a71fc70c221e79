"""A run folder: config.json, log.jsonl, results.json, model.safetensors and two pictures. Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from afaf.errors import RunError


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place: a reader never sees half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class RunFolder:
    """Where one run puts what it finds."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new run folder; one that already holds a run is refused."""
        cls.refuse_taken(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the run folder {path}: {error.strerror}; choose another with --out") from None
        return cls(path)

    @staticmethod
    def refuse_taken(path: Path) -> None:
        if (path / "config.json").exists():
            raise RunError(f"{path} already holds a run: choose another folder with --out, or remove that one")
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file, not a folder: choose another place with --out")

    def write_json(self, name: str, data: Any) -> None:
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"

        def write(path: Path) -> None:
            path.write_text(text, encoding="utf-8")

        write_whole(self.path / name, write)

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to log.jsonl."""
        with (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
