"""The commit and the versions that computed a result."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

from afaf.version import __version__

SOURCES = ("src", ":(glob)**/experiments/*.toml", "benchmarks/*.py")  # results being written do not count as changes


def commit() -> str:
    """The commit of this checkout, marked if its sources have changes; AFAF_COMMIT overrides it, for copies of a tree."""
    if "AFAF_COMMIT" in os.environ:
        return os.environ["AFAF_COMMIT"]
    return _checked_out()


@cache  # later changes do not affect the running program
def _checked_out() -> str:
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True).stdout.strip()

    try:
        top = git("rev-parse", "--show-toplevel")
        head = git("rev-parse", "HEAD")
        tracked = git("ls-files", "--", str(Path(__file__).resolve()))
        changed = git("-C", top, "status", "--porcelain", "--", *SOURCES)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    if not tracked:  # installed into some other project's checkout
        return "unknown"
    return head + (" with changes" if changed else "")


def versions() -> dict[str, str]:
    return {"afaf": __version__, "torch": torch.__version__, "python": platform.python_version()}
