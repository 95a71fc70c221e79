"""Images of no class, made from a task's own."""

from __future__ import annotations

import numpy as np

from afaf.training.negatives import made_negatives


def test_bytes_stay_within_their_range() -> None:
    """Noise that leaves it ends at its border, and does not come in again at the other end."""
    bright = np.full((200, 5), 250, dtype=np.uint8)
    bright[0] = 0
    made = made_negatives(bright, 0, 1)
    assert made.dtype == np.uint8
    assert made.mean() > 230
    floats = made_negatives(bright.astype(np.float32), 0, 1)
    assert np.array_equal(made, floats.round().clip(0, 255))
