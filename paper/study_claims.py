"""Checks of the claims about the paper's studies: variants of AFAF compared on paired seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from afaf.report.measured import BySeed, Shape, minus
from afaf.sweeps.store import Line
from paper.judgement import Part, less, part
from paper.main_claims import METRICS, MUCH, method_difference, of
from paper.measured import Measured, costs
from paper.printed import title_of
from paper.settings import DENSER, LAST, LOWEST, PAIRS, RANDOM, SMALL, STUDIED


def _difference(metric: str, a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Callable[[Measured, str], BySeed]:
    """AFAF with settings a less AFAF with settings b."""

    def of(m: Measured, stream: str) -> BySeed:
        return minus(m.values(Shape(stream, "afaf", a or {}), metric), m.values(Shape(stream, "afaf", b or {}), metric))

    return of


def variants(
    metric: str, better: Mapping[str, Any] | None, worse: Mapping[str, Any], name: str, bound: float = 0
) -> Callable[[Measured], list[Part]]:
    difference = _difference(metric, better, worse)
    return lambda m: [part(f"{title_of(stream)}: {METRICS[metric]} {name}", difference(m, stream), bound) for stream in STUDIED]


def more_in_class_il(worse: Mapping[str, Any]) -> Callable[[Measured], list[Part]]:
    """What is lost in class-IL less what is lost in task-IL."""

    def check(m: Measured) -> list[Part]:
        return [
            part(
                f"{title_of(stream)}: loss in class-IL less loss in task-IL",
                minus(_difference("acc", None, worse)(m, stream), _difference("acc_task_il", None, worse)(m, stream)),
            )
            for stream in STUDIED
        ]

    return check


def keeps_because_it_learns_less(m: Measured) -> list[Part]:
    """The lowest candidates: higher BWT, and lower LA on the tasks that reuse."""
    higher = variants("bwt", LOWEST, {}, "of lowest less most")
    lower = variants("la_reusing", {}, LOWEST, "of most less lowest")
    return [*higher(m), *lower(m)]


def lowest_is_lowest(m: Measured) -> list[Part]:
    parts = []
    for stream in STUDIED:
        for metric in ("la_reusing", "acc"):
            for other, name in (({}, "most"), (RANDOM, "random")):
                text = f"{title_of(stream)}: {METRICS[metric]} of {name} less lowest"
                parts.append(part(text, _difference(metric, other, LOWEST)(m, stream), MUCH))
    return parts


def l_reuse_low(m: Measured) -> list[Part]:
    """l_reuse 2 and 3 against 4: higher LA, lower BWT, lower ACC."""
    parts = []
    for stream in STUDIED:
        for value in (2, 3):
            low = {"method.l_reuse": value}
            parts.append(part(f"{title_of(stream)}: LA of l_reuse {value} less 4", _difference("la", low, {})(m, stream)))
            parts.append(part(f"{title_of(stream)}: BWT of l_reuse 4 less {value}", _difference("bwt", {}, low)(m, stream)))
            parts.append(part(f"{title_of(stream)}: ACC of l_reuse 4 less {value}", _difference("acc", {}, low)(m, stream)))
    return parts


def l_reuse_high(m: Measured) -> list[Part]:
    parts = []
    for stream in STUDIED:
        for metric in ("la", "acc"):
            for value in (2, 3, 4):
                other = {} if value == 4 else {"method.l_reuse": value}
                text = f"{title_of(stream)}: {METRICS[metric]} of l_reuse {value} less 5"
                parts.append(part(text, _difference(metric, other, {"method.l_reuse": 5})(m, stream)))
    return parts


def _share(value: int) -> dict[str, Any]:
    return {} if value == 30 else {"method.candidate_share": value}


def shares(m: Measured) -> list[Part]:
    stream = "sim-cifar10"
    return [
        part("LA of 30 % less 10 %", _difference("la", _share(30), _share(10))(m, stream)),
        part("LA of 50 % less 30 %", _difference("la", _share(50), _share(30))(m, stream)),
        part("BWT of 30 % less 50 %", _difference("bwt", _share(30), _share(50))(m, stream)),
        *(part(f"ACC of 30 % less {value} %", _difference("acc", _share(30), _share(value))(m, stream)) for value in (10, 20, 50)),
        *(part(f"ACC of 40 % less {value} %", _difference("acc", _share(40), _share(value))(m, stream)) for value in (10, 20, 50)),
    ]


def denser(m: Measured) -> list[Part]:
    """ACC and LA after every task."""

    def after(task: int, metric: str) -> Callable[[Line], float]:
        def read(line: Line) -> float:
            rows = line["R"][:task]
            return float(np.mean(rows[-1] if metric == "ACC" else [row[-1] for row in rows]))

        return read

    higher, plain = Shape("mix", "afaf", DENSER), Shape("mix", "afaf")
    return [
        part(f"{metric} after task {task}, 12 % less 5 %", minus(m.values(higher, read), m.values(plain, read)))
        for metric in ("ACC", "LA")
        for task in range(1, 9)
        for read in (after(task, metric),)
    ]


def spacenet_has_no_room(m: Measured) -> list[Part]:
    asked = Shape("mix", "spacenet", {f"sparse.density.W_{l}": value for l, value in ((1, 17), (2, 25), (3, 25))})
    outcomes = [line for line in m.lines if Shape(line["stream"], line["method"], line["settings"]) == asked]
    if not outcomes:
        return [Part("SpaceNet with this density in all tasks", None)]
    full = all(line.get("kind") == "CapacityError" for line in outcomes)
    return [Part(f"SpaceNet with this density in all tasks: {outcomes[0].get('failed', 'it fits')}", None, full)]


GOOD_IN_TASK_IL = 85.0


def levels(m: Measured) -> list[Part]:
    """PackNet is good in task-IL, and loses more from there to class-IL than AFAF, which is above it in class-IL."""
    parts = []
    for stream in STUDIED:
        lost, mine = (less(of(m, stream, method, "acc_task_il"), of(m, stream, method, "acc")) for method in ("packnet", "afaf"))
        parts.append(part(f"{title_of(stream)}: task-IL ACC of PackNet", of(m, stream, "packnet", "acc_task_il"), GOOD_IN_TASK_IL))
        parts.append(part(f"{title_of(stream)}: what PackNet loses from task-IL to class-IL less what AFAF loses", less(lost, mine)))
        parts.append(part(f"{title_of(stream)}: class-IL ACC of AFAF less PackNet", method_difference(m, stream, "afaf", "packnet", "acc")))
    return parts


def comparable_in_task_il(m: Measured) -> list[Part]:
    """Within five points of PackNet."""
    return [
        part(
            f"{title_of(stream)}: task-IL ACC of AFAF less PackNet",
            method_difference(m, stream, "afaf", "packnet", "acc_task_il"),
            bound=-5,
        )
        for stream in STUDIED
    ]


def _after_both(task: int) -> Callable[[Line], float]:
    def read(line: Line) -> float:
        return float(line["R"][-1][task])

    return read


def subnetworks_differ(m: Measured) -> list[Part]:
    """Figure 1a: with the lowest candidates A stays, at the expense of B; AFAF balances the two."""
    mine, lowest = Shape(PAIRS, "afaf"), Shape(PAIRS, "afaf", LOWEST)

    def apart(line: Line) -> float:
        return abs(_after_both(0)(line) - _after_both(1)(line))

    return [
        part("accuracy on A after B, lowest less AFAF", minus(m.values(lowest, _after_both(0)), m.values(mine, _after_both(0)))),
        part("accuracy on B, AFAF less lowest", minus(m.values(mine, _after_both(1)), m.values(lowest, _after_both(1)))),
        part("how far the accuracies on A and B are apart, lowest less AFAF", minus(m.values(lowest, apart), m.values(mine, apart))),
    ]


def reusing_all_by_setting(m: Measured) -> list[Part]:
    """Figure 1b: reusing all costs more in class-IL than in task-IL."""
    mine, last = Shape(PAIRS, "afaf"), Shape(PAIRS, "afaf", LAST)
    lost = {name: minus(m.values(mine, name), m.values(last, name)) for name in ("acc", "acc_task_il")}
    return [part("loss in class-IL less loss in task-IL", minus(lost["acc"], lost["acc_task_il"]))]


def adding_and_reusing(m: Measured) -> list[Part]:
    """Figure 1c: within five points of adding, with fewer parameters and FLOPs."""
    reusing, adding = costs(PAIRS, "afaf"), costs(PAIRS, "spacenet")
    difference = method_difference(m, PAIRS, "afaf", "spacenet", "acc")
    fewer = reusing.params < adding.params and reusing.counted_flops < adding.counted_flops
    text = f"#params {reusing.params:,} and {adding.params:,}, counted FLOPs {reusing.counted_flops:.3g} and {adding.counted_flops:.3g}"
    return [part("ACC of AFAF (reusing) less SpaceNet (adding)", difference, bound=-5), Part(text, None, fewer)]


RELATED = {"dog": ("cat", "automobile"), "truck": ("automobile", "cat")}  # a class of task 2: its relative, and the other, of task 1


def cosine(line: Line, a: str, b: str) -> float:
    means = line["kept"]["class-means"]["means"]
    x, y = np.array(means[a]), np.array(means[b])
    return float(x @ y / max(float(np.linalg.norm(x) * np.linalg.norm(y)), 1e-12))


def relatives_are_alike(m: Measured) -> list[Part]:
    """In the similar sequence a class of task 2 activates the last hidden layer as its relative of task 1 does."""
    runs = {seed: line for seed, line in m.runs(Shape(PAIRS, "afaf", SMALL)).items() if "kept" in line}
    return [
        part(
            f"cosine of {new} with {relative} less with {other}",
            {seed: cosine(line, new, relative) - cosine(line, new, other) for seed, line in runs.items()},
        )
        for new, (relative, other) in RELATED.items()
    ]


def strangers_are_not(m: Measured) -> list[Part]:
    """The new task's classes resemble a class of the first more in the similar sequence than in the dissimilar one."""

    def nearest(line: Line) -> float:
        first, second = line["kept"]["class-means"]["tasks"]
        return float(np.mean([max(cosine(line, new, old) for old in first) for new in second]))

    def of(stream: str) -> BySeed:
        return {seed: nearest(line) for seed, line in m.runs(Shape(stream, "afaf", SMALL)).items() if "kept" in line}

    return [part("largest cosine of a new class with an old one, similar less dissimilar", minus(of(PAIRS), of("dissimilar-pairs")))]
