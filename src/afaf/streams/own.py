"""Streams of the user's own images: a folder, an .npz file, or a dataset of (image, label) pairs.

    open_stream("folder:photos", classes_per_task=2)
    open_stream("npz:arrays.npz", class_order=[["cat", "car"], ["dog", "truck"]])
    stream_from_dataset(train_set, test_set, classes_per_task=5)

`size=0` keeps the images' size. Grey images are stored with one channel, which is repeated three times for the network. Pixels are
normalised with the mean and standard deviation of the first task's training images only.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from afaf.bounds import Count, Within
from afaf.checked import build
from afaf.errors import ConfigError, DataError
from afaf.randomness import LARGEST_SEED
from afaf.streams.class_order import in_own_labels, one_order, seed_of
from afaf.streams.decoded import CHANNELS, decode
from afaf.streams.sources.class_folders import SkippedImages, class_files, training_root
from afaf.streams.sources.images import fit, pixels_of, read_image
from afaf.streams.sources.npz import read_arrays
from afaf.streams.sources.source import reading
from afaf.streams.sources.verify import shortened
from afaf.streams.tasks import Augment, StoredImages, Stream, checked_images, checked_labels

Unreadable = Literal["error", "skip"]
DEFAULT_SIZE = 32
IN_MEMORY = 2 << 30  # bytes of a folder's images; more are decoded into a file
REMEDY = "unreadable=skip leaves them out; in a command, --set stream.unreadable=skip"  # for images that cannot be read


class PairDataset(Protocol):
    """A map-style torch dataset of (image, label) pairs."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Options:
    """How own images become a stream.

    `class_order` lists the classes in order of arrival: a flat list (cut into `classes_per_task`) or one list per task. `order` is the
    same as a text: classes separated by commas, `seed:7` for a permutation, or the path of a file with one task per line. Images
    are scaled to `size` x `size` pixels; 0 keeps their size. Without test images, `test_fraction` of each class is held out; `seed` selects
    which images.
    """

    classes_per_task: Count = 2
    class_order: Any = None
    order: Any = ""
    size: Annotated[int, Within(0, 4096)] | None = DEFAULT_SIZE
    test_fraction: Annotated[float, Within(0, 1, above=True, below=True)] = 0.2
    seed: Annotated[int, Within(0, LARGEST_SEED - 1)] = 0
    unreadable: Unreadable = "error"
    augment: Augment = "none"

    def __post_init__(self) -> None:
        one_order(self.order, self.class_order)

    @property
    def arrival(self) -> Any:
        """The order that was given under either name; None if there is none."""
        return one_order(self.order, self.class_order)

    @property
    def side(self) -> int | None:
        return self.size or None


def stream_from_folder(path: Path | str, **options: Any) -> Stream:
    """Return a stream of `train/CLASS/*.png` (jpg, bmp, gif, webp, tif, ppm) and, if present, `test/CLASS/*`.

    Without a `train` folder, the folder's own subfolders are the classes. For the options see `Options`.
    """
    path, chosen = Path(path).expanduser(), build(Options, options)
    _check_folder(path, "name one with train/CLASS/ image files")
    root = training_root(path)
    train = _read_classes(root, chosen)
    test = _read_classes(path / "test", chosen) if root != path and (path / "test").is_dir() else None
    return _stream(f"folder:{path}", train, test, chosen)


def stream_from_npz(path: Path | str, **options: Any) -> Stream:
    """Return a stream of the arrays `x_train`, `y_train` and, if present, `x_test`, `y_test` (or `x`, `y`; or `images`, `labels`).

    Images are (n, h, w) or (n, h, w, c), uint8 or float; vectors are (n, features). For the options see `Options`.
    """
    path, chosen = Path(path).expanduser(), build(Options, options)
    arrays = read_arrays(path)
    train = _from_arrays(arrays["x_train"], arrays["y_train"], chosen, f"{path} (training)")
    test = _from_arrays(arrays["x_test"], arrays["y_test"], chosen, f"{path} (test)") if "x_test" in arrays else None
    if test is not None and test.images.ndim != train.images.ndim:
        shapes = f"training images {arrays['x_train'].shape}, test images {arrays['x_test'].shape}"
        raise DataError(f"{path}: {shapes}: give images in both parts, or vectors in both")
    return _stream(f"npz:{path}", train, test, chosen)


def stream_from_dataset(
    train: PairDataset,
    test: PairDataset | None = None,
    *,
    name: str = "dataset",
    class_names: Mapping[Any, str] | Sequence[str] | None = None,
    **options: Any,
) -> Stream:
    """Return a stream of a map-style dataset's (image, label) items.

    An image is a Pillow image, an array (h, w) or (h, w, c), or a tensor (h, w) or (c, h, w). `class_names` maps labels to names (by
    default the dataset's `classes` attribute). For the options see `Options`.
    """
    chosen = build(Options, options)
    names = class_names if class_names is not None else getattr(train, "classes", None)
    train_images = _read_dataset(train, name, chosen)
    test_images = _read_dataset(test, f"{name} (test)", chosen) if test is not None else None
    if names is not None and not isinstance(names, Mapping):  # a list that is indexed by the label
        names = {label: str(names[label]) for label in set(train_images.labels.tolist()) if label in range(len(names))}
    return _stream(name, train_images, test_images, chosen, names)


@dataclass(frozen=True)
class ClassFolders:
    """The image files of a folder of class folders. `read` decodes them, which takes longer than listing them."""

    files: list[tuple[Path, str]]  # (image, class), sorted by path

    @property
    def labels(self) -> list[str]:
        return [label for _, label in self.files]

    def read(self, size: int, channels: int, unreadable: Unreadable = "error", remedy: str = REMEDY) -> tuple[NDArray[Any], list[str]]:
        """Return the images as uint8 (n, size, size, channels), and their classes."""
        loaded = _read_files(self.files, size, unreadable, remedy)
        _check_no_class_lost(self.labels, loaded.labels)
        return with_channels(np.asarray(loaded.images), channels), loaded.labels.tolist()


def find_class_folders(path: Path | str) -> ClassFolders:
    """List the images of a folder that has one subfolder per class, itself or in `train`."""
    path = Path(path).expanduser()
    _check_folder(path, "name one that has a folder of images for each class")
    return ClassFolders(class_files(training_root(path)))


def read_images(
    paths: Sequence[Path], size: int, channels: int, unreadable: Unreadable = "error", remedy: str = REMEDY
) -> tuple[NDArray[Any], list[Path]]:
    """Return the images as uint8 (n, size, size, channels), and the paths that could be read."""
    loaded = _read_files([(path, i) for i, path in enumerate(paths)], size, unreadable, remedy)
    return with_channels(np.asarray(loaded.images), channels), [paths[i] for i in loaded.labels.tolist()]


def with_channels(images: NDArray[Any], channels: int) -> NDArray[Any]:
    """Convert grey images to RGB or RGB to grey, with Pillow's weights."""
    if images.shape[3] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=3)
    grey = (images.astype(np.uint32) @ np.array([19595, 38470, 7471], dtype=np.uint32) + 0x8000) >> 16
    return grey[..., None].astype(np.uint8)


@dataclass(frozen=True)
class _LabelledImages:
    """Images with the user's labels."""

    images: NDArray[Any] | StoredImages
    labels: NDArray[Any]

    @property
    def grey(self) -> bool:
        return self.images.ndim == 4 and self.images.shape[3] == 1


def _check_folder(path: Path, advice: str) -> None:
    if not path.is_dir():
        raise DataError(f"{path}: {'not a folder' if path.exists() else 'no such folder'}: {advice}")


def _read_classes(root: Path, options: Options) -> _LabelledImages:
    files = class_files(root)
    if options.side is not None and len(files) * options.side**2 * CHANNELS > IN_MEMORY:
        report = partial(report_problems, total=len(files), unreadable=options.unreadable, remedy=REMEDY)
        images, readable = decode([path for path, _ in files], options.side, report)
        loaded = _LabelledImages(images, _label_array([files[number][1] for number in readable]))
    else:
        loaded = _read_files(files, options.side, options.unreadable)
    if options.arrival is None or seed_of(options.arrival) is not None:  # then every class is used
        _check_no_class_lost((label for _, label in files), loaded.labels)
    return loaded


def _check_no_class_lost(expected: Iterable[str], loaded: NDArray[Any]) -> None:
    lost = sorted(set(expected) - set(loaded.tolist()))
    if lost:
        raise DataError(f"of {shortened(lost)} no image at all can be read: replace them, or remove the class")


def _read_files(files: Sequence[tuple[Path, Hashable]], side: int | None, unreadable: Unreadable, remedy: str = REMEDY) -> _LabelledImages:
    def read(i: int) -> tuple[NDArray[Any], Hashable]:
        return read_image(files[i][0], side), files[i][1]

    return _read_all([str(path) for path, _ in files], read, unreadable, remedy)


def _read_dataset(dataset: PairDataset, name: str, options: Options) -> _LabelledImages:
    try:
        names = [f"{name}, item {i}" for i in range(len(dataset))]
    except TypeError as error:
        raise DataError(f"{name}: a dataset must have a length (a map-style dataset), {type(dataset).__name__} has none") from error

    def read(i: int) -> tuple[NDArray[Any], Hashable]:
        with reading(names[i], "correct the dataset"):
            item = dataset[i]
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                raise DataError(f"{names[i]}: a pair (image, label) is expected, not {type(item).__name__}")
            return _as_array(item[0], names[i], options.side), _as_label(item[1], names[i])

    return _read_all(names, read, options.unreadable)


def _as_array(image: Any, name: str, side: int | None) -> NDArray[Any]:
    """Return an image as (h, w, c), uint8 or float32, scaled to `side`."""
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
        raise DataError(f"{name}: a label is an integer or a string, not {type(label).__name__}")
    return label


def _read_all(
    names: Sequence[str], read: Callable[[int], tuple[NDArray[Any], Hashable]], unreadable: Unreadable, remedy: str = REMEDY
) -> _LabelledImages:
    """Read every image into one array, which has one channel if all images are grey. `names` are for messages."""
    images: NDArray[Any] | None = None
    labels: list[Hashable] = []
    problems: list[str] = []
    all_grey = True
    for i, name in enumerate(names):
        try:
            pixels, label = read(i)
        except DataError as error:
            problems.append(str(error))
            continue
        channels = 3 if pixels.shape[2] == 1 else pixels.shape[2]
        if images is None:
            images = np.empty((len(names), *pixels.shape[:2], channels), pixels.dtype)
        if (*pixels.shape[:2], channels) != images.shape[1:] or pixels.dtype != images.dtype:
            raise DataError(
                f"{name}: {pixels.shape} {pixels.dtype}, but the images before are {images.shape[1:]} {images.dtype}: "
                f"all must be alike; give a size other than 0, and one type of pixels"
            )
        images[len(labels)] = pixels
        labels.append(label)
        all_grey = all_grey and pixels.shape[2] == 1
    report_problems(problems, len(names), unreadable, remedy)
    if images is None:
        raise DataError("a stream needs at least one image")
    images = images[: len(labels)]
    return _LabelledImages(np.ascontiguousarray(images[..., :1]) if all_grey else images, _label_array(labels))


def _label_array(labels: Sequence[Hashable]) -> NDArray[Any]:
    array = np.empty(len(labels), object)
    array[:] = labels
    return array


def report_problems(problems: Sequence[str], total: int, unreadable: Unreadable, remedy: str) -> None:
    """Raise for unreadable images, or warn if they may be skipped."""
    if not problems:
        return
    count = len(problems)
    listing = "\n".join(f"  {problem}" for problem in problems[:20]) + (f"\n  and {count - 20} more" if count > 20 else "")
    if unreadable == "error":
        raise DataError(f"{count} of {total} images cannot be read ({remedy}):\n{listing}")
    if count == total:
        raise DataError(f"none of the {total} images can be read:\n{listing}")
    warnings.warn(f"{count} of {total} images cannot be read and are left out:\n{listing}", SkippedImages, stacklevel=5)


def _from_arrays(x: NDArray[Any], y: NDArray[Any], options: Options, name: str) -> _LabelledImages:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind not in "biuU":
        raise DataError(f"{name}: labels must be integers or strings, not {y.dtype}")
    labels = checked_labels(y)
    if options.side is not None:
        _check_channels(x, name)
    images = checked_images(x, name)
    if len(images) != len(labels):
        raise DataError(f"{name}: {len(images)} images but {len(labels)} labels: give one label per image")
    return _LabelledImages(fit(images, options.side, name) if images.ndim == 4 else images, labels)


def _check_channels(images: NDArray[Any], name: str) -> None:
    """Refuse other than 1 or 3 channels in images to be scaled: (c, h, w) would be scaled as (h, w, c)."""
    if images.ndim == 4 and images.shape[3] not in (1, 3):
        first = "; channels come last: transpose them from (c, h, w)" if images.shape[1] in (1, 3) else ""
        raise DataError(f"{name}: images have 1 or 3 channels, these are {images.shape[1:]}{first} (size=0 takes any number)")


def _stream(
    name: str, train: _LabelledImages, test: _LabelledImages | None, options: Options, class_names: Mapping[Any, str] | None = None
) -> Stream:
    """Build the stream; all tasks are normalised with the statistics of the first."""
    if test is not None:
        untrained = sorted({str(label) for label in set(test.labels.tolist()) - set(train.labels.tolist())})
        if untrained:
            raise DataError(f"{name}: there are test images of {shortened(untrained)}, but no training images: add some or remove them")
        if test.grey != train.grey:
            train, test = (replace(split, images=with_channels(np.asarray(split.images), 3)) for split in (train, test))
    if options.augment != "none" and train.images.ndim != 4:
        raise ConfigError(f"{name}: augment={options.augment} is for images, these are vectors: leave it out")
    order = in_own_labels(options.arrival, train.labels)
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
        augment=options.augment,
        name=name,
        seed=options.seed,
    )
    preparation = replace(stream[0].preparation, channels=3 if train.grey and options.side is not None else None)
    return Stream(name, [replace(task, preparation=preparation) for task in stream], stream.label_map)


def _check_enough(name: str, labels: NDArray[Any], order: Sequence[Any] | None) -> None:
    counts = Counter(labels.tolist())
    used = counts if order is None else {label for group in order for label in (group if isinstance(group, list) else [group])}
    single = [str(label) for label, count in counts.items() if count < 2 and label in used]
    if single:
        raise DataError(f"{name}: one image only of {shortened(single)}: at least 2 are needed, one of them for the test")
