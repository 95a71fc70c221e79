"""The capture lock: an exclusive holder is alone, and no error or interrupt leaves the lock closed."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from afaf.training.cuda.streams import CaptureLock


def test_an_exclusive_holder_is_alone() -> None:
    capture, lock = CaptureLock(), threading.Lock()
    inside: set[int] = set()
    crowded: list[set[int]] = []

    def visitor(number: int) -> int:
        draw, captures = random.Random(number), 0
        with capture.shared(), capture.shared():  # nested, as an engine within a run
            for _ in range(30):
                with lock:
                    inside.add(number)
                time.sleep(draw.random() / 1000)
                with lock:
                    inside.discard(number)
                if draw.random() < 0.3:
                    with capture.released():
                        time.sleep(draw.random() / 1000)
                elif draw.random() < 0.3:
                    with capture.exclusive():
                        captures += 1
                        time.sleep(draw.random() / 1000)
                        with lock:
                            crowded.append(set(inside))
        return captures

    with ThreadPoolExecutor(6) as pool:
        captures = sum(pool.map(visitor, range(6), timeout=60))
    assert captures == len(crowded) > 10
    assert not any(crowded)
    assert (capture.holders, capture.waiting, capture.capturing) == (0, 0, False)


def assert_open(capture: CaptureLock) -> None:
    """Another thread can get it, shared and exclusive."""

    def enter() -> bool:
        with capture.shared(), capture.exclusive():
            return True

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result(timeout=10)


def test_an_error_within_a_block_leaves_the_lock_open() -> None:
    capture = CaptureLock()
    for block in (capture.released, capture.exclusive):
        with contextlib.suppress(ValueError), capture.shared(), block():
            raise ValueError
    assert_open(capture)


@pytest.mark.parametrize("block", ["exclusive", "released"])
def test_an_interrupted_wait_leaves_the_lock_open(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyboardInterrupt arrives while this thread waits for the others."""
    capture = CaptureLock()

    def interrupted(predicate: object) -> bool:
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt), capture.shared():
        monkeypatch.setattr(capture.changed, "wait_for", interrupted)
        with getattr(capture, block)():
            pass
    monkeypatch.undo()
    assert_open(capture)
