"""`afaf learn` and `afaf classes`: a model file that keeps learning from folders of images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from afaf.engine.report import EpochReport
from afaf.errors import ConfigError
from afaf.runs import lifelong
from afaf.runs.device import find_device
from afaf.runs.keeping import checksum_of, make_place, open_model, replace_model
from afaf.runs.lifelong import Label, Lifelong, LifelongSettings
from afaf.streams.own import DEFAULT_SIZE, Unreadable, read_class_folders


def learn_folder(
    folder: Path,
    path: Path,
    given: Mapping[str, Any],
    *,
    device: str,
    unreadable: Unreadable,
    out: Console,
    stderr: Console,
    as_json: bool,
) -> None:
    """Learn a folder as one more task; `given` are the options that only a new model takes, None where they were not given."""
    where, before = find_device(device), None
    if path.exists():
        model = open_model(path, where)
        refuse_late(path, given)
        before = checksum_of(path)
        size, channels = image_size(path, model)
        images, labels = read_class_folders(folder, size, channels, unreadable)
    else:
        make_place(path)
        options = {name: value for name, value in given.items() if value is not None}
        channels = 1 if options.pop("grey", False) else 3
        images, labels = read_class_folders(folder, options.pop("size", DEFAULT_SIZE), channels, unreadable)
        model = Lifelong.begin(images, labels, LifelongSettings(**options), where)
    with Bar(stderr) as bar:
        model = model.learn(images, labels, bar)
    replace_model(path, model, before)
    show_learned(out, path, model, as_json)


def refuse_late(path: Path, given: Mapping[str, Any]) -> None:
    late = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False)]
    if late:
        raise ConfigError(f"{', '.join(late)}: decided when a model is begun, and {path} is there: leave that out, or name a new file")


def image_size(path: Path, model: Lifelong) -> tuple[int, int]:
    """(side, channels) of the images a model reads."""
    shape = model.spec.input_shape
    if len(shape) != 3 or shape[1] != shape[2] or shape[0] not in (1, 3):
        raise ConfigError(f"{path} does not read square grey or colour images but {shape}: use it from Python, with AFAFClassifier.load")
    return shape[1], shape[0]


def show_learned(out: Console, path: Path, model: Lifelong, as_json: bool) -> None:
    """What the task just learned is like, and what room is left."""
    note, life = model.life.tasks[-1], model.life
    names = [str(label) for label in life.labels[-1]]
    room, used = model.room(), capacity(model)
    if as_json:
        about = {
            "model": str(path),
            "task": len(life.tasks),
            "classes": names,
            "images": note.images,
            "held_out": note.held_out,
            "accuracy": note.accuracy,
            "capacity_used": used,
            "tasks_that_fit": room,
            "bytes": path.stat().st_size,
        }
        print(json.dumps(about))
        return
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    say(out, f"task {len(life.tasks)} learned: {shown}; {note.images} images")
    if note.accuracy is None:
        say(out, "no image was held out (a class needs at least 1 / validation images), so its accuracy is not known")
    else:
        say(out, f"held-out accuracy on these classes, among all {len(life.known)} known: {note.accuracy:.1f} % of {note.held_out} images")
    say(out, "capacity used: " + ", ".join(f"{name} {share:.0f} %" for name, share in used.items()))
    say(out, f"{room} more task{'s' if room != 1 else ''} of this size fit")
    say(out, f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def capacity(model: Lifelong) -> dict[str, float]:
    """Percent of each hidden layer's neurons that are fixed."""
    ledger, spec = model.learner.ledger, model.spec
    return {spec.layer(l).name: round(100 * float(ledger.is_fixed(l).double().mean()), 1) for l in range(2, spec.L)}


def change_classes(path: Path, rename: Sequence[str], remove: Sequence[str], out: Console) -> None:
    """Rename and remove classes of a model file, or list them."""
    model, before = open_model(path), checksum_of(path)
    for change in rename:
        old, equals, new = change.partition("=")
        if not equals or not old or not new:
            raise ConfigError(f"--rename {change}: write OLD=NEW")
        model.rename(label_of(model, old), new)
        say(out, f"renamed {old} to {new}")
    for name in remove:
        freed = model.remove(label_of(model, name))
        say(out, f"removed {name}" + ("; its task has no class left, and its place is free for another task" if freed else ""))
    if rename or remove:
        replace_model(path, model, before)
        return
    for label, class_id in model.life.known.items():
        say(out, f"{label}  (task {model.life.task_of(class_id)})")


def label_of(model: Lifelong, text: str) -> Label:
    """A label as the model has it, which may be a number that a command line can only spell."""
    return next((label for label in model.life.known if str(label) == text), text)


def say(out: Console, words: str) -> None:
    out.print(words.replace("[", r"\["), soft_wrap=True, highlight=False)


class Bar(lifelong.Progress):
    """A bar of epochs on a terminal; elsewhere only warnings."""

    def __init__(self, console: Console):
        self.console = console
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=28), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
        self.progress = Progress(
            *columns, TextColumn("left"), TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self.bar: TaskID | None = None

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def began(self, task: int, labels: Sequence[Label], epochs: int) -> None:
        self.bar = self.progress.add_task(f"task {task}, {len(labels)} class{'es' if len(labels) != 1 else ''}", total=epochs, note="")

    def epoch_ended(self, report: EpochReport) -> None:
        if self.bar is not None:
            self.progress.update(self.bar, completed=report.epoch + 1, note=f"loss {report.loss:.3f}  {report.accuracy:.1f} % right")

    def warned(self, message: str) -> None:
        self.console.print(f"[yellow]warning:[/] {message}", highlight=False)
