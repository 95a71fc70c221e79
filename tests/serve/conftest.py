"""Models for the tests of the server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from afaf.lifelong.model import Lifelong
from afaf.lifelong.settings import LifelongSettings


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network that knows two classes of grey images, 8 by 8."""
    draws = np.random.default_rng(0)
    images, labels = draws.integers(0, 255, (24, 8, 8, 1), dtype=np.uint8), ["cat", "dog"] * 12
    settings = LifelongSettings(max_tasks=4, epochs=2)
    path = tmp_path_factory.mktemp("network") / "network.safetensors"
    Lifelong.begin(images, labels, settings, torch.device("cpu")).learn(images, labels).save(path)
    return path
