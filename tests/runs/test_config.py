"""Settings: typed, merged in order, refused with the nearest valid key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from afaf.errors import CapacityError, ConfigError
from afaf.methods import find_method, method_names
from afaf.methods.afaf import AFAFOptions
from afaf.runs.config import build_config, merge, parse_set, read_config_file
from afaf.runs.folder import flat
from afaf.runs.job import Job
from afaf.runs.presets import preset_names
from afaf.runs.setup import costs_of, set_up
from afaf.streams.benchmarks import outline_of


def test_every_preset_builds_for_every_method() -> None:
    assert {"split-digits", "split-cifar10", "sim-cifar10", "sim-cifar100", "mix"} <= set(preset_names())
    for stream in preset_names():
        for method in method_names():
            set_up(outline_of(stream), method)


@pytest.mark.parametrize("stream", ["split-digits", "split-cifar10", "sim-cifar100", "split-cifar100"])
@pytest.mark.parametrize("method", ["afaf", "afaf-plus", "ewc"])
def test_a_stream_in_another_class_order_keeps_its_preset_and_its_costs(stream: str, method: str) -> None:
    usual, other = Job(stream, method), Job(stream, method, settings=["stream.order=seed:7"])
    assert usual.outline().class_names != other.outline().class_names
    setups = [set_up(job.outline(), method, *job.tables) for job in (usual, other)]
    assert setups[1].spec == setups[0].spec
    tables = [flat(setup.config.to_dict()) for setup in setups]
    assert {name for name in tables[0] if tables[0][name] != tables[1][name]} == {"stream.order"}
    assert costs_of(other).params == costs_of(usual).params


def test_later_tables_win_and_siblings_stay() -> None:
    preset = {"learn": {"epochs": 40, "lr": 0.1}, "sparse": {"density": {"conv": 10, "fc": 20, "output": 90}}}
    config = build_config(AFAFOptions, preset, parse_set(["learn.epochs=3", "sparse.density.fc=5", "method.l_reuse=2"]))
    assert (config.learn.epochs, config.learn.lr, config.method.l_reuse) == (3, 0.1, 2)
    assert config.sparse.density == {"conv": 10.0, "fc": 5.0, "output": 90.0}


def test_values_per_layer_and_range_of_tasks_from_the_command_line() -> None:
    table = parse_set(["sparse.density.W_1.1-4=17", "sparse.density.conv=10", "method.candidates=random", "sparse.alloc=30"])
    config = build_config(AFAFOptions, table)
    assert config.sparse.density["W_1"] == {"1-4": 17}
    assert config.sparse.alloc == {"all": 30.0}
    assert config.method.candidates == "random"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("learn.epoch=3", r"unknown key 'learn\.epoch': did you mean 'learn\.epochs'"),
        ("method.clip=1", r"unknown key 'method\.clip': valid ones: method\.biases"),
        ("lern.epochs=3", "unknown section 'lern': did you mean 'learn'"),
        ("learn.epochs=many", r"learn\.epochs must be a whole number, not 'many'"),
        ("learn.epochs=1.5", "whole number"),
        ("learn.epochs=true", "whole number"),
        ("learn.epochs=0", r"learn\.epochs"),
        ("learn.lr=-1", r"learn\.lr"),
        ("evaluate.batch_size=0", r"evaluate\.batch_size"),
        ("method.candidates=mots", r"unknown value of method\.candidates 'mots': did you mean 'most'"),
        ("network.dropout=1", r"network\.dropout"),
        ("run.evaluate_on=validation", r"set run\.validation"),
        ("learn=3", "write section.key=value"),
        ("learn.epochs", "write section.key=value"),
        ("network.name=3", "must be text"),
        ("sparse.density.conv=a", "must be a number"),
    ],
)
def test_bad_settings_are_refused(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(AFAFOptions, parse_set([assignment]))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("method.l_reuse=1", r"method\.l_reuse = 1 is outside 2\.\.6"),
        ("method.l_reuse=7", r"outside 2\.\.6"),
        ("method.first_reuse=1", "at least 2"),
        ("method.candidate_share=130", r"method\.candidate_share"),
        ("sparse.alloc.conv=120", r"sparse\.alloc\.conv = 120.* is not a percentage"),
        ("sparse.drop=101", r"sparse\.drop"),
        ("sparse.fixed.output=50", "orthogonal_output"),
        ("sparse.density.W_9=5", r"unknown key in sparse\.density 'W_9'"),
        ("network.name=alexnett", "did you mean 'alexnet'"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_learned(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        set_up(outline_of("split-cifar10"), "afaf", parse_set([assignment]))


def test_capacity_that_must_run_out_is_refused_before_anything_is_learned() -> None:
    with pytest.raises(CapacityError, match=r"task 3 does not fit: layer 'dense 2' \(2048 neurons\).*lower sparse"):
        set_up(outline_of("split-cifar10"), "spacenet", parse_set(["sparse.alloc.output=50"]))
    with pytest.raises(CapacityError, match="rounds down to 0"):
        set_up(outline_of("split-cifar10"), "spacenet", parse_set(["sparse.alloc.conv=1"]))
    set_up(outline_of("split-cifar10"), "afaf", parse_set(["sparse.alloc.output=20"]))


def test_the_paper_study_of_higher_density_fits_only_with_reuse() -> None:
    """Density of W_1..W_3 in tasks 1-4 of Mix at 12 % of all pairs: 17/25/25 % of the allocated ones."""
    raised = parse_set(["sparse.density.W_1.1-4=17", "sparse.density.W_2.1-4=25", "sparse.density.W_3.1-4=25"])
    setup = set_up(outline_of("mix"), "afaf", raised)
    owned = setup.method.footprints(setup.spec, outline_of("mix"))[3].owned
    for l in (1, 2, 3):
        assert owned[l] / setup.spec.edge(l).weights / 4 == pytest.approx(0.12, abs=0.01)


def test_files(tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text('[learn]\nepochs = 2\n[method]\ncandidates = "random"\n')
    assert build_config(AFAFOptions, *read_config_file(toml)).learn.epochs == 2
    toml.write_text("[learn]\nepochs = 3\n", encoding="utf-8-sig")  # as some editors of Windows write it
    assert build_config(AFAFOptions, *read_config_file(toml)).learn.epochs == 3
    toml.write_text("[learn\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_config_file(toml)
    with pytest.raises(ConfigError, match="cannot read"):
        read_config_file(tmp_path / "none.toml")


def test_merge_does_not_change_its_inputs() -> None:
    below = {"a": {"b": 1}}
    assert merge(below, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert below == {"a": {"b": 1}}


def test_unknown_method_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'spacenet'"):
        find_method("spacnet")


@pytest.mark.parametrize("method", ["afaf", "ewc", "lwf", "packnet", "ridge"])
def test_every_number_is_bounded(method: str) -> None:
    """No setting takes a number that is not finite or too large to compute with, whatever its section."""
    options = find_method(method).Options
    numbers = [name for name, value in flat(build_config(options).to_dict()).items() if type(value) in (int, float)]
    assert {"learn.batch_size", "learn.lr", "run.images", "stream.size"} <= set(numbers)
    for name in [*numbers, "run.chunk", "run.checkpoint", *(["method.clip"] if method in ("ewc", "lwf") else [])]:
        for value in ("inf", "-inf", "nan", "1e39", "1e400", "1" + "0" * 20, "1" + "0" * 400, "1" + "0" * 5000):
            with pytest.raises(ConfigError, match=re.escape(name)):
                set_up(outline_of("split-digits"), method, parse_set([f"{name}={value}"]))


@pytest.mark.parametrize(("setting", "value"), [("method.clip", 0), ("method.temperature", -1), ("method.strength", float("inf"))])
def test_bounds_hold_within_unions(setting: str, value: float) -> None:
    with pytest.raises(ConfigError, match=re.escape(setting)):
        set_up(outline_of("split-digits"), "lwf", {"method": {setting.split(".")[1]: value}})


def test_a_second_line_is_not_dropped() -> None:
    with pytest.raises(ConfigError, match=r"learn\.epochs"):
        parse_set(["learn.epochs=1\nfoo=2"])
    assert parse_set(['stream.order="""a\nb"""']) == {"stream": {"order": "a\nb"}}


@pytest.mark.parametrize("text", ["[" * 3000, "a = " + "[" * 3000, "a = {b=" * 2000, "a." * 20_000 + "a = 1", "x" * 100_000])
@pytest.mark.parametrize("kind", ["toml", "json"])
def test_text_that_is_too_deep_or_too_long_is_refused(tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / f"settings.{kind}"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        build_config(AFAFOptions, *read_config_file(path), {"a": 1})
    with pytest.raises(ConfigError):
        build_config(AFAFOptions, parse_set([f"learn.epochs={text}"]))
    with pytest.raises(ConfigError):
        build_config(AFAFOptions, parse_set([f"{text.replace('=', '')}.x=1"]))


def test_a_name_like_no_other_is_answered_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"valid ones: .*spacenet"):
        find_method("icarl")
