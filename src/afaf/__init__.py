"""AFAF: continual learning with sparse sub-networks in one fixed-size network.

import afaf
results = afaf.run("split-digits", "afaf", seed=0)
print(results.acc, results.bwt)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afaf.version import __version__

if TYPE_CHECKING:
    from afaf.api import costs as costs, resume as resume, run as run, tune as tune
    from afaf.errors import AfafError as AfafError
    from afaf.lifelong.estimator import AFAFClassifier as AFAFClassifier
    from afaf.runs.results import Results as Results, Summary as Summary
    from afaf.storage.model_file import Model as Model
    from afaf.streams.benchmarks import open_stream as open_stream
    from afaf.streams.tasks import Stream as Stream, Task as Task

_WHERE = {
    "run": "afaf.api",
    "resume": "afaf.api",
    "costs": "afaf.api",
    "tune": "afaf.api",
    "open_stream": "afaf.streams.benchmarks",
    "Stream": "afaf.streams.tasks",
    "Task": "afaf.streams.tasks",
    "Model": "afaf.storage.model_file",
    "Results": "afaf.runs.results",
    "Summary": "afaf.runs.results",
    "AFAFClassifier": "afaf.lifelong.estimator",
    "AfafError": "afaf.errors",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    """Import on first use: `afaf --version` need not wait for PyTorch."""
    from importlib import import_module

    if name == "network":
        return import_module("afaf.network")
    if name not in _WHERE:
        raise AttributeError(f"module 'afaf' has no attribute '{name}'")
    return getattr(import_module(_WHERE[name]), name)
