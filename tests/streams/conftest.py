from __future__ import annotations

import os
from pathlib import Path

import pytest

REAL = os.environ.get("AFAF_DATA")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache or data folder."""
    cache = tmp_path_factory.mktemp("cache")
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(cache))
    monkeypatch.delenv("AFAF_DATA", raising=False)
    monkeypatch.delenv("AFAF_MIRROR", raising=False)


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder of the real datasets, named by AFAF_DATA; tests that need it are skipped without it."""
    if not REAL:
        pytest.skip("AFAF_DATA names no folder of the real datasets")
    return Path(REAL)
