"""Threads are restored whatever overlaps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from afaf.network.spec import Layer, NetworkSpec
from afaf.runs.device import suitable_threads

SMALL = NetworkSpec("small", (8,), (Layer("dense", 6),), 3)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_runs_that_overlap_restore_the_number_of_threads(two_threads: None) -> None:
    first, second = suitable_threads(SMALL, 4), suitable_threads(SMALL, 4)
    first.__enter__()
    second.__enter__()
    assert torch.get_num_threads() == 1
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert torch.get_num_threads() == 2
