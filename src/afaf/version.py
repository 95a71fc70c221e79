"""The package's version, read from its metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("afaf")
except PackageNotFoundError:  # used from a source tree that is not installed
    __version__ = "0.0.0"
