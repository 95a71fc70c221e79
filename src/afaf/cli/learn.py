"""`afaf learn` and `afaf classes`: a model file that keeps learning from folders of images."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from afaf.cli.answers import SKIP, encoder_at, evaluated, if_unreadable, image_size, open_ready, read_encoded
from afaf.cli.consoles import ERR, say, warn, work_is_done
from afaf.cli.photos import Encoding, labelled_files, prepare_photos, show_photos_learned
from afaf.encoders.encoder import Encoder
from afaf.errors import ConfigError
from afaf.lifelong import training
from afaf.lifelong.encoded import EncodedModel
from afaf.lifelong.evaluate import Evaluation, check_some_known
from afaf.lifelong.life import Label
from afaf.lifelong.model import Lifelong
from afaf.lifelong.model_store import (
    AnyModel,
    check_place,
    load_any,
    make_place,
    replace_model,
    told_if_interrupted,
)
from afaf.lifelong.settings import LifelongSettings, plan_life
from afaf.runs.device import find_device
from afaf.streams.own import DEFAULT_SIZE, ClassFolders, Unreadable, find_class_folders
from afaf.text import duration, printable_name
from afaf.training.report import EpochReport

LONG = 5  # minutes; longer waits are announced
EVERY = 10  # seconds between lines where there is no terminal
FELL = 20  # percentage points; a larger fall of a class's accuracy is reported


def learn_folder(
    folder: str,
    path: Path,
    given: Mapping[str, Any],
    *,
    encoder: str | None,
    trains: bool,
    how: Encoding,
    cache: Path | None,
    evaluate_on: Path | None,
    device: str,
    skip_unreadable: bool,
    as_json: bool,
    on: str = "local",
) -> None:
    """Learn a folder as one more call, by training a network if `trains`; `given` are the options that only a new model takes.

    The arguments are checked first, in order: the folder, the model, the options; then the images.
    """
    with told_if_interrupted(path) as before:
        prepare: Callable[[], tuple[AnyModel, Callable[[], AnyModel]]]
        if trains:
            found = find_class_folders(folder)
            labels = set(found.labels)
            prepare = partial(prepare_network, path, found, given, device, skip_unreadable, encoder, cache)
        else:
            files = labelled_files(folder)
            labels = {label for _, label in files}
            prepare = partial(prepare_photos, path, files, str(encoder), how, device, cache, skip_unreadable, on)
        judged = [] if evaluate_on is None else find_class_folders(evaluate_on).files
        check_place(path)
        earlier = later = None
        model, teach = prepare()
        known = set(map(str, model.life.known))
        if judged:
            check_some_known(known | labels, [label for _, label in judged])
        if any(label in known for _, label in judged):
            earlier = evaluated(path, model, judged, skip_unreadable)
        model = teach()
        if judged:
            later = evaluated(path, model, judged, skip_unreadable)
        make_place(path)
        replace_model(path, model, before)
    with work_is_done():
        told = model.warnings() if isinstance(model, EncodedModel) else []  # a network's were shown while it was trained
        told += [] if later is None else worse_classes(earlier, later)
        for words in told:
            warn(words)
        about = show_photos_learned(path, model, as_json) if isinstance(model, EncodedModel) else show_learned(path, model, as_json)
        if as_json:
            print(json.dumps({**about, "before": earlier and asdict(earlier), "after": later and asdict(later)}))
            return
        for when, evaluation in (("before", earlier), ("after", later)):
            if evaluation is not None:
                say(f"{when} this call: {evaluation.accuracy:.1f} % of {evaluation.images} images of the known classes are right")
        if later is not None and later.unknown_classes.images:
            say(f"not counted: {later.unknown_classes}")
        say(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def worse_classes(earlier: Evaluation | None, later: Evaluation) -> list[str]:
    """Warnings of classes with no image right after the call, or far fewer than before."""
    was = {} if earlier is None else {row["label"]: row["accuracy"] for row in earlier.classes}
    told = [f"no test image of {', '.join(later.never_right)} is right"] if later.never_right else []
    fell = [
        f"{row['label']} from {was[row['label']]:.0f} to {row['accuracy']:.0f} %"
        for row in later.classes
        if was.get(row["label"], 0) - row["accuracy"] > FELL
    ]
    return told + ([f"since this call fewer test images are right: {', '.join(fell)}"] if fell else [])


Prepared = tuple[Lifelong, NDArray[Any], list[str]]  # a model, and the images and labels to learn


def prepare_network(
    path: Path, found: ClassFolders, given: Mapping[str, Any], device: str, skip_unreadable: bool, encoder: str | None, cache: Path | None
) -> tuple[Lifelong, Callable[[], AnyModel]]:
    """The model before the call, and the function that teaches it."""
    unreadable = if_unreadable(skip_unreadable)
    if path.exists():
        model, images, labels = go_on(path, open_ready(path, device, encoder, cache), found, given, unreadable)
    else:
        model, images, labels = begin(found, given, device, unreadable, None if encoder is None else encoder_at(encoder, device, cache))

    def teach() -> Lifelong:
        with Bar(ERR, on_cpu=model.learner.network.device.type == "cpu") as bar:
            return model.learn(images, labels, bar)

    return model, teach


def go_on(path: Path, model: AnyModel, found: ClassFolders, given: Mapping[str, Any], unreadable: Unreadable) -> Prepared:
    """An existing model, and the images for it."""
    assert isinstance(model, Lifelong)
    refuse_late(path, given, model)
    model.check_new(found.labels)
    if model.identity is not None:
        return model, *encoded_files(model.encoder, found, unreadable)
    return model, *found.read(*image_size(path, model), unreadable, SKIP)


def begin(found: ClassFolders, given: Mapping[str, Any], device: str, unreadable: Unreadable, encoder: Encoder | None) -> Prepared:
    """A new model for the images."""
    options = {name: value for name, value in given.items() if value is not None}
    size, channels = options.pop("size", DEFAULT_SIZE), 1 if options.pop("grey", False) else 3
    settings, where = LifelongSettings(**options), find_device(device)
    shape = (channels, size, size) if encoder is None else (encoder.identity.features,)
    plan_life(shape, len(set(found.labels)), len(found.labels), settings)
    images, labels = found.read(size, channels, unreadable, SKIP) if encoder is None else encoded_files(encoder, found, unreadable)
    return Lifelong.begin(images, labels, settings, where, encoder), images, labels


def encoded_files(encoder: Encoder, found: ClassFolders, unreadable: Unreadable) -> tuple[NDArray[Any], list[str]]:
    """The encoder features and labels that a network learns from."""
    images, read = read_encoded(encoder, found.files, unreadable)
    label_of = dict(found.files)
    return images, [label_of[path] for path in read]


def refuse_late(path: Path, given: Mapping[str, Any], model: Lifelong) -> None:
    """Options that a model is begun with may be repeated, but not changed."""
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    channels, _, side = (0, 0, *model.spec.input_shape)[-3:]
    late = [name for name, has in (("size", side), ("grey", channels == 1)) if options.pop(name, has) != has]
    if model.learns:
        late += [name for name, value in options.items() if not model.was_begun_with(name, value)]
    if late:
        names = ", ".join("--set" if name == "settings" else f"--{name.replace('_', '-')}" for name in late)
        raise ConfigError(f"{names}: decided when a model is begun, and {path} was begun otherwise: leave that out, or name a new file")


def show_learned(path: Path, model: Lifelong, as_json: bool) -> dict[str, Any]:
    """Print the result of the task just learned and the room left; return both as data."""
    note, life = model.life.tasks[-1], model.life
    names = [str(label) for label in life.labels[-1]]
    room, used = model.room(), capacity(model)
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
    if as_json:
        return about
    shown = ", ".join(map(printable_name, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    say(f"task {len(life.tasks)} learned: {shown}; {note.images} images")
    if note.accuracy is None:
        say("no image was held out (a class needs at least 1 / validation images), so its accuracy is not known")
    else:
        say(f"held-out accuracy on these classes ({len(life.known)} known in all): {note.accuracy:.1f} % of {note.held_out} images")
    say("capacity used: " + ", ".join(f"{name} {share:.0f} %" for name, share in used.items()))
    say(f"{room} more tasks of this size fit" if room != 1 else "1 more task of this size fits")
    return about


def capacity(model: Lifelong) -> dict[str, float]:
    """Percent of each hidden layer's neurons that are fixed."""
    ledger, spec = model.learner.ledger, model.spec
    return {spec.layer(l).name: round(100 * float(ledger.is_fixed(l).double().mean()), 1) for l in spec.hidden_groups}


def change_classes(path: Path, rename: Sequence[str], remove: Sequence[str]) -> None:
    """Rename and remove classes of a model file, or list them."""
    with told_if_interrupted(path) as before:
        model = load_any(path)
        if not (rename or remove):
            word = "call" if isinstance(model, EncodedModel) else "task"
            for label, class_id in model.life.known.items():
                say(f"{printable_name(label)}  ({word} {model.life.task_of(class_id)})")
            return
        check_place(path)
        done = [renamed(model, change) for change in rename] + [removed(model, name) for name in remove]
        replace_model(path, model, before)
    with work_is_done():
        for words in done:
            say(words)


def renamed(model: AnyModel, change: str) -> str:
    splits = [(change[:k], "=", change[k + 1 :]) for k, letter in enumerate(change) if letter == "="]  # names may hold one too
    known = [split for split in splits if model.life.label_of(split[0]) in model.life.known]
    if len(known) > 1:
        raise ConfigError(
            f"--rename {change}: is {' or '.join(split[0] for split in known)} meant? Rename one from Python, with rename_class"
        )
    old, equals, new = known[0] if known else change.partition("=")
    if not equals or not old or not new:
        raise ConfigError(f"--rename {change}: write OLD=NEW")
    model.rename(model.life.label_of(old), new)
    return f"renamed {old} to {new}"


def removed(model: AnyModel, name: str) -> str:
    if isinstance(model, EncodedModel):
        exactly = model.remove(model.life.label_of(name))
        stay = "its images stay in the sums (afaf forget FOLDER takes images out)"
        return f"removed {name}: {'the model is now as if it had never learned it' if exactly else f'it is no answer any more; {stay}'}"
    freed = model.remove(model.life.label_of(name))
    return f"removed {name}" + ("; its task has no class left, and its place is free for another task" if freed else "")


class Bar(Progress, training.Progress):
    """A bar of epochs on a terminal; elsewhere a line at the beginning and every `EVERY` seconds."""

    def __init__(self, console: Console, on_cpu: bool = True, clock: Callable[[], float] = time.monotonic):
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=28), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.on_cpu, self.clock = on_cpu, clock
        self.first_ended = self.last_line = 0.0
        self.bar: TaskID | None = None

    def began(self, task: int, labels: Sequence[Label], epochs: int) -> None:
        words = f"task {task}, {len(labels)} class{'es' if len(labels) != 1 else ''}"
        self.bar = self.add_task(words, total=epochs, note="")
        self._line(f"{words}: {epochs} epoch{'s' if epochs != 1 else ''}")

    def epoch_ended(self, report: EpochReport) -> None:
        if report.epoch == 0:  # it takes far longer than any other, since it also prepares the images and the network
            self.first_ended = self.clock()
        rest = report.epochs - report.epoch - 1
        left = (self.clock() - self.first_ended) / report.epoch * rest if report.epoch else None
        note = f"loss {report.loss:.3f}  {report.accuracy:.1f} % right" + ("" if left is None else f"  about {duration(left)} left")
        if report.epoch == 1 and left is not None and left > 60 * LONG and self.on_cpu:
            self.warned(
                f"about {duration(left)} more on this CPU; a GPU is used where there is one. A new model learns faster with a smaller "
                "network (--network small-cnn), smaller images (--size 16) or, to try it, few epochs (--epochs 2). Ctrl-C ends this and "
                "leaves the model file as it was"
            )
        if self.bar is not None:
            self.update(self.bar, completed=report.epoch + 1, note=note)
        if self.clock() - self.last_line >= EVERY:
            self._line(f"task {report.task}: epoch {report.epoch + 1} of {report.epochs}, {note}")

    def _line(self, words: str) -> None:
        self.last_line = self.clock()
        if not self.console.is_terminal:
            say(words, self.console)

    def warned(self, message: str) -> None:
        warn(message, self.console)
