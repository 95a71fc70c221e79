"""A model that keeps learning: each call brings new classes as one more task into the same network of fixed size.

Used by `AFAFClassifier` and `afaf learn`. Of a task only its sub-network is kept: no images, and no statistics of images unless
`parts.router` is on, which keeps sums. A call works on a copy, so a call that fails leaves the model as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afaf.encoders.encoder import Encoder
from afaf.errors import CapacityError, DataError
from afaf.evaluation.by_task import predictor_of
from afaf.evaluation.metrics import hardly_learned
from afaf.lifelong.base import LearnedModel, are_fractions, encoded_inputs
from afaf.lifelong.calibration import ENOUGH, fitted_temperature, held_out
from afaf.lifelong.life import TELLING, Label, Life, TaskNote, few_images, life_of_run, sorted_labels
from afaf.lifelong.removal import free_neurons_of, remove_outputs
from afaf.lifelong.settings import (
    LifelongSettings,
    config_of,
    epochs_of_every_task,
    expected_outline,
    plan_life,
    spelled_out,
    suitable_epochs,
)
from afaf.lifelong.training import REWIRE_UNTIL, SCHEDULE, Progress, Watch, balanced_loss, class_weights
from afaf.methods import find_method
from afaf.methods.base import Method, Predictor, TaskContext
from afaf.network.net import Network
from afaf.network.spec import NetworkSpec
from afaf.runs.config import Config, build_config, parse_set
from afaf.runs.device import suitable_threads
from afaf.runs.folder import flat
from afaf.runs.parts import Parts
from afaf.runs.train_task import train_task
from afaf.storage.container import readable
from afaf.storage.invariants import broken_invariants
from afaf.storage.model_file import Model
from afaf.streams.tasks import Outline, Preparation, Split, Task, input_shape
from afaf.training.engines import find_engine
from afaf.training.learner import Learner
from afaf.training.losses import NONE_OF_MINE, CrossEntropy
from afaf.training.negatives import made_negatives
from afaf.training.plan import LearningPlan
from afaf.training.precision import at_work
from afaf.training.task_data import TaskData

PREDICT_BATCH = 256
LEARN_MORE = (
    "how a model learns is decided when it is begun: begin a new one with more epochs, larger images or more of them, or another lr"
)


class Lifelong(LearnedModel):
    """A model and its life. `learn` returns a model that knows more; `rename`, `remove` and `attach` change this one.

    With an encoder the network learns from its features: images are encoded first, and vectors are taken as features.
    """

    def __init__(self, model: Model, life: Life, learns: bool = True, encoder: Encoder | None = None):
        self.model, self.life, self.learns = model, life, learns
        self.identity, self._encoder = life.encoder, encoder
        self._answering: Predictor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: all but the function that answers, which is made again."""
        return self.__dict__ | {"_answering": None}

    # Files and bytes.

    @classmethod
    def load(cls, path: Any, device: torch.device | str = "cpu") -> Lifelong:
        """Load a model file. One that a run wrote can be used, but learns no more."""
        return cls._of(Model.load(path, device), str(path))

    @classmethod
    def from_bytes(cls, data: bytes, device: torch.device | str = "cpu") -> Lifelong:
        return cls._of(Model.from_bytes(data, device), "the model")

    @classmethod
    def _of(cls, model: Model, name: str) -> Lifelong:
        with readable(name):
            life = life_of_run(model, name) if model.life is None else Life.parse(model.life, model.class_names)
        model.learner.ledger.keeps_past &= not life.removed  # older files do not say so
        return cls(model, life, learns=model.life is not None)

    def save(self, path: Any) -> None:
        self._with_life().save(path)

    def to_bytes(self) -> bytes:
        return self._with_life().to_bytes()

    def _with_life(self) -> Model:
        return replace(self.model, life=asdict(replace(self.life, encoder=self.identity))) if self.learns else self.model

    def problems(self) -> list[str]:
        """Broken invariants of the ledger."""
        return broken_invariants(self.learner)

    def copy(self, device: torch.device | None = None) -> Lifelong:
        """The same model, on the same device or another."""
        copied = Lifelong.from_bytes(self.to_bytes(), device or self.learner.network.device)
        copied._encoder = self._encoder
        return copied

    # Properties.

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
    def _has_subnetworks(self) -> bool:
        """Whether the method gives each task neurons of its own, and so can tell how many tasks fit."""
        return find_method(self.model.method).room is not Method.room

    @property
    def config(self) -> Config:
        return build_config(find_method(self.model.method).Options, self.model.config)

    @property
    def parts(self) -> Parts:
        """The parts that change the tasks that the method sees and the answers from its logits."""
        network = self.learner.network
        return Parts(self.config.parts, self.learner.seed, network.device, network.dtype)

    @property
    def temperature(self) -> float:
        """The divisor of the logits: the mean of the tasks' temperatures, weighted by their held-out images."""
        fitted = [(note.temperature, note.held_out) for note in self.life.tasks if note.temperature is not None]
        return sum(value * count for value, count in fitted) / sum(count for _, count in fitted) if fitted else 1.0

    # Settings it was begun with.

    @property
    def made_with(self) -> LifelongSettings:
        """The complete settings that it was begun with: a model begun with them is made in the same way."""
        life = self.life
        same = {name: getattr(life, name) for name in ("max_tasks", "max_classes", "epochs", "balance", "negatives", "validation")}
        kept = LifelongSettings(method=self.model.method, augment=self.preparation.augment, seed=self.learner.seed, **same)
        return spelled_out(self._outline_for(kept), kept, self.config)

    def decided(self, settings: LifelongSettings) -> LifelongSettings:
        """These settings with all defaults filled in as for a new model; compared with `made_with`."""
        outline = self._outline_for(settings)
        config = config_of(outline, settings)
        return spelled_out(outline, replace(settings, epochs=epochs_of_every_task(outline, settings, config)), config)

    def was_begun_with(self, name: str, value: Any) -> bool:
        """Whether the model would be the same if it had been begun with this value of a `LifelongSettings` field."""
        made = self.made_with
        if name == "settings":
            value = {**(made.settings or {}), **flat(parse_set(value))}
        return self.decided(replace(made, **{name: value})) == self.decided(made)

    def _outline_for(self, settings: LifelongSettings) -> Outline:
        """The tasks expected when it was begun, from its first task."""
        first = self.life.tasks[0]
        return expected_outline(self.spec.input_shape, len(self.life.labels[0]), first.images + first.held_out, settings)

    # Learning.

    @classmethod
    def begin(
        cls, images: NDArray[Any], labels: Sequence[Label], settings: LifelongSettings, device: torch.device, encoder: Encoder | None = None
    ) -> Lifelong:
        """A new model without classes, for images, or features of an encoder, such as these; call `learn` next."""
        preparation = Preparation.measured(images, settings.augment)
        outline, setup = plan_life(input_shape(images, preparation), len(set(labels)), len(images), settings)
        per_class = setup.config.parts.outputs_per_class
        spec = setup.spec.with_classes(per_class * (settings.max_classes or outline.n_classes))
        learner = Learner.fresh(Network(spec, settings.seed, device), setup.method.unit, per_class)
        life = Life(
            len(outline),
            settings.max_classes,
            "uint8" if images.dtype == np.uint8 else "float",
            [],
            balance=settings.balance,
            negatives=settings.negatives,
            validation=settings.validation,
            epochs=epochs_of_every_task(outline, settings, setup.config),
            encoder=None if encoder is None else encoder.identity,
        )
        return cls(Model(learner, setup.method.name, [], [preparation], setup.config.to_dict(), "lifelong"), life, encoder=encoder)

    def learn(
        self,
        images: NDArray[Any],
        labels: Sequence[Label],
        progress: Progress | None = None,
        device: torch.device | None = None,
    ) -> Lifelong:
        """Return a model that also knows these classes; this one stays as it is. `images` are (n, h, w, c) or (n, features)."""
        self.check_new(labels)
        images = self._as_learned(images)
        return self.copy(device)._learn(images, labels, progress or Progress())

    def check_new(self, labels: Iterable[Label]) -> None:
        """Refuse classes that the model already knows or has no room for."""
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
                "change it. Leave these images out; or remove the class (afaf classes FILE --remove CLASS; in Python remove_class) and "
                "learn it again from old and new images together"
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
        held, made_for = self._tasks_held, self.life.max_tasks
        gone = len(self.life.labels) - held
        words = f"the model is full: it holds {held} task{'s' if held != 1 else ''} and was made for {made_for} (max_tasks)"
        anew = "Begin a new model with a larger max_tasks (afaf learn FOLDER --model NEW --max-tasks N)"
        if self.config.parts.activations and not self.life.known_by_task[0]:
            raise CapacityError(f"{words}; the first task keeps its place, for the answers read its neurons. {anew}")
        if gone and held < made_for:
            raise CapacityError(f"{words}, but removed ones, {gone} so far, leave connections of lower layers used up. {anew}")
        remove = "or remove all classes of a task, which gives its place back (afaf classes FILE --remove CLASS)"
        raise CapacityError(f"{words}. {anew}; {remove}")

    def _check_shape(self, images: NDArray[Any]) -> None:
        found, expected = input_shape(images, self.preparation), self.spec.input_shape
        if found != expected:
            raise DataError(f"images of shape {found} for a model of {expected} (channels, height, width): they must be alike")

    def _as_learned(self, images: NDArray[Any]) -> NDArray[Any]:
        """Scale pixels alike for every dtype: if the model learned from bytes, 255 means 1, but for floats that are fractions of 1."""
        images = images if self.identity is None else encoded_inputs(self.encoder, images)
        self._check_shape(images)
        if (images.dtype == np.uint8) == (self.life.pixels == "uint8"):
            return images
        in_255 = self.life.pixels == "uint8" and not (images.ndim == 4 and are_fractions(images))
        return images.astype(np.float32) / np.float32(255 if in_255 else 1)

    def _learn(self, images: NDArray[Any], labels: Sequence[Label], progress: Progress) -> Lifelong:
        learner, life, config, method, parts = self.learner, self.life, self.config, self.method, self.parts
        new = sorted_labels(set(labels))
        first, task = len(life.every_label), len(life.labels) + 1
        ids = {label: first + k for k, label in enumerate(new)}
        y = np.array([ids[label] for label in labels], dtype=np.int64)
        stay, aside = held_out(y, life.validation, learner.seed)
        train, device = Split(images[stay], y[stay]), learner.network.device
        with_negatives = life.negatives == "always" or (life.negatives == "auto" and (life.max_tasks > 1 or len(new) == 1))
        with_negatives &= self._has_subnetworks and not parts.any  # other methods and the parts have losses and answers of their own
        negatives = []
        if with_negatives:
            made = made_negatives(np.asarray(train.images), learner.seed, task)
            negatives.append((Split(made, np.full(len(made), NONE_OF_MINE, dtype=np.int64)), self.preparation))
        of_task = Task(task, tuple(ids.values()), tuple(map(str, new)), train, train, self.preparation)
        prepared = parts.prepare([of_task], negatives)
        data, per_class = prepared.data, learner.outputs_per_class
        context = TaskContext(task, prepared.rows, data, warn=progress.warned)
        engine = find_engine(config.run.engine, device, config.run.precision)
        epochs = life.epochs or suitable_epochs(len(train) * per_class, config.learn.batch_size)
        progress.began(task, new, epochs)
        watch = Watch(progress, len(train) / len(data) if with_negatives else 1.0)

        def adjust(plan: LearningPlan) -> None:
            if plan.epochs == config.learn.epochs:  # a method may have decided otherwise for this phase or task
                plan.epochs = epochs
            if config.learn.schedule == "constant":
                plan.schedule, plan.rewire_until = SCHEDULE, REWIRE_UNTIL
            if isinstance(plan.loss, CrossEntropy):
                plan.loss = balanced_loss(plan, learner, class_weights(train.labels) if life.balance else {}, with_negatives) or plan.loss
            parts.adjust(plan)

        try:
            with at_work(config.run.precision, device), suitable_threads(self.spec, config.learn.batch_size):
                train_task(learner, method, engine, context, lambda plan: watch.epoch_ended, adjust=adjust)
                parts.finish(prepared, learner, method.predictor(learner))
        except CapacityError as error:
            raise CapacityError(f"the model is full: {error}. Or begin a new model with a larger max_tasks") from None
        if words := hardly_learned(task, watch.accuracy, len(new) * per_class, LEARN_MORE):
            progress.warned(words)
        life.labels.append(new)
        self.model.class_names.append([str(label) for label in new])
        self.model.preparations = [self.preparation] * task
        life.tasks.append(self._judged(Split(images[aside], y[aside]), len(train), progress))
        if few := few_images({label: int((y == c).sum()) for label, c in ids.items()}):
            progress.warned(few)
        return self

    def _judged(self, aside: Split, images: int, progress: Progress) -> TaskNote:
        note = TaskNote(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()), images, len(aside))
        if len(aside):
            known = list(self.life.known.values())
            logits = self._logits(np.asarray(aside.images))[:, known]
            target = torch.tensor([known.index(c) for c in aside.labels.tolist()])
            right = logits.argmax(1) == target
            note.accuracy = round(100 * float(right.double().mean()), 3)
            judged = {str(label): right[target == k] for k, label in enumerate(self.life.known)}
            if lost := [label for label, found in judged.items() if len(found) >= TELLING and not found.any()]:
                progress.warned(f"no held-out image of {', '.join(lost)} is right: add images, or look at their folders")
            note.temperature = fitted_temperature(logits, target) if len(aside) >= ENOUGH and len(known) > 1 else None
        return note

    # Answers.

    @property
    def _answers(self) -> Predictor:
        """The function from images to logits of classes, kept until the model changes: of isolated tasks it gathers the weights."""
        if self._answering is None:
            parts, method = self.parts, self.method
            # with several views of an image it is worth computing isolated tasks one by one
            logits_of = predictor_of(method, self.learner) if parts.any else method.predictor(self.learner)
            self._answering = parts.predictor(self.learner, logits_of)
        return self._answering

    @torch.no_grad()
    def _logits(self, images: NDArray[Any]) -> Tensor:
        """Logits of all classes, on the host. Batches are padded to a multiple of 8: products of few rows round differently."""
        network, predict = self.learner.network, self._answers
        data = TaskData([(Split(images, np.zeros(len(images), dtype=np.int64)), self.preparation)], network.device, network.dtype)
        batches = ((len(x), torch.cat([x, x[-1:].expand(-len(x) % 8, *x.shape[1:])])) for x in data.batches(PREDICT_BATCH))
        return torch.cat([predict(x)[:n].cpu() for n, x in batches])

    def logits(self, images: NDArray[Any]) -> NDArray[Any]:
        if not len(images):
            return np.zeros((0, len(self.life.known)), dtype=np.float32)
        return np.asarray(self._logits(self._as_learned(images))[:, list(self.life.known.values())])

    # Changes that need no images.

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another label; what the model has learned stays."""
        task, place = self.life.rename(old, new)
        self.model.class_names[task][place] = str(new)

    def remove(self, label: Label) -> bool:
        """Remove a class: its output weights are deleted, and it is no longer predicted.

        Removing a task's last class frees what no other task uses, and returns True. The first task keeps its neurons if the router reads
        them (`parts.activations`): the router's sums were made with all of them.
        """
        class_id, learner = self.life.remove(label), self.learner
        self.parts.remove(learner, class_id)
        remove_outputs(learner, class_id)
        task = self.life.task_of(class_id)
        gone = all(row // learner.outputs_per_class in self.life.removed for row in learner.classes_of[task])
        freed = gone and not (task == 1 and self.config.parts.activations)
        if freed:
            free_neurons_of(learner, task)
        self._answering = None
        return freed

    def room(self, n_classes: int | None = None) -> int:
        """How many more tasks of `n_classes` (None: as many as in the last task) are expected to get neurons and pairs."""
        left = max(0, self.life.max_tasks - self._tasks_held)
        if not self._has_subnetworks:  # tasks use up no neurons
            return left
        n_classes = n_classes or (len(self.life.labels[-1]) if self.life.labels else 1)
        return min(left, self.method.room(self.learner, len(self.life.labels) + 1, n_classes))

    @property
    def _tasks_held(self) -> int:
        """Tasks that count against `max_tasks`: those with classes left; of a method without sub-networks, all that were learned."""
        return sum(bool(labels) or not self._has_subnetworks for labels in self.life.known_by_task)
