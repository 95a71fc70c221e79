"""Streams of the user's own images: a folder, an .npz file, or any dataset of (image, label) pairs.

    open_stream("folder:photos", classes_per_task=2)
    open_stream("npz:arrays.npz", class_order=[["cat", "car"], ["dog", "truck"]])
    stream_from_dataset(train_set, test_set, classes_per_task=5)

How an image becomes pixels is said in sources/images.py. Grey images keep one channel in memory and are shown to the network
as three; with `size=0` images stay exactly as they are. Pixels are normalised with the mean and spread of the first task's
training images: later tasks are not looked at before they arrive.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from afaf.errors import ConfigError, DataError, unknown
from afaf.files import read_text
from afaf.randomness import check_seed
from afaf.streams.sources.class_folders import SkippedImages, class_files, training_root
from afaf.streams.sources.images import fit, pixels_of, read_image
from afaf.streams.sources.npz import read_arrays
from afaf.streams.sources.source import reading
from afaf.streams.sources.verify import shortened
from afaf.streams.tasks import Augment, Preparation, Stream, checked_images, checked_labels

Unreadable = Literal["error", "skip"]
ClassOrder = Sequence[Any] | str | Path | None
DEFAULT_SIZE = 32
REMEDY = "unreadable=skip leaves them out; in a command, --set stream.unreadable=skip"  # for images that cannot be read


class PairDataset(Protocol):
    """What torch calls a map-style dataset, of (image, label) pairs."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Options:
    """How own images become a stream.

    `class_order` names the classes in order of arrival: a flat list (cut into `classes_per_task`) or a list per task; or `order`
    is the path of a file that says it, one task a line, commas between its classes. `size` is the side of the square images are
    scaled to, 0 to leave them as they are. Without test images, `test_fraction` of each class is held out, chosen by `seed`.
    """

    classes_per_task: int = 2
    class_order: ClassOrder = None
    order: str | Path = ""
    size: int | None = DEFAULT_SIZE
    test_fraction: float = 0.2
    seed: int = 0
    unreadable: Unreadable = "error"
    augment: Augment = "none"

    def __post_init__(self) -> None:
        for name, types in (("classes_per_task", (int,)), ("seed", (int,)), ("test_fraction", (int, float))):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, types):
                raise ConfigError(f"{name} must be a number, not {value!r}")
        check_seed(self.seed, "seed")
        if self.size is not None and (isinstance(self.size, bool) or not isinstance(self.size, int) or not 0 <= self.size <= 4096):
            raise ConfigError(f"size must be a whole number of pixels up to 4096 (0 leaves images as they are), not {self.size!r}")
        for name, choices in (("unreadable", get_args(Unreadable)), ("augment", get_args(Augment))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be {' or '.join(map(repr, choices))}, not {getattr(self, name)!r}")
        if self.order and self.class_order is not None:
            raise ConfigError("give class_order or the file `order`, not both")
        if not 0 < self.test_fraction < 1:
            raise ConfigError(f"test_fraction must be between 0 and 1, not {self.test_fraction!r}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Options:
        """The options by name, as a command line or a config gives them."""
        for name in options:
            if name not in cls.__dataclass_fields__:
                raise ConfigError(unknown("option of own data", name, cls.__dataclass_fields__))
        return cls(**options)

    @property
    def side(self) -> int | None:
        return self.size or None


def stream_from_folder(path: Path | str, **options: Any) -> Stream:
    """A stream from `train/CLASS/*.png` (jpg, bmp, gif, webp, tif, ppm) and, optionally, `test/CLASS/*`.

    Without a `train` folder, the folder's own subfolders are the classes. Options: see `Options`.
    """
    path, chosen = Path(path).expanduser(), Options.of(options)
    if not path.is_dir():
        raise DataError(f"{path}: {'not a folder' if path.exists() else 'no such folder'}: name one with train/CLASS/ image files")
    root = training_root(path)
    train = _read_classes(root, chosen)
    test = _read_classes(path / "test", chosen) if root != path and (path / "test").is_dir() else None
    return _stream(f"folder:{path}", train, test, chosen)


def stream_from_npz(path: Path | str, **options: Any) -> Stream:
    """A stream from arrays `x_train`, `y_train` and, optionally, `x_test`, `y_test` (or `x`, `y`; or `images`, `labels`).

    Images are (n, h, w) or (n, h, w, c), uint8 or float; vectors (n, features) are possible. Options: see `Options`.
    """
    path, chosen = Path(path).expanduser(), Options.of(options)
    arrays = read_arrays(path)
    train = _from_arrays(arrays["x_train"], arrays["y_train"], chosen, f"{path} (training)")
    test = _from_arrays(arrays["x_test"], arrays["y_test"], chosen, f"{path} (test)") if "x_test" in arrays else None
    return _stream(f"npz:{path}", train, test, chosen)


def stream_from_dataset(
    train: PairDataset,
    test: PairDataset | None = None,
    *,
    name: str = "dataset",
    class_names: Mapping[Any, str] | Sequence[str] | None = None,
    **options: Any,
) -> Stream:
    """A stream from any dataset with a length and (image, label) items.

    An image is a Pillow image, an array (h, w) or (h, w, c), or a tensor (h, w) or (c, h, w). `class_names` belong to the labels
    (by default the dataset's own `classes`, if it has them). Options: see `Options`.
    """
    chosen = Options.of(options)
    named = class_names if class_names is not None else getattr(train, "classes", None)
    gathered = _gather(_items(train, name, chosen.side), chosen.unreadable)
    gathered_test = _gather(_items(test, f"{name} (test)", chosen.side), chosen.unreadable) if test is not None else None
    return _stream(name, gathered, gathered_test, chosen, _names(named, gathered.labels))


@dataclass(frozen=True)
class ClassFolders:
    """A folder of class folders, looked through but not read yet: what its names tell can be judged before reading takes its time."""

    files: list[tuple[Path, str]]  # images in the order of their names, and their classes

    @property
    def labels(self) -> list[str]:
        return [label for _, label in self.files]

    def read(self, size: int, channels: int, unreadable: Unreadable = "error", remedy: str = REMEDY) -> tuple[NDArray[Any], list[str]]:
        """The images, (n, size, size, channels) of bytes, and their classes."""
        items = [(str(path), _reader(path, label, size)) for path, label in self.files]
        found = _gather(items, unreadable, remedy)
        _check_all_there(self.labels, found.labels)
        return with_channels(found.images, channels), found.labels.tolist()


def find_class_folders(path: Path | str) -> ClassFolders:
    """The images of a folder that has a folder for each class; `train` in it stands for it."""
    path = Path(path).expanduser()
    if not path.is_dir():
        what = "not a folder" if path.exists() else "no such folder"
        raise DataError(f"{path}: {what}: name one that has a folder of images for each class")
    return ClassFolders(class_files(training_root(path)))


def read_images(
    paths: Sequence[Path], size: int, channels: int, unreadable: Unreadable = "error", remedy: str = REMEDY
) -> tuple[NDArray[Any], list[Path]]:
    """These images in the same way, and which of them could be read."""
    items: list[Item] = [(str(path), _reader(path, str(i), size)) for i, path in enumerate(paths)]
    found = _gather(items, unreadable, remedy)
    return with_channels(found.images, channels), [paths[int(i)] for i in found.labels.tolist()]


def with_channels(images: NDArray[Any], channels: int) -> NDArray[Any]:
    """Grey images as colour ones, or colour as grey, weighed as Pillow does."""
    if images.shape[3] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=3)
    grey = (images.astype(np.uint32) @ np.array([19595, 38470, 7471], dtype=np.uint32) + 0x8000) >> 16
    return grey[..., None].astype(np.uint8)


@dataclass(frozen=True)
class _Gathered:
    """Images read from wherever they were, with the user's labels."""

    images: NDArray[Any]
    labels: NDArray[Any]

    @property
    def grey(self) -> bool:
        return self.images.ndim == 4 and self.images.shape[3] == 1

    def coloured(self) -> _Gathered:
        return replace(self, images=np.repeat(self.images, 3, axis=3)) if self.grey else self


Read = Callable[[], tuple[NDArray[Any], Hashable]]
Item = tuple[str, Read]  # a name for messages, and how to read it


def _read_classes(root: Path, options: Options) -> _Gathered:
    files = class_files(root)
    found = _gather([(str(path), _reader(path, label, options.side)) for path, label in files], options.unreadable)
    if not options.order and options.class_order is None:
        _check_all_there((label for _, label in files), found.labels)
    return found


def _check_all_there(wanted: Iterable[str], found: NDArray[Any]) -> None:
    """Images may be left out where they cannot be read, but no class may vanish by it."""
    lost = sorted(set(wanted) - set(found.tolist()))
    if lost:
        raise DataError(f"of {shortened(lost)} no image at all can be read: replace them, or remove the class")


def _reader(path: Path, label: str, side: int | None) -> Read:
    return lambda: (read_image(path, side), label)


def _items(dataset: PairDataset, name: str, side: int | None) -> list[Item]:
    try:
        length = len(dataset)
    except TypeError as error:
        raise DataError(f"{name}: a dataset must have a length (a map-style dataset), {type(dataset).__name__} has none") from error
    return [(f"{name}, item {i}", _item(dataset, i, f"{name}, item {i}", side)) for i in range(length)]


def _item(dataset: PairDataset, index: int, name: str, side: int | None) -> Read:
    def read() -> tuple[NDArray[Any], Hashable]:
        with reading(name, "mend the dataset"):
            item = dataset[index]
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                raise DataError(f"{name}: a pair (image, label) is expected, not {type(item).__name__}")
            return _as_array(item[0], name, side), _as_label(item[1], name)

    return read


def _as_array(image: Any, name: str, side: int | None) -> NDArray[Any]:
    """An image of any kind as (h, w, c), uint8 or float32, scaled."""
    if isinstance(image, Image.Image):
        return pixels_of(image, side, name)
    if isinstance(image, torch.Tensor):
        image = image.detach().cpu()
        image = (image.permute(1, 2, 0) if image.ndim == 3 else image).numpy()
    pixels = np.asarray(image)
    if pixels.ndim not in (2, 3):
        raise DataError(f"{name}: an image has the shape (h, w) or (h, w, c), not {pixels.shape}")
    if side is not None:
        _check_channels(pixels[None], name)
    fitted: NDArray[Any] = fit(checked_images(pixels[None], name), side, name)[0]
    return fitted


def _as_label(label: Any, name: str) -> Hashable:
    if isinstance(label, (torch.Tensor, np.ndarray, np.generic)) and np.ndim(label) == 0:
        label = label.item()
    if not isinstance(label, (int, str)):
        raise DataError(f"{name}: a label is a whole number or a text, not {type(label).__name__}")
    return label


def _gather(items: Sequence[Item], unreadable: Unreadable, remedy: str = REMEDY) -> _Gathered:
    """Reads every image once, into its place; grey ones are kept as one channel if all of them are grey."""
    images: NDArray[Any] | None = None
    labels: list[Hashable] = []
    bad: list[str] = []
    all_grey = True
    for name, read in items:
        try:
            pixels, label = read()
        except DataError as error:
            bad.append(str(error))
            continue
        channels = 3 if pixels.shape[2] == 1 else pixels.shape[2]
        if images is None:
            images = np.empty((len(items), *pixels.shape[:2], channels), pixels.dtype)
        if (*pixels.shape[:2], channels) != images.shape[1:] or pixels.dtype != images.dtype:
            raise DataError(
                f"{name}: {pixels.shape} {pixels.dtype}, but the images before are {images.shape[1:]} {images.dtype}: "
                f"all must be alike; give a size other than 0, and one type of pixels"
            )
        images[len(labels)] = pixels
        labels.append(label)
        all_grey = all_grey and pixels.shape[2] == 1
    _report(bad, len(items), unreadable, remedy)
    if images is None:
        raise DataError("a stream needs images: there are none")
    images = images[: len(labels)]
    return _Gathered(np.ascontiguousarray(images[..., :1]) if all_grey else images, _label_array(labels))


def _label_array(labels: Sequence[Hashable]) -> NDArray[Any]:
    array = np.empty(len(labels), object)
    array[:] = labels
    return array


def _report(bad: Sequence[str], total: int, unreadable: Unreadable, remedy: str) -> None:
    """Unreadable images, by name: an error, or left out with a warning where that was asked for."""
    if not bad:
        return
    listing = "\n".join(f"  {problem}" for problem in bad[:20]) + (f"\n  and {len(bad) - 20} more" if len(bad) > 20 else "")
    if unreadable == "error":
        raise DataError(f"{len(bad)} of {total} images cannot be read ({remedy}):\n{listing}")
    if len(bad) == total:
        raise DataError(f"none of the {total} images can be read:\n{listing}")
    warnings.warn(f"{len(bad)} of {total} images cannot be read and are left out:\n{listing}", SkippedImages, stacklevel=5)


def _from_arrays(x: NDArray[Any], y: NDArray[Any], options: Options, name: str) -> _Gathered:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind not in "biuU":
        raise DataError(f"{name}: labels must be whole numbers or texts, not {y.dtype}")
    labels = checked_labels(y)
    if options.side is not None:
        _check_channels(x, name)
    images = checked_images(x, name)
    if len(images) != len(labels):
        raise DataError(f"{name}: {len(images)} images but {len(labels)} labels: they must be as many")
    return _Gathered(fit(images, options.side, name) if images.ndim == 4 else images, labels)


def _check_channels(images: NDArray[Any], name: str) -> None:
    """Images that are scaled are grey or coloured: of others, channels that come first would be taken for rows."""
    if images.ndim == 4 and images.shape[3] not in (1, 3):
        first = "; channels come last: transpose them from (c, h, w)" if images.shape[1] in (1, 3) else ""
        raise DataError(f"{name}: images have 1 or 3 channels, these are {images.shape[1:]}{first} (size=0 takes any number)")


def _stream(name: str, train: _Gathered, test: _Gathered | None, options: Options, class_names: Mapping[Any, str] | None = None) -> Stream:
    """The tasks, normalised by what the first one shows."""
    if test is not None:
        strange = sorted({str(label) for label in set(test.labels.tolist()) - set(train.labels.tolist())})
        if strange:
            raise DataError(f"{name}: there are test images of {shortened(strange)}, but no training images: add some or remove them")
        if test.grey != train.grey:
            train, test = train.coloured(), test.coloured()
    order = _order(options.order or options.class_order, train.labels)
    if test is None:
        _check_enough(name, train.labels, order)
    stream = Stream.from_arrays(
        train.images,
        train.labels,
        x_test=None if test is None else test.images,
        y_test=None if test is None else test.labels,
        test_fraction=options.test_fraction,
        classes_per_task=options.classes_per_task,
        class_order=order,
        class_names=class_names,
        preparation=Preparation(),
        name=name,
        seed=options.seed,
    )
    preparation = replace(
        _measured(stream[0].train.images),
        channels=3 if train.grey and options.side is not None else None,
        augment=options.augment,
    )
    return Stream(name, [replace(task, preparation=preparation) for task in stream], stream.label_map)


def _check_enough(name: str, labels: NDArray[Any], order: Sequence[Any] | None) -> None:
    counts = Counter(labels.tolist())
    wanted = counts if order is None else {label for group in order for label in (group if isinstance(group, list) else [group])}
    few = [str(label) for label, count in counts.items() if count < 2 and label in wanted]
    if few:
        raise DataError(f"{name}: one image only of {shortened(few)}: at least 2 are needed, one of them for the test")


def _measured(images: NDArray[Any]) -> Preparation:
    """Mean and spread per channel; of uint8 images from the counts of the 256 values, without a larger copy of them."""
    if images.ndim != 4 or images.dtype != np.uint8:
        return Preparation.measured(images)
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[3]):
        share = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        mean = float(share @ values)
        std = float(np.sqrt(share @ (values - mean) ** 2))
        means.append(mean)
        stds.append(std if std > 0 else 1.0)
    return Preparation(tuple(means), tuple(stds))


def _names(named: Mapping[Any, str] | Sequence[str] | None, labels: NDArray[Any]) -> dict[Any, str] | None:
    """The names of labels, from a mapping or, for labels 0, 1, ..., from a list."""
    if named is None or isinstance(named, Mapping):
        return dict(named) if named is not None else None
    known = range(len(named))
    return {label: str(named[label]) for label in set(labels.tolist()) if isinstance(label, int) and label in known}


def _order(order: ClassOrder, labels: NDArray[Any]) -> list[Any] | None:
    """The class order in the user's own labels, which a file or a command line can only spell as text."""
    if order is None:
        return None
    if isinstance(order, (str, Path)):
        order = read_order(order)
    spelled = {str(label): label for label in labels.tolist()}
    own = set(spelled.values())

    def label(item: Any) -> Any:
        return item if isinstance(item, Hashable) and item in own else spelled.get(str(item), item)

    return [[label(i) for i in group] if isinstance(group, (list, tuple, np.ndarray)) else label(group) for group in order]


def read_order(order: str | Path) -> list[Any]:
    """An order file: one task a line, commas between its classes, '#' before remarks. A text with commas is a flat list."""
    path = Path(order).expanduser()
    if isinstance(order, str) and "," in order and not os.path.isfile(path):  # which says no to a name that is too long for one
        return _split(order)
    with reading(path, "an order file is plain text, one task a line"):
        text = read_text(path).removeprefix("\ufeff")
    tasks = [_split(line.partition("#")[0]) for line in text.splitlines()]
    tasks = [task for task in tasks if task]
    if not tasks:
        raise DataError(f"{path}: no classes: write one task a line, commas between its classes")
    return tasks


def _split(line: str) -> list[str]:
    return [name.strip() for name in line.split(",") if name.strip()]
