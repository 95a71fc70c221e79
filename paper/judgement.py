"""When a claim holds: differences over paired seeds that should be above a bound, wherever the claim says so.

A comparison holds if the 95 % interval of its mean lies above the bound, and is contradicted if it lies below, with three seeds or more;
anything else the seeds leave open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from afaf.report.measured import CONFIDENCE, BySeed, Paired

Verdict = Literal["holds", "leans that way", "leans the other way", "contradicted", "one seed", "not measured yet"]
FEW = 3  # seeds: fewer settle nothing


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
