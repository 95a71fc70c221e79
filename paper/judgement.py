"""When a claim holds: differences that should be above a bound, wherever the claim says so.

A comparison holds if the 95 % interval of its mean lies above the bound, and is contradicted if it lies below, with three seeds or more.
Where the paper prints the difference and the interval lies below that, the difference is smaller than printed. Anything else the seeds
leave open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from afaf.report.measured import CONFIDENCE, BySeed, Paired
from afaf.runs.results import Spread

Verdict = Literal["holds", "leans that way", "leans the other way", "contradicted", "smaller than printed", "one seed", "not measured yet"]
Terms = Sequence[tuple[int, BySeed]]  # a sum of means, each with its sign
FEW = 3  # seeds: fewer settle nothing


@dataclass(frozen=True)
class Unpaired(Paired):
    """A sum of means over different seeds, with Welch's interval; n is the smallest number of seeds."""

    freedom: float = 1.0

    def chance_of_so_low(self, bound: float) -> float:
        return float(stats.t.cdf((self.mean - bound) / (self.error or 1e-12), self.freedom))


def less(a: Terms, b: Terms) -> Terms:
    return [*a, *((-sign, values) for sign, values in b)]


def difference(terms: Terms) -> Paired | None:
    """Over paired seeds; over all seeds by Welch's t where pairing would leave out more than half of a method's seeds."""
    groups = [values for _, values in terms]
    common = set.intersection(*(set(values) for values in groups))
    spreads = [(sign, Spread.of(values.values())) for sign, values in terms]
    known = [(sign, spread.mean, spread.std**2 / spread.n, spread.n) for sign, spread in spreads if spread and spread.std is not None]
    if 2 * len(common) >= max(map(len, groups)) or len(known) < len(terms):
        return Paired.of(sum(sign * values[seed] for sign, values in terms) for seed in sorted(common))
    mean, variance = sum(sign * one for sign, one, _, _ in known), sum(one for _, _, one, _ in known)
    freedom = variance**2 / max(sum(one**2 / (n - 1) for _, _, one, n in known), 1e-12)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * variance**0.5
    return Unpaired(mean, mean - reach, mean + reach, min(n for *_, n in known), variance**0.5, freedom)


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: what should be above a bound, and what it is."""

    text: str
    found: Paired | None
    exact: bool | None = None  # where no seed has a say: costs, or that a network has no room
    bound: float = 0
    printed: float | None = None  # the difference in the paper's tables

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
        if settled and self.printed is not None and self.found.high < self.printed:
            return "smaller than printed"
        return "leans that way" if self.found.mean > self.bound else "leans the other way"


def part(text: str, differences: BySeed | Terms, bound: float = 0) -> Part:
    """`bound`: what the difference must exceed for the claim."""
    found = Paired.of(differences.values()) if isinstance(differences, Mapping) else difference(differences)
    return Part(text, found, bound=bound)


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
    against, half = counted.get("contradicted", 0), len(verdicts) / 2
    if most and counted.get("holds", 0) > half:
        return f"holds: {told}"
    if against > half if most else beyond_chance(known, [part.bound for part in known]):
        return f"does not hold as stated: {told}"
    smaller = against + counted.get("smaller than printed", 0) > half if most else beyond_chance(known, [part.printed for part in known])
    if smaller and set(verdicts) & {"contradicted", "smaller than printed"}:
        return f"not to the size printed: {told}"
    if "not measured yet" in verdicts or "one seed" in verdicts:
        return f"incomplete: {told}"
    chance = "; contradicted by no more than chance would among so many" if against and not most else ""
    return f"not settled by these seeds: {told}{chance}"


def beyond_chance(parts: Sequence[Part], bounds: Sequence[float | None]) -> bool:
    """Whether a difference lies below its bound also when it is taken as one of several: one-sided, by Bonferroni's bound."""
    if any(part.exact is False for part in parts):
        return True
    tried = [part.found for part in parts if part.found is not None and part.found.n >= FEW]
    open_ = [
        part.found.chance_of_so_low(bound)
        for part, bound in zip(parts, bounds, strict=True)
        if part.found is not None and part.found.n >= FEW and bound is not None and part.verdict != "holds"
    ]
    return bool(open_) and min(open_) < (1 - CONFIDENCE) / 2 / len(tried)
