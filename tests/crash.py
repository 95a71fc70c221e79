"""Runs that are killed and resumed, compared with runs that were not; a program of its own, so that it can fork.

    python tests/crash.py --kills 300 --seed 1 --folder /tmp/crash

Runs of every method are killed with SIGKILL, half of them at a random moment, half at a random call of the save path (before it, after it,
or with half of a write done), some several times; then they are resumed. Prints one JSON object: how many were killed and when, and how
the results differ from those of uninterrupted runs (not at all, it is hoped).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from afaf.methods import method_names
from afaf.runs.job import Job
from afaf.runs.resume import resume
from afaf.runs.runner import run
from afaf.streams.benchmarks import open_stream

SETTINGS: dict[str, Any] = {"learn.epochs": 2, "learn.batch_size": 96, "run.images": 16, "run.checkpoint": 0}
MORE = {"packnet": {"method.retrain_epochs": 1}}
CALLS = ("write", "fsync", "replace")
NOT_COMPARED = {"seconds", "seconds_learning", "run"}


def in_child(job: Callable[[], None]) -> int:
    """Fork, do the job there; the child's process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def watch_calls(at_call: Callable[[int, str, Callable[..., Any], tuple[Any, ...]], Any]) -> None:
    """Let `at_call` do the calls of the save path: it is given the call's number, name, function and arguments."""
    count = 0

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            return at_call(count, name, original, arguments)

        return call

    for name in CALLS:
        setattr(os, name, watched(name, getattr(os, name)))


def start_or_resume(method: str, folder: Path) -> None:
    if (folder / "config.json").exists():
        resume(folder)
    else:
        run(Job("split-digits", method, device="cpu", out=folder, settings={**SETTINGS, **MORE.get(method, {})}))


def baseline(method: str, folder: Path) -> tuple[float, int]:
    """An uninterrupted run: how long it took, and how many calls of the save path it made."""
    counted = folder.with_suffix(".calls")

    def job() -> None:
        calls = 0

        def count(number: int, name: str, original: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
            nonlocal calls
            calls = number
            return original(*arguments)

        watch_calls(count)
        start_or_resume(method, folder)
        counted.write_text(str(calls))

    started = time.monotonic()
    assert os.waitpid(in_child(job), 0)[1] == 0, f"{method} does not run"
    return time.monotonic() - started, int(counted.read_text())


def killed_at_call(method: str, folder: Path, call: int, how: str) -> bool:
    """Whether the run died at that call of the save path (it may make fewer)."""

    def at(number: int, name: str, original: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if number == call:
            if how == "half" and name == "write":
                original(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            elif how == "after":
                original(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # a background thread waits here for its process to die
        return original(*arguments)

    def job() -> None:
        watch_calls(at)
        start_or_resume(method, folder)

    return os.WIFSIGNALED(os.waitpid(in_child(job), 0)[1])


def killed_at_moment(method: str, folder: Path, seconds: float) -> bool:
    child = in_child(lambda: start_or_resume(method, folder))
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def found(folder: Path) -> dict[str, Any]:
    """Everything a run found, to the bit."""
    results = json.loads((folder / "results.json").read_text())
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    resumed = [line for line in lines if line["event"] == "resumed"]
    log = [{k: v for k, v in line.items() if k not in NOT_COMPARED} for line in lines if line["event"] != "resumed"]
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "log": log,
        "passed over": [path for line in resumed for path in line["passed_over"]],  # a kill leaves no damaged checkpoint behind
        **{name: value for name, value in results.items() if name not in NOT_COMPARED},
    }


def trial(method: str, folder: Path, draw: random.Random, deaths_wanted: int, seconds: float, calls: int) -> list[str]:
    """One run, killed once or several times and then finished; how it was killed."""
    deaths: list[str] = []
    while not (folder / "results.json").exists() and len(deaths) < deaths_wanted:
        if draw.random() < 0.5:
            call, how = draw.randint(1, calls), draw.choice(("before", "half", "after"))
            if killed_at_call(method, folder, call, how):
                deaths.append(f"{how} call {call}")
        else:
            moment = draw.uniform(0, seconds)
            if killed_at_moment(method, folder, moment):
                deaths.append(f"after {moment:.3f} s")
    assert os.waitpid(in_child(lambda: start_or_resume(method, folder)), 0)[1] == 0, f"{folder} does not resume"
    return deaths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads of its own should not be forked
    open_stream("split-digits")  # imports what reading it needs, once
    gc.freeze()  # what is there now is never garbage: forked processes need not look
    options.folder.mkdir(parents=True, exist_ok=True)
    methods = method_names()
    costs = {method: baseline(method, options.folder / method) for method in methods}
    expected = {method: found(options.folder / method) for method in methods}
    deaths: list[str] = []
    differences: list[str] = []
    number = 0
    while len(deaths) < options.kills or number < len(methods):
        method, draw = methods[number % len(methods)], random.Random(f"{options.seed} {number}")
        folder = options.folder / f"{number}-{method}"
        often = draw.choice((1, 1, 2, 3)) if options.kills > len(methods) else 1
        how = trial(method, folder, draw, often, *costs[method])
        deaths += [f"{number} {method}: {words}" for words in how]
        got = found(folder)
        differences += [f"{number} {method} ({how}): {name}" for name in expected[method] if got.get(name) != expected[method][name]]
        number += 1
        shutil.rmtree(folder)
    print(json.dumps({"seed": options.seed, "runs": number, "methods": methods, "deaths": deaths, "differences": differences}))


if __name__ == "__main__":
    main()
