"""The published datasets the built-in streams are made of."""

from __future__ import annotations

from afaf.errors import ConfigError, unknown
from afaf.streams.sources.cifar import CIFAR10, CIFAR100
from afaf.streams.sources.digits import DIGITS
from afaf.streams.sources.idx import FASHION_MNIST, MNIST
from afaf.streams.sources.notmnist import NOTMNIST
from afaf.streams.sources.source import PARTS, Part, Records, Remote, Source, data_folder

SOURCES: dict[str, Source] = {s.name: s for s in (CIFAR10, CIFAR100, MNIST, FASHION_MNIST, NOTMNIST, DIGITS)}


def find_source(name: str) -> Source:
    """The source of this name."""
    if name not in SOURCES:
        raise ConfigError(unknown("dataset", name, SOURCES))
    return SOURCES[name]


__all__ = ["PARTS", "SOURCES", "Part", "Records", "Remote", "Source", "data_folder", "find_source"]
