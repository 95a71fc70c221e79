"""The gate: while one thread is alone, no other is inside; and nobody waits for ever."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from afaf.training.cuda.streams import Gate


def test_whoever_is_alone_is_alone() -> None:
    gate, lock = Gate(), threading.Lock()
    inside: set[int] = set()
    crowded: list[set[int]] = []

    def visitor(number: int) -> int:
        draw, alone = random.Random(number), 0
        with gate.inside(), gate.inside():  # nested, as an engine within a run
            for _ in range(30):
                with lock:
                    inside.add(number)
                time.sleep(draw.random() / 1000)
                with lock:
                    inside.discard(number)
                if draw.random() < 0.3:
                    with gate.outside():
                        time.sleep(draw.random() / 1000)
                elif draw.random() < 0.3:
                    with gate.alone():
                        alone += 1
                        time.sleep(draw.random() / 1000)
                        with lock:
                            crowded.append(set(inside))
        return alone

    with ThreadPoolExecutor(6) as pool:
        captures = sum(pool.map(visitor, range(6), timeout=60))
    assert captures == len(crowded) > 10
    assert not any(crowded)
    assert (gate.inside_now, gate.wanting, gate.capturing) == (0, 0, False)


def test_an_error_inside_leaves_the_gate_open() -> None:
    gate = Gate()
    for block in (gate.outside, gate.alone):
        try:
            with gate.inside(), block():
                raise ValueError
        except ValueError:
            pass
    with ThreadPoolExecutor(1) as pool:

        def enter() -> bool:
            with gate.inside(), gate.alone():
                return True

        assert pool.submit(enter).result(timeout=10)
