"""Runs on a Ray cluster: the same bits as in this process, whatever dies on the way, and every result recorded once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from afaf.cli.main import app
from afaf.runs.events import EpochEnded, Event, JobFailed, JobFinished, JobStarted, RunResumed
from afaf.runs.job import Job
from afaf.sweeps.executor import Executor, LocalExecutor, find_executor
from afaf.sweeps.experiments import read_experiment
from afaf.sweeps.reproduce import UNFINISHED, Reproduction
from afaf.sweeps.store import Store

pytest.importorskip("ray")
TIMES = ("seconds", "seconds_learning", "run")
QUICK = {"learn.epochs": 2, "run.images": 30, "run.checkpoint": 0}
METHODS = ("afaf", "ewc", "ridge", "packnet")


def ray_executor(address: str | None = None, **options: Any) -> Executor:
    return find_executor("ray" if address is None else f"ray:{address}", "cpu", **options)


def grid(out: Path, methods: tuple[str, ...] = METHODS, seeds: int = 3) -> list[Job]:
    return [Job("split-digits", m, s, QUICK, device="cpu", out=out / m / str(s), resume=True) for m in methods for s in range(seeds)]


def carry_out(executor: Executor, jobs: list[Job], on_event: Any = lambda event: None) -> dict[str, Any]:
    """The results of jobs by name, without times and folders; each is finished exactly once."""
    results: dict[str, Any] = {}

    def collect(event: Event) -> None:
        on_event(event)
        if isinstance(event, JobFailed):
            raise event.error
        if isinstance(event, JobFinished):
            assert str(event.job) not in results
            results[str(event.job)] = {name: value for name, value in event.results.to_dict().items() if name not in TIMES}

    with contextlib.closing(executor):
        executor.carry_out(jobs, collect)
    return results


def learned(out: Path) -> dict[str, Any]:
    """All tensors of all models, as bytes."""
    return {
        str(path.relative_to(out)): {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}
        for path in sorted(out.rglob("model.safetensors"))
    }


class KillsTheWorker:
    """Kills the process that holds the folder of a run once it has learned an epoch of its third task."""

    def __init__(self) -> None:
        self.killed: Job | None = None
        self.resumed = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochEnded) and event.report.task == 3 and self.killed is None and event.job.folder is not None:
            lock = event.job.folder / ".lock"
            with contextlib.suppress(ValueError):  # the run may be over by now
                os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
                self.killed = event.job
        if isinstance(event, RunResumed) and event.job is self.killed:
            self.resumed = True


def test_a_cluster_gives_the_same_bits_and_a_killed_worker_changes_nothing(tmp_path: Path, ray_folder: Path) -> None:
    kills = KillsTheWorker()
    methods, slow = ("afaf", "finetune"), {**QUICK, "learn.epochs": 20}
    jobs = {
        on: [Job("split-digits", m, 0, slow, device="cpu", out=tmp_path / on / m, resume=True) for m in methods] for on in ("ray", "local")
    }
    there = carry_out(ray_executor(jobs_at_once=2), jobs["ray"], kills)
    assert kills.killed is not None
    assert kills.resumed
    assert there == carry_out(LocalExecutor("cpu"), jobs["local"])
    assert learned(tmp_path / "ray") == learned(tmp_path / "local")


def runs_on(node: Any, job: Job) -> bool:
    """Whether the worker that holds the folder of a job is a process of this node."""
    with contextlib.suppress(ValueError, OSError):  # the run is over
        pid = json.loads((Path(str(job.out)) / ".lock").read_text())["pid"]
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return bool(parent == node.all_processes["raylet"][0].process.pid)
    return False


@pytest.mark.slow
def test_a_grid_on_two_nodes_of_which_one_is_killed(tmp_path: Path, two_nodes: Any) -> None:
    second = next(node for node in two_nodes.worker_nodes)
    started: list[str] = []

    def kill(event: Event) -> None:
        """The second node dies while it learns the fourth run or a later one."""
        started.extend([str(event.job)] if isinstance(event, JobStarted) else [])
        if len(started) > 4 and isinstance(event, EpochEnded) and second in two_nodes.worker_nodes and runs_on(second, event.job):
            two_nodes.remove_node(second, allow_graceful=False)

    there = carry_out(ray_executor(two_nodes.address), grid(tmp_path / "ray"), kill)
    assert second not in two_nodes.worker_nodes
    assert len(started) > len(set(started)) == len(there) == 12
    assert there == carry_out(LocalExecutor("cpu"), grid(tmp_path / "local"))
    assert learned(tmp_path / "ray") == learned(tmp_path / "local")


@pytest.mark.slow
def test_a_driver_that_is_killed_and_started_again_repeats_no_finished_run(tmp_path: Path, two_nodes: Any) -> None:
    settings = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "afaf", "run", "split-digits", *METHODS, "--seeds", "3", "--out", str(tmp_path / "ray")]
    command += ["--on", f"ray:{two_nodes.address}", "--device", "cpu", *settings]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 100
    while len(list((tmp_path / "ray").rglob("results.json"))) < 4:
        assert driver.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    logs = {path: path.with_name("log.jsonl").read_bytes() for path in (tmp_path / "ray").rglob("results.json")}
    assert len(logs) < 12
    assert subprocess.run(command, capture_output=True, timeout=100).returncode == 0
    assert all(path.with_name("log.jsonl").read_bytes() == log for path, log in logs.items())
    carry_out(LocalExecutor("cpu"), grid(tmp_path / "local"))
    assert learned(tmp_path / "ray") == learned(tmp_path / "local")
    assert len(learned(tmp_path / "ray")) == 12


@pytest.mark.slow
def test_an_interrupt_saves_all_runs_and_the_same_command_goes_on(tmp_path: Path, ray_folder: Path) -> None:
    settings = [word for name, value in {**QUICK, "learn.epochs": 60}.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "afaf", "run", "split-digits", "afaf", "finetune", "--out", str(tmp_path), "--on", "ray"]
    command += ["--device", "cpu", "--jobs-at-once", "2", *settings]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until = time.monotonic() + 100
    while not all(list((tmp_path / method / "0" / "checkpoints").glob("*-task-2-*")) for method in ("afaf", "finetune")):
        assert driver.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    driver.send_signal(signal.SIGINT)
    told = driver.communicate(timeout=60)[0]
    assert driver.returncode == 130, told
    assert "Traceback" not in told
    assert not list(tmp_path.rglob("results.json"))
    assert subprocess.run(command, capture_output=True, timeout=100).returncode == 0
    assert all('"resumed"' in path.read_text() for path in tmp_path.rglob("log.jsonl"))
    assert len(list(tmp_path.rglob("results.json"))) == 2


@pytest.mark.slow
def test_an_experiment_has_the_same_lines(tmp_path: Path, ray_folder: Path) -> None:
    about = 'title = "t"\nfeeds = "f"\nkeep = { ledger = "paper.probes:ledger" }\n'
    about += '[[grid]]\nstreams = ["split-digits"]\nmethods = ["afaf", "ridge"]\nseeds = 2\n'
    (tmp_path / "small.toml").write_text(about)
    experiment = read_experiment(tmp_path / "small.toml").with_settings(QUICK)
    lines = {}
    for on, executor in (("ray", ray_executor(jobs_at_once=2)), ("local", LocalExecutor("cpu"))):
        with contextlib.closing(executor):
            reproduction = Reproduction([experiment], Store(tmp_path / on), executor)
            reproduction.carry_out()
        assert not reproduction.errors
        assert not list((tmp_path / on / UNFINISHED).glob("*"))
        assert len((tmp_path / on / "small.jsonl").read_text().splitlines()) == 4
        differ = ("seconds", "ended", "jobs_at_once", "shared_tasks")
        lines[on] = {k: {n: v for n, v in line.items() if n not in differ} for k, line in Store(tmp_path / on).read().items()}
    assert lines["ray"] == lines["local"]


@pytest.mark.slow
def test_four_workers_and_no_more_share_a_gpu(tmp_path: Path, ray_folder: Path) -> None:
    """The cluster says that it has a GPU, and none has one: the runs fail, and their workers hold their parts of it."""
    import ray

    ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    try:
        executor, errors = find_executor("ray", "cuda"), list[Exception]()
        assert executor.jobs_at_once == 4
        jobs = [Job("split-digits", "ridge", seed, QUICK, out=tmp_path / str(seed), resume=True) for seed in range(8)]
        executor.carry_out(jobs, lambda event: errors.extend([event.error] if isinstance(event, JobFailed) else []))
        assert len(errors) == 8
        until = time.monotonic() + 20  # nodes tell of their resources now and then
        while (left := ray.available_resources().get("GPU", 0.0)) > 0 and time.monotonic() < until:
            time.sleep(0.1)
        assert left == 0.0
        assert ray.available_resources()["CPU"] == 1.0
        executor.close()
        while (left := ray.available_resources().get("GPU", 0.0)) < 1 and time.monotonic() < until:
            time.sleep(0.1)
        assert left == 1.0
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_a_driver_without_workers_says_once_what_it_waits_for(tmp_path: Path, busy_cluster: list[str]) -> None:
    results = carry_out(ray_executor(), grid(tmp_path, ("ridge",), 2))
    assert len(results) == 2
    assert len(busy_cluster) == 1
    assert "CPU" in busy_cluster[0]


def test_an_address_with_no_cluster_behind_it_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        threading.Thread(target=lambda: silent.accept()[0].sendall(b"220 this is no Ray cluster"), daemon=True).start()
        for address in (f"127.0.0.1:{port}", "127.0.0.1:1", "nowhere", "", "127.0.0.1:99999999"):
            command = ["run", "split-digits", "ridge", "--out", str(tmp_path / "run"), "--on", f"ray:{address}"]
            told = CliRunner().invoke(app, command)
            assert told.exit_code == 2, told.output
            assert address in " ".join(told.stderr.split())
    assert not (tmp_path / "run").exists()
    assert CliRunner().invoke(app, ["run", "split-digits", "ridge", "--out", str(tmp_path / "run"), "--on", "rays"]).exit_code == 2
