"""The methods; a new one is a file with a `Method` and one line here, or an entry point `afaf.methods` of another package."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any

from afaf.errors import ConfigError, unknown
from afaf.methods.base import Method

BUILT_IN = {
    "afaf": "afaf.methods.afaf:AFAF",
    "afaf-plus": "afaf.methods.afaf:AFAFPlus",
    "spacenet": "afaf.methods.spacenet:SpaceNet",
    "packnet": "afaf.methods.packnet:PackNet",
    "ewc": "afaf.methods.ewc:EWC",
    "mas": "afaf.methods.mas:MAS",
    "lwf": "afaf.methods.lwf:LwF",
    "finetune": "afaf.methods.finetune:Finetune",
    "joint": "afaf.methods.joint:Joint",
    "isolated": "afaf.methods.isolated:Isolated",
    "ridge": "afaf.methods.ridge:Ridge",
}
ENTRY_POINTS = "afaf.methods"


def method_names() -> list[str]:
    return [*BUILT_IN, *sorted(point.name for point in entry_points(group=ENTRY_POINTS) if point.name not in BUILT_IN)]


def find_method(name: str) -> type[Method[Any]]:
    """The method of this name, built in or from another package."""
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name].split(":")
        method = getattr(import_module(module), attribute)
    else:
        points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
        if not points:
            raise ConfigError(unknown("method", name, method_names()))
        try:
            method = points[0].load()
        except Exception as error:
            raise ConfigError(f"method '{name}' ({points[0].value}) cannot be loaded: {error}; repair or uninstall that package") from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ConfigError(f"the entry point '{name}' of group afaf.methods is not a subclass of afaf.methods.base.Method")
    return method


def method_of_command(name: str) -> str | type[Method[Any]]:
    """The method that a user names: a class as "package.module:Class", or a name as it is.

    `find_method` accepts only names: it also looks up those in model files and run folders, and reading these must import nothing.
    """
    if ":" not in name or name in method_names():
        return name
    return method_at(name, "name a class as package.module:Class; for a file of this folder, set PYTHONPATH=.")


def method_at(place: str, remedy: str) -> type[Method[Any]]:
    """The class at "package.module:Class", whose module is imported; an error says what to do."""
    try:
        method = resolve_name(place)
    except (Exception, SystemExit) as error:  # another package's code; a script may end the program
        raise ConfigError(f"method '{place}' cannot be loaded ({error}): {remedy}") from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ConfigError(f"method '{place}' is no subclass of afaf.extend.Method: {remedy}")
    return method


def place_of(method: type[Method[Any]]) -> str:
    """Where a class can be imported from, unless it is defined in a script or a function."""
    return f"{method.__module__}:{method.__qualname__}"


def check_own_name(method: type[Method[Any]]) -> None:
    """Refuse a class with the name of a built-in method: its runs would be mistaken for those of that method."""
    name = vars(method).get("name")
    if name in BUILT_IN and BUILT_IN[name] != place_of(method):
        raise ConfigError(f"{method.__qualname__} has the name of a built-in method, '{name}': give it another")
