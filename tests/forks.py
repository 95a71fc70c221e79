"""`afaf` as a program that starts at once: forked from a process that has imported everything.

`Forks` is for tests; run as a program, this file is the process they are forked from.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
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

    def start(self, arguments: list[str], log: Path, *, at: float = 0.0, first: str = "") -> int:
        """A process that runs `afaf ARGUMENTS` from the moment `at`, after the Python program `first`; what it prints is in `log`."""
        return int(self._ask({"arguments": arguments, "log": str(log), "at": at, "first": first}))

    def wait(self, process: int) -> int:
        """The exit code of a process; minus the signal if one ended it."""
        return int(self._ask({"wait": process}))

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
    open_stream("split-digits")
    gc.freeze()  # what is there now is never garbage: forked processes need not look
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
            continue
        child = os.fork()
        if child == 0:
            be_afaf(request)
        print(child, flush=True)


def be_afaf(request: dict[str, Any]) -> None:
    from afaf.cli.main import app

    code = 99
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        exec(request["first"], {})
        time.sleep(max(0.0, request["at"] - time.time()))
        app(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
