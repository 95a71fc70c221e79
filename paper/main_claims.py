"""Checks of the claims about Table 2: methods compared on paired seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from afaf.report.measured import Shape
from paper.judgement import Part, Terms, less, part
from paper.measured import Measured, costs
from paper.printed import method_title, title_of
from paper.settings import BASELINES, REGULARISERS, STREAMS

MUCH = 10.0  # points: what is taken for "much", "dramatically" and "fail"


METRICS = {"acc": "ACC", "bwt": "BWT", "la": "LA", "la_reusing": "LA on the tasks that reuse"}


def of(m: Measured, stream: str, method: str, metric: str) -> Terms:
    return [(1, m.values(Shape(stream, method), metric))]


def method_difference(m: Measured, stream: str, a: str, b: str, metric: str) -> Terms:
    return less(of(m, stream, a, metric), of(m, stream, b, metric))


def afaf_above(metric: str, others: Iterable[str]) -> Callable[[Measured], list[Part]]:
    return lambda m: [
        part(
            f"{title_of(stream)}: {METRICS[metric]} of AFAF less {method_title(other)}", method_difference(m, stream, "afaf", other, metric)
        )
        for stream in STREAMS
        for other in others
    ]


def lower_on_sim(metric: str) -> Callable[[Measured], list[Part]]:
    def check(m: Measured) -> list[Part]:
        return [
            part(
                f"{method_title(method)}: {METRICS[metric]} on split-CIFAR10 less sim-CIFAR10",
                less(of(m, "split-cifar10", method, metric), of(m, "sim-cifar10", method, metric)),
            )
            for method in (*BASELINES, "afaf")
        ]

    return check


def most_robust(m: Measured) -> list[Part]:
    """AFAF loses least from split- to sim-CIFAR10."""

    def loss(method: str) -> Terms:
        return less(of(m, "split-cifar10", method, "acc"), of(m, "sim-cifar10", method, "acc"))

    return [
        part(f"ACC lost from split- to sim-CIFAR10: {method_title(method)} less AFAF", less(loss(method), loss("afaf")))
        for method in BASELINES
    ]


def fails_on_sim_cifar100(m: Measured) -> list[Part]:
    return [
        part(
            f"sim-CIFAR100: ACC of SpaceNet less {method_title(other)}",
            method_difference(m, "sim-cifar100", "spacenet", other, "acc"),
            MUCH,
        )
        for other in (*REGULARISERS, "packnet")
    ]


def lwf_above(streams: Iterable[str]) -> Callable[[Measured], list[Part]]:
    return lambda m: [
        part(f"{title_of(stream)}: ACC of LwF less {method_title(other)}", method_difference(m, stream, "lwf", other, "acc"))
        for stream in streams
        for other in ("ewc", "mas")
    ]


def lwf_below_on_mix(m: Measured) -> list[Part]:
    return [
        part(f"Mix: ACC of {method_title(other)} less LwF", method_difference(m, "mix", other, "lwf", "acc")) for other in ("ewc", "mas")
    ]


def specific_components(metric: str, bound: float = 0) -> Callable[[Measured], list[Part]]:
    return lambda m: [
        part(
            f"{title_of(stream)}: {METRICS[metric]} of {method_title(method)} less {method_title(other)}",
            method_difference(m, stream, method, other, metric),
            bound,
        )
        for stream in STREAMS
        for method in ("spacenet", "afaf")
        for other in REGULARISERS
    ]


def packnet_below(m: Measured) -> list[Part]:
    return [
        part(f"{title_of(stream)}: ACC of {method_title(method)} less PackNet", method_difference(m, stream, method, "packnet", "acc"))
        for stream in STREAMS
        for method in ("spacenet", "afaf")
    ]


def gap_grows(m: Measured) -> list[Part]:
    """How far PackNet is below SpaceNet and AFAF on the streams of eight tasks, less how far on those of five."""
    parts = []
    for method in ("spacenet", "afaf"):
        for longer in ("sim-cifar100", "mix"):
            for shorter in ("split-cifar10", "sim-cifar10"):
                gaps = [method_difference(m, stream, method, "packnet", "acc") for stream in (longer, shorter)]
                text = f"gap between {method_title(method)} and PackNet on {title_of(longer)} less on {title_of(shorter)}"
                parts.append(part(text, less(*gaps)))
    return parts


def cheaper(m: Measured) -> list[Part]:
    parts = []
    for stream in STREAMS:
        mine = costs(stream, "afaf")
        for other in BASELINES:
            theirs = costs(stream, other)
            fewer = mine.params < theirs.params and (mine.paper_flops or 0) < (theirs.paper_flops or float("inf"))
            text = f"{title_of(stream)}: #params and FLOPs (the paper's estimates) of AFAF below {method_title(other)}; counted FLOPs "
            text += f"{mine.counted_flops_ratio:.3f} and {theirs.counted_flops_ratio:.3f}"
            parts.append(Part(text, None, fewer))
    return parts
