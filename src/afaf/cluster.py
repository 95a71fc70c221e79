"""A Ray cluster, started on this machine or joined; Ray is imported only when a cluster is requested."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from afaf.errors import AfafError, ConfigError

ANSWER = 7.0  # seconds within which a cluster must answer
OBJECT_STORE = 256 << 20  # bytes of a cluster of our own; larger streams are spilled to disk
TOKEN = " (if it asks for a token, set RAY_AUTH_MODE=token and copy ~/.ray/auth_token from its head node)"
GPU_SHARE = 0.25  # of a GPU per worker: concurrent runs use it better
FIRST_WORKER = 15.0  # seconds without any worker after which a warning is shown


class NoWorker(UserWarning):
    """The cluster starts no worker."""


def is_cluster(on: str) -> bool:
    """Whether `--on` names a cluster: `ray` or `ray:HOST:PORT`; `local` is this process."""
    if on == "local" or on.partition(":")[0] == "ray":
        return on != "local"
    raise ConfigError(f"--on {on}: it is local, ray (a cluster on this machine) or ray:HOST:PORT (an existing one)")


def connect(on: str, jobs_at_once: int | None = None) -> tuple[Any, bool]:
    """The module `ray`, connected to the cluster that `--on` names, and whether this call connected it, so that it must be disconnected."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported: it reports no usage
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray needs Ray, which is not installed: pip install 'afaf[ray]'") from None
    if ray.is_initialized():
        return ray, False
    logging.getLogger("ray").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    _, colon, address = on.partition(":")
    if colon:
        _check_reachable(address)
        within(ANSWER, f"--on ray:{address}: cannot join the cluster there{TOKEN}", lambda: ray.init(address=address, **quiet))
        return ray, True
    cpus = max(jobs_at_once or 0, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with _signals_kept():  # in this thread: the cluster ends with the thread that starts it
        ray.init(address="local", num_cpus=cpus, object_store_memory=OBJECT_STORE, include_dashboard=False, **quiet)
    return ray, True


def has_gpus(ray: Any, device: str) -> bool:
    """Whether work for `--device` goes to GPUs of the cluster."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {device}: on a cluster it is auto, cpu or cuda, and Ray chooses which GPU")
    gpus = bool(ray.cluster_resources().get("GPU", 0))
    if device == "cuda" and not gpus:
        raise ConfigError("--device cuda: no node of the cluster has a GPU; use --device auto or cpu")
    return gpus and device != "cpu"


def share(gpu: bool) -> dict[str, float]:
    """The resources that a worker takes from a node: a CPU, or a part of a GPU."""
    return {"num_cpus": 0, "num_gpus": GPU_SHARE} if gpu else {"num_cpus": 1}


def room(ray: Any, gpu: bool) -> int:
    """How many workers the cluster has room for now."""
    resources = ray.cluster_resources()
    return max(1, int(resources.get("GPU", 0) / GPU_SHARE if gpu else resources.get("CPU", 0)))


def warn_of_no_worker(ray: Any, gpu: bool, workers: int) -> None:
    """Warn which resources the driver is waiting for, and which the cluster has."""
    kind, each = ("GPU", GPU_SHARE) if gpu else ("CPU", 1)
    free, total = (resources.get(kind, 0) for resources in (ray.available_resources(), ray.cluster_resources()))
    unable = "its nodes cannot start one, and Ray's logs there say why"
    warnings.warn(
        f"no worker has started for {FIRST_WORKER:g} s: this asks for {each:g} {kind} for each of {workers}, and {free:g} of the cluster's "
        f"{total:g} {kind}s are free; {unable if free >= each else 'end other work there, or add nodes with `ray start --address`'} "
        "(`ray status` shows them). It goes on waiting; Ctrl-C ends it",
        NoWorker,
        stacklevel=2,
    )


def wait_for_worker(ray: Any, gpu: bool) -> None:
    """Return once the cluster has started a worker."""
    first = ray.remote(max_retries=-1, **share(gpu))(_nothing).remote()
    if not ray.wait([first], timeout=FIRST_WORKER)[0]:
        warn_of_no_worker(ray, gpu, 1)
    ray.wait([first])


def _nothing() -> None: ...


def within(seconds: float, problem: str, work: Callable[[], Any]) -> Any:
    """The result of work in a thread. Raise a ConfigError that begins with `problem` if it fails or takes longer."""
    done: Future[Any] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=do, daemon=True).start()  # a thread of a pool would keep the program from ending
    try:
        error = done.exception(seconds)
    except TimeoutError:
        raise ConfigError(f"{problem}: no answer within {seconds:g} s") from None
    if error is None or isinstance(error, AfafError):
        return done.result()
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ConfigError(f"{problem}: {first}") from None


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing speaks HTTP/2, as Ray does: Ray itself would keep trying for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"--on ray:{address}: give the address as host:port, for example ray:10.0.0.1:6379")
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWER / 2) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # and an empty SETTINGS frame
            answer = connection.recv(9)
    except OSError as error:
        raise ConfigError(f"--on ray:{address}: nothing answers there ({error}); `ray start --head` starts a cluster") from None
    if len(answer) < 4 or answer[3] != 4:  # a SETTINGS frame
        raise ConfigError(
            f"--on ray:{address}: what answers there is no Ray cluster; `ray start --head` starts one, and prints its address"
        )


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep our SIGTERM handler, which Ray replaces: a stopped run must be saved."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
