"""`AFAFClassifier`: a classifier that keeps learning, with the habits of scikit-learn.

model = AFAFClassifier(max_tasks=12)
model.partial_fit(january, january_labels)      # a task: these classes
model.partial_fit(february, february_labels)    # another one; January's images are not needed any more
model.predict(images)                           # among all classes, with no hint which task an image is from
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from afaf.errors import AfafError, DataError
from afaf.explain import explained, is_out_of_memory
from afaf.lifelong.life import Label, Negatives, sorted_labels
from afaf.lifelong.model import Lifelong
from afaf.lifelong.settings import LifelongSettings
from afaf.lifelong.training import Progress
from afaf.runs.device import find_device
from afaf.streams.tasks import Augment
from afaf.training.report import EpochReport

CALLED_HERE = {"validation": "validation_fraction", "seed": "random_state"}  # other settings and their parameters have the same name
DECIDED = {CALLED_HERE.get(f.name, f.name): f.name for f in fields(LifelongSettings)}  # parameters that begin a model, and their settings


class AFAFClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes call by call, in one network of fixed size, and keeps no images.

    Images are (n, h, w), (n, h, w, c) or vectors (n, features), of bytes or floats; labels are numbers or strings. Each call of
    `partial_fit` with new classes is one task. A learned class is fixed and cannot be trained further. The first call decides how the
    model learns: after it, only `learned_classes`, `device` and `verbose` may change.

    Args:
        max_tasks: How many tasks (calls) share the network. None: `max_classes` divided by the classes of the first call, or else 10.
        max_classes: The largest number of classes. None: no limit.
        network: "mlp", "small-cnn" or "alexnet". None: chosen from the image size.
        epochs: Epochs of a task. None: chosen from the number of images. The same holds for `batch_size` and `lr`.
        batch_size: Images in a step.
        lr: Learning rate.
        augment: "crop-flip" trains on randomly cropped and flipped images: right for photographs, wrong for letters.
        negatives: "auto", "always" or "never": also train on images of no class, made from the task's own images (see docs/when.md).
        balance: Give images of rare classes more weight.
        learned_classes: For samples of classes learned before: "refuse" raises a ValueError, "skip" leaves them out with a warning.
        validation_fraction: Share of each class held out to score the task (`task_scores_`) and to calibrate probabilities.
        image_shape: (h, w) or (h, w, c), to treat vectors as images, for example after a scaler.
        settings: Any other setting of `afaf run`, such as {"sparse.drop": 10}.
        random_state: An int gives the same model every time, and the same as `afaf learn --seed`.
        device: "auto", "cpu", "cuda" or "mps".
        verbose: 1 reports tasks, 2 also epochs.

    Attributes:
        classes_: The learned classes, sorted.
        tasks_: The classes of each task.
        task_scores_: The accuracy on each task's held-out part, measured when the task was learned.
        n_features_in_: The number of values in one image.
    """

    def __init__(
        self,
        *,
        max_tasks: int | None = None,
        max_classes: int | None = None,
        network: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        augment: Augment = "none",
        negatives: Negatives = "auto",
        balance: bool = True,
        learned_classes: Literal["refuse", "skip"] = "refuse",
        validation_fraction: float = 0.1,
        image_shape: tuple[int, ...] | None = None,
        settings: Mapping[str, Any] | Sequence[str] | None = None,
        random_state: Any = None,
        device: str = "auto",
        verbose: int = 0,
    ):
        self.max_tasks = max_tasks
        self.max_classes = max_classes
        self.network = network
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.augment = augment
        self.negatives = negatives
        self.balance = balance
        self.learned_classes = learned_classes
        self.validation_fraction = validation_fraction
        self.image_shape = image_shape
        self.settings = settings
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget everything and learn these classes as the first task."""
        with self._one_change():
            images, labels = self._checked(X, y, reset=True)
            self._learn(None, images, labels)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn these classes as one more task. `classes` may list them, or all future classes; only those in `y` are learned."""
        with self._one_change():
            return self._partial_fit(getattr(self, "_lifelong", None), X, y, classes)

    def _partial_fit(self, before: Lifelong | None, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None) -> Self:
        images, labels = self._checked(X, y, reset=before is None)
        if before is not None:
            self._refuse_late(before)
        if classes is not None and (strange := set(labels.tolist()) - set(np.asarray(classes).tolist())):
            raise ValueError(f"y holds classes that `classes` does not name: {sorted(map(str, strange))}")
        if before is not None and self.learned_classes == "skip":
            images, labels = self._without_learned(before, images, labels)
        if len(labels):
            self._learn(before, images, labels)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely class of each image, among all learned classes."""
        scores = self.decision_function(X)
        answer: NDArray[Any] = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)
        found: NDArray[Any] = self.classes_[answer]
        return found

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return probabilities (n, classes) in the order of `classes_`, calibrated on the held-out part of each task."""
        lifelong, images = self._ready(X)
        return lifelong.probabilities(images)[:, self._order]

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return logits (n, classes) in the order of `classes_`; with two classes their difference (n,), as in scikit-learn."""
        lifelong, images = self._ready(X)
        logits = lifelong.logits(images)[:, self._order].astype(np.float64)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    # Files.

    def save(self, path: str | Path) -> None:
        """Write the model file that `load`, `afaf learn`, `afaf predict` and `afaf export` read."""
        check_is_fitted(self)
        self._lifelong.save(path)

    @classmethod
    def load(cls, path: str | Path, **parameters: Any) -> Self:
        """The classifier in a model file, ready to predict and to learn more, with the parameters that the model was made with.

        Of those given here, learned_classes, device and verbose may be new; another value of what was decided when it was begun is refused.
        """
        model = cls(**parameters)
        lifelong = Lifelong.load(path, find_device(model.device))
        model._take(lifelong)
        model.n_features_in_ = prod(model._image_shape)
        if lifelong.learns:  # a run's model was not made with parameters of this class
            model.set_params(**{**model._parameters(lifelong.made_with), **parameters})
            model._refuse_late(lifelong)
        return model

    def rename_class(self, old: Any, new: Any) -> Self:
        """Another label for a class."""
        check_is_fitted(self)
        with self._one_change():
            changed = self._lifelong.copy()
            changed.rename(_plain(old), _plain(new))
            return self._take(changed)

    def remove_class(self, label: Any) -> Self:
        """Forget a class. When the last class of a task goes, its place is free for another task."""
        check_is_fitted(self)
        with self._one_change():
            changed = self._lifelong.copy()
            changed.remove(_plain(label))
            return self._take(changed)

    # What scikit-learn asks of an estimator.

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_lifelong")

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, and the bytes of the model file: no tensor is pickled."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "_lifelong" in state:
            state["_lifelong"] = state["_lifelong"].to_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "_lifelong" in state:
            try:
                device = find_device(state["device"])
            except AfafError:  # pickled where there was another device
                state["device"] = "auto"
                device = find_device("auto")
            state["_lifelong"] = Lifelong.from_bytes(state["_lifelong"], device)
        super().__setstate__(state)

    # How it is done.

    @contextlib.contextmanager
    def _one_change(self) -> Iterator[None]:
        """One change at a time, by whichever thread; one that fails or is interrupted leaves the model as it was."""
        with _lock_of(self), _as_value_errors():
            before = dict(vars(self))
            try:
                yield
            except BaseException:
                self.__dict__.update(before)
                for name in vars(self).keys() - before.keys():
                    delattr(self, name)
                raise

    def _checked(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """Images as (n, h, w, c) or (n, features), and one label each."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None: every image needs a label")
        if self.learned_classes not in ("refuse", "skip"):
            raise ValueError(f"learned_classes must be 'refuse' or 'skip', not {self.learned_classes!r}")
        flat = self._flat(X, reset=reset)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        check_consistent_length(flat, labels)
        if reset:
            self._image_shape = self._shape_of(X if isinstance(X, np.ndarray) else flat)
        self._check_alike(X)
        return self._images(flat), labels

    def _check_alike(self, X: Any) -> None:
        """As many values in another shape, such as channels first, are other images."""
        if isinstance(X, np.ndarray) and X.ndim in (3, 4) and len(self._image_shape) == 3:
            found = (*X.shape[1:], 1) if X.ndim == 3 else X.shape[1:]
            if found != self._image_shape:
                raise ValueError(
                    f"images of shape {found} for a model of {self._image_shape} (height, width, channels): they must be alike"
                )

    def _shape_of(self, X: NDArray[Any]) -> tuple[int, ...]:
        """What one image is: (features,), or (h, w, c)."""
        shape = tuple(X.shape[1:])
        if self.image_shape is not None:
            given = _with_channels(self.image_shape)
            if prod(shape) != prod(given):
                raise ValueError(f"image_shape = {self.image_shape} has {prod(given)} values, but X has {prod(shape)} for an image")
            shape = given
        return _with_channels(shape)

    def _flat(self, X: Any, *, reset: bool) -> NDArray[Any]:
        """X as scikit-learn checks it, in two dimensions; bytes stay bytes."""
        if isinstance(X, np.ndarray) and X.ndim in (3, 4):
            X = X.reshape(len(X), prod(X.shape[1:]))
        flat: NDArray[Any] = validate_data(self, X, reset=reset, dtype="numeric", accept_large_sparse=False)
        return flat if flat.dtype == np.uint8 else flat.astype(np.float32)

    def _images(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(len(flat), *self._image_shape)

    def _ready(self, X: ArrayLike) -> tuple[Lifelong, NDArray[Any]]:
        check_is_fitted(self)
        flat = self._flat(X, reset=False)
        self._check_alike(X)
        return self._lifelong, self._images(flat)

    def _without_learned(self, before: Lifelong, images: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        known = before.life.known
        new = np.array([_plain(label) not in known for label in labels.tolist()], dtype=bool)
        if not new.all():
            warnings.warn(f"{int((~new).sum())} samples of classes that were learned already are left out", UserWarning, stacklevel=3)
        return images[new], labels[new]

    def _learn(self, before: Lifelong | None, images: NDArray[Any], labels: NDArray[Any]) -> None:
        plain = [_plain(label) for label in labels.tolist()]
        device = find_device(self.device)
        before = before or Lifelong.begin(images, plain, self._settings(self._draw_seed), device)
        self._take(before.learn(images, plain, _Told(self.verbose), device))

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _settings(self, any_seed: Callable[[], int]) -> LifelongSettings:
        """The parameters as a model is begun with them; `any_seed` gives one where random_state is not a number."""
        chosen = {setting: getattr(self, parameter) for parameter, setting in DECIDED.items()}
        seed = self.random_state if isinstance(self.random_state, (int, np.integer)) else any_seed()
        return LifelongSettings(**{**chosen, "seed": int(seed)})

    def _refuse_late(self, lifelong: Lifelong) -> None:
        """What is decided when a model is begun holds for all its tasks: another value is refused, for it would be ignored."""
        if not lifelong.learns:
            return
        made = self._parameters(lifelong.made_with)
        with _as_value_errors():
            asked = self._parameters(lifelong.decided(self._settings(lambda: lifelong.learner.seed)))
        if self.image_shape is not None:
            asked["image_shape"] = _with_channels(self.image_shape)
        late = [name for name in made if asked[name] != made[name]]
        if late:
            wanted, has = (", ".join(f"{name}={values[name]!r}" for name in late) for values in (asked, made))
            raise ValueError(
                f"{wanted}: decided when a model is begun, and this one has {has}. Leave that out, or set it back with "
                f"set_params({has}); or begin a new model: fit does, and forgets this one"
            )

    def _parameters(self, settings: LifelongSettings) -> dict[str, Any]:
        """Parameters that a model was begun with, or might have been."""
        image_shape = self._image_shape if len(self._image_shape) == 3 else None
        return {name: getattr(settings, setting) for name, setting in DECIDED.items()} | {"image_shape": image_shape}

    def _take(self, lifelong: Lifelong) -> Self:
        """Answer with this model from now on."""
        self._lifelong = lifelong
        if not hasattr(self, "_image_shape"):
            shape = lifelong.spec.input_shape
            self._image_shape = (*shape[1:], shape[0]) if len(shape) == 3 else shape
        known = list(lifelong.life.known)
        self.classes_: NDArray[Any] = _as_array(known)
        place = {label: i for i, label in enumerate(known)}
        self._order = [place[_plain(label)] for label in self.classes_.tolist()]
        self.tasks_ = lifelong.life.known_by_task
        self.task_scores_ = [None if note.accuracy is None else note.accuracy / 100 for note in lifelong.life.tasks]
        return self


class _Told(Progress):
    """Tells of tasks and epochs on stderr."""

    def __init__(self, verbose: int):
        self.verbose = verbose

    def began(self, task: int, labels: Sequence[Label], epochs: int) -> None:
        if self.verbose:
            names = ", ".join(map(str, labels[:8])) + (" ..." if len(labels) > 8 else "")
            print(f"task {task}: {names}; {epochs} epochs", file=sys.stderr)

    def epoch_ended(self, report: EpochReport) -> None:
        if self.verbose > 1:
            print(f"  epoch {report.epoch + 1}/{report.epochs}: loss {report.loss:.4f}, {report.accuracy:.1f} % right", file=sys.stderr)

    def warned(self, message: str) -> None:
        warnings.warn(message, UserWarning, stacklevel=2)


_locks: WeakKeyDictionary[AFAFClassifier, threading.RLock] = WeakKeyDictionary()  # not in the objects: a lock cannot be pickled
_locks_lock = threading.Lock()


def _lock_of(model: AFAFClassifier) -> threading.RLock:
    with _locks_lock:
        return _locks.setdefault(model, threading.RLock())


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    """Whatever is wrong with a call is a ValueError, as scikit-learn has it; a want of memory is a MemoryError."""
    try:
        yield
    except Exception as error:
        known = explained(error)
        if known is None or isinstance(error, (ValueError, MemoryError, OSError)):
            raise
        raise (MemoryError if is_out_of_memory(error) else ValueError)(str(known)) from error


def _with_channels(shape: Iterable[Any]) -> tuple[int, ...]:
    """(h, w) is (h, w, 1)."""
    extents = tuple(int(extent) for extent in shape)
    return (*extents, 1) if len(extents) == 2 else extents


def _as_array(labels: Sequence[Label]) -> NDArray[Any]:
    """Labels in order; numbers beside texts stay what they are, numbers first."""
    if len({isinstance(label, str) for label in labels}) == 1:
        return np.unique(np.array(labels))
    array = np.empty(len(labels), dtype=object)
    array[:] = sorted_labels(labels)
    return array


def _plain(label: Any) -> Label:
    """A label as a model file can hold it."""
    if isinstance(label, np.generic):
        label = label.item()
    if not isinstance(label, (str, int, float, bool)):
        raise DataError(f"a label is a number or a text, not {label!r}")
    if isinstance(label, str) and label.endswith("\0"):
        raise DataError(f"a label cannot end in a NUL character, which numpy drops: {label!r}")
    return label
