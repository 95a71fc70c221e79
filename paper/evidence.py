"""All that the pages are written from, and how a measured number is set beside a printed one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from afaf.report.measured import Paired, Shape, minus
from afaf.runs.results import Spread
from afaf.sweeps.experiments import Experiment
from afaf.sweeps.store import Key, Line
from paper.claims import CLAIMS, Claim
from paper.explanations import Explanations
from paper.judgement import FEW, Part
from paper.measured import Measured
from paper.printed import method_title

DIFFERS_HEAD = "\nWhere it differs, or AFAF's ACC is outside the paper's ±:\n\n"


@dataclass(frozen=True)
class Evidence:
    """The results, the experiments that asked for them, and what was found out about differences."""

    lines: Mapping[Key, Line]
    experiments: Sequence[Experiment]
    explanations: Explanations

    @cached_property
    def measured(self) -> Measured:
        return Measured(self.lines.values())

    @cached_property
    def checked(self) -> list[tuple[Claim, list[Part]]]:
        """Every claim with its comparisons."""
        return [(claim, claim.judged(self.measured)) for claim in CLAIMS]


def allowed(printed: Sequence[float], found: Spread) -> float:
    """How far a measured mean may be from a printed one: the two standard deviations combined."""
    return float((printed[1] ** 2 + (found.std or 0.0) ** 2) ** 0.5)


def verdict(printed: Sequence[float], found: Spread | None) -> str:
    """Whether a measured mean agrees with a printed one."""
    if found is None:
        return "not measured yet"
    if found.n < FEW:
        return "too few seeds"
    return "agrees" if abs(found.mean - printed[0]) <= allowed(printed, found) else "differs"


def is_within(printed: Sequence[float], found: Spread) -> bool:
    """Whether a measured mean lies within the printed spread alone."""
    return abs(found.mean - printed[0]) <= printed[1]


def _evidence(measured: Mapping[str, Sequence[str]]) -> str:
    """A line below the text for each way to measure it."""
    return "".join(f"  - Measured with {how}: {', '.join(numbers)}.\n" for how, numbers in measured.items())


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def beside(e: Evidence, what: Shape, metric: str, printed: Sequence[float]) -> tuple[str, str, str, str, str]:
    """Cells of a table: the paper's number, the measured one, its seeds, their difference, and whether they agree."""
    found, n = e.measured.spread(what, metric), e.measured.count(what)
    paper_prints = f"{printed[0]:.2f} ± {printed[1]:.2f}"
    if found is None:
        return paper_prints, "-", n, "-", "no seed came to its end" if e.measured.failures(what) else "not measured yet"
    difference = f"{found.mean - printed[0]:+.2f} (± {allowed(printed, found):.2f})"
    return paper_prints, str(found), n, difference, verdict(printed, found)


def explained(e: Evidence, shapes: Iterable[tuple[Shape, str, Sequence[float], str]], *, after_table_2: bool = False) -> str:
    """A line for each number that differs: what explains it and where that was measured, or that nothing was found yet.

    A number that Table 2 has too is explained there.
    """
    names: dict[str, list[str]] = {}
    evidence: dict[str, dict[str, list[str]]] = {}
    for what, metric, printed, name in shapes:
        if not _wants_explaining(e, what, metric, printed):
            continue
        if after_table_2 and not what.settings and metric in ("acc", "bwt"):
            names.setdefault("as in Table 2.", []).append(name)
            continue
        explanation = e.explanations.of(what, metric)
        text = explanation.text if explanation else "not explained yet."
        names.setdefault(text, []).append(name)
        for instead in explanation.runs_that_show(what) if explanation else []:
            evidence.setdefault(text, {}).setdefault(_differently(what, instead), []).append(
                f"{name} {_measured_instead(e, instead, what, metric, printed)}"
            )
    lines = [f"- {'; '.join(names[text])}: {text}\n{_evidence(evidence.get(text, {}))}" for text in names]
    return DIFFERS_HEAD + "".join(lines) if lines else ""


def _wants_explaining(e: Evidence, what: Shape, metric: str, printed: Sequence[float]) -> bool:
    """Where it differs; and where AFAF's ACC lies outside the paper's own spread, which is stricter."""
    found = e.measured.spread(what, metric)
    if found is None:
        return False
    strictly = metric == "acc" and what == Shape(what.stream, "afaf")
    return verdict(printed, found) == "differs" or (strictly and not is_within(printed, found))


def _differently(what: Shape, instead: Shape) -> str:
    """In which way other runs differ from these."""
    settings = [f"`{key} = {json.dumps(value)}`" for key, value in instead.settings.items()]
    method = [] if instead.method == what.method else [method_title(instead.method)]
    return " and ".join([*method, *settings])


def _measured_instead(e: Evidence, instead: Shape, what: Shape, metric: str, printed: Sequence[float]) -> str:
    found = e.measured.spread(instead, metric)
    if found is None:
        return "not yet"
    more = Paired.of(minus(e.measured.values(instead, metric), e.measured.values(what, metric)).values())
    paired = "" if more is None else f"; over {more.n} paired seeds {more}"
    return f"{found} (n {e.measured.count(instead)}; {verdict(printed, found)}{paired})"
