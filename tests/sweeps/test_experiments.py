"""Experiments as grids: what makes two runs different ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from afaf.errors import ConfigError
from afaf.sweeps.experiments import read_experiment

GRID = """
title = "t"
feeds = "f"
[[grid]]
streams = ["split-digits"]
methods = ["finetune"]
seeds = 1
[grid.variants]
usual = {}
other = {"stream.order" = "6,9,0,1,2,3,4,5,7,8"}
third = {"stream.order" = "seed:7"}
"""


def test_runs_in_other_class_orders_are_other_runs(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(GRID)
    runs = {run.variant: run for run in read_experiment(tmp_path / "orders.toml").runs}
    assert len({run.key for run in runs.values()}) == 3
    assert [runs[name].settings.get("stream.order") for name in ("usual", "other", "third")] == [None, "6,9,0,1,2,3,4,5,7,8", "seed:7"]


def test_an_order_that_does_not_fit_is_found_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(GRID.replace("seed:7", "6,9,zebra"))
    with pytest.raises(ConfigError, match=r"orders\.toml.*zebra"):
        read_experiment(tmp_path / "orders.toml")
