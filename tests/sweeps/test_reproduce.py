"""The line that a run of a grid leaves in the results says what was computed, and how; no finished run is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import afaf
from afaf.cli.main import app
from afaf.cli.reproduce import folder_for
from afaf.errors import ConfigError, DataError, UnfinishedLine, WriteError
from afaf.runs.events import Event
from afaf.runs.job import Job
from afaf.runs.setup import set_up
from afaf.runs.stop import StopToken
from afaf.storage.model_file import Model
from afaf.streams.benchmarks import outline_of
from afaf.sweeps.executor import LocalExecutor
from afaf.sweeps.experiments import Experiment, differing, read_experiment, read_experiments
from afaf.sweeps.reproduce import LineStored, Reproduction
from afaf.sweeps.store import Line, Store, canonical
from forks import Forks

QUICK = {"learn.epochs": 1, "run.images": 10}


def experiment(folder: Path, methods: str, keep: str = "") -> Experiment:
    grid = f'[[grid]]\nstreams = ["split-digits"]\nmethods = [{methods}]\nseeds = 1\n'
    (folder / "small.toml").write_text(f'title = "t"\nfeeds = "f"\nkeep = {{{keep}}}\n{grid}')
    return read_experiment(folder / "small.toml")


def lines_of(folder: Path, chosen: Experiment) -> list[Line]:
    reproduction = Reproduction([chosen], Store(folder / "results"), LocalExecutor("cpu"))
    reproduction.carry_out()
    assert not reproduction.errors
    return list(Store(folder / "results").read().values())


def test_a_method_that_does_not_say_its_costs_keeps_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("afaf.costing.kinds.DenseCosts.footprints")
    lines = lines_of(tmp_path, experiment(tmp_path, '"finetune", "afaf"').with_settings(QUICK))
    assert [(line["method"], line["costs"] is None) for line in lines] == [("finetune", True), ("afaf", False)]
    assert all(line["acc"] is not None for line in lines)


def test_costs_and_what_is_kept_are_of_the_images_that_were_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[afaf.Stream] = []
    monkeypatch.setattr("paper.probes.ledger", lambda model, stream: seen.append(stream))
    (line,) = lines_of(
        tmp_path, experiment(tmp_path, '"finetune"', 'ledger = "paper.probes:ledger"').with_settings({**QUICK, "run.validation": 0.5})
    )
    learned = afaf.open_stream("split-digits").with_at_most(10).with_validation(0.5)
    expected = afaf.costs(learned, "finetune", settings={"learn.epochs": 1})
    assert line["costs"]["dense_flops"] == pytest.approx(expected.dense_flops, rel=1e-5)
    assert [stream.outline for stream in seen] == [learned.outline]


def test_costs_are_of_the_model_that_learned_fewer_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preset of afaf-plus counts the images of the whole stream: that of the images learned would have fewer filters."""
    models: list[Model] = []
    monkeypatch.setattr("paper.probes.ledger", lambda model, stream: models.append(model))
    chosen = experiment(tmp_path, '"afaf-plus"', 'ledger = "paper.probes:ledger"').with_settings(QUICK)
    (line,) = lines_of(tmp_path, chosen)
    whole = afaf.costs("split-digits", "afaf-plus", settings={"learn.epochs": 1})
    assert [model.learner.kept_bytes for model in models] == [whole.kept["router: Gram matrix and sums"]]
    assert line["costs"]["kept_bytes"] == whole.kept_bytes
    assert line["costs"]["dense_flops"] < whole.dense_flops  # of fewer images


@pytest.mark.parametrize("name", ["paper.probes:nothing", "paper.nothing:ledger", "paper.probes", ""])
def test_a_function_to_keep_that_cannot_be_loaded_is_refused_before_any_run(name: str, tmp_path: Path) -> None:
    chosen = experiment(tmp_path, '"finetune"', f'ledger = "{name}"').with_settings(QUICK)
    with pytest.raises(ConfigError, match=re.escape(f"keep: {name} ")):
        Reproduction([chosen], Store(tmp_path / "results"), LocalExecutor("cpu"))


@pytest.mark.parametrize(
    ("settings", "outcome"), [({}, "acc"), ({"sparse.alloc.output": 50}, "failed")], ids=["a run that ends", "a network without room"]
)
def test_a_line_names_the_engine_that_computed_it(settings: dict[str, object], outcome: str, tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, experiment(tmp_path, '"afaf"').with_settings({**QUICK, **settings, "run.engine": "eager"}))
    assert outcome in line
    assert line["engine"] == "eager"


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("afaf", {}),
        ("afaf", {"network.width": 16}),
        ("finetune", {"network.name": "small-cnn"}),
        pytest.param("afaf-plus", {"network.name": "resnet10"}, marks=pytest.mark.slow),
        ("afaf", {"sparse.alloc.output": 50}),
    ],
    ids=["the preset's", "another width", "another network", "a width that the preset chooses", "without room"],
)
def test_a_line_names_the_network_that_was_trained_and_its_width(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, experiment(tmp_path, f'"{method}"').with_settings({**QUICK, **settings}))
    trained = {name: value for name, value in settings.items() if name != "sparse.alloc.output"}
    spec = set_up(outline_of("split-digits"), method, *Job("split-digits", method, settings=trained).tables).spec
    assert (line["network"], line["width"]) == (spec.name, spec.hidden[0].neurons)
    assert "failed" in line or line["costs"]["kept_bytes"] >= 0


def test_lines_of_before_networks_were_named_count_as_done(tmp_path: Path) -> None:
    chosen = several(tmp_path, 2)
    old = [{name: value for name, value in line.items() if name not in ("network", "width")} for line in lines_of(tmp_path, chosen)]
    (tmp_path / "results" / "several.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    assert list(Store(tmp_path / "results").read().values()) == old
    assert not Reproduction([chosen], Store(tmp_path / "results"), LocalExecutor("cpu")).missing


def several(folder: Path, seeds: int) -> Experiment:
    grid = f'[[grid]]\nstreams = ["split-digits"]\nmethods = ["finetune"]\nseeds = {seeds}\n'
    (folder / "several.toml").write_text(f'title = "t"\nfeeds = "f"\n{grid}')
    return read_experiment(folder / "several.toml").with_settings(QUICK)


def test_all_again_in_several_sittings_does_each_once(tmp_path: Path) -> None:
    chosen, store = several(tmp_path, 4), Store(tmp_path / "results")
    lines_of(tmp_path, chosen)
    for _ in range(2):
        stop = StopToken()
        reproduction = Reproduction([chosen], store, LocalExecutor("cpu", stop=stop), again=True)

        def stop_after_two(event: Event, stop: StopToken = stop, reproduction: Reproduction = reproduction) -> None:
            if isinstance(event, LineStored) and len(reproduction.done) == 2:
                stop.ask()

        reproduction.carry_out(on_event=stop_after_two)
    seeds = [json.loads(line)["seed"] for line in (tmp_path / "results" / "several.jsonl").read_text().splitlines()]
    assert seeds == [0, 1, 2, 3, 0, 1, 2, 3]


def test_what_another_process_has_done_meanwhile_is_not_done_twice(tmp_path: Path) -> None:
    chosen, store = several(tmp_path, 3), Store(tmp_path / "results")
    slow = Reproduction([chosen], store, LocalExecutor("cpu"))
    lines_of(tmp_path, chosen)
    slow.carry_out()
    assert len((tmp_path / "results" / "several.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_runs_side_by_side_end_with_their_epoch_when_asked_to(number: int, code: int, tmp_path: Path, forks: Forks) -> None:
    several(tmp_path, 4)
    asked = ["reproduce", "several", "--experiments", str(tmp_path), "--results", str(tmp_path / "results"), "--jobs-at-once", "2"]
    printed = tmp_path / "printed.txt"
    begun = tmp_path / "begun"
    tell = (
        "import pathlib\nfrom afaf.cli.progress import GridDisplay\n"
        f"GridDisplay._advance = lambda *_: pathlib.Path({str(begun)!r}).touch()\n"
    )
    process = forks.start([*asked, "--device", "cpu", "--set", "learn.epochs=4000"], printed, first=tell)
    until = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < until, printed.read_text()
        time.sleep(0.01)
    os.kill(process, number)
    assert forks.wait(process) == code
    words = " ".join(printed.read_text().split())
    assert "0 runs done, 0 were done before, 4 left" in words
    assert "the same command again goes on" in words
    assert "Traceback" not in words


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--precision", "bf17"], "unknown precision 'bf17': did you mean 'bf16'?"),
        (["--limit-minutes", "-5"], "give a number above 0"),
        (["--limit-minutes", "nan"], "give a number above 0"),
    ],
)
def test_what_was_typed_is_judged_before_anything_runs(options: list[str], told: str, tmp_path: Path) -> None:
    several(tmp_path, 1)
    result = CliRunner().invoke(
        app, ["reproduce", "several", "--experiments", str(tmp_path), "--results", str(tmp_path / "results"), *options]
    )
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())
    assert not (tmp_path / "results").exists()


def test_further_settings_are_listed_as_they_are_run(tmp_path: Path) -> None:
    several(tmp_path, 1)
    asked = ["reproduce", "several", "--experiments", str(tmp_path), "--results", str(tmp_path / "results")]
    settings = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
    assert CliRunner().invoke(app, [*asked, *settings, "--device", "cpu"]).exit_code == 0
    assert "complete" in CliRunner().invoke(app, [*asked, *settings, "--list"]).output
    assert "complete" not in CliRunner().invoke(app, [*asked, "--list"]).output


def test_a_project_says_where_its_experiments_and_results_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (folder_for("experiments"), folder_for("results")) == (Path("experiments"), Path("results"))
    Path("pyproject.toml").write_text('[tool.afaf]\nresults = "mine/results"\n')
    assert (folder_for("experiments"), folder_for("results")) == (Path("experiments"), Path("mine/results"))
    for wrong in ("[tool.afaf]\nresults = 3\n", "[tool"):
        Path("pyproject.toml").write_text(wrong)
        with pytest.raises(ConfigError, match=r"pyproject\.toml"):
            folder_for("results")


def test_a_line_names_the_precision_of_its_own_settings(tmp_path: Path) -> None:
    executor = LocalExecutor("cpu")
    reproduction = Reproduction([experiment(tmp_path, '"afaf"')], Store(tmp_path / "results"), executor)
    executor.device = torch.device("cuda")  # elsewhere all is fp32
    for settings, expected in (({"run.precision": "bf16"}, "bf16"), ({}, "tf32")):
        assert reproduction._where(Job("split-digits", "afaf", settings=settings), {}, 1.0)["precision"] == expected


HEAD = {"title": '"t"', "feeds": '"f"'}
GRID = {"streams": '["split-digits"]', "methods": '["afaf"]', "seeds": "1"}


def written(folder: Path, head: dict[str, str], grid: dict[str, str], heading: str = "[[grid]]") -> Path:
    """An experiment's file with a whole first grid, and a second one of these keys."""
    path = folder / "own.toml"
    tables = [head, GRID, grid] if heading == "[[grid]]" else [head, grid]
    texts = ["".join(f"{name} = {value}\n" for name, value in table.items()) for table in tables]
    path.write_text(f"\n{heading}\n".join(texts))
    return path


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        *(("seeds", value, "seeds must be ") for value in ('"1"', "[0, 1]", "1.5", "-1", "0", "true")),
        *(("variants", value, "variants") for value in ('["a"]', "{ a = 3 }", "{}")),
        *(("streams", value, "streams") for value in ('"split-digits"', "[3]", "[]")),
        *(("methods", value, "methods") for value in ('"afaf"', "[3]", "[]")),
        ("streams", '["split-digit"]', "did you mean 'split-digits'"),
        ("methods", '["afag"]', "unknown method 'afag'"),
        ("variants", '{ a = { "learn.epoch" = 2 } }', "unknown key 'learn.epoch'"),
        ("variants", '{ a = { "learn.epochs" = "x" } }', "learn.epochs must be a whole number, not 'x'"),
        ("variants", '{ a = { "sparse.density.W_1" = { "1-4" = "x" } } }', "sparse.density"),
        ("seed", "3", "unknown key 'seed': did you mean 'seeds'"),
    ],
)
def test_what_is_wrong_in_a_grid_is_told_with_its_file_and_number(key: str, value: str, told: str, tmp_path: Path) -> None:
    path = written(tmp_path, HEAD, {**GRID, key: value})
    with pytest.raises(ConfigError) as error:
        read_experiment(path)
    assert str(error.value).startswith(f"{path}, grid 2: ")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("head", "heading", "told"),
    [
        ({"title": "3"}, "[[grid]]", "title must be text"),
        ({"feeds": "3"}, "[[grid]]", "feeds must be text, "),
        ({"keep": "3"}, "[[grid]]", "keep must be a table"),
        ({"keep": '"ledger"'}, "[[grid]]", "keep must be a table"),
        ({"keep": "{ ledger = 3 }"}, "[[grid]]", "keep.ledger must be text"),
        ({"grid": "[1]"}, "[elsewhere]", "unknown key 'elsewhere'"),
        ({}, "[grid]", "each headed [[grid]]"),
    ],
)
def test_what_is_wrong_above_the_grids_is_told_with_its_file(head: dict[str, str], heading: str, told: str, tmp_path: Path) -> None:
    path = written(tmp_path, {**HEAD, **head}, GRID, heading)
    with pytest.raises(ConfigError) as error:
        read_experiment(path)
    assert str(error.value).startswith(f"{path}: ")
    assert told in str(error.value)


RESULT = {"stream": "mix", "method": "afaf", "settings": {}, "seed": 0, "acc": 50.0, "R": [[50.0], [None, 1]], "kept": {}, "costs": None}


def results_with(folder: Path, second: bytes) -> Store:
    """Results of three lines, the second of which is this."""
    whole = json.dumps(RESULT).encode()
    (folder / "own.jsonl").write_bytes(b"\n".join([whole, second, whole]) + b"\n")
    return Store(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "0"),
        ("seed", True),
        ("seed", -1),
        ("stream", 3),
        ("settings", [1]),
        ("kept", None),
        ("acc", "x"),
        ("acc", float("nan")),
        ("seconds", None),
        ("network", 3),
        ("width", "64"),
        ("R", None),
        ("R", [1.0]),
        ("R_task_il", [["x"]]),
    ],
)
def test_a_line_with_a_value_of_the_wrong_type_is_refused_by_name(name: str, value: Any, tmp_path: Path) -> None:
    store = results_with(tmp_path, json.dumps({**RESULT, name: value}).encode())
    with pytest.raises(DataError) as error:
        store.read()
    assert str(error.value).startswith(f"{tmp_path / 'own.jsonl'}, line 2, is no result of a run: {name}")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b'{"stream": "\xff"}', "utf-8"),
        (b"[1]", "table"),
        (b"[" * 100_000, "(recursion|depth)"),
        (b"9" * 5000, "digits"),
        (b'{"seed": 0}', "stream, method, settings"),
    ],
)
def test_a_damaged_line_is_an_error_with_file_and_number(text: bytes, field: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"own.jsonl, line 2, is no result of a run: .*{field}"):
        results_with(tmp_path, text).read()


def test_a_half_written_line_is_skipped(tmp_path: Path) -> None:
    with pytest.warns(UnfinishedLine, match="line 2, is unfinished"):
        assert list(results_with(tmp_path, b'{"stream": "mi').read().values()) == [RESULT]


def test_results_that_cannot_be_read_are_an_error_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*x\.jsonl"):
        Store(tmp_path).read()


@pytest.mark.parametrize(
    ("one", "other", "kept"),
    [
        ("learn.epochs = 2", '"learn.epochs" = 2', {"learn.epochs": 2}),
        ("learn = { epochs = 2, lr = 1 }", '"learn.lr" = 1.0, "learn.epochs" = 2', {"learn.epochs": 2, "learn.lr": 1}),
        ('"run.checkpoint" = "none"', 'run = { checkpoint = "none" }', {"run.checkpoint": None}),
        ("sparse.density.W_1 = 17", '"sparse.density" = { W_1 = 17.0 }', {"sparse.density.W_1": 17}),
        ("sparse.density.W_1.1-2 = 17", '"sparse.density.W_1" = { "1-2" = 17.0 }', {"sparse.density.W_1": {"1-2": 17}}),
        ('"sparse.density" = 17', "sparse = { density = 17.0 }", {"sparse.density": 17}),
    ],
)
def test_the_same_settings_written_differently_are_one_run(one: str, other: str, kept: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, HEAD, {**GRID, "variants": f"{{ one = {{ {one} }}, other = {{ {other} }} }}"})
    runs = [run for run in read_experiment(path).runs if run.settings]
    assert [json.dumps(run.settings) for run in runs] == [json.dumps(kept)]
    assert read_experiment(path).with_settings(kept).runs[-1].settings == kept


def test_settings_that_need_each_other_are_both_kept() -> None:
    both = {"learn.patience": 5, "run.validation": 0.1}
    assert differing("split-digits", "ewc", both) == both
    with pytest.raises(ConfigError, match=r"run\.validation"):
        differing("split-digits", "ewc", {"learn.patience": 5})
    no_recipe = {"learn.momentum": 0, "learn.nesterov": False, "network.name": "resnet18"}  # nesterov needs momentum
    assert differing("split-cifar10", "afaf-plus", no_recipe) == no_recipe


def test_a_setting_is_kept_if_the_preset_of_another_setting_has_a_different_value() -> None:
    """The preset of afaf-plus starts from the previous task on a network that is not the stream's own."""
    network = {"network.name": "resnet18"}
    for start, kept in (("random", {"method.start_from": "random", **network}), ("previous", network)):
        assert differing("split-cifar10", "afaf-plus", {"method.start_from": start, **network}) == kept
    assert differing("split-cifar10", "afaf-plus", {"method.start_from": "random"}) == {}


def test_further_settings_leave_those_of_the_experiment_as_they_were_given(tmp_path: Path) -> None:
    """Even one that its preset has: the preset of the further settings may have another value."""
    network, start = '"network.name" = "resnet18"', '"method.start_from" = "previous"'
    grid = {"streams": '["split-cifar10"]', "methods": '["afaf-plus"]', "variants": f"{{ one = {{ {network}, {start} }} }}"}
    path = written(tmp_path, HEAD, GRID | grid)
    *_, run = read_experiment(path).runs
    assert run.settings == {"network.name": "resnet18"}
    assert run.with_settings({"network.name": "alexnet"}).settings == {"method.start_from": "previous"}


def test_a_setting_that_comes_later_stands_however_it_is_written() -> None:
    assert canonical({"sparse.density.W_1": {"1-2": 17, "3": 9}, "sparse.density.W_1.1-2": 20}) == {
        "sparse.density.W_1": {"1-2": 20, "3": 9}
    }
    assert canonical({"learn.lr": 0.5, "learn": {"lr": 0.1}}) == {"learn.lr": 0.1}
    assert canonical({"method.strengths": {"a.b": 1.0}}) == {"method.strengths": {"a.b": 1}}


def test_results_kept_with_settings_written_otherwise_are_found(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD, {**GRID, "variants": '{ one = { "learn.lr" = 1, "learn.epochs" = 2 } }'})
    line = {"stream": "split-digits", "method": "afaf", "settings": {"learn": {"epochs": 2}, "learn.lr": 1.0}, "seed": 0}
    Store(tmp_path).append("own", line)
    assert [run.settings for run in read_experiment(path).missing(Store(tmp_path).read())] == [{}]


def test_results_that_cannot_be_added_to_are_told_before_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: bool(os.stat(path).st_mode & 0o200))  # a superuser may write anywhere
    for name in ("own", "other"):
        Store(tmp_path).append(name, RESULT)
    Store(tmp_path).prepare()
    (tmp_path / "own.jsonl").chmod(0o444)
    for names in (None, ["own"]):
        with pytest.raises(WriteError, match=r"cannot write .*own.jsonl: no permission.*--results"):
            Store(tmp_path).prepare(names)
    Store(tmp_path).prepare(["other", "new"])


def test_the_list_breaks_no_word_in_a_window_of_eighty_columns() -> None:
    folder = Path(__file__).parents[2] / "paper" / "experiments"
    listed = CliRunner().invoke(app, ["reproduce", "--list", "--experiments", str(folder)], env={"COLUMNS": "80"}).output
    words = {word for experiment in read_experiments(folder) for word in f"{experiment.name} {experiment.title}".split()}
    assert words <= set(re.split(r"[\s()]+", listed)), words - set(re.split(r"[\s()]+", listed))
