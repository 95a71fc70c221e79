"""A folder of everything that a command may meet: models, runs, images, arrays and settings, whole, damaged and forged, and special files.

`work` is where commands run; `precious` holds files that no command was ever asked to change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

from forks import Forks

NAMES = ["cat", "a\x1b[31mred", os.fsdecode(b"bad\xff"), "=cmd|' /C calc'!A0", "$\\frac{", "naïve 猫", "b\u202etxt", "two\nlines", "-rf"]


def build_world(folder: Path, forks: Forks) -> Path:
    """Fill a new folder; afaf itself makes the models and runs in it."""
    work, precious = folder / "work", folder / "precious"
    for path in (work, precious / "checkpoints", folder / "home", folder / "data"):
        path.mkdir(parents=True)
    (precious / "note.txt").write_text("all that I know\n")
    (precious / "checkpoints" / "llama.safetensors").write_bytes(b"weights" * 100)
    (precious / "log.jsonl").write_text('{"mine": 1}\n')
    make_images(work)
    make_arrays(work)
    make_settings(work)
    quick = ["--set", "learn.epochs=1", "--set", "run.images=8", "--device", "cpu"]
    call(forks, work, "learn", "a", "--model", "m.safetensors", "--size", "8", "--grey", "--epochs", "1", "--device", "cpu")
    call(forks, work, "learn", "odd", "--model", "odd.safetensors", "--size", "8", "--epochs", "1", "--device", "cpu", "--skip-unreadable")
    call(forks, work, "run", "digit-pairs", "afaf", *quick, "--out", "run")
    call(forks, work, "run", "digit-pairs", "finetune", *quick, "--set", "run.checkpoint=0", "--seeds", "2", "--out", "runs")
    make_models(work)
    make_runs(work)
    make_special(work)
    lock(folder)
    return folder


def call(forks: Forks, work: Path, *arguments: str) -> None:
    log = work.parent / "home" / "log"
    code = forks.wait(forks.start(list(arguments), log, folder=work))
    assert code == 0, log.read_text()


def make_images(work: Path) -> None:
    draws = np.random.default_rng(0)
    for part, names in {"a": ["cat", "dog"], "b": ["cow", "hen"], "odd": NAMES, "one": ["only"]}.items():
        for name in names:
            (work / part / name).mkdir(parents=True)
            for number in range(4):
                Image.fromarray(draws.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(work / part / name / f"{number}.png")
    hostile = work / "odd" / "cat"
    (hostile / "cut.png").write_bytes((work / "a" / "cat" / "0.png").read_bytes()[:40])
    (hostile / "text.jpg").write_text("no image")
    (hostile / "empty.gif").touch()
    (hostile / "folder.png").mkdir()
    for part in ("train", "test"):
        shutil.copytree(work / "a", work / "stream" / part)
    (work / "pipes" / "cat").mkdir(parents=True)
    os.mkfifo(work / "pipes" / "cat" / "0.png")
    (work / "loops" / "cat").mkdir(parents=True)
    (work / "loops" / "cat" / "0.png").symlink_to("0.png")
    (work / "empty").mkdir()


def make_arrays(work: Path) -> None:
    images, labels = np.zeros((8, 4, 4), np.uint8), np.arange(8) % 4
    good = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(work / "good.npz", **good)
    np.savez(work / "zero.npz", **{name: array[:0] for name, array in good.items()})
    np.savez(work / "flat.npz", **{**good, "x_train": np.zeros((8, 0)), "x_test": np.zeros((8, 0))})
    np.savez(work / "nan.npz", **{**good, "x_train": np.full((8, 3), np.nan)})
    np.savez(work / "objects.npz", **{**good, "y_train": np.array([{}] * 8)})
    np.savez(work / "lacks.npz", x=images)
    (work / "cut.npz").write_bytes((work / "good.npz").read_bytes()[:200])
    (work / "text.npz").write_text("no arrays")


def make_settings(work: Path) -> None:
    texts = {
        "good.toml": "[learn]\nepochs = 1\n",
        "deep.toml": "a = " + "[" * 2000,
        "digits.toml": "[learn]\nepochs = " + "9" * 5000,
        "dotted.toml": "a." * 20_000 + "a = 1",
        "nul.toml": '[stream]\norder = "a\\u0000b"\n',
        "types.toml": "learn = 3\n[method]\nl_reuse = 'x'\n",
        "deep.json": "[" * 5000,
        "list.json": "[1, 2]",
        "odd.json": '{"config": {"learn": [], "run": {"chunk": 1e30}}}',
    }
    for name, text in texts.items():
        (work / name).write_text(text)
    (work / "latin.toml").write_bytes(b'[network]\nname = "\xff"\n')
    (work / "experiments").mkdir()
    grid = 'title = "t"\nfeeds = "f"\n[[grid]]\nstreams = ["digit-pairs"]\nmethods = ["finetune"]\nseeds = 1\n'
    (work / "experiments" / "tiny.toml").write_text(grid + 'variants = { q = { "learn.epochs" = 1, "run.images" = 4 } }\n')
    (work / "bad-experiments").mkdir()
    (work / "bad-experiments" / "bad.toml").write_text(grid.replace("seeds = 1", "seeds = " + "9" * 5000))
    (work / "results").mkdir()
    (work / "results" / "bad.jsonl").write_text("[" * 3000 + "\n{}\n")


def make_models(work: Path) -> None:
    data = (work / "m.safetensors").read_bytes()
    middle = len(data) // 2
    forged = {
        "cut.model": data[:middle],
        "flipped.model": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "text.model": b"hello, this is no model at all",
        "empty.model": b"",
        "huge.model": (1 << 60).to_bytes(8, "little") + b"{}",
        "deep.model": (5000).to_bytes(8, "little") + b"[" * 5000,
    }
    for name, forgery in forged.items():
        (work / name).write_bytes(forgery)
    (work / "m.safetensors.bak").write_text("my own backup of something else\n")
    (work / "m.html").write_text("my own page\n")


def make_runs(work: Path) -> None:
    for name in ("half", "nested", "garbled", "linked", "piped"):
        shutil.copytree(work / "runs" / "finetune" / "0", work / name)
    for path in ("results.json", "model.safetensors"):
        (work / "half" / path).unlink()
    with (work / "nested" / "log.jsonl").open("a") as log:
        log.write("[" * 5000 + "\n" + '{"a":' * 3000 + "\n")
    (work / "garbled" / "results.json").write_text('{"R": ' + "[" * 2000)
    (work / "garbled" / "config.json").write_text(json.dumps({"config": {"learn": {"epochs": "x"}}, "seed": 10**400 % 7}))
    (work / "linked" / "results.json").unlink()
    for path, target in {".lock": "../../precious/note.txt", "log.jsonl": "../../precious/log.jsonl"}.items():
        (work / "linked" / path).unlink(missing_ok=True)
        (work / "linked" / path).symlink_to(target)
    shutil.rmtree(work / "linked" / "checkpoints", ignore_errors=True)
    (work / "linked" / "checkpoints").symlink_to("../../precious/checkpoints")
    (work / "piped" / "results.json").unlink()
    os.mkfifo(work / "piped" / "results.json")


def make_special(work: Path) -> None:
    os.mkfifo(work / "fifo")
    (work / "loop").symlink_to("loop")
    (work / "dangling").symlink_to("nowhere")
    (work / "link").symlink_to("../precious/note.txt")
    (work / "linkdir").symlink_to("../precious")
    with contextlib.suppress(OSError), contextlib.chdir(work):  # a socket's name is short
        socket.socket(socket.AF_UNIX).bind("socket")
    with contextlib.suppress(OSError):
        os.mknod(work / "node", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # swallows what is written, as the machine's own does
        os.chmod(work / "node", 0o666)
    (work / "locked" / "inside").mkdir(parents=True)
    (work / "no-x" / "inside").mkdir(parents=True)


def lock(folder: Path) -> None:
    """Its owner may read and change everything, but for two folders."""
    os.chmod(folder / "work" / "locked", 0o000)
    os.chmod(folder / "work" / "no-x", 0o644)


def copy_world(world: Path, to: Path) -> Path:
    subprocess.run(["cp", "-a", str(world), str(to)], check=True)
    return to


def remove_world(world: Path) -> None:
    for name in ("locked", "no-x"):
        with contextlib.suppress(OSError):
            os.chmod(world / "work" / name, 0o700)
    shutil.rmtree(world, ignore_errors=True)


def snapshot(folder: Path) -> dict[str, str]:
    """What each path of a folder is: its type, and the digest of a file's contents."""
    found: dict[str, str] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            kind = os.lstat(path).st_mode
            state = f"{stat.S_IFMT(kind):o}"
            if stat.S_ISREG(kind):
                with contextlib.suppress(PermissionError), open(path, "rb") as file:
                    state += hashlib.blake2b(file.read()).hexdigest()
            elif stat.S_ISLNK(kind):
                state += os.readlink(path)
            found[os.path.relpath(path, folder)] = state
    return found
