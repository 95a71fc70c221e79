"""`AFAFClassifier`: a classifier that keeps learning, with scikit-learn's interface.

model = AFAFClassifier(max_tasks=12)
model.partial_fit(january, january_labels)      # a task: these classes
model.partial_fit(february, february_labels)    # another one; January's images are not needed any more
model.predict(images)                           # among all classes, with no hint which task an image is from
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from afaf.encoders.find import find_encoder
from afaf.errors import AfafError, DataError
from afaf.lifelong.base import encoded_inputs, only_images
from afaf.lifelong.choose import AUTO, NONE, Source, chosen_encoder, trains_network
from afaf.lifelong.encoded import EncodedModel, Part
from afaf.lifelong.estimator_support import (
    Told,
    as_array,
    as_value_errors,
    check_alike,
    lock_of,
    of_head,
    plain_label,
    shape_in,
    shape_of,
    with_channels,
    without_learned,
)
from afaf.lifelong.head_state import HeadSettings, default_head
from afaf.lifelong.life import Negatives
from afaf.lifelong.model import Lifelong
from afaf.lifelong.model_store import AnyModel, has_encoder
from afaf.lifelong.settings import METHOD, LifelongSettings
from afaf.runs.device import find_device
from afaf.streams.tasks import Augment

CALLED_HERE = {"validation": "validation_fraction", "seed": "random_state"}  # other settings and their parameters have the same name
CLASS_SUMS = "class_sums are for a head in closed form, and this is a network: leave that out"
DECIDED = {CALLED_HERE.get(f.name, f.name): f.name for f in fields(LifelongSettings)}  # parameters fixed when begun, and their settings
OF_NETWORK = tuple(name for name in DECIDED if name not in ("method", "balance", "random_state"))  # a head takes no others of them


class AFAFClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes call by call, in one network of fixed size, and keeps no images.

    Images are (n, h, w) or (n, h, w, c), of bytes or of floats in 0..1, the same in every call; a network also learns from other
    floats, and from vectors (n, features). Labels are numbers or strings. Each call of `partial_fit` with new classes is one task. A
    class that a network has learned is fixed and cannot be trained further. The first call decides how the model learns: after it, only
    `learned_classes`, `device` and `verbose` may change.

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
        encoder: A frozen encoder below a closed-form head, instead of a network that is trained: "efficientnet-lite0", "timm:NAME",
            "torchvision:NAME", "transformers:NAME", a .pt2 or .onnx file, a module, or "patches", which needs no training; "auto" takes
            the one of `afaf[photos]`, if it is installed, else "patches". None (the default) or "none" trains a network. With a
            closed-form head, more samples of known classes are learned like any others.
        method: With an encoder, the head: "lda", "ridge", "projection" or "nearest-mean"; None: "lda", or "ridge" on "patches".
            Or a method of `afaf methods` to train a network, with an encoder on its features; None without an encoder: "afaf".
        class_sums: With a closed-form head, keep sums of each class too: `remove_class` is then exact.
        learned_classes: For samples of classes learned before, without a closed-form head: "refuse" raises a ValueError, "skip" leaves
            them out with a warning.
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

    _image_shape: tuple[int, ...] | None = None  # of all images; None: the next ones decide, for an encoder takes any

    def __init__(
        self,
        *,
        max_tasks: int | None = None,
        max_classes: int | None = None,
        encoder: Source | None = None,
        method: str | None = None,
        network: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        augment: Augment = "none",
        negatives: Negatives = "auto",
        balance: bool = True,
        class_sums: bool = False,
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
        self.encoder = encoder
        self.method = method
        self.network = network
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.augment = augment
        self.negatives = negatives
        self.balance = balance
        self.class_sums = class_sums
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

    def _partial_fit(self, before: AnyModel | None, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None) -> Self:
        images, labels = self._checked(X, y, reset=before is None)
        if before is not None and before.learns:
            self._refuse_late(before)
        if classes is not None and (strange := set(labels.tolist()) - set(np.asarray(classes).tolist())):
            raise ValueError(f"y holds classes that `classes` does not name: {sorted(map(str, strange))}")
        if self.learned_classes == "skip" and before is not None and not isinstance(before, EncodedModel):
            images, labels = without_learned(before.life.known, images, labels)
        if len(labels):
            self._learn(before, images, labels)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most likely class of each image, among all learned classes."""
        scores = self.decision_function(X)
        return np.asarray(self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)])

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Return probabilities (n, classes) in the order of `classes_`, calibrated on the held-out part of each task."""
        lifelong, images = self._ready(X)
        with as_value_errors():
            return lifelong.probabilities(images)[:, self._order]

    def decision_function(self, X: ArrayLike) -> NDArray[Any]:
        """Return logits (n, classes) in the order of `classes_`; with two classes their difference (n,), as in scikit-learn."""
        lifelong, images = self._ready(X)
        with as_value_errors():
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

        Among `parameters`, learned_classes, device and verbose may be new; other values of parameters decided at the beginning are refused.
        """
        model = cls(**parameters)
        lifelong: AnyModel = EncodedModel.load(path) if has_encoder(Path(path)) else Lifelong.load(path, find_device(model.device))
        model._take(lifelong)
        if model._image_shape is not None:
            model.n_features_in_ = prod(model._image_shape)
        if lifelong.learns:  # a run's model was not made with parameters of this class
            model.set_params(**{**model._begun_with(lifelong), **parameters})
            model._refuse_late(lifelong)
        return model

    def rename_class(self, old: Any, new: Any) -> Self:
        """Give a class another label."""
        check_is_fitted(self)
        with self._one_change():
            changed = self._lifelong.copy()
            changed.rename(plain_label(old), plain_label(new))
            return self._take(changed)

    def forget(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Remove samples as if they were never learned; only with a closed-form head. A class without samples left is gone."""
        check_is_fitted(self)
        with self._one_change():
            model = self._lifelong
            if not isinstance(model, EncodedModel):
                raise DataError("a network cannot forget samples: remove_class removes a class; a closed-form head makes forget possible")
            return self._take(model.forget(self._parts(model, *self._checked(X, y, reset=False))))

    def remove_class(self, label: Any) -> Self:
        """No longer answer with a class. With `class_sums`, the model is then as if it had never learned the class.

        In a network, a task without classes left frees its place for another task.
        """
        check_is_fitted(self)
        with self._one_change():
            changed = self._lifelong.copy()
            changed.remove(plain_label(label))
            return self._take(changed)

    # Required by scikit-learn.

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = self.encoder in (None, NONE) or self.image_shape is not None
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_lifelong")

    def __getstate__(self) -> dict[str, Any]:
        """Parameters, and the bytes of the model file: no tensor is pickled."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "_lifelong" in state:
            state["_has_encoder"] = isinstance(state["_lifelong"], EncodedModel)
            state["_lifelong"] = state["_lifelong"].to_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "_lifelong" in state:
            try:
                device = find_device(state["device"])
            except AfafError:  # pickled on a machine with another device
                state["device"] = "auto"
                device = find_device("auto")
            kind = EncodedModel if state.pop("_has_encoder", False) else Lifelong
            state["_lifelong"] = kind.from_bytes(state["_lifelong"], device)
        super().__setstate__(state)

    # Implementation.

    @contextlib.contextmanager
    def _one_change(self) -> Iterator[None]:
        """Allow one change at a time, from any thread; one that fails or is interrupted leaves the model as it was."""
        with lock_of(self), as_value_errors():
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
        shape = None if reset else self._image_shape
        flat = self._flat(X, reset=shape is None)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        check_consistent_length(flat, labels)
        if shape is None:
            shape = self._image_shape = shape_of(X if isinstance(X, np.ndarray) else flat, self.image_shape)
        check_alike(X, shape)
        return self._images(flat, shape), labels

    def _flat(self, X: Any, *, reset: bool) -> NDArray[Any]:
        """X in two dimensions, checked by scikit-learn; bytes stay bytes."""
        if isinstance(X, np.ndarray) and X.ndim in (3, 4):
            X = X.reshape(len(X), prod(X.shape[1:]))
        flat: NDArray[Any] = validate_data(self, X, reset=reset, dtype="numeric", accept_large_sparse=False)
        return flat if flat.dtype == np.uint8 else flat.astype(np.float32)

    def _images(self, flat: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return flat.reshape(len(flat), *shape)

    def _ready(self, X: ArrayLike) -> tuple[AnyModel, NDArray[Any]]:
        check_is_fitted(self)
        self._attach(self._lifelong)
        flat = self._flat(X, reset=False)
        shape = self._image_shape or shape_of(X if isinstance(X, np.ndarray) else flat, self.image_shape)
        check_alike(X, shape)
        return self._lifelong, self._images(flat, shape)

    def _attach(self, model: AnyModel) -> None:
        """Find the encoder of a model read from a file: this estimator's, or the one that the model names."""
        if model.identity is not None and not model.attached:
            with as_value_errors():
                model.attach(model.identity.name if self.encoder in (None, AUTO, NONE) else self.encoder, find_device(self.device))

    def _learn(self, before: AnyModel | None, images: NDArray[Any], labels: NDArray[Any]) -> None:
        device, of_network = find_device(self.device), self._of_network()
        plain = [plain_label(label) for label in labels.tolist()]
        encoder = chosen_encoder(self.encoder, self.method, of_network) if before is None else None
        frozen = None if encoder is None else find_encoder(encoder, device)
        if frozen is not None and not trains_network(self.method, of_network):
            head = HeadSettings(self.method or default_head(frozen.identity.name), balance=self.balance, class_sums=self.class_sums)
            before = EncodedModel.begin(frozen, head)
        if isinstance(before, EncodedModel):
            learned = before.learn(self._parts(before, images, labels))
            for words in learned.warnings():
                warnings.warn(words, UserWarning, stacklevel=4)
            self._take(learned)
            return
        if self.class_sums:
            raise ValueError(CLASS_SUMS)
        if frozen is not None:
            images = encoded_inputs(frozen, only_images(images))
        before = before or Lifelong.begin(images, plain, self._settings(self._draw_seed), device, frozen)
        self._attach(before)
        self._take(before.learn(images, plain, Told(self.verbose), device))

    def _parts(self, model: EncodedModel, images: NDArray[Any], labels: NDArray[Any]) -> Iterator[Part]:
        self._attach(model)
        return model.encode(images, [plain_label(label) for label in labels.tolist()])

    def _of_network(self) -> list[str]:
        """Given parameters that only a network has."""
        own = inspect.signature(type(self).__init__).parameters
        return [name for name in OF_NETWORK if getattr(self, name) != own[name].default]

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _settings(self, any_seed: Callable[[], int]) -> LifelongSettings:
        """The parameters as settings of a new model; `any_seed` gives a seed if random_state is not an int."""
        chosen = {setting: getattr(self, parameter) for parameter, setting in DECIDED.items()}
        chosen["method"] = chosen["method"] or METHOD
        seed = self.random_state if isinstance(self.random_state, (int, np.integer)) else any_seed()
        return LifelongSettings(**{**chosen, "seed": int(seed)})

    def _refuse_late(self, lifelong: AnyModel) -> None:
        """Refuse parameters that differ from those the model was begun with: they hold for all its tasks and would be ignored."""
        if isinstance(lifelong, EncodedModel):
            if late := self._of_network():
                raise ValueError(f"{', '.join(late)}: for a network, and this model has a head in closed form: leave that out")
            for name, had in of_head(lifelong.head).items():
                if getattr(self, name) not in (None, had):
                    raise ValueError(f"{name}={getattr(self, name)!r}: decided when a model is begun, and this one has {had!r}")
            return
        if self.class_sums:
            raise ValueError(CLASS_SUMS)
        made = self._parameters(lifelong.made_with)
        with as_value_errors():
            asked = self._parameters(lifelong.decided(self._settings(lambda: lifelong.learner.seed)))
        if self.image_shape is not None:
            asked["image_shape"] = with_channels(self.image_shape)
        late = [name for name in made if asked[name] != made[name]]
        if late:
            wanted, has = (", ".join(f"{name}={values[name]!r}" for name in late) for values in (asked, made))
            raise ValueError(
                f"{wanted}: decided when a model is begun, and this one has {has}. Leave that out, or set it back with "
                f"set_params({has}); or begin a new model: fit does, and forgets this one"
            )

    def _begun_with(self, model: AnyModel) -> dict[str, Any]:
        encoder = {} if model.identity is None else {"encoder": model.identity.name}
        return encoder | (of_head(model.head) if isinstance(model, EncodedModel) else self._parameters(model.made_with))

    def _parameters(self, settings: LifelongSettings) -> dict[str, Any]:
        """The parameters that correspond to these settings."""
        image_shape = self._image_shape if self._image_shape is not None and len(self._image_shape) == 3 else None
        return {name: getattr(settings, setting) for name, setting in DECIDED.items()} | {"image_shape": image_shape}

    def _take(self, lifelong: AnyModel) -> Self:
        """Use this model from now on."""
        self._lifelong = lifelong
        if self._image_shape is None:
            self._image_shape = shape_in(lifelong, self.image_shape)
        known = list(lifelong.life.known)
        self.classes_: NDArray[Any] = as_array(known)
        place = {label: i for i, label in enumerate(known)}
        self._order = [place[plain_label(label)] for label in self.classes_.tolist()]
        self.tasks_ = lifelong.life.known_by_task
        self.task_scores_ = [None if note.accuracy is None else note.accuracy / 100 for note in lifelong.life.tasks]
        return self
