"""The command line against hostile values, files and folders: no traceback, no hang, no change to a file that is not ours."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from afaf.cli.errors import FAULT
from forks import Forks
from hostile_world import build_world, copy_world, remove_world, snapshot

LIMIT = 20  # seconds: far more than any of these commands needs
CODES = {0, 1, 2}

MODELS = ["m.safetensors", "odd.safetensors", "run/model.safetensors"]
RUNS = ["run", "runs", "half", "nested", "garbled", "linked", "piped", "results"]
FOLDERS = ["a", "b", "odd", "one", "pipes", "loops", "empty", "stream", "locked", "locked/inside", "no-x/inside", "linkdir", ".", ".."]
FILES = ["cut.model", "flipped.model", "text.model", "empty.model", "huge.model", "deep.model", "m.html", "good.toml", "a/cat/0.png"]
SPECIAL = ["fifo", "loop", "loop/x", "dangling", "link", "node", "socket", "fifo/x", "good.toml/x"]
STRANGE = [
    "",
    " ",
    "new",
    "new/deeper/still",
    "x" * 300,
    "y/" * 400,
    "-",
    "--",
    "\udcff",
    "\x1b[31m",
    "a\nb",
    "~",
    "~root",
    "*",
    "café",
    "%s",
    "{}",
]
SETTINGS = [
    "good.toml",
    "deep.toml",
    "digits.toml",
    "dotted.toml",
    "nul.toml",
    "types.toml",
    "latin.toml",
    "deep.json",
    "list.json",
    "odd.json",
]
ARRAYS = [f"npz:{name}.npz" for name in ("good", "zero", "flat", "nan", "objects", "lacks", "cut", "text")]
NUMBERS = ["0", "-1", "1", "3", "nan", "inf", "-inf", "1e20", "1e400", "9" * 5000, "1" * 400 + ".0", "", "x", "１", "1_0", "0x1", "true"]
NAMED = [
    *("learn.epochs", "learn.batch_size", "learn.lr", "learn.patience", "method.clip", "method.temperature", "method.strength"),
    *(
        "method.l_reuse",
        "method.share",
        "run.chunk",
        "run.checkpoint",
        "run.validation",
        "run.images",
        "sparse.alloc",
        "sparse.density.W_1.1-2",
    ),
    *(
        "network.name",
        "network.dropout",
        "stream.size",
        "stream.order",
        "evaluate.batch_size",
        "a",
        "a.b",
        "learn",
        "." * 50,
        "x." * 2000 + "y",
    ),
]

paths = st.one_of(*(st.sampled_from(names) for names in (MODELS, RUNS, FOLDERS, FILES, SPECIAL, STRANGE)))
numbers = st.sampled_from(NUMBERS)
models = st.one_of(st.sampled_from(MODELS), paths)
runs = st.one_of(st.sampled_from(RUNS), paths)
folders = st.one_of(st.sampled_from(FOLDERS), paths)
streams = st.one_of(
    st.sampled_from(["digit-pairs", "split-digits", "mix", "icarl", *ARRAYS]),
    folders.map("folder:{}".format),
    paths.map("npz:{}".format),
    paths,
)
methods = st.sampled_from(["afaf", "finetune", "ewc", "lwf", "packnet", "ridge", "isolated", "icarl", "", "\x1b[0m"])
assignments = st.one_of(
    st.builds("{}={}".format, st.sampled_from(NAMED), st.one_of(numbers, paths)),
    st.sampled_from(["learn.epochs=1\nlearn.lr=2", "learn.epochs=" + "[" * 3000, "learn.epochs", "=", "a.b=\udcff"]),
)
devices = st.sampled_from(["cpu", "cuda:9", "mps", "gpu", "cpu:-1", ""])


def option(name: str, values: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[list[str]]:
    """An option that may be left out."""
    return st.one_of(st.just([]), st.just([name]) if values is None else values.map(lambda value: [name, value]))


def command(name: str, *parts: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    return st.tuples(*parts).map(lambda lists: [*name.split(), *(word for words in lists for word in words)])


def one(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return values.map(lambda value: [value])


QUICK = st.just(["--set", "learn.epochs=1", "--set", "run.images=4"])
sets, config = option("--set", assignments), option("--config", st.one_of(st.sampled_from(SETTINGS), paths))
data, as_json, device = option("--data", folders), option("--json"), option("--device", devices)
COMMANDS = st.one_of(
    command(
        *("run", one(streams), one(methods), QUICK, option("--out", runs), option("--seed", numbers)),
        *(option("--seeds", st.sampled_from(["2", "0", "999999999"])), sets, config, data, as_json, device),
        option("--precision", st.sampled_from(["fp32", "x"])),
    ),
    command("run", option("--resume", runs), sets, device, as_json),
    command("doctor", one(st.one_of(models, runs)), as_json),
    command("costs", one(streams), one(methods), sets, config, data, as_json),
    command(
        *(
            "tune",
            one(streams),
            st.just(["ewc"]),
            QUICK,
            st.just(["--searches", "1"]),
            option("--tasks", numbers),
            option("--decay", numbers),
        ),
        *(option("--start", numbers), option("--lr", numbers), option("--out", runs), sets),
    ),
    command(
        *("reproduce", option("tiny"), option("--list"), option("--seeds", st.sampled_from(["1", "0", "999999999"]))),
        *(option("--experiments", st.one_of(st.just("bad-experiments"), folders)), option("--results", folders), sets),
        option("--limit-minutes", numbers),
    ),
    command("report", one(runs), option("--out", paths), option("--figures", paths)),
    command("streams", one(streams), option("--out", paths), data),
    command("data list", option("--data", paths), as_json),
    command("data check", option("--data", paths), one(st.sampled_from(["mnist", "mix", "x", ""]))),
    command(
        *("learn", one(folders), models.map(lambda path: ["--model", path]), option("--size", st.sampled_from(["8", "0", "224", "4096"]))),
        *(st.just(["--epochs", "1"]), option("--grey"), option("--max-tasks", numbers), option("--max-classes", numbers)),
        *(option("--validation", numbers), option("--network", st.sampled_from(["mlp", "x"])), option("--seed", numbers), sets, device),
        *(option("--skip-unreadable"), as_json),
    ),
    command(
        *(
            "predict",
            one(folders),
            models.map(lambda path: ["--model", path]),
            option("--top", numbers),
            option("--unknown-below", numbers),
        ),
        *(as_json, option("--csv"), option("--skip-unreadable"), device),
    ),
    command("inspect", one(models), option("--html"), option("--picture", paths.map("{}.png".format)), as_json),
    command("inspect", one(models), option("--picture", paths)),
    command("classes", one(models), option("--rename", st.one_of(paths, st.just("cat=\x1b[31m"))), option("--remove", paths)),
    command("export", one(models), option("--onnx", paths), option("--torch", paths), option("--images", folders)),
    st.lists(st.one_of(paths, numbers, st.sampled_from(["run", "data", "--help", "--version", "inspect", "--seed"])), max_size=4),
)


@pytest.fixture(scope="module")
def world(forks: Forks) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        built = build_world(Path(place) / "world", forks)
        yield built
        remove_world(built)


def check(world: Path, forks: Forks, arguments: list[str], as_root: bool) -> None:
    here = copy_world(world, world.parent / "here")
    log = world.parent / "log"
    try:
        before = snapshot(here)
        process = forks.start(arguments, log, first=first(here), folder=here / "work", ordinary=not as_root)
        code = forks.wait(process, LIMIT)
        printed = log.read_bytes()
        after = snapshot(here)
    finally:
        remove_world(here)
    assert code is not None, f"hung: {printed[-2000:]!r}"
    assert code != FAULT, printed.decode(errors="replace")[-2000:]
    assert code in CODES, (code, printed.decode(errors="replace")[-2000:])
    assert b"Traceback" not in printed or os.environ.get("AFAF_TRACEBACK")
    assert b"\x1b" not in printed
    changed = {path for path, state in before.items() if after.get(path) != state and not is_ours(path, arguments)}
    assert not changed, (changed, printed.decode(errors="replace")[-2000:])
    appeared = {path for path in after.keys() - before.keys() if path.startswith("precious")}
    named = any("link" in word or ".." in word for word in arguments)
    assert named or not appeared, appeared


def first(here: Path) -> str:
    """What a command finds around it: a home of its own, no way to the network, one thread."""
    around = {
        "HOME": str(here / "home"),
        "MPLCONFIGDIR": str(here / "home"),
        "AFAF_DATA": str(here / "data"),
        "AFAF_TRACEBACK": os.environ.get("AFAF_TRACEBACK", ""),
    }
    return f"import os; os.environ.update({around!r})"


def is_ours(path: str, arguments: list[str]) -> bool:
    """Whether a command may change what was there: a model that it is to teach or to rename classes of, or a run that it goes on with."""
    where = os.path.relpath(path, "work")
    if where.startswith("..") or ("log.jsonl" in path and "linked" in path):
        return path.startswith(("home", "data"))
    if arguments[:1] in (["learn"], ["classes"]):
        return any(where == os.path.normpath(word) for word in arguments) and where in MODELS[:2]
    own_runs = ("half", "runs", "nested", "garbled", "piped", "linked", "run")
    if arguments[:1] == ["run"]:
        return any(
            where.startswith(f"{name}/") for name in own_runs if any(os.path.normpath(word).startswith(name) for word in arguments[1:])
        )
    return False


def fuzz(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@given(arguments=COMMANDS, as_root=st.booleans())
@fuzz(40)
def test_commands_end_in_a_line(world: Path, forks: Forks, arguments: list[str], as_root: bool) -> None:
    check(world, forks, arguments, as_root)


@pytest.mark.slow
@given(arguments=COMMANDS, as_root=st.booleans())
@fuzz(2000)
def test_two_thousand_commands_end_in_a_line(world: Path, forks: Forks, arguments: list[str], as_root: bool) -> None:
    check(world, forks, arguments, as_root)
