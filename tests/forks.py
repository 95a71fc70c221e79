"""`afaf` as a program that starts at once: forked from a process that has imported everything.

`Forks` is for tests; run as a program, this file is the process they are forked from.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any


class Forks:
    """Starts `afaf` with arguments, in processes of their own, and waits for them to end."""

    def __enter__(self) -> Forks:
        command = [sys.executable, __file__]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()

    def start(
        self,
        arguments: list[str],
        log: Path,
        *,
        errors: Path | None = None,
        at: float = 0.0,
        first: str = "",
        folder: Path | None = None,
        ordinary: bool = False,
    ) -> int:
        """Start `afaf ARGUMENTS` in `folder` at the moment `at`, after the Python program `first`; return the process id.

        It prints into `log`, and its errors into `errors` if given. `ordinary`: permissions hold for it as for an ordinary user, even if
        root runs the tests.
        """
        place = {"log": str(log), "errors": str(errors or ""), "folder": str(folder or ""), "ordinary": ordinary}
        return int(self._ask({"arguments": arguments, "at": at, "first": first, **place}))

    def run(self, arguments: list[str], folder: Path, log: Path | None = None, first: str = "") -> subprocess.CompletedProcess[bytes]:
        """Run `afaf ARGUMENTS` in `folder` to its end; `log` is a file or device to print to."""
        with tempfile.TemporaryDirectory() as place:
            out, errors = log or Path(place) / "out", Path(place) / "errors"
            code = self.wait(self.start(arguments, out, errors=errors, first=first, folder=folder))
            assert code is not None
            return subprocess.CompletedProcess(arguments, code, b"" if log else out.read_bytes(), errors.read_bytes())

    def wait(self, process: int, limit: float | None = None) -> int | None:
        """The exit code of a process, minus the signal if one ended it; None if it had to be killed after `limit` seconds."""
        answer = self._ask({"wait": process, "limit": limit}).strip()
        return None if answer == "hung" else int(answer)

    def _ask(self, request: dict[str, Any]) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()


def serve() -> None:
    import torch

    from afaf.streams.benchmarks import open_stream

    torch.set_num_threads(1)
    import_everything()
    open_stream("split-digits")
    gc.freeze()  # what is there now is never garbage: forked processes need not look
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(ended(request["wait"], request["limit"]), flush=True)
            continue
        child = os.fork()
        if child == 0:
            be_afaf(request)
        print(child, flush=True)


def import_everything() -> None:
    """What commands import when they are called, so that a forked process need not."""
    from PIL import Image

    import afaf

    Image.init()
    for module in pkgutil.walk_packages(afaf.__path__, "afaf."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def give_up_privileges() -> None:
    """Stay the same user, who owns the files of the tests, without root's right to pass over permissions (Linux's capset)."""
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def ended(process: int, limit: float | None) -> str:
    until = None if limit is None else time.monotonic() + limit
    while until is not None and time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    if until is not None:
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    return "hung" if until is not None else str(os.waitstatus_to_exitcode(status))


def be_afaf(request: dict[str, Any]) -> None:
    from afaf.cli.main import app

    code = 99
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if request["errors"] else log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if request["folder"]:
            os.chdir(request["folder"])
        if request["ordinary"] and os.geteuid() == 0:
            give_up_privileges()
        exec(request["first"], {})
        time.sleep(max(0.0, request["at"] - time.time()))
        app(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as it is where a process was started with a closed one
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
