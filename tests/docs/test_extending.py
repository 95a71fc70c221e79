"""The examples of docs/extending.md do what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import afaf
from afaf import extend
from afaf.cli.main import app
from afaf.errors import ConfigError
from afaf.methods import find_method

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
QUICK = {"learn.epochs": 2, "learn.batch_size": 32}


def example(name: str) -> type:
    """A class as it is printed, with its own imports alone."""
    names: dict[str, Any] = {"__name__": "examples"}
    exec(compile(code_of(name), "extending.md", "exec", dont_inherit=True), names)
    return names[name]


def code_of(name: str) -> str:
    return next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"class {name}" in block)


def test_a_dense_method_that_freezes_the_lower_layers() -> None:
    kept: list[torch.Tensor] = []

    class Watched(example("Half")):  # type: ignore[misc]
        def finish(self, learner: extend.Learner, context: extend.TaskContext) -> None:
            kept.append(torch.cat([learner.network.weight(1).flatten(), learner.network.bias(1)]).clone())

    results = afaf.run("split-digits", Watched, settings={**QUICK, "method.first": 2}, device="cpu")
    assert results.method == "half"
    assert all(torch.equal(kept[0], later) for later in kept[1:])


def test_a_wrong_value_of_an_option_is_refused_before_anything_is_learned() -> None:
    for first in (0, 99):
        with pytest.raises(ConfigError, match=rf"method\.first={first}"):
            afaf.costs("split-digits", example("Half"), settings={"method.first": first})


def test_the_command_line_takes_a_method_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_of_somebody.py").write_text(code_of("Half"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    place = "half_of_somebody:Half"
    settings = [part for one in ("learn.epochs=1", "run.images=20", "method.first=2") for part in ("--set", one)]
    ran = CliRunner().invoke(app, ["run", "split-digits", place, "--device", "cpu", *settings])
    assert ran.exit_code == 0, ran.output
    run = Path("runs/split-digits-half-0")
    assert json.loads((run / "results.json").read_text())["method"] == "half"
    assert CliRunner().invoke(app, ["report", str(run)]).exit_code == 0
    costs = CliRunner().invoke(app, ["costs", "split-digits", place, *settings, "--json"])
    assert json.loads(costs.stdout)["method"] == "half"
    assert "first" in CliRunner().invoke(app, ["methods", place]).stdout


@pytest.mark.parametrize("place", ["half_of_nobody:Half", "afaf.extend:Nothing", "afaf.extend:ConfigError", ":", "afaf.extend:"])
def test_a_place_without_a_method_is_an_error_of_the_user(place: str) -> None:
    for command in (["run", "split-digits", place], ["costs", "split-digits", place], ["methods", place]):
        told = CliRunner().invoke(app, command)
        assert told.exit_code == 2
        assert place in told.stderr


def test_files_name_no_code() -> None:
    """A name in a model file or a run folder is one of those known, and no place to import from; only a resumed run imports its class."""
    with pytest.raises(ConfigError, match="unknown method"):
        find_method("afaf.extend:AFAF")


def test_a_method_cannot_take_the_name_of_a_built_in_one() -> None:
    class Taken(extend.SpaceNet[extend.SpaceNetOptions]):
        name = "ewc"

    class Unnamed(extend.AFAF):  # keeps the name of what it derives from
        pass

    with pytest.raises(ConfigError, match="'ewc'"):
        afaf.costs("split-digits", Taken)
    assert afaf.costs("split-digits", Unnamed).method == "afaf"


def test_a_sparse_method_that_draws_elsewhere() -> None:
    results = afaf.run(
        "split-digits", example("LowerHalf"), settings={**QUICK, "sparse.alloc.output": 10, "sparse.density.W_1": 10}, device="cpu"
    )
    assert results.model is not None
    record = results.model.learner.ledger.record_of(1)
    assert record is not None
    assert int(record.free[2].max()) < 200  # of 400 neurons, all free at first


def test_a_variant_has_the_preset_of_what_it_derives_from() -> None:
    class MyAFAF(extend.AFAF):
        name = "my-afaf"

    assert afaf.costs("split-digits", MyAFAF).params == afaf.costs("split-digits", "afaf").params


def test_a_network_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as it stands, with fewer images and epochs."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "network=module" in block)
    names: dict[str, Any] = {}
    learn = afaf.run

    def quick(*arguments: Any, **given: Any) -> afaf.Results:
        return learn(*arguments, settings={**QUICK, "run.images": 40}, device="cpu", **given)

    monkeypatch.setattr(afaf, "run", quick, raising=False)
    exec(code, names)
    assert len(names["results"].R) == 5
