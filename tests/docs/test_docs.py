"""The documents match the code: links resolve, commands have the options shown, the reference lists every public name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

import afaf
from afaf.cli.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (document.parent / link.partition("#")[0]).exists(), f"{document.name} leads to {link}, which is not there"


def commands_shown(document: Path) -> list[list[str]]:
    lines = re.findall(r"^ *(afaf [^#\n`]*)", document.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines if "..." not in line]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_shown_have_these_options(document: Path) -> None:
    root = typer.main.get_command(app)
    for words in commands_shown(document):
        command: object = root
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if not isinstance(command, click.Command) or isinstance(command, click.Group):
            continue  # prose that begins with the program's name
        known = {name for parameter in command.params for name in parameter.opts}
        shown = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert shown <= known | {"--help"}, f"{document.name}: {shown - known} of `afaf {command.name}`"


def test_the_reference_lists_every_public_name() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE))
    assert listed == set(afaf.__all__) - {"__version__"}


def test_the_tutorial_serves_a_model_in_thirty_lines() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").partition("## How long")[0]
    blocks = re.findall(r"```(?:bash|python)\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert len(lines) <= 30


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path) -> None:
    named = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", document.read_text(encoding="utf-8"))) - {"my_package/half.py"}
    missing = [path for path in sorted(named) if not (ROOT / path).exists() and not (ROOT / "src" / "afaf" / path).exists()]
    assert not missing, f"{document.name} names {missing}"
