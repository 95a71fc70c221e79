"""Small real things for tests: networks and streams that a property can be checked on in milliseconds."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from afaf.cluster import NoWorker
from afaf.streams.tasks import Stream
from forks import Forks

torch.set_num_threads(1)  # the networks here are too small to share out
with contextlib.suppress(ImportError):  # on a machine for tests of the GPU there is no hypothesis
    from hypothesis import settings

    # The same examples in every run; AFAF_HYPOTHESIS=searching looks for new ones.
    settings.register_profile("repeatable", derandomize=True)
    settings.register_profile("searching", derandomize=False, max_examples=300)
    settings.load_profile(os.environ.get("AFAF_HYPOTHESIS", "repeatable"))


def small_stream(classes_per_task: list[int], *, side: int = 8, per_class: int = 12, channels: int = 1, seed: int = 0) -> Stream:
    """Images of noise around a pattern per class; learnable, tiny."""
    rng = np.random.default_rng(seed)
    n_classes = sum(classes_per_task)
    patterns = rng.uniform(0, 200, (n_classes, side, side, channels))
    y = np.repeat(np.arange(n_classes), per_class)
    x = np.clip(patterns[y] + rng.normal(0, 20, (len(y), side, side, channels)), 0, 255).astype(np.uint8)
    ids = iter(range(n_classes))
    order = [[next(ids) for _ in range(n)] for n in classes_per_task]
    return Stream.from_arrays(x, y, class_order=order, test_fraction=0.25, name="small")


@pytest.fixture
def digits() -> Stream:
    from afaf.streams.benchmarks import open_stream

    return open_stream("split-digits")


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[Path]:
    """Ray's own files, in a short path, for sockets have one."""
    folder = Path(tempfile.mkdtemp(prefix="afaf-", dir="/tmp"))
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = str(folder)
    yield folder
    os.environ.pop("RAY_TMPDIR") if before is None else os.environ.update(RAY_TMPDIR=before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def two_nodes(ray_folder: Path) -> Iterator[Any]:
    """A cluster of two nodes on this machine, each with room for one worker."""
    import ray
    from ray.cluster_utils import Cluster

    about: dict[str, Any] = {"object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **about})
    cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def busy_cluster(ray_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A cluster whose only CPU is taken until a first warning, or for a minute; the warnings."""
    import ray

    class Other: ...

    told: list[str] = []

    def tell(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, NoWorker):
            told.append(str(message))
            ray.kill(other)

    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    try:
        other = ray.remote(num_cpus=1)(Other).remote()
        ray.get(other.__ray_ready__.remote())
        monkeypatch.setattr(warnings, "showwarning", tell)
        end = threading.Timer(60, ray.kill, [other])
        end.start()
        yield told
        end.cancel()
    finally:
        ray.shutdown()
