"""The facts about the published datasets, from datasets.toml and digests.json.

CIFAR-100 has digests of its classes only, not of its two parts: the publisher's order of the images was not available.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from afaf.streams.sources.source import PARTS, Part, Pixels, Records, Remote, Source
from afaf.streams.tasks import Preparation


def dataset(name: str, open: Callable[[Path], dict[Part, Records]], fits: Mapping[str, Callable[[Pixels], Pixels]] | None = None) -> Source:
    """Return the dataset of this name; `open` reads its files, `fits` are the ways to bring its images to the stated shape."""
    facts = _read("datasets.toml", tomllib.loads)[name]
    counts = {part: facts["counts"][part] for part in PARTS}
    n_classes = len(facts["class_names"])
    preparation: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in facts["preparation"].items()}
    return Source(
        name=name,
        title=facts["title"],
        class_names=tuple(facts["class_names"]),
        counts={part: (count,) * n_classes if isinstance(count, int) else tuple(count) for part, count in counts.items()},
        shape=tuple(facts["shape"]),
        preparation=Preparation(**preparation),
        open=open,
        places=tuple(facts.get("places", ())),
        remotes=tuple(
            Remote(**remote, urls=tuple(url + PurePosixPath(remote["name"]).name for url in facts["mirrors"]))
            for remote in facts.get("remotes", ())
        ),
        fits=fits or {},
        digests=_read("digests.json", json.loads)[name],
    )


@cache
def _read(file: str, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return parse((files(__package__) / file).read_text(encoding="utf-8"))
