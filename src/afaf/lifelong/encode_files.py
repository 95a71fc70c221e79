"""Image files, decoded and encoded in threads, for a model of an encoder and a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from afaf.encoders.encoder import Encoder
from afaf.errors import DataError
from afaf.files.urls import Place
from afaf.lifelong.encoded import Part
from afaf.lifelong.life import Label
from afaf.streams.own import Unreadable, report_problems

OnBatch = Callable[
    [int], None
]  # called from any thread with the number of images of a batch that was encoded, and with 1 for an unreadable file


class FileParts:
    """Parts of labelled image files, in order. Unreadable files are left out with a warning, or named in an error at the end.

    With `unreadable` None they are left out, and the caller reports `bad`.
    """

    def __init__(
        self, encoder: Encoder, files: Sequence[tuple[Place, Label]], unreadable: Unreadable | None, remedy: str, on_batch: OnBatch
    ):
        self.encoder, self.files, self.unreadable, self.remedy, self.on_batch = encoder, files, unreadable, remedy, on_batch
        self.bad: dict[Place, str] = {}
        self.read: list[Place] = []  # those that were encoded

    def __iter__(self) -> Iterator[Part]:
        labels = dict(self.files)
        for some, pixels, features in self.encoder.stream([*labels], self._read):
            if some:
                self.read += some
                yield pixels, features, [labels[path] for path in some]
                self.on_batch(len(some))
        if self.unreadable is not None:
            report_unreadable(self.bad, len(labels), self.unreadable, self.remedy)

    def _read(self, path: Place) -> NDArray[Any] | None:
        try:
            pixels = self.encoder.read(path)
            if not (self.bad and self.unreadable == "error"):  # with an error certain, the other files are only checked
                return pixels
        except DataError as error:
            self.bad[path] = str(error)
        self.on_batch(1)
        return None


def report_unreadable(bad: Mapping[Place, str], total: int, unreadable: Unreadable, remedy: str) -> None:
    """Warn of images that cannot be read, or raise an error that names them."""
    problems = [bad[place] for place in sorted(bad, key=str)]
    report_problems(problems, total, "error" if len(problems) == total else unreadable, remedy)
