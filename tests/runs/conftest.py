"""What the tests of runs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forks import Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks
