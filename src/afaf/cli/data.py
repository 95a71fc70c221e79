"""`afaf data`: list, download and check datasets. Imports are made when a command is called, so that `--help` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from afaf.cli.options import DataOption

data_app = typer.Typer(help="The datasets on disk: list, get, check.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@data_app.command("list")
def list_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """List the datasets on disk, their size, and whether they are verified."""
    from afaf.cli.datasets import list_datasets

    list_datasets(data, as_json)


@data_app.command("get")
def get_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Datasets or built-in streams, or 'all'.")],
    data: DataOption = None,
    force: Annotated[bool, typer.Option("--force", help="Download again, also what is on disk and verified.")] = False,
) -> None:
    """Download, verify and put in place; a download that broke off is resumed."""
    from afaf.cli.datasets import get_datasets

    get_datasets(names, data, force)


@data_app.command("check")
def check_command(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="By default all on disk.")] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read everything again, verify it, and count the images of each class."""
    from afaf.cli.datasets import check_datasets

    check_datasets(names, data, as_json)
