"""A Ray cluster on this machine, for the tests of many runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


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
