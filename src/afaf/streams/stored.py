"""Images that stay in a file until they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class StoredImages:
    """Some images of a memory-mapped file, (n, height, width, channels). To choose among them copies nothing; numpy reads them."""

    def __init__(self, file: NDArray[np.uint8], index: NDArray[np.int64]):
        self.file, self.index = file, index
        self.shape: tuple[int, ...] = (len(index), *file.shape[1:])
        self.dtype, self.ndim = file.dtype, file.ndim

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def __getitem__(self, chosen: slice | NDArray[Any]) -> StoredImages:
        return StoredImages(self.file, self.index[chosen])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        pixels: NDArray[Any] = self.file[self.index]
        return pixels if dtype is None else pixels.astype(dtype)
