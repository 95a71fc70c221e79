"""`afaf costs` and `afaf methods` say what the documents quote, and what can be set."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest
from typer.testing import CliRunner

from afaf.bounds import Percent
from afaf.cli.main import app
from afaf.described import described
from afaf.methods import BUILT_IN, find_method
from afaf.network.zoo import describe, width_of
from afaf.runs.job import Job
from afaf.runs.parts import PartsSettings
from afaf.runs.setup import set_up
from afaf.streams.benchmarks import outline_of

runner = CliRunner()


def told(*command: str) -> str:
    result = runner.invoke(app, [*command], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80 or "--json" in command
    return result.stdout


@pytest.mark.parametrize("settings", [[], ["network.name=resnet18"], ["network.name=resnet10", "network.width=20"]])
def test_costs_show_the_whole_model_beside_the_dense_network_of_its_usual_width(settings: list[str]) -> None:
    command = ["costs", "split-cifar10", "afaf-plus", *(part for one in settings for part in ("--set", one))]
    found: dict[str, Any] = json.loads(told(*command, "--json"))
    job, outline = Job("split-cifar10", "afaf-plus", settings=settings), outline_of("split-cifar10")
    spec = set_up(outline, job.method_class, *job.tables).spec
    usual = describe(spec.name, outline.input_shape, outline.n_classes)
    assert (found["network"], found["width"], found["output_rows"]) == (spec.name, width_of(spec), 4 * outline.n_classes)
    assert (found["usual_width"], found["usual_dense_params"]) == (width_of(usual), usual.dense_params)
    assert found["model_bytes"] == 4 * found["params"] + found["small_bytes"] + found["kept_bytes"]
    assert found["model_bytes_ratio"] == found["model_bytes"] / (4 * usual.dense_params)
    one_pass = 2 * sum(edge.weights * edge.positions for edge in usual.edges)
    assert found["answer_ratio"] == found["inference_flops"] / one_pass
    shown = told(*command)
    assert all(text in shown for text in (spec.name, str(width_of(spec)), f"{found['model_bytes_ratio']:.4f}", f"{usual.dense_params:,}"))


def test_costs_of_all_methods_have_the_size_of_each_model() -> None:
    one = json.loads(told("costs", "split-digits", "afaf-plus", "--json"))
    assert json.loads(told("costs", "split-digits", "--all", "--json"))["methods"]["afaf-plus"] == one


@pytest.mark.parametrize("method", BUILT_IN)
def test_the_options_of_one_method_are_shown_with_defaults_and_meaning(method: str) -> None:
    lines = told("methods", method).splitlines()
    for field in described(find_method(method).Options):
        row = next(line.split() for line in lines if line.split()[:1] == [field.name])
        assert row[1] == field.default.split()[0]
        assert field.values.split()[0] in row
        assert field.text in " ".join(" ".join(lines).split())


def test_afaf_plus_is_shown_with_its_parts_and_where_they_are_explained() -> None:
    shown = told("methods", "afaf-plus")
    assert all(f" {field.name} " in shown for field in fields(PartsSettings))
    assert "docs/beyond.md" in shown
    assert "held_out" not in told("methods", "afaf")


@dataclass(frozen=True)
class Below:
    level: float | Literal["low"] = "low"  # not far up
    share: Percent = 5.0


@dataclass(frozen=True)
class Above(Below):
    level: float | Literal["low"] = 2.0
    words: str = "a # b"  # of two lines,
    # this one too
    needed: bool | None = None


def test_settings_are_described_by_their_types_defaults_and_comments() -> None:
    level, share, words, needed = described(Above)
    assert (level.default, level.text) == ("2.0", "not far up")
    assert "low" in level.values
    assert all(bound in share.values for bound in ("0", "100"))
    assert (words.default, words.text) == ("a # b", "of two lines, this one too")
    assert (needed.default, needed.text) == ("none", "")
