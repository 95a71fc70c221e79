"""The command line as a script uses it: exit codes, one JSON object as the last line, messages on stderr."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import afaf
from afaf.cli.consoles import OutputError, SafeStream
from afaf.cli.errors import FAULT
from afaf.cli.main import app
from afaf.cli.progress import ProgressDisplay
from afaf.cli.runs import results_table
from afaf.errors import RunError
from afaf.runs.events import Warned
from afaf.runs.job import Job
from afaf.runs.results import Summary
from forks import Forks

runner = CliRunner()
QUICK = ["--set", "learn.epochs=1", "--set", "learn.batch_size=32", "--set", "run.images=20", "--device", "cpu"]


def test_run_prints_one_json_object_last(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", "split-digits", "afaf", "--seed", "2", *QUICK, "--out", str(tmp_path / "r"), "--json"])
    assert result.exit_code == 0, result.output
    last = json.loads(result.stdout.splitlines()[-1])
    expected = {"stream", "method", "seed", "acc", "bwt", "la", "acc_task_il", "R", "R_task_il", "params", "dense_params", "seconds", "run"}
    assert expected <= set(last)
    assert (last["stream"], last["method"], last["seed"], last["run"]) == ("split-digits", "afaf", 2, str(tmp_path / "r"))
    assert [len(row) for row in last["R"]] == [1, 2, 3, 4, 5]


def test_a_built_in_stream_is_learned_in_the_class_order_that_is_asked_for(tmp_path: Path) -> None:
    out, order = tmp_path / "r", "6,9,0,1,2,3,4,5,7,8"
    result = runner.invoke(app, ["run", "split-digits", "finetune", *QUICK, "--set", f"stream.order={order}", "--out", str(out)])
    assert result.exit_code == 0, result.output
    stored = json.loads((out / "results.json").read_text())
    assert stored["class_names"] == [["6", "9"], ["0", "1"], ["2", "3"], ["4", "5"], ["7", "8"]]
    assert json.loads((out / "config.json").read_text())["config"]["stream"]["order"] == order
    assert runner.invoke(app, ["report", str(out)]).exit_code == 0
    assert runner.invoke(app, ["costs", "split-cifar10", "afaf", "--set", "stream.order=seed:7"]).exit_code == 0


def test_paths_are_shown_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "try [red]" / "try [" / "try :dog:" / "b]"
    for command in (["run", "split-digits", "finetune", *QUICK, "--out", str(out)], ["report", str(out)]):
        result = runner.invoke(app, command)
        assert result.exit_code == 0, result.output
        assert str(out) in result.stdout
    again = runner.invoke(app, ["run", "split-digits", "finetune", *QUICK, "--out", str(out)])
    assert str(out) in again.stderr


def test_a_demo_that_was_interrupted_goes_on_with_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted: list[str] = []
    run = afaf.run

    def quick_run(stream: str, method: str, **more: Any) -> Any:
        if method == "afaf" and not interrupted:
            interrupted.append(method)
            raise KeyboardInterrupt
        return run(stream, method, settings={"learn.epochs": 1, "run.images": 20}, **more)

    monkeypatch.setattr("afaf.api.run", quick_run)
    command = ["demo", "--out", str(tmp_path / "demo")]
    first, again = runner.invoke(app, command), runner.invoke(app, command)
    assert (first.exit_code, "give the same command again" in first.stderr) == (130, True)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "demo" / "afaf" / "report.html").exists()


def test_several_seeds_leave_a_folder_each(tmp_path: Path) -> None:
    result = runner.invoke(app, ["run", "split-digits", "finetune", "--seeds", "2", *QUICK, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    last = json.loads(result.stdout.splitlines()[-1])
    assert [run["seed"] for run in last["runs"]] == [0, 1]
    accs = [run["acc"] for run in last["runs"]]
    assert last["mean"]["acc"] == pytest.approx(sum(accs) / 2)
    assert last["std"]["acc"] == pytest.approx(abs(accs[0] - accs[1]) / 2**0.5)
    for seed in (0, 1):
        assert (tmp_path / "finetune" / f"{seed}" / "results.json").exists()


def test_methods_are_compared_over_the_same_seeds(tmp_path: Path) -> None:
    """One command, a folder for each method and seed; the table has paired differences; the page has every method of every stream."""
    command = ["run", "split-digits", "finetune", "ridge", "--seeds", "2", *QUICK, "--out", str(tmp_path / "a"), "--json"]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    methods = json.loads(result.stdout.splitlines()[-1])["methods"]
    accs = {name: [run["acc"] for run in summary["runs"]] for name, summary in methods.items()}
    assert [run["seed"] for summary in methods.values() for run in summary["runs"]] == [0, 1, 0, 1]
    difference = sum(a - b for a, b in zip(accs["ridge"], accs["finetune"], strict=True)) / 2
    assert f"{difference:+.2f}" in result.stdout
    assert runner.invoke(app, ["run", "digit-pairs", "ridge", "finetune", *QUICK, "--out", str(tmp_path / "b")]).exit_code == 0
    page = tmp_path / "page.html"
    assert runner.invoke(app, ["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(page)]).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert {'id="stream-split-digits"', 'id="stream-digit-pairs"'} <= set(re.findall(r'id="stream-[^"]+"', text))
    assert f"{sum(accs['ridge']) / 2:.2f}" in text
    assert runner.invoke(app, ["run", "split-digits", "ridge", "ridge", *QUICK]).exit_code == 2


def test_seeds_that_an_earlier_version_began_are_found_where_it_put_them(tmp_path: Path) -> None:
    command = ["run", "split-digits", "finetune", "--seeds", "2", *QUICK, "--out", str(tmp_path)]
    settings = {"learn.epochs": 1, "learn.batch_size": 32, "run.images": 20}
    afaf.run("split-digits", "finetune", device="cpu", out=tmp_path / "seed-0", settings=settings)
    before = (tmp_path / "seed-0" / "log.jsonl").read_bytes()
    assert runner.invoke(app, command).exit_code == 0
    assert (tmp_path / "seed-0" / "log.jsonl").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "finetune").iterdir()) == ["1"]


def test_the_same_command_again_says_what_is_there_and_what_to_type(tmp_path: Path) -> None:
    command = ["run", "split-digits", "finetune", *QUICK, "--out", str(tmp_path / "r")]
    assert runner.invoke(app, command).exit_code == 0
    again = runner.invoke(app, command)
    assert again.exit_code == 2
    assert "already holds a finished run" in " ".join(again.stderr.split())
    (tmp_path / "r" / "results.json").unlink()
    again = runner.invoke(app, command)
    assert again.exit_code == 2
    assert "interrupted (newest checkpoint 000005-task-5-end)" in " ".join(again.stderr.split())
    assert f"`afaf run --resume {tmp_path / 'r'}`" in " ".join(again.stderr.split())


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["split-digits", "finetune", "--set", "learn.epoch=2"], "did you mean 'learn.epochs'"),
        (["split-digits", "finetune", "--set", "learn.epochs=two"], "learn.epochs must be a whole number"),
        (["split-digits", "finetun"], "did you mean 'finetune'"),
        (["split-digit", "finetune"], "did you mean 'split-digits'"),
        (["split-digits", "finetune", "--device", "cuda:77"], "'cuda:77'"),
        (["split-digits", "finetune", "--config", "nothing.toml"], "cannot read nothing.toml"),
    ],
)
def test_what_was_typed_is_judged_before_the_folder_that_is_there(
    typed: list[str], message: str, taken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(taken.parent)
    for command in (["run", *typed], ["run", *typed, "--out", str(taken)]):
        result = runner.invoke(app, command)
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.split())


def test_a_taken_folder_is_told_before_the_data_is_read(taken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("the data was read")

    monkeypatch.setattr("afaf.runs.job.open_stream", read)
    again = runner.invoke(app, ["run", "split-digits", "finetune", "--out", str(taken)])
    assert "already holds a run that was interrupted" in " ".join(again.stderr.split())
    with pytest.raises(RunError, match="already holds"):
        afaf.run("split-digits", "finetune", out=taken)


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A folder that holds a run, with the name that a run of these gets."""
    folder = tmp_path / "runs" / "split-digits-finetune-0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_resume_needs_the_folder_alone(tmp_path: Path) -> None:
    assert runner.invoke(app, ["run", "split-digits", "afaf", *QUICK, "--out", str(tmp_path / "r"), "--json"]).exit_code == 0
    before = json.loads((tmp_path / "r" / "results.json").read_text())
    (tmp_path / "r" / "results.json").unlink()
    result = runner.invoke(app, ["run", "--resume", str(tmp_path / "r"), "--json"])
    assert result.exit_code == 0, result.output
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["R"], last["run"]) == (before["R"], str(tmp_path / "r"))
    finished = runner.invoke(app, ["run", "--resume", str(tmp_path / "r"), "--json"])
    assert finished.exit_code == 0
    assert "finished already" in " ".join(finished.stderr.split())
    assert json.loads(finished.stdout.splitlines()[-1]) == last


def test_seeds_resume_what_is_missing(tmp_path: Path) -> None:
    """One seed is finished, one was interrupted, one is missing; a run of other settings is not mistaken for one of them."""
    command = ["run", "split-digits", "finetune", "--seeds", "3", *QUICK, "--out", str(tmp_path), "--json"]
    assert runner.invoke(app, [*command[:3], "--seeds", "2", *command[5:]]).exit_code == 0
    finished = (tmp_path / "finetune" / "0" / "log.jsonl").read_bytes()
    (tmp_path / "finetune" / "1" / "results.json").unlink()
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    last = json.loads(result.stdout.splitlines()[-1])
    assert [run["seed"] for run in last["runs"]] == [0, 1, 2]
    assert (tmp_path / "finetune" / "0" / "log.jsonl").read_bytes() == finished
    assert '"resumed"' in (tmp_path / "finetune" / "1" / "log.jsonl").read_text()
    other = runner.invoke(app, [*command, "--set", "learn.lr=0.01"])
    assert other.exit_code == 2
    assert "learn.lr is 0.05 there, 0.01 here" in " ".join(other.stderr.split())


def test_costs_as_json() -> None:
    result = runner.invoke(app, ["costs", "split-cifar10", "afaf", "--json"])
    found = json.loads(result.stdout)
    assert (found["params"], found["dense_params"], found["stream"], found["method"]) == (3_489_966, 23_459_520, "split-cifar10", "afaf")
    assert {"params_ratio", "dense_flops", "paper_flops", "counted_flops"} <= set(found)


def test_costs_of_all_methods_side_by_side() -> None:
    found = json.loads(runner.invoke(app, ["costs", "split-cifar10", "--all", "--json"]).stdout)
    assert {"afaf", "spacenet", "packnet", "ewc", "mas", "lwf", "finetune", "joint", "isolated", "ridge"} <= set(found["methods"])
    assert found["methods"]["afaf"]["params"] == 3_489_966
    shown = runner.invoke(app, ["costs", "split-cifar10", "--all"], env={"COLUMNS": "160"}).stdout
    assert all(name in shown for name in found["methods"])
    narrow = runner.invoke(app, ["costs", "split-cifar10", "--all"], env={"COLUMNS": "80"}).stdout
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_the_numbers_of_a_large_network_fit_a_narrow_terminal() -> None:
    settings = {"learn.epochs": 1, "method.retrain_epochs": 1, "run.images": 20}
    found = afaf.run("split-digits", "packnet", settings=settings, device="cpu")
    large = [replace(found, params=23_471_808, dense_params=23_471_808, seconds=1234.5, seed=seed) for seed in (10, 11)]
    written = io.StringIO()
    Console(width=80, file=written).print(results_table(Summary(large)))
    shown = written.getvalue()
    assert shown.count("23,471,808") == 2
    assert "1234.5" in shown
    assert "…" not in shown


def test_tune_prints_the_value_and_one_json_object_last(tmp_path: Path) -> None:
    result = runner.invoke(app, ["tune", "split-digits", "lwf", *QUICK, "--json", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["stream"], last["method"], last["option"]) == ("split-digits", "lwf", "method.strength")
    assert f"method.strength = {last['value']:g}" in result.stdout
    assert ("--start begins with a stronger one" in result.stdout) == (last["value"] == 10)


def test_the_command_that_tune_prints_is_the_run_that_was_tuned(tmp_path: Path) -> None:
    """All that was set and all that was found is in it, and it can be typed as it stands."""
    (tmp_path / "some settings.toml").write_text("run.images = 20\n")
    typed = ["--config", str(tmp_path / "some settings.toml"), "--set", "learn.epochs=1", "--lr", "0.02", "--searches", "1"]
    result = runner.invoke(app, ["tune", "split-digits", "ewc", *typed, "--device", "cpu", "--json", "--out", str(tmp_path / "tune")])
    assert result.exit_code == 0, result.output
    *_, command, last = result.stdout.splitlines()
    found = json.loads(last)["settings"]
    assert found == {"method.strength": 10000.0, "method.penalty": "proximal", "learn.lr": 0.02}
    again = runner.invoke(app, [*shlex.split(command)[1:], "--out", str(tmp_path / "run")])
    assert again.exit_code == 0, again.output
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert [config["method"][name] for name in ("strength", "penalty")] == [10000.0, "proximal"]
    assert (config["learn"]["lr"], config["learn"]["epochs"], config["run"]["images"]) == (0.02, 1, 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["costs", "split-cifar10"], "name a method, or ask for all of them with --all"),
        (["costs", "split-cifar10", "afaf", "--all"], "name a method, or ask for all"),
        (["costs", "split-cifar1", "--all"], "did you mean 'split-cifar10'"),
        (["tune", "split-digits", "afaf"], "no trade-off to tune"),
        (["run", "split-digit", "afaf"], "did you mean 'split-digits'"),
        (["run", "split-digits", "afav"], "did you mean 'afaf'"),
        (["run", "split-digits", "afaf", "--set", "learn.epoch=3"], "did you mean 'learn.epochs'"),
        (["run", "split-digits", "afaf", "--seed", "1", "--seeds", "2"], "exclude each other"),
        (["run", "split-digits"], "name a stream and a method"),
        (["run", "--resume", "nothing"], "holds no run"),
        (["run", "split-digits", "afaf", "--resume", "nothing"], "--resume needs no more than the run folder"),
        (["run", "--resume", "nothing", "--on", "ray"], "--resume needs no more than the run folder"),
        (["doctor", "nothing"], "does not exist"),
        (["run", "split-digits", "afaf", "--device", "cuda:77"], "'cuda:77'"),
        (["costs", "split-cifar10", "nothing"], "unknown method"),
        (["run", "split-digits", "afaf", "--seed", "-1"], "Invalid value for '--seed'"),
        (["tune", "split-digits", "lwf", "--seed", "-1"], "Invalid value for '--seed'"),
        (["learn", "photos", "--model", "m", "--seed", "-1"], "Invalid value for '--seed'"),
        (["run", "split-digits", "finetune", "--set", "stream.order=6,zebra"], "zebra"),
        (["run", "split-digits", "finetune", "afaf", "--set", "stream.order=6,9"], "stream.order"),
        (["run", "mix", "finetune", "--set", "stream.order=seed:7"], "mix"),
        (["costs", "split-cifar10", "finetune", "--set", "stream.order=cat,cat"], "cat"),
    ],
)
def test_what_a_user_can_mend_exits_with_2_and_a_message(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_lists_and_version() -> None:
    assert "split-cifar10" in runner.invoke(app, ["streams"]).stdout
    assert "spacenet" in runner.invoke(app, ["methods"]).stdout
    assert runner.invoke(app, ["--version"]).stdout.startswith("afaf ")


def test_on_a_terminal_it_shows_tasks_epochs_loss_and_time_left() -> None:
    screen = io.StringIO()
    with ProgressDisplay(Console(file=screen, force_terminal=True, width=120)) as display:
        afaf.run("split-digits", "finetune", settings={"learn.epochs": 2, "run.images": 20}, device="cpu", on_event=display.on_event)
        display.refresh()
    shown = screen.getvalue()
    for part in ("finetune", "task 5", "loss", "accuracy", "left", "10/10", "after task 1", "8, 9"):
        assert part in shown


def test_on_a_terminal_names_are_shown_as_they_are() -> None:
    screen = io.StringIO()
    images = np.random.default_rng(0).normal(0, 1, (24, 6)).astype(np.float32)
    labels = np.array(["[/b]", "[red]"] * 12)
    stream = afaf.Stream.from_arrays(images, labels, name="folder:photos [/b]")
    with ProgressDisplay(Console(file=screen, force_terminal=True, width=120)) as display:
        afaf.run(stream, "finetune", settings={"learn.epochs": 1, "network.name": "mlp"}, device="cpu", on_event=display.on_event)
        display.on_event(Warned(Job(stream, "finetune"), "[/b] was hardly learned"))
    for part in ("photos [/b]", "[/b], [red]", "[/b] was hardly"):
        assert part in screen.getvalue()


def test_as_a_program_it_is_quiet_without_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "afaf", "run", "split-digits", "finetune", "--set", "learn.epochs=2", "--out", str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "finetune" in done.stdout


def test_no_bracket_is_lost_in_a_help_text() -> None:
    """A word in brackets is Rich's markup, unless it is written with a backslash."""

    def texts_of(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (getattr(param, "help", None) or "" for param in command.params)
        for inner in getattr(command, "commands", {}).values():
            yield from texts_of(inner)

    texts = list(texts_of(typer.main.get_command(app)))
    assert any("\\[" in text for text in texts)
    for text in texts:
        assert Text.from_markup(text).plain == text.replace("\\[", "[")


def test_help_needs_no_pytorch() -> None:
    """What a shell asks for all the time answers at once."""
    code = "import sys, afaf.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a file that is always full")
@pytest.mark.parametrize("command", [["methods"], ["costs", "split-cifar10", "afaf", "--json"]])
def test_output_that_cannot_be_written_is_told_in_a_line(command: list[str], tmp_path: Path, forks: Forks) -> None:
    done = forks.run(command, tmp_path, Path("/dev/full"))
    assert done.returncode == 1
    assert b"cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"ignored" not in done.stderr


@pytest.mark.parametrize("shape", [(0, 4, 4), (8, 0), (8, 0, 4)])
def test_arrays_without_samples_or_features_are_refused_by_the_name_of_their_file(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_train=np.zeros(shape, np.uint8), y_train=np.arange(shape[0]) % 4)
    for command in ("run", "costs"):
        result = runner.invoke(app, [command, f"npz:{tmp_path / 'mine.npz'}", "afaf", *(QUICK if command == "run" else [])])
        assert result.exit_code == 2
        assert "mine.npz" in result.output


def test_a_log_that_is_nested_deeply_is_a_damaged_log(tmp_path: Path) -> None:
    out = tmp_path / "r"
    assert runner.invoke(app, ["run", "digit-pairs", "finetune", *QUICK, "--out", str(out)]).exit_code == 0
    with (out / "log.jsonl").open("a") as log:
        log.write("[" * 100_000 + "\n")
    result = runner.invoke(app, ["report", str(out)])
    assert result.exit_code == 2
    assert str(out) in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ELOOP, "loop", "here"), 2),
        (OSError(errno.ENOSPC, "full", "here"), 1),
        (OverflowError("int too large"), 2),
        (UnicodeEncodeError("ascii", "é", 0, 1, "no"), 2),
        (MemoryError(), 2),
        (RecursionError(), 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), 2),
        (ZeroDivisionError("a fault of the user's"), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_error_is_one_line_and_a_traceback_on_request(error: Exception, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[str]:
        raise error

    monkeypatch.setattr("afaf.methods.method_names", fail)
    result = runner.invoke(app, ["methods"])
    assert result.exit_code == code
    assert len(result.output.splitlines()) == 1
    monkeypatch.setenv("AFAF_TRACEBACK", "1")
    assert "Traceback" in runner.invoke(app, ["methods"]).output


def test_a_fault_of_afaf_is_told_from_one_in_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty.py").write_text("import json\n\n\ndef small():\n    json.loads(None)\n")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = runner.invoke(app, ["run", "split-digits", "finetune", "--set", "network.name=faulty:small"])
    assert theirs.exit_code == 2
    assert f"{tmp_path / 'faulty.py'}, line 5" in theirs.output.replace("\n", "")
    monkeypatch.setattr("afaf.methods.method_names", None)
    assert runner.invoke(app, ["methods"]).exit_code == FAULT


def test_more_seeds_than_any_run_has_are_refused() -> None:
    assert runner.invoke(app, ["run", "digit-pairs", "afaf", "--seeds", "999999999"]).exit_code == 2


def test_a_data_folder_behind_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    result = CliRunner().invoke(app, ["data", "list", "--data", str(tmp_path / "loop" / "x")])
    assert result.exit_code == 2
    assert "loop" in result.output


def test_a_stream_that_was_closed_before_the_program_began_is_no_terminal() -> None:
    """`afaf serve FILE >&-` asks both streams whether they are one."""
    out, errors = SafeStream(None), SafeStream(None, ignore_failures=True)
    assert not out.isatty()
    assert not errors.isatty()
    errors.write("lost")
    errors.flush()
    with pytest.raises(OutputError):
        out.write("lost")
    with pytest.raises(OSError, match="fileno"):
        out.fileno()
