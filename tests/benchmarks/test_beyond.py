"""The tables of the pages on afaf-plus say of each run of an experiment what its newest line says; nothing else on a page changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from afaf.network.zoo import describe
from afaf.streams.benchmarks import outline_of
from afaf.sweeps.experiments import Experiment, read_experiments
from afaf.sweeps.store import Store
from benchmarks.beyond.__main__ import HERE, PAGES, PLUS_MINUS, RESULTS, VARIANTS, in_no_table, of_model, rows_of, size, with_tables

EXPERIMENTS, LINES = read_experiments(HERE / "experiments"), Store(HERE / "results").read()
NAMES = (*RESULTS, *VARIANTS)
COSTS = {"kept_bytes": 1_000_000, "counted_flops_ratio": 0.25}


def named(name: str) -> Experiment:
    return next(experiment for experiment in EXPERIMENTS if experiment.name == name)


def page(*names: str) -> str:
    return "before\n" + "".join(f"<!-- {name} -->\nold {name}\n<!-- end of {name} -->\nbetween\n" for name in names)


def part(text: str, name: str) -> str:
    """What the page has between two marks."""
    return text.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


def cells(text: str) -> list[list[str]]:
    """The rows of a table below its headings."""
    table = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[2:]]


def made_up(experiment: str, results: Path, **more: Any) -> int:
    """Store a line for each run of an experiment; returns how many kinds of runs there are."""
    chosen = named(experiment)
    for run in chosen.runs:
        line = {"stream": run.stream, "method": run.method, "settings": run.settings, "seed": run.seed}
        numbers = {"acc": 50.0, "acc_task_il": 60.0, "R": [[50.0]], "params": 10**6, "dense_params": 10**7, "costs": COSTS, "seconds": 1.0}
        Store(results).append(experiment, {**line, **numbers, "jobs_at_once": 1, "commit": "0" * 40, **more})
    return len({run.key[:3] for run in chosen.runs})


def test_every_measured_line_is_in_a_table() -> None:
    assert not in_no_table(EXPERIMENTS, LINES)


def test_the_tables_of_the_documents_are_those_of_the_lines() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert texts == [with_tables(text, EXPERIMENTS, LINES) for text in texts]
    assert all(sum(f"<!-- {name} -->" in text for text in texts) == 1 for name in NAMES)


@pytest.mark.parametrize("table", RESULTS)
def test_a_main_table_has_the_runs_of_its_experiments(table: str) -> None:
    rows = cells(part(with_tables(page(table), EXPERIMENTS, LINES), table))
    planned = [run for name in RESULTS[table] for run, _ in rows_of(named(name), LINES)]
    assert [(row[0], row[1]) for row in rows] == [(run.stream, run.settings.get("network.name", "alexnet")) for run in planned]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_further_table_has_a_row_for_each_variant_and_tells_them_apart(name: str, tmp_path: Path) -> None:
    kinds = made_up(name, tmp_path)
    lines = Store(tmp_path).read()
    text = with_tables(page(*NAMES), EXPERIMENTS, lines)
    rows = cells(part(text, name))
    assert len(rows) == len({tuple(row[:2]) for row in rows}) == kinds
    assert all(any(run.variant in row[1] for row in rows) for run in named(name).runs)
    for marks, experiments in {**RESULTS, **{other: (other,) for other in VARIANTS}}.items():  # rows elsewhere are of shared runs alone
        asked = {run.key[:3] for one in experiments for run in named(one).runs if run.key in lines}
        assert len(cells(part(text, marks))) == len(asked)


def test_the_page_changes_between_its_marks_alone(tmp_path: Path) -> None:
    for name in ("paper-network", "controls"):
        made_up(name, tmp_path)
    assert with_tables("no marks", EXPERIMENTS, Store(tmp_path).read()) == "no marks"
    for unpaired in ("<!-- results -->\nand more", "and more\n<!-- end of results -->"):
        assert with_tables(unpaired, EXPERIMENTS, Store(tmp_path).read()) == unpaired
    once = with_tables(page(*NAMES), EXPERIMENTS, Store(tmp_path).read())
    emptied = page(*NAMES)
    for name in NAMES:
        assert "old" not in part(once, name)
        emptied, once = emptied.replace(part(emptied, name), ""), once.replace(part(once, name), "")
    assert once == emptied
    again = with_tables(page(*NAMES), EXPERIMENTS, Store(tmp_path).read())
    assert with_tables(again, EXPERIMENTS, Store(tmp_path).read()) == again


def test_a_repeated_run_counts_once_with_its_newest_numbers(tmp_path: Path) -> None:
    kinds = made_up("paper-network", tmp_path, ended="2026-01-01")
    made_up("paper-network", tmp_path, ended="2026-01-02", acc=70.0, commit=f"{'1' * 40} with changes")
    text = part(with_tables(page("results"), EXPERIMENTS, Store(tmp_path).read()), "results")
    rows = cells(text)
    assert len(rows) == kinds
    for row in rows:
        seeds = row[3].split(", ")
        assert len(seeds) >= 3
        assert seeds == sorted(set(seeds))
        assert row[4].startswith("70.0")
    assert "1111111 with changes" in text
    assert "0000000" not in text


def test_missing_runs_are_named_below_their_table(tmp_path: Path) -> None:
    """All of them before the first line; none when each has one."""
    runs = named("orders").runs
    before = part(with_tables(page("orders"), EXPERIMENTS, Store(tmp_path).read()), "orders")
    assert cells(before) == []
    assert all(f"{run.stream}, {run.variant} (" in before for run in runs)
    made_up("orders", tmp_path)
    after = part(with_tables(page("orders"), EXPERIMENTS, Store(tmp_path).read()), "orders")
    assert not any(f"{run.stream}, {run.variant} (" in after for run in runs)


def test_runs_without_numbers_are_named_and_enter_no_mean(tmp_path: Path) -> None:
    made_up("reuse", tmp_path)
    line = next(iter(Store(tmp_path).read().values()))
    without = {name: line[name] for name in ("stream", "method", "settings", "commit")}
    for seed in range(3):
        Store(tmp_path).append("reuse", {**without, "seed": seed, "failed": "no room", "ended": "2026-01-01"})
        rows = cells(part(with_tables(page("reuse"), EXPERIMENTS, Store(tmp_path).read()), "reuse"))
        assert sorted(re.findall(r"\d", rows[0][2])) == ["0", "1", "2"]
        assert rows[0][2] != rows[1][2]
        assert rows[0][3] == ("-" if seed == 2 else "50.0" if seed == 1 else f"50.0{PLUS_MINUS}0.0")


@pytest.mark.parametrize(("experiment", "most"), [("paper-network", 0.30), ("resnet18", 1.0), ("narrower", 1.0)])
def test_every_model_of_the_main_table_is_within_its_size(experiment: str, most: float) -> None:
    """Everything in the file counted, over the weights of a dense network with one output row a class; also of runs without lines yet."""
    for run in named(experiment).runs:
        params, model = size(*run.key[:3])
        assert LINES.get(run.key, {}).get("params", params) == params
        outline, name = outline_of(run.stream), run.settings.get("network.name", "alexnet")
        dense = describe(name, outline.input_shape, outline.n_classes).dense_params
        assert params / dense < model.model_bytes_ratio <= most


def test_a_line_of_another_network_than_todays_has_no_size() -> None:
    run, lines = rows_of(named("narrower"), LINES)[0]
    assert "-" not in of_model(run, lines)
    assert of_model(run, [{**line, "params": line["params"] + 1} for line in lines]) == ["-", "-"]
