"""The claims of the paper's text, each checked on paired seeds: a difference that should be above a bound, wherever it is claimed.

A comparison holds if the 95 % interval of its mean lies above the bound, and is contradicted if it lies below, with three seeds or more;
anything else the seeds leave open. The bound is 0; where the text says "much" or "dramatically", the claim says what is taken for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from afaf.report.measured import CONFIDENCE, BySeed, Measured, Paired, Shape, costs, minus
from afaf.report.paper import method_title, paper, title_of
from afaf.sweeps.store import Line

Verdict = Literal["holds", "leans that way", "leans the other way", "contradicted", "one seed", "not measured yet"]
STREAMS = ("split-cifar10", "sim-cifar10", "sim-cifar100", "mix")
STUDIED = ("sim-cifar10", "mix")  # where the paper's studies were made
REGULARISERS = ("ewc", "mas", "lwf")
BASELINES = (*REGULARISERS, "packnet", "spacenet")
CONTROLS = ("finetune", "isolated", "ridge", "joint")
RANDOM, LOWEST = {"method.candidates": "random"}, {"method.candidates": "lowest"}
NO_ORTHOGONAL, IN_LAST_HIDDEN = {"method.orthogonal_output": False}, {"method.candidates_in_last_hidden": True}
LAST, DENSER = {"method.l_reuse": 6}, {f"sparse.density.W_{l}": {"1-4": value} for l, value in ((1, 17), (2, 25), (3, 25))}
PROXIMAL = {"method.penalty": "proximal"}
FEW = 3  # seeds: fewer settle nothing
MUCH = 10.0  # points: what is taken for "much", "dramatically" and "fail"


METRICS = {"acc": "ACC", "bwt": "BWT", "la": "LA", "la_reusing": "LA on the tasks that reuse"}


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: what should be above a bound, and what it is."""

    text: str
    found: Paired | None
    exact: bool | None = None  # where no seed has a say: costs, or that a network has no room
    bound: float = 0

    @property
    def verdict(self) -> Verdict:
        if self.exact is not None:
            return "holds" if self.exact else "contradicted"
        if self.found is None:
            return "not measured yet"
        if self.found.low is None or self.found.high is None:
            return "one seed"
        settled = self.found.n >= FEW
        if settled and self.found.low > self.bound:
            return "holds"
        if settled and self.found.high < self.bound:
            return "contradicted"
        return "leans that way" if self.found.mean > self.bound else "leans the other way"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it is checked."""

    text: str
    where: str
    check: Callable[[Measured], list[Part]]
    most: bool = False  # the sentence speaks of most cases, not of all

    def verdict(self, parts: Iterable[Part]) -> str:
        return overall(parts, self.most)

    def in_the_papers_tables(self) -> str:
        """In how many of its comparisons the paper's own printed means bear the claim out, where it prints them."""
        known = [one for one in self.check(Printed()) if one.found is not None]
        return f"{sum(one.found.mean > one.bound for one in known if one.found)} of {len(known)}" if known else "-"


class Printed(Measured):
    """The means that the paper's tables print, as if they were one seed."""

    def __init__(self) -> None:
        super().__init__(())

    def values(self, shape: Shape, metric: str | Callable[[Line], float | None]) -> BySeed:
        if callable(metric):
            return {}
        tables = [paper()["table-2"].get(shape.stream, {}).get(shape.method, {}) if not shape.settings else {}]
        tables += [
            printed
            for variant, printed in paper()["table-3"].get(shape.stream, {}).items()
            if shape.method == "afaf" and paper()["variants"][variant]["settings"] == shape.settings
        ]
        tables += [paper()["table-10"].get(shape.stream, {}).get(shape.method, {}) if not shape.settings else {}]
        return next(({0: table[metric][0]} for table in tables if metric in table), {})


def overall(parts: Iterable[Part], most: bool = False) -> str:
    """A claim's verdict from those of its comparisons: all of them must hold, or `most`."""
    known = list(parts)
    verdicts = [part.verdict for part in known]
    counted = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    if not verdicts or set(verdicts) == {"not measured yet"}:
        return "not measured yet"
    if set(verdicts) == {"holds"}:
        return "holds"
    told = ", ".join(f"{verdict} in {count}" for verdict, count in counted.items()) + f" of {len(verdicts)}"
    if most and counted.get("holds", 0) > len(verdicts) / 2:
        return f"holds: {told}"
    against = counted.get("contradicted", 0) > len(verdicts) / 2 if most else beyond_chance(known)
    if against:
        return f"does not hold as stated: {told}"
    if "not measured yet" in verdicts or "one seed" in verdicts:
        return f"incomplete: {told}"
    chance = "; contradicted by no more than chance would among so many" if "contradicted" in verdicts and not most else ""
    return f"not settled by these seeds: {told}{chance}"


def beyond_chance(parts: Sequence[Part]) -> bool:
    """Whether a comparison is contradicted also when it is taken as one of several: one-sided, by Bonferroni's (and Holm's first) bound."""
    if any(part.exact is False for part in parts):
        return True
    tried = [part for part in parts if part.found is not None and part.found.n >= FEW]
    chances = [part.found.chance_of_so_low(part.bound) for part in tried if part.found]
    return bool(chances) and min(chances) < (1 - CONFIDENCE) / 2 / len(chances)


def part(text: str, differences: BySeed, bound: float = 0) -> Part:
    """`bound`: what the difference must exceed for the claim."""
    return Part(text, Paired.of(differences.values()), bound=bound)


def _difference(metric: str, a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Callable[[Measured, str], BySeed]:
    """AFAF with settings a less AFAF with settings b."""

    def of(m: Measured, stream: str) -> BySeed:
        return minus(m.values(Shape(stream, "afaf", a or {}), metric), m.values(Shape(stream, "afaf", b or {}), metric))

    return of


def _methods(m: Measured, stream: str, a: str, b: str, metric: str) -> BySeed:
    return minus(m.values(Shape(stream, a), metric), m.values(Shape(stream, b), metric))


def afaf_above(metric: str, others: Iterable[str]) -> Callable[[Measured], list[Part]]:
    return lambda m: [
        part(f"{title_of(stream)}: {METRICS[metric]} of AFAF less {method_title(other)}", _methods(m, stream, "afaf", other, metric))
        for stream in STREAMS
        for other in others
    ]


def lower_on_sim(metric: str) -> Callable[[Measured], list[Part]]:
    def check(m: Measured) -> list[Part]:
        return [
            part(
                f"{method_title(method)}: {METRICS[metric]} on split-CIFAR10 less sim-CIFAR10",
                minus(m.values(Shape("split-cifar10", method), metric), m.values(Shape("sim-cifar10", method), metric)),
            )
            for method in (*BASELINES, "afaf")
        ]

    return check


def most_robust(m: Measured) -> list[Part]:
    """AFAF loses least from split- to sim-CIFAR10."""

    def loss(method: str) -> BySeed:
        return minus(m.values(Shape("split-cifar10", method), "acc"), m.values(Shape("sim-cifar10", method), "acc"))

    return [
        part(f"ACC lost from split- to sim-CIFAR10: {method_title(method)} less AFAF", minus(loss(method), loss("afaf")))
        for method in BASELINES
    ]


def fails_on_sim_cifar100(m: Measured) -> list[Part]:
    return [
        part(f"sim-CIFAR100: ACC of SpaceNet less {method_title(other)}", _methods(m, "sim-cifar100", "spacenet", other, "acc"), MUCH)
        for other in (*REGULARISERS, "packnet")
    ]


def lwf_above(streams: Iterable[str]) -> Callable[[Measured], list[Part]]:
    return lambda m: [
        part(f"{title_of(stream)}: ACC of LwF less {method_title(other)}", _methods(m, stream, "lwf", other, "acc"))
        for stream in streams
        for other in ("ewc", "mas")
    ]


def lwf_below_on_mix(m: Measured) -> list[Part]:
    return [part(f"Mix: ACC of {method_title(other)} less LwF", _methods(m, "mix", other, "lwf", "acc")) for other in ("ewc", "mas")]


def specific_components(metric: str, bound: float = 0) -> Callable[[Measured], list[Part]]:
    return lambda m: [
        part(
            f"{title_of(stream)}: {METRICS[metric]} of {method_title(method)} less {method_title(other)}",
            _methods(m, stream, method, other, metric),
            bound,
        )
        for stream in STREAMS
        for method in ("spacenet", "afaf")
        for other in REGULARISERS
    ]


def packnet_below(m: Measured) -> list[Part]:
    return [
        part(f"{title_of(stream)}: ACC of {method_title(method)} less PackNet", _methods(m, stream, method, "packnet", "acc"))
        for stream in STREAMS
        for method in ("spacenet", "afaf")
    ]


def gap_grows(m: Measured) -> list[Part]:
    """How far PackNet is below SpaceNet and AFAF on the streams of eight tasks, less how far on those of five."""
    parts = []
    for method in ("spacenet", "afaf"):
        for longer in ("sim-cifar100", "mix"):
            for shorter in ("split-cifar10", "sim-cifar10"):
                gaps = [_methods(m, stream, method, "packnet", "acc") for stream in (longer, shorter)]
                text = f"gap between {method_title(method)} and PackNet on {title_of(longer)} less on {title_of(shorter)}"
                parts.append(part(text, minus(*gaps)))
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
        packnet = Shape(stream, "packnet")
        lost = minus(m.values(packnet, "acc_task_il"), m.values(packnet, "acc"))
        mine = minus(m.values(Shape(stream, "afaf"), "acc_task_il"), m.values(Shape(stream, "afaf"), "acc"))
        parts.append(part(f"{title_of(stream)}: task-IL ACC of PackNet", m.values(packnet, "acc_task_il"), GOOD_IN_TASK_IL))
        parts.append(part(f"{title_of(stream)}: what PackNet loses from task-IL to class-IL less what AFAF loses", minus(lost, mine)))
        parts.append(part(f"{title_of(stream)}: class-IL ACC of AFAF less PackNet", _methods(m, stream, "afaf", "packnet", "acc")))
    return parts


def comparable_in_task_il(m: Measured) -> list[Part]:
    """Within five points of PackNet."""
    return [
        part(f"{title_of(stream)}: task-IL ACC of AFAF less PackNet", _methods(m, stream, "afaf", "packnet", "acc_task_il"), bound=-5)
        for stream in STUDIED
    ]


PAIRS = "similar-pairs"


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
    difference = _methods(m, PAIRS, "afaf", "spacenet", "acc")
    fewer = reusing.params < adding.params and reusing.counted_flops < adding.counted_flops
    text = f"#params {reusing.params:,} and {adding.params:,}, counted FLOPs {reusing.counted_flops:.3g} and {adding.counted_flops:.3g}"
    return [part("ACC of AFAF (reusing) less SpaceNet (adding)", difference, bound=-5), Part(text, None, fewer)]


RELATED = {"dog": ("cat", "automobile"), "truck": ("automobile", "cat")}  # a class of task 2: its relative, and the other, of task 1
SMALL = {"network.name": "small-cnn"}


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


CLAIMS: tuple[Claim, ...] = (
    Claim("AFAF outperforms all other methods in class-IL ACC, on every stream.", "4.1", afaf_above("acc", BASELINES)),
    Claim("AFAF has higher ACC than SpaceNet on every stream.", "4.1", afaf_above("acc", ["spacenet"])),
    Claim("AFAF has higher BWT than SpaceNet on every stream.", "4.1", afaf_above("bwt", ["spacenet"])),
    Claim("All methods have lower ACC on sim-CIFAR10 than on split-CIFAR10.", "4.1", lower_on_sim("acc")),
    Claim(
        "All methods have lower BWT on sim-CIFAR10 than on split-CIFAR10 (not so in the paper's own Table 2).", "4.1", lower_on_sim("bwt")
    ),
    Claim("AFAF is the most robust to similar classes across tasks: it loses least.", "4.1", most_robust),
    Claim("On sim-CIFAR100 the regularisers and PackNet fail (here: they stay ten points below SpaceNet).", "4.1", fails_on_sim_cifar100),
    Claim("LwF outperforms the other regularisers in most cases ...", "4.1", lwf_above(STREAMS[:3]), most=True),
    Claim("... except on Mix.", "4.1", lwf_below_on_mix),
    Claim(
        "Most of the methods with task-specific components outperform the regularisers ...", "4.1", specific_components("acc"), most=True
    ),
    Claim("... with much lower forgetting (here: by ten points).", "4.1", specific_components("bwt", MUCH), most=True),
    Claim("PackNet is below SpaceNet and AFAF in class-IL.", "4.1", packnet_below),
    Claim("The gap to PackNet is larger on sim-CIFAR100 and Mix, with more tasks and similarity.", "4.1", gap_grows),
    Claim("AFAF needs less memory and computation than all baselines.", "4.1", cheaper),
    Claim("The most active candidates give higher ACC than random ones.", "4.2", variants("acc", {}, RANDOM, "of most less random")),
    Claim("... higher LA on the tasks that reuse ...", "4.2", variants("la_reusing", {}, RANDOM, "of most less random")),
    Claim("... and less negative BWT.", "4.2", variants("bwt", {}, RANDOM, "of most less random")),
    Claim("The lowest candidates have much lower LA and ACC (here: by ten points).", "4.2", lowest_is_lowest),
    Claim("The high BWT of the lowest candidates comes with their low LA.", "4.2", keeps_because_it_learns_less),
    Claim("Orthogonal output weights increase ACC.", "4.2", variants("acc", {}, NO_ORTHOGONAL, "with less without")),
    Claim("Orthogonality matters more in class-IL than in task-IL.", "4.2", more_in_class_il(NO_ORTHOGONAL)),
    Claim(
        "Free neurons alone in the last hidden layer increase ACC.",
        "4.2",
        variants("acc", {}, IN_LAST_HIDDEN, "without less with candidates"),
    ),
    Claim(
        "Reusing all (l_reuse = L-1) decreases ACC dramatically (here: by ten points).",
        "4.2",
        variants("acc", {}, LAST, "of 4 less L-1", MUCH),
    ),
    Claim("... and less so in task-IL.", "4.2", more_in_class_il(LAST)),
    Claim("l_reuse 2 and 3 have higher LA but forget more, hence lower ACC than 4.", "4.2", l_reuse_low),
    Claim("l_reuse 5 has the lowest LA and ACC.", "4.2", l_reuse_high),
    Claim("Few candidates hinder learning, many increase forgetting; 30 to 40 % is best.", "App. E", shares),
    Claim("Higher density of the first four tasks of Mix increases ACC and LA at all times.", "App. D", denser),
    Claim("SpaceNet has no room for that density.", "App. D", spacenet_has_no_room),
    Claim("PackNet does well in task-IL (here: above 85), not in class-IL; altering at two levels matters more there.", "App. C", levels),
    Claim("AFAF is comparable to PackNet in task-IL (here: less than five points below).", "App. C", comparable_in_task_il),
    Claim("The sub-network decides: one balances, the other keeps task A at the expense of B.", "Figure 1a", subnetworks_differ),
    Claim("The same alteration (l_reuse = L-1) costs more in class-IL than in task-IL.", "Figure 1b", reusing_all_by_setting),
    Claim("Reusing does as well as adding (here: less than five points below), for less.", "Figure 1c", adding_and_reusing),
    Claim("A class's representation is like that of its relative in the earlier task.", "App. F", relatives_are_alike),
    Claim("Dissimilar tasks have different representations.", "App. F", strangers_are_not),
)
