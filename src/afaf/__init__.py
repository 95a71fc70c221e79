"""AFAF: continual learning with sparse sub-networks in one fixed-size network.

import afaf
results = afaf.run("split-digits", "afaf", seed=0)
print(results.acc, results.bwt)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from afaf.version import __version__

if TYPE_CHECKING:
    from afaf.api import costs, resume, run, tune
    from afaf.errors import AfafError
    from afaf.lifelong.estimator import AFAFClassifier
    from afaf.runs.results import Results, Summary
    from afaf.storage.model_file import Model
    from afaf.streams.benchmarks import open_stream
    from afaf.streams.tasks import Stream, Task

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

__all__ = [
    "AFAFClassifier",
    "AfafError",
    "Model",
    "Results",
    "Stream",
    "Summary",
    "Task",
    "__version__",
    "costs",
    "open_stream",
    "resume",
    "run",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `afaf --version` need not wait for PyTorch."""
    from importlib import import_module

    if name == "network":
        return import_module("afaf.network")
    if name not in _WHERE:
        raise AttributeError(f"module 'afaf' has no attribute '{name}'")
    return getattr(import_module(_WHERE[name]), name)
