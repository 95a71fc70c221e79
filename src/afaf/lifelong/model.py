"""A model that keeps learning: each call brings new classes as one more task into the same network of fixed size.

What `AFAFClassifier` and `afaf learn` have in common. Nothing of a task is kept but its sub-network: no image, no statistics of images. A
call works on a copy, so that one that fails leaves the model as it was.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, isfinite
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from afaf.bounds import Count, Portion, Positive, Within
from afaf.errors import CapacityError, ConfigError, DataError, FileError
from afaf.methods import find_method
from afaf.methods.base import Method, TaskContext
from afaf.methods.spacenet import SpaceNet
from afaf.network.net import Network
from afaf.network.spec import NetworkSpec
from afaf.network.zoo import NETWORKS
from afaf.randomness import check_seed, generator
from afaf.runs.config import Config, Table, build, build_config
from afaf.runs.device import suitable_threads
from afaf.runs.guessing import hardly_learned
from afaf.runs.presets import BATCH_SIZE, STEPS, preset_tables, suitable_network
from afaf.runs.runner import Setup, set_up, settings_table
from afaf.runs.train_task import train_task
from afaf.storage.container import readable
from afaf.storage.model_file import Model
from afaf.streams.tasks import Augment, Outline, Preparation, Split, input_shape
from afaf.training.engines import Engine, find_engine
from afaf.training.learner import Learner
from afaf.training.losses import NONE_OF_MINE, BalancedCrossEntropy
from afaf.training.negatives import made_negatives
from afaf.training.plan import LearningPlan
from afaf.training.precision import at_work
from afaf.training.report import EpochReport, OnEpoch
from afaf.training.task_data import TaskData

Label = str | int | float | bool
Negatives = Literal["auto", "always", "never"]
METHOD = "afaf"
MOST_TASKS = (1 << 15) - 1  # a ledger numbers tasks in int16
MAX_TASKS = 10  # that a model is made for where nobody says how many there will be
HEAVIEST = 10.0  # a rare class's images count at most so many times
ENOUGH = 10  # held-out images from which a temperature is fitted
PREDICT_BATCH = 256
LEARN_MORE = (
    "how a model learns is decided when it is begun: begin a new one with more epochs, larger images or more of them, or another lr"
)


@dataclass(frozen=True)
class LifelongSettings:
    """What is decided when a model is made."""

    max_tasks: Annotated[int, Within(1, MOST_TASKS)] | None = None  # None: from max_classes, or 10
    max_classes: Annotated[int, Within(1, 1 << 20)] | None = None  # None: output rows are added as classes arrive
    network: str | None = None  # None: the one that suits the images
    epochs: Count | None = None  # None: so many that a task gets 1,500 steps, 20 to 200
    batch_size: Count | None = None
    lr: Positive | None = None
    augment: Augment = "none"
    settings: Any = None  # a mapping or a list: anything else, section.key=value
    balance: bool = True  # images of rare classes count more
    negatives: Negatives = "auto"  # none-of-mine images made from a task's own: auto is always, unless the model is for a single task
    validation: Portion = 0.1  # of each class, held out for the accuracy shown and the temperature
    seed: int = 0


@dataclass
class TaskNote:
    """What is written down of a task that was learned."""

    learned: str  # when, in UTC
    images: int  # learned from
    held_out: int
    accuracy: float | None = None  # percent of the held-out images, among all classes known then; None: none were held out
    temperature: float | None = None  # None: too few images were held out to fit one

    @classmethod
    def parse(cls, data: Any) -> TaskNote:
        note = cls(**data)
        numbers = [number for number in (note.accuracy, note.temperature) if number is not None]
        if not isinstance(note.learned, str) or not all(type(count) is int for count in (note.images, note.held_out)):
            raise ValueError("what it says of its tasks makes no sense")
        if not all(type(number) in (int, float) and isfinite(number) for number in numbers):
            raise ValueError("what it says of its tasks makes no sense")
        if note.temperature is not None and not 0 < note.temperature < 1e6:
            raise ValueError("what it says of its tasks makes no sense")
        return note


@dataclass
class Life:
    """What a model that keeps learning knows besides its network: kept in the model file as `life`."""

    max_tasks: int
    max_classes: int | None
    pixels: Literal["uint8", "float"]  # whether images counted 0..255 stand for 0..1
    labels: list[list[Label]]  # by task, in the order of their class ids
    removed: list[int] = field(default_factory=list)  # class ids
    balance: bool = True
    negatives: Negatives = "auto"
    validation: float = 0.1
    epochs: int | None = None  # of every task; None: by its images
    tasks: list[TaskNote] = field(default_factory=list)

    @classmethod
    def parse(cls, data: Mapping[str, Any], class_names: list[list[str]]) -> Life:
        """From a file; raises ValueError, KeyError or TypeError for what no model could have said."""
        life = cls(**{**data, "tasks": [TaskNote.parse(note) for note in data["tasks"]]})
        if [len(labels) for labels in life.labels] != [len(names) for names in class_names] or len(life.tasks) != len(life.labels):
            raise ValueError("its labels do not fit its classes")
        every = [label for labels in life.labels for label in labels]
        if not all(isinstance(label, (str, int, float, bool)) for label in every):
            raise ValueError("its labels are neither numbers nor texts")
        if not all(type(c) is int and 0 <= c < len(every) for c in life.removed) or life.pixels not in ("uint8", "float"):
            raise ValueError("its description makes no sense: life")
        if type(life.max_tasks) is not int or life.negatives not in ("auto", "always", "never"):
            raise ValueError("its description makes no sense: life")
        if type(life.validation) not in (int, float) or not 0 <= life.validation < 1:
            raise ValueError("its description makes no sense: validation")
        if life.epochs is not None and (type(life.epochs) is not int or life.epochs < 1):
            raise ValueError("its description makes no sense: epochs")
        return life

    @property
    def every_label(self) -> list[Label]:
        """By class id, removed ones too."""
        return [label for labels in self.labels for label in labels]

    @property
    def known(self) -> dict[Label, int]:
        """Class ids of the labels the model answers with."""
        return {label: c for c, label in enumerate(self.every_label) if c not in self.removed}

    @property
    def known_by_task(self) -> list[list[Label]]:
        """The labels the model answers with, task by task; a task whose classes were all removed has none."""
        found: list[list[Label]] = [[] for _ in self.labels]
        for label, class_id in self.known.items():
            found[self.task_of(class_id) - 1].append(label)
        return found

    def task_of(self, class_id: int) -> int:
        """The number, from 1, of the task that brought a class."""
        ends = np.cumsum([len(labels) for labels in self.labels])
        return int(np.searchsorted(ends, class_id, side="right")) + 1


class Progress:
    """Told what happens while a task is learned."""

    def began(self, task: int, labels: Sequence[Label], epochs: int) -> None: ...
    def epoch_ended(self, report: EpochReport) -> None: ...
    def warned(self, message: str) -> None: ...


class Watch:
    """Tells of epochs, and keeps how many images were right in the last one: of those that have a right answer, which negatives do not."""

    def __init__(self, progress: Progress, share: float):
        self.progress, self.share, self.accuracy = progress, share, 100.0

    def epoch_ended(self, report: EpochReport) -> None:
        self.accuracy = min(100.0, report.accuracy / self.share)
        self.progress.epoch_ended(replace(report, accuracy=self.accuracy))


class Lifelong:
    """A model and its life. `learn` makes it know more; everything else reads it."""

    def __init__(self, model: Model, life: Life, learns: bool = True):
        self.model, self.life, self.learns = model, life, learns

    # Files and bytes.

    @classmethod
    def load(cls, path: Any, device: torch.device | str = "cpu") -> Lifelong:
        """A model file, also one that a run wrote: that can be used, but learns no more."""
        return cls._of(Model.load(path, device), str(path))

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> Lifelong:
        return cls._of(Model.from_bytes(data, device), "the model")

    @classmethod
    def _of(cls, model: Model, name: str) -> Lifelong:
        with readable(name):
            life = _life_of_run(model, name) if model.life is None else Life.parse(model.life, model.class_names)
        model.learner.ledger.keeps_past &= not life.removed  # older files do not say so
        return cls(model, life, learns=model.life is not None)

    def save(self, path: Any) -> None:
        self._with_life().save(path)

    def to_bytes(self) -> bytes:
        return self._with_life().to_bytes()

    def _with_life(self) -> Model:
        return replace(self.model, life=asdict(self.life)) if self.learns else self.model

    def copy(self, device: torch.device | None = None) -> Lifelong:
        """The same model, on the same device or another."""
        return Lifelong.from_bytes(self.to_bytes(), device or self.learner.network.device)

    # What it is.

    @property
    def learner(self) -> Learner:
        return self.model.learner

    @property
    def spec(self) -> NetworkSpec:
        return self.learner.network.spec

    @property
    def preparation(self) -> Preparation:
        return self.model.preparations[0]

    @property
    def method(self) -> Method[Any]:
        config = self.config
        return find_method(self.model.method)(config.method, config.settings)

    @property
    def config(self) -> Config:
        return build_config(find_method(self.model.method).Options, self.model.config)

    @property
    def temperature(self) -> float:
        """What logits are divided by: the tasks' own temperatures, averaged by their held-out images."""
        fitted = [(note.temperature, note.held_out) for note in self.life.tasks if note.temperature is not None]
        return sum(value * count for value, count in fitted) / sum(count for _, count in fitted) if fitted else 1.0

    # What it was made with.

    @property
    def made_with(self) -> LifelongSettings:
        """What was decided when it was begun, with nothing left open: a model begun with these settings is made in the same way."""
        life = self.life
        kept = LifelongSettings(
            max_tasks=life.max_tasks,
            max_classes=life.max_classes,
            epochs=life.epochs,
            augment=self.preparation.augment,
            balance=life.balance,
            negatives=life.negatives,
            validation=life.validation,
            seed=self.learner.seed,
        )
        return _spelled_out(self._outline_for(kept), kept, self.config)

    def decided(self, settings: LifelongSettings) -> LifelongSettings:
        """What these settings would have come to, had it been begun with them: to be held against `made_with`."""
        outline = self._outline_for(settings)
        config = _config(outline, settings)
        return _spelled_out(outline, replace(settings, epochs=_epochs_of_every_task(outline, settings, config)), config)

    def _outline_for(self, settings: LifelongSettings) -> Outline:
        """What could be expected when it was begun, from its first task."""
        first = self.life.tasks[0]
        return _outline(self.spec.input_shape, len(self.life.labels[0]), first.images + first.held_out, settings)

    # Learning.

    @classmethod
    def begin(cls, images: NDArray[Any], labels: Sequence[Label], settings: LifelongSettings, device: torch.device) -> Lifelong:
        """A model that knows nothing yet, made for images such as these; `learn` is what comes next."""
        preparation = Preparation.measured(images, settings.augment)
        outline, setup = plan_life(input_shape(images, preparation), len(set(labels)), len(images), settings)
        rows = settings.max_classes or outline.n_classes
        learner = Learner.fresh(Network(setup.spec.with_classes(rows), settings.seed, device), setup.method.unit)
        life = Life(
            len(outline),
            settings.max_classes,
            "uint8" if images.dtype == np.uint8 else "float",
            [],
            balance=settings.balance,
            negatives=settings.negatives,
            validation=settings.validation,
            epochs=_epochs_of_every_task(outline, settings, setup.config),
        )
        return cls(Model(learner, setup.method.name, [], [preparation], setup.config.to_dict(), "lifelong"), life)

    def learn(
        self,
        images: NDArray[Any],
        labels: Sequence[Label],
        progress: Progress | None = None,
        device: torch.device | None = None,
    ) -> Lifelong:
        """The model that also knows these classes; this one stays as it is. `images` are (n, h, w, c) or (n, features)."""
        self.check_new(labels)
        self._check_shape(images)
        images = self._as_learned(images)
        return self.copy(device)._learn(images, labels, progress or Progress())

    def check_new(self, labels: Iterable[Label]) -> None:
        """Classes that the model knows already, or has no place for, are refused."""
        new, known = set(labels), self.life.known
        if not self.learns:
            raise DataError(
                "this model was written by `afaf run`, for one stream: it answers but learns no more; begin one with afaf learn"
            )
        spelled = set(map(str, known))  # in a file and on a command line, 1 and "1" are one class
        repeated = sorted(str(label) for label in new if label in known or str(label) in spelled)
        if repeated:
            some = ", ".join(repeated[:5]) + (" ..." if len(repeated) > 5 else "")
            raise DataError(
                f"already learned: {some}. What a task has learned is fixed, so that it is not forgotten: more images of a class cannot "
                "change it. Leave these images out; or remove the class (afaf classes FILE --remove CLASS) and learn it again from old "
                "and new images together"
            )
        most = self.life.max_classes
        if most is not None and len(self.life.every_label) + len(new) > most:
            raise CapacityError(
                f"the model was made for {most} classes (max_classes), has learned {len(self.life.every_label)} and is asked for "
                f"{len(new)} more: begin a new model with a larger max_classes, or learn fewer classes"
            )
        self._check_room(len(new))

    def _check_room(self, n_classes: int) -> None:
        """A place that a removed task gave back counts as free; connections that it left in lower layers do not."""
        if self.room(n_classes) > 0:
            return
        held = sum(bool(labels) for labels in self.life.known_by_task)
        gone, made_for = len(self.life.labels) - held, self.life.max_tasks
        words = f"the model is full: it holds {held} task{'s' if held != 1 else ''} and was made for {made_for} (max_tasks)"
        anew = "Begin a new model with a larger max_tasks (afaf learn FOLDER --model NEW --max-tasks N)"
        if gone and held < made_for:
            raise CapacityError(f"{words}, but removed ones, {gone} so far, leave connections of lower layers used up. {anew}")
        remove = "or remove all classes of a task, which gives its place back (afaf classes FILE --remove CLASS)"
        raise CapacityError(f"{words}. {anew}; {remove}")

    def _check_shape(self, images: NDArray[Any]) -> None:
        found, expected = input_shape(images, self.preparation), self.spec.input_shape
        if found != expected:
            raise DataError(f"images of shape {found} for a model of {expected} (channels, height, width): they must be alike")

    def _as_learned(self, images: NDArray[Any]) -> NDArray[Any]:
        """A number means the same whatever its type: of a model learned from bytes, 255 is 1 in any array."""
        if (images.dtype == np.uint8) == (self.life.pixels == "uint8"):
            return images
        return images.astype(np.float32) / np.float32(255 if self.life.pixels == "uint8" else 1)

    def _learn(self, images: NDArray[Any], labels: Sequence[Label], progress: Progress) -> Lifelong:
        learner, life, config, method = self.learner, self.life, self.config, self.method
        new = sorted_labels(set(labels))
        first, task = len(life.every_label), len(life.labels) + 1
        ids = {label: first + k for k, label in enumerate(new)}
        y = np.array([ids[label] for label in labels], dtype=np.int64)
        stay, aside = held_out(y, life.validation, learner.seed)
        train, device = Split(images[stay], y[stay]), learner.network.device
        with_negatives = life.negatives == "always" or (life.negatives == "auto" and (life.max_tasks > 1 or len(new) == 1))
        parts = [(train, self.preparation)]
        if with_negatives:
            made = made_negatives(train.images, learner.seed, task)
            parts.append((Split(made, np.full(len(made), NONE_OF_MINE, dtype=np.int64)), self.preparation))
        context = TaskContext(task, tuple(ids.values()), TaskData(parts, device, learner.network.dtype), progress.warned)
        engine = Cooling(find_engine(config.run.engine, device, config.run.precision))
        epochs = life.epochs or suitable_epochs(len(train), config.learn.batch_size)
        progress.began(task, new, epochs)
        watch = Watch(progress, len(train) / len(context.data))

        def adjust(plan: LearningPlan) -> None:
            plan.epochs = epochs
            plan.loss = self._loss(plan, train, with_negatives) or plan.loss

        try:
            with at_work(config.run.precision, device), suitable_threads(self.spec, config.learn.batch_size):
                train_task(learner, method, engine, context, lambda plan: watch.epoch_ended, adjust=adjust)
        except CapacityError as error:
            raise CapacityError(f"the model is full: {error}. Or begin a new model with a larger max_tasks") from None
        if words := hardly_learned(task, watch.accuracy, len(new), LEARN_MORE):
            progress.warned(words)
        life.labels.append(new)
        self.model.class_names.append([str(label) for label in new])
        self.model.preparations = [self.preparation] * task
        life.tasks.append(self._judged(Split(images[aside], y[aside]), len(train)))
        return self

    def _loss(self, plan: LearningPlan, train: Split, with_negatives: bool) -> BalancedCrossEntropy | None:
        """The method's own cross-entropy, unless classes are to be balanced or told from what is none of them."""
        weights = class_weights(train.labels) if self.life.balance else {}
        if not with_negatives and all(weight == 1 for weight in weights.values()):
            return None
        rows = self.spec.n_classes
        outputs = plan.outputs or tuple(range(rows))
        return BalancedCrossEntropy(outputs, rows, weights, self.learner.network.device, 1.0 if with_negatives else None)

    def _judged(self, aside: Split, images: int) -> TaskNote:
        note = TaskNote(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()), images, len(aside))
        if len(aside):
            known = list(self.life.known.values())
            logits = self._logits(aside.images)[:, known]
            target = torch.tensor([known.index(c) for c in aside.labels.tolist()])
            note.accuracy = round(100 * float((logits.argmax(1) == target).double().mean()), 3)
            note.temperature = fitted_temperature(logits, target) if len(aside) >= ENOUGH and len(known) > 1 else None
        return note

    # Answers.

    @torch.no_grad()
    def _logits(self, images: NDArray[Any]) -> Tensor:
        """Logits of all rows, on the host."""
        network = self.learner.network
        data = TaskData([(Split(images, np.zeros(len(images), dtype=np.int64)), self.preparation)], network.device, network.dtype)
        return torch.cat([network(x).cpu() for x in data.batches(PREDICT_BATCH)])

    def logits(self, images: NDArray[Any]) -> NDArray[Any]:
        """(n, known classes), in the order of `life.known`."""
        self._check_shape(images)
        if not len(images):
            return np.zeros((0, len(self.life.known)), dtype=np.float32)
        found: NDArray[Any] = self._logits(self._as_learned(images))[:, list(self.life.known.values())].numpy()
        return found

    def probabilities(self, images: NDArray[Any]) -> NDArray[Any]:
        """Of the known classes, in the order of `life.known`: a softmax of the logits at the model's temperature."""
        found: NDArray[Any] = torch.softmax(torch.from_numpy(self.logits(images)).double() / self.temperature, 1).numpy()
        return found

    # Changes that need no images.

    def rename(self, old: Label, new: Label) -> None:
        """Another label for a class; what the model has learned stays."""
        known = self.life.known
        if old not in known:
            raise DataError(f"the model knows no class '{old}': it knows {', '.join(map(str, known))}")
        if new in known or str(new) in {str(label) for label in known if label != old}:
            raise DataError(f"the model has a class '{new}' already: choose another name for '{old}'")
        self._set_label(known[old], new)

    def _set_label(self, class_id: int, label: Label) -> None:
        task = self.life.task_of(class_id)
        place = class_id - sum(len(labels) for labels in self.life.labels[: task - 1])
        self.life.labels[task - 1][place] = label
        self.model.class_names[task - 1][place] = str(label)

    def remove(self, label: Label) -> bool:
        """Forget a class: its output weights are gone, and it is no answer any more.

        The last class of a task gives the task's place in the last hidden layer back: then True.
        """
        known = self.life.known
        if label not in known:
            raise DataError(f"the model knows no class '{label}': it knows {', '.join(map(str, known))}")
        if len(known) == 1:
            raise DataError(f"'{label}' is the only class the model knows: remove the file instead")
        learner, class_id = self.learner, known[label]
        last = self.spec.L - 1
        row = torch.zeros_like(learner.ledger.owner(last), dtype=torch.bool)
        row[class_id] = True
        learner.release(last, row)
        learner.network.parameters.biases[-1][class_id] = learner.network.initial_bias(last)[class_id]
        self.life.removed.append(class_id)
        task = self.life.task_of(class_id)
        if all(c in self.life.removed for c in learner.classes_of[task]):
            self._give_back(task)
            return True
        return False

    def _give_back(self, task: int) -> None:
        """A task without classes: its neurons of the last hidden layer lead nowhere, so they are free again."""
        learner, last_hidden = self.learner, self.spec.L - 1
        fixed = learner.ledger.fixed(last_hidden)
        own = fixed == task
        into = (learner.ledger.owner(last_hidden - 1) == task) & own[:, None, None]
        learner.release(last_hidden - 1, into)
        fixed[own] = 0

    def room(self, n_classes: int | None = None) -> int:
        """How many more tasks of so many classes (as many as the last one brought) are certain of neurons and pairs."""
        method, ledger, spec = self.method, self.learner.ledger, self.spec
        if not isinstance(method, SpaceNet):
            return 0
        n_classes = n_classes or (len(self.life.labels[-1]) if self.life.labels else 1)
        last_hidden = spec.L - 1
        free = len(ledger.free_neurons(last_hidden))
        unowned = {l: int((ledger.owner(l) == 0).all(2).sum()) for l in range(1, last_hidden - 1)}  # above, pairs are always fresh
        first = task = len(self.life.labels) + 1
        while True:
            asked = method.sizes_of(spec, task, n_classes)
            free -= max(1, asked.alloc[last_hidden])
            for l in range(method.first_new(spec, task), last_hidden - 1):
                unowned[l] -= asked.connections[l]
            if free < 0 or any(left < 0 for left in unowned.values()):
                return task - first
            task += 1


def _life_of_run(model: Model, name: str) -> Life:
    """What a model written by a run says, as a life that is over."""
    if find_method(model.method).predictor is not Method.predictor:
        raise FileError(f"{name} is a model of method '{model.method}', which answers in a way of its own: use it from Python")
    if len(set(model.preparations)) != 1:
        raise FileError(f"{name} prepares the images of each task differently: use it from Python")
    labels: list[list[Label]] = [list(names) for names in model.class_names]
    every = [label for group in labels for label in group]
    if len(set(every)) != len(every):
        raise FileError(f"{name} has two classes of the same name: use it from Python")
    pixels: Literal["uint8", "float"] = "uint8" if len(model.learner.network.spec.input_shape) == 3 else "float"
    return Life(len(labels), len(every), pixels, labels, tasks=[TaskNote("", 0, 0) for _ in labels])


def plan_life(shape: tuple[int, ...], n_classes: int, images: int, settings: LifelongSettings) -> tuple[Outline, Setup]:
    """The tasks a model is made for, and its network: settings are checked here, before any image need be read."""
    outline = _outline(shape, n_classes, images, settings)
    return outline, set_up(outline, METHOD, *_tables(outline, settings))


def _outline(shape: tuple[int, ...], n_classes: int, images: int, settings: LifelongSettings) -> Outline:
    """As many tasks as are expected, all like the first."""
    max_tasks = _tasks_expected(settings, n_classes)
    names = tuple(tuple(f"{task}-{k}" for k in range(n_classes)) for task in range(max_tasks))
    return Outline("lifelong", shape, names, (images,) * max_tasks)


def _tables(outline: Outline, settings: LifelongSettings) -> list[Table]:
    return [lifelong_table(outline, settings), *settings_table(None, settings.settings)]


def _config(outline: Outline, settings: LifelongSettings) -> Config:
    """What settings come to, whether or not such a model could be made."""
    kind = find_method(METHOD)
    return build_config(kind.Options, *preset_tables(outline, kind), *_tables(outline, settings))


def _epochs_of_every_task(outline: Outline, settings: LifelongSettings, config: Config) -> int | None:
    """None: each task's by its images, for nobody said how many."""
    by_images = settings.epochs is None and config.learn.epochs == lifelong_table(outline, settings)["learn"]["epochs"]
    return None if by_images else config.learn.epochs


def _spelled_out(outline: Outline, settings: LifelongSettings, config: Config) -> LifelongSettings:
    """Settings as a configuration has them, with nothing left open; `settings` is what it says beyond the others."""
    found = replace(
        settings,
        max_tasks=len(outline),
        network=config.network.name,
        batch_size=config.learn.batch_size,
        lr=config.learn.lr,
        settings=None,
    )
    beyond = differences(_config(outline, found).to_dict(), config.to_dict())
    beyond.pop("learn.epochs", None)  # `epochs` says that
    return replace(found, settings=beyond or None)


def _tasks_expected(settings: LifelongSettings, n_classes: int) -> int:
    """How many tasks a model is made for."""
    check_seed(settings.seed)
    hints = get_type_hints(LifelongSettings, include_extras=True)
    for name in hints.keys() - {"settings", "seed"}:
        build(hints[name], getattr(settings, name), name)
    if settings.max_classes is not None and settings.max_classes < n_classes:
        raise ConfigError(f"max_classes = {settings.max_classes}, but the first task alone brings {n_classes}: raise it")
    if settings.max_tasks is not None:
        return int(settings.max_tasks)
    return MAX_TASKS if settings.max_classes is None else ceil(settings.max_classes / n_classes)


def lifelong_table(outline: Outline, settings: LifelongSettings) -> Table:
    """Settings for so many tasks: the last hidden layer is shared out among them, the rest is as generous as all of them allow.

    Pairs into the last hidden layer are always fresh, since a task's neurons there are; layers below l_reuse belong to the first tasks. So
    only what lies between has to last for all.
    """
    n_tasks = len(outline)
    name = settings.network or suitable_network(outline)
    share = 10000 // n_tasks / 100  # percent, rounded down so that all tasks fit
    top = len(NETWORKS[name]("none", "code")) if name in NETWORKS else 2  # W_top leads into the last hidden layer
    l_reuse = {"mlp": 2, "small-cnn": 3, "alexnet": 4}.get(name, max(2, top))
    middle = min(30.0, 12000 // n_tasks / 100)
    density = {f"W_{l}": middle if l_reuse <= l < top else 30.0 for l in range(1, top + 1)} | {f"W_{top + 1}": 70.0}
    if name not in ("mlp", "tiny-mlp"):
        density["W_1"] = max(30.0, min(50.0, 100 // outline.input_shape[0]))  # maps of few channels must not be left without input
    batch_size = settings.batch_size or BATCH_SIZE
    epochs = settings.epochs or suitable_epochs(outline.train_counts[0], batch_size)
    learn = {"epochs": epochs, "batch_size": batch_size, "lr": settings.lr or 0.1}
    reserve = min(20.0, share)
    return {
        "network": {"name": name},
        "learn": learn,
        "sparse": {
            "alloc": {"conv": 50.0, "fc": 50.0, "output": share},
            "density": density,
            "fixed": {"conv": reserve, "fc": reserve, "output": 100.0},
        },
        "method": {"l_reuse": l_reuse, "first_reuse": 3},
        "run": {"precision": "fp32"},
    }


def differences(below: Mapping[str, Any], above: Mapping[str, Any], where: str = "") -> Table:
    """Single settings, such as {"sparse.drop": 10}, that make one table of another."""
    found: Table = {}
    for name, value in above.items():
        other = below.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if other.keys() - value.keys():  # tables are merged, so one that is replaced has to go first
                found[where + name], other = None, {}
            found |= differences(other, value, f"{where}{name}.")
        elif name not in below or value != other:
            found[where + name] = value
    return found


class Cooling:
    """Learns the last quarter of the epochs with a tenth of the learning rate, and without rewiring.

    A constant rate, as the paper has it, leaves a network wherever its last steps happened to shake it: classes of a task may then be
    tens of percent apart in how often they are answered.
    """

    def __init__(self, engine: Engine):
        self.engine, self.name = engine, engine.name

    def learn(self, learner: Learner, plan: LearningPlan, data: TaskData, on_epoch: OnEpoch | None = None, first_epoch: int = 0) -> None:
        warm = plan.epochs - plan.epochs // 4

        def tell(report: EpochReport) -> None:
            if on_epoch is not None:
                on_epoch(replace(report, epochs=plan.epochs))

        if first_epoch < warm:
            self.engine.learn(learner, replace(plan, epochs=warm), data, tell, first_epoch)
        if warm < plan.epochs:
            self.engine.learn(learner, replace(plan, lr=plan.lr / 10, rewire=None), data, on_epoch, max(first_epoch, warm))


def suitable_epochs(images: int, batch_size: int) -> int:
    """So many that a task gets the steps a sparse network needs."""
    return min(200, max(20, -(-STEPS // max(1, images // batch_size))))


def sorted_labels(labels: Iterable[Label]) -> list[Label]:
    return sorted(labels, key=lambda label: (isinstance(label, str), label))


def held_out(labels: NDArray[Any], fraction: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Indices that are learned from and indices held out: of each class this share, rounded down, so that small classes lose nothing."""
    aside = []
    for c in sorted(set(labels.tolist())):
        index = np.flatnonzero(labels == c)
        order = torch.randperm(len(index), generator=generator(seed, "held out", c)).numpy()
        aside.append(index[order[: int(fraction * len(index))]])
    chosen = np.sort(np.concatenate(aside))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def class_weights(labels: NDArray[Any]) -> dict[int, float]:
    """Every class weighs the same altogether, up to a limit."""
    counts = Counter(labels.tolist())
    return {c: min(HEAVIEST, len(labels) / (len(counts) * count)) for c, count in sorted(counts.items())}


def fitted_temperature(logits: Tensor, target: Tensor) -> float:
    """The temperature at which held-out labels are likeliest, to 1 %; never below 1, for a few images all right are no proof."""
    grid = torch.logspace(0, 1, 231, dtype=torch.float64)
    losses = torch.stack([F.cross_entropy(logits.double() / t, target) for t in grid])
    return round(float(grid[losses.argmin()]), 4)


def calibration_error(probabilities: NDArray[Any], target: NDArray[Any], bins: int = 15) -> float:
    """Expected calibration error: how far confidence and accuracy lie apart, over bins of confidence, weighted by their images."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == target
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[place == b].mean() - right[place == b].mean()) * (place == b).mean() for b in range(bins) if (place == b).any()]
    return float(sum(gaps))
