"""The methods: a list, or one with its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from afaf.cli.consoles import OUT, say
from afaf.errors import ConfigError

if TYPE_CHECKING:
    from afaf.methods.base import Method

PRESETS = (
    "Set one with --set SECTION.NAME=VALUE. The preset of a stream may set others than these defaults: config.json in the folder of a run "
    "has the values in effect."
)
PARTS = (
    "The preset of afaf-plus switches method.strict and the parts on, for each stream and network those that pay: docs/beyond.md says "
    "which. --set still has the last word."
)


def methods(name: Annotated[str | None, typer.Argument(help="Show the options of this method: defaults, values, meaning.")] = None) -> None:
    """List the methods, or show the options of one."""
    from afaf.methods import method_of_command
    from afaf.runs.job import method_class

    if name is None:
        OUT.print(list_of_methods())
        say("`afaf methods NAME` shows the options of one: defaults, values, meaning")
    else:
        show_method(name, method_class(method_of_command(name)))


def list_of_methods() -> Table:
    from afaf.methods import find_method, method_names

    table = Table("method", "what it does", "options (section `method`)")
    for name in method_names():
        try:
            method = find_method(name)
            table.add_row(name, method.summary, ", ".join(method.Options.__dataclass_fields__))
        except ConfigError as error:
            table.add_row(name, f"[red]{escape(str(error))}[/]", "")
    return table


def show_method(name: str, method: type[Method[Any]]) -> None:
    from afaf.runs.parts import PartsSettings
    from afaf.runs.presets.plus import is_plus

    OUT.print(escape(f"{name}: {method.summary}"))
    OUT.print(table_of_settings("method", method.Options))
    if is_plus(method):
        OUT.print(table_of_settings("parts", PartsSettings))
        OUT.print(PARTS)
    OUT.print(PRESETS)


def table_of_settings(section: str, settings: type[Any]) -> Table:
    """Name, default and meaning of each setting of a section."""
    from afaf.described import described

    table = Table(f"{section}.", "default", "values, and what it is", box=box.SIMPLE_HEAD, pad_edge=False)
    for field in described(settings):
        meaning = escape(field.values) + (f"\n[dim]{escape(field.text)}[/]" if field.text else "")
        table.add_row(field.name, escape(field.default), meaning)
    return table
