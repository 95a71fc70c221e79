"""A run folder behind a URL, for an object store: the run works in a local folder, which is copied there while it learns."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from afaf.errors import AfafError, WriteError
from afaf.files.urls import file_system, is_url
from afaf.runs.folder import CHECKPOINTS, checkpoints_in

EVERY = 5.0  # seconds between copies
FIRST, LAST = ("config.json", "log.jsonl"), ("model.safetensors", "results.json")  # checkpoints rely on the log, results on all files


@contextlib.contextmanager
def local_copy(place: str | Path, *, write: bool = True) -> Iterator[Path]:
    """Yield a local folder with the files behind a URL; a local path is yielded as it is. With `write`, new files are copied back.

    Errors name the URL. With `write`, files are fetched only if they are a run.
    """
    if not is_url(place):
        yield Path(place)
        return
    url = str(place)
    with tempfile.TemporaryDirectory(prefix="afaf-run-") as place:
        mirror = Mirror(url, Path(place) / (PurePosixPath(url).name or "run"))
        try:
            mirror.fetch(only_runs=write)
            with mirror.copying() if write else contextlib.nullcontext():
                yield mirror.local
        except AfafError as error:
            error.args = (str(error).replace(str(mirror.local), url),)
            raise


class Mirror:
    """A local folder and its copy behind a URL."""

    def __init__(self, url: str, local: Path):
        self.url, self.local = url, local
        self.system, self.root = file_system(url)
        self._copied: dict[str, tuple[int, int]] = {}  # modification time and size of each copied file, by name
        self._lock = threading.Lock()

    def fetch(self, *, only_runs: bool) -> None:
        """Copy the remote files to the local folder; with `only_runs` only if they are a run."""
        with self._explained():
            if only_runs and not self.system.exists(f"{self.root}/config.json"):
                return
            for path in map(str, self.system.find(self.root)):
                name = path[len(self.root.rstrip("/")) :].strip("/")
                (self.local / name).parent.mkdir(parents=True, exist_ok=True)
                self.system.get_file(path, str(self.local / name))
                self._copied[name] = self._state(name)

    def push(self) -> None:
        """Copy new and changed files. Checkpoints are listed before the log is copied, so the remote log is never older than they are."""
        with self._lock, self._explained():
            saved = [f"{CHECKPOINTS}/{path.name}" for path in checkpoints_in(self.local)]
            for name in (*FIRST, *saved, *LAST):
                with contextlib.suppress(FileNotFoundError):  # an old checkpoint, just removed
                    if (state := self._state(name)) != self._copied.get(name):
                        self.system.makedirs(f"{self.root}/{CHECKPOINTS}", exist_ok=True)
                        self.system.put_file(str(self.local / name), f"{self.root}/{name}")
                        self._copied[name] = state
            for name in [name for name in self._copied if name.startswith(CHECKPOINTS) and name not in saved]:
                with contextlib.suppress(FileNotFoundError):
                    self.system.rm_file(f"{self.root}/{name}")
                del self._copied[name]

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Copy every few seconds within the block, and once more at its end, also after an error."""
        over = threading.Event()

        def copy() -> None:
            while not over.wait(EVERY):
                with contextlib.suppress(WriteError):  # tried again; the last attempt raises
                    self.push()

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.push()

    def _state(self, name: str) -> tuple[int, int]:
        status = (self.local / name).stat()
        return status.st_mtime_ns, status.st_size

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of any file system into a WriteError that names the URL."""
        try:
            yield
        except Exception as error:
            raise WriteError(f"cannot use {self.url}: {str(error).strip() or type(error).__name__}") from error
