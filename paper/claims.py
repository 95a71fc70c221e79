"""The claims of the paper's text, each with how it is checked.

The bound of a comparison is 0; where the text says "much" or "dramatically", the claim says what is taken for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from afaf.report.measured import BySeed, Shape
from afaf.sweeps.store import Line
from paper import main_claims as main
from paper import study_claims as study
from paper.judgement import Part, overall
from paper.main_claims import MUCH
from paper.measured import Measured
from paper.printed import paper
from paper.settings import BASELINES, IN_LAST_HIDDEN, LAST, NO_ORTHOGONAL, RANDOM, STREAMS


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it is checked."""

    text: str
    where: str
    check: Callable[[Measured], list[Part]]
    most: bool = False  # the sentence speaks of most cases, not of all

    def judged(self, measured: Measured) -> list[Part]:
        """Its comparisons, each beside the difference that the paper prints, where it prints one."""
        printed = [part.found.mean if part.found and part.found.mean > part.bound else None for part in self.check(Printed())]
        parts = self.check(measured)
        return [replace(part, printed=one) for part, one in zip(parts, printed, strict=True)] if len(printed) == len(parts) else parts

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
        if shape.settings == RANDOM and metric == "acc" and shape.stream in paper()["text"]["random"]:  # the text prints the difference
            return {0: paper()["table-2"][shape.stream]["afaf"]["acc"][0] - paper()["text"]["random"][shape.stream]}
        return next(({0: table[metric][0]} for table in tables if metric in table), {})


CLAIMS: tuple[Claim, ...] = (
    Claim("AFAF outperforms all other methods in class-IL ACC, on every stream.", "4.1", main.afaf_above("acc", BASELINES)),
    Claim("AFAF has higher ACC than SpaceNet on every stream.", "4.1", main.afaf_above("acc", ["spacenet"])),
    Claim("AFAF has higher BWT than SpaceNet on every stream.", "4.1", main.afaf_above("bwt", ["spacenet"])),
    Claim("All methods have lower ACC on sim-CIFAR10 than on split-CIFAR10.", "4.1", main.lower_on_sim("acc")),
    Claim(
        "All methods have lower BWT on sim-CIFAR10 than on split-CIFAR10 (not so in the paper's own Table 2).",
        "4.1",
        main.lower_on_sim("bwt"),
    ),
    Claim("AFAF is the most robust to similar classes across tasks: it loses least.", "4.1", main.most_robust),
    Claim(
        "On sim-CIFAR100 the regularisers and PackNet fail (here: they stay ten points below SpaceNet).", "4.1", main.fails_on_sim_cifar100
    ),
    Claim("LwF outperforms the other regularisers in most cases ...", "4.1", main.lwf_above(STREAMS[:3]), most=True),
    Claim("... except on Mix.", "4.1", main.lwf_below_on_mix),
    Claim(
        "Most of the methods with task-specific components outperform the regularisers ...",
        "4.1",
        main.specific_components("acc"),
        most=True,
    ),
    Claim("... with much lower forgetting (here: by ten points).", "4.1", main.specific_components("bwt", MUCH), most=True),
    Claim("PackNet is below SpaceNet and AFAF in class-IL.", "4.1", main.packnet_below),
    Claim("The gap to PackNet is larger on sim-CIFAR100 and Mix, with more tasks and similarity.", "4.1", main.gap_grows),
    Claim("AFAF needs less memory and computation than all baselines.", "4.1", main.cheaper),
    Claim("The most active candidates give higher ACC than random ones.", "4.2", study.variants("acc", {}, RANDOM, "of most less random")),
    Claim("... higher LA on the tasks that reuse ...", "4.2", study.variants("la_reusing", {}, RANDOM, "of most less random")),
    Claim("... and less negative BWT.", "4.2", study.variants("bwt", {}, RANDOM, "of most less random")),
    Claim("The lowest candidates have much lower LA and ACC (here: by ten points).", "4.2", study.lowest_is_lowest),
    Claim("The high BWT of the lowest candidates comes with their low LA.", "4.2", study.keeps_because_it_learns_less),
    Claim("Orthogonal output weights increase ACC.", "4.2", study.variants("acc", {}, NO_ORTHOGONAL, "with less without")),
    Claim("Orthogonality matters more in class-IL than in task-IL.", "4.2", study.more_in_class_il(NO_ORTHOGONAL)),
    Claim(
        "Free neurons alone in the last hidden layer increase ACC.",
        "4.2",
        study.variants("acc", {}, IN_LAST_HIDDEN, "without less with candidates"),
    ),
    Claim(
        "Reusing all (l_reuse = L-1) decreases ACC dramatically (here: by ten points).",
        "4.2",
        study.variants("acc", {}, LAST, "of 4 less L-1", MUCH),
    ),
    Claim("... and less so in task-IL.", "4.2", study.more_in_class_il(LAST)),
    Claim("l_reuse 2 and 3 have higher LA but forget more, hence lower ACC than 4.", "4.2", study.l_reuse_low),
    Claim("l_reuse 5 has the lowest LA and ACC.", "4.2", study.l_reuse_high),
    Claim("Few candidates hinder learning, many increase forgetting; 30 to 40 % is best.", "App. E", study.shares),
    Claim("Higher density of the first four tasks of Mix increases ACC and LA at all times.", "App. D", study.denser),
    Claim("SpaceNet has no room for that density.", "App. D", study.spacenet_has_no_room),
    Claim(
        "PackNet does well in task-IL (here: above 85), not in class-IL; altering at two levels matters more there.", "App. C", study.levels
    ),
    Claim("AFAF is comparable to PackNet in task-IL (here: less than five points below).", "App. C", study.comparable_in_task_il),
    Claim("The sub-network decides: one balances, the other keeps task A at the expense of B.", "Figure 1a", study.subnetworks_differ),
    Claim("The same alteration (l_reuse = L-1) costs more in class-IL than in task-IL.", "Figure 1b", study.reusing_all_by_setting),
    Claim("Reusing does as well as adding (here: less than five points below), for less.", "Figure 1c", study.adding_and_reusing),
    Claim("A class's representation is like that of its relative in the earlier task.", "App. F", study.relatives_are_alike),
    Claim("Dissimilar tasks have different representations.", "App. F", study.strangers_are_not),
)
