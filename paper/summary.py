"""REPRODUCTION.md: the paper's numbers beside the measured ones, and what they come to, on one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from afaf.report.measured import Paired, Shape
from paper.evidence import Evidence, table, verdict
from paper.judgement import FEW, Part, difference
from paper.main_claims import method_difference
from paper.measured import costs
from paper.printed import method_title, paper, title_of
from paper.settings import BASELINES, CONTROLS, STREAMS

HEAD = """# Reproduction

The numbers of *Avoiding Forgetting and Allowing Forward Transfer in Continual Learning via Sparse Networks* (ECML PKDD 2022) beside those
measured here. `python -m paper` writes this page and its details from [paper/results](paper/results) alone; `afaf reproduce NAME` makes
the results ([how](docs/experiments.md)).
"""
NUMBERS_HEAD = """
Each cell: the paper's mean, then the mean measured here ± standard deviation over n seeds, in percent. ✓: the two agree within their
standard deviations combined; ✗: they differ. The last four methods are controls, which the paper does not have.
"""
CLAIMS_HEAD = """
*Holds*: every comparison of the claim does, with 95 % confidence. *Does not hold*: a comparison is contradicted. *Smaller*: a
difference as large as the paper prints is excluded. *Open*: the seeds measured so far do not settle it.
[paper/claims.md](paper/claims.md) has every comparison.
"""
MORE = """## Details

- [paper/tables.md](paper/tables.md): every number the paper prints beside the measured one, what explains the difference where something
  does, the controls, costs, and where the paper contradicts itself or the released code.
- [paper/claims.md](paper/claims.md): every claim of the text with every comparison that judges it.
- [paper/studies.md](paper/studies.md): the paper's figures, drawn from the results, and experiments on what could explain differences.
"""
LANDING = {
    "finetune": "fine-tuning: nothing protects old classes",
    "ewc": "EWC",
    "lwf": "LwF",
    "spacenet": "SpaceNet",
    "afaf": "**AFAF**",
    "ridge": "ridge head on the first task's features",
    "joint": "all classes at once: the upper bound",
}
SHORT = {"holds": "holds", "does not hold": "does not hold", "not to the size": "smaller", "not settled": "open", "incomplete": "open"}


def page(e: Evidence) -> str:
    sections = (in_one_minute(e), numbers(e), claims(e), MORE)
    return "\n".join((HEAD, *sections))


def in_one_minute(e: Evidence) -> str:
    answers = {
        "Does AFAF reproduce?": _reproduces(e),
        "Does AFAF beat SpaceNet?": _beats_spacenet(e),
        "What beats AFAF?": _beats_afaf(e),
        "Which claims hold?": _claims_hold(e),
        "What does not reproduce?": _not_reproduced(e),
        "What does it cost?": _costs(),
    }
    listed = "".join(f"- **{question}** {answer}\n" for question, answer in answers.items())
    return f"## In one minute\n\n{listed}\n{afaf_and_spacenet(e)}"


def _reproduces(e: Evidence) -> str:
    agreeing, told = _agreement(e, "afaf")
    if not told:
        return "Not measured yet."
    return f"Its class-IL ACC agrees with the paper's on {agreeing} of {len(STREAMS)} streams (paper, then here): {'; '.join(told)}."


def _agreement(e: Evidence, method: str) -> tuple[int, list[str]]:
    """On how many streams a method's ACC agrees with the paper's, and both numbers where measured."""
    agreeing, told = 0, []
    for stream in STREAMS:
        printed, found = paper()["table-2"][stream][method]["acc"], e.measured.spread(Shape(stream, method), "acc")
        if found is not None:
            agreeing += verdict(printed, found) == "agrees"
            told.append(f"{title_of(stream)} {printed[0]:.1f}, {found.mean:.1f} ± {found.std or 0:.1f}")
    return agreeing, told


def _beats_spacenet(e: Evidence) -> str:
    """In which streams AFAF is above or below SpaceNet beyond chance, by ACC and by BWT."""
    told = []
    for metric, words in (("acc", "In ACC"), ("bwt", "In BWT, that is, it forgets less")):
        found = {title_of(stream): _lead(e, stream, metric) for stream in STREAMS}
        known = {title: one for title, one in found.items() if one is not None}
        above, below = ([title for title, one in known.items() if _side(one) == side] for side in (1, -1))
        rest = [title for title in known if title not in (*above, *below)]
        parts = [f"yes on {_listed(above)}"] if above else []
        parts += [f"SpaceNet is above on {_listed(below)}"] if below else []
        parts += [f"on {_listed(rest)} the seeds do not tell them apart"] if rest else []
        told.append(f"{words}: {'; '.join(parts) or 'not measured yet'}.")
    excluded = [
        title_of(stream)
        for stream in STREAMS
        if (one := _lead(e, stream, "acc")) and one.high is not None and one.n >= FEW and one.high < _printed_lead(stream, "acc")
    ]
    return " ".join(told) + (f" A lead in ACC as large as the paper's is excluded on {_listed(excluded)}." if excluded else "")


def _lead(e: Evidence, stream: str, metric: str) -> Paired | None:
    return difference(method_difference(e.measured, stream, "afaf", "spacenet", metric))


def _printed_lead(stream: str, metric: str) -> float:
    printed = paper()["table-2"][stream]
    return float(printed["afaf"][metric][0] - printed["spacenet"][metric][0])


def afaf_and_spacenet(e: Evidence) -> str:
    rows = []
    for stream in STREAMS:
        cells = []
        for metric in ("acc", "bwt"):
            found = _lead(e, stream, metric)
            cells += [f"{_printed_lead(stream, metric):+.2f}", "-" if found is None else f"{found} (n {found.n})"]
        rows.append((title_of(stream), *cells))
    headings = ("AFAF less SpaceNet, points", "ACC, paper", "ACC, here [95 %]", "BWT, paper", "BWT, here [95 %]")
    return table(headings, rows)


def _beats_afaf(e: Evidence) -> str:
    """Methods and controls with a higher mean ACC than AFAF, and whether that is beyond chance."""
    sure: dict[str, list[str]] = {}
    perhaps: dict[str, list[str]] = {}
    for method in (*CONTROLS, *BASELINES):
        if method == "joint":
            continue
        for stream in STREAMS:
            found = difference(method_difference(e.measured, stream, method, "afaf", "acc"))
            if found is not None and found.mean > 0:
                (sure if _side(found) > 0 else perhaps).setdefault(method_title(method), []).append(
                    f"{title_of(stream)} {found}" if _side(found) <= 0 else f"{title_of(stream)} by {found.mean:.1f}"
                )
    told = [f"{method} ({', '.join(streams)})" for method, streams in sure.items()]
    open_ = [f"{method} ({', '.join(streams)})" for method, streams in perhaps.items()]
    text = f"Beyond chance: {'; '.join(told)}." if told else "Nothing beyond chance."
    text += f" Higher on average, but not settled: {'; '.join(open_)}." if open_ else ""
    return text + " Joint training on all data at once is the upper bound."


def _claims_hold(e: Evidence) -> str:
    counted = [_short(claim.verdict(parts)) for claim, parts in e.checked]
    numbers = {word: counted.count(word) for word in ("holds", "does not hold", "smaller", "open")}
    return (
        f"Of {len(counted)} claims of the text {numbers['holds']} hold, {numbers['does not hold']} do not hold as stated, in "
        f"{numbers['smaller']} the difference is smaller than printed, and {numbers['open']} are open."
    )


def _not_reproduced(e: Evidence) -> str:
    told = []
    for method in BASELINES:
        agreeing, known = _agreement(e, method)
        if known and agreeing < len(known):
            told.append(f"{method_title(method)} agrees on {agreeing} of {len(known)} streams")
    explained = "[paper/tables.md](paper/tables.md) says what explains it, where something does."
    return f"{'; '.join(told)}. {explained}" if told else "Every baseline agrees."


def _costs() -> str:
    told = []
    for stream in STREAMS:
        printed = paper()["table-2"][stream]["afaf"]["params"]
        told.append(f"{title_of(stream)} {costs(stream, 'afaf').params_ratio:.3f} ({printed:.3f})")
    return f"AFAF's weights as a share of the dense network's, in brackets the paper's: {', '.join(told)}."


def numbers(e: Evidence) -> str:
    """Two tables: methods by streams."""
    text = "## The paper's numbers and those measured here\n" + NUMBERS_HEAD
    for metric, title in (("acc", "Class-IL ACC"), ("bwt", "BWT")):
        rows = [
            (method_title(method), *(_cell(e, stream, method, metric) for stream in STREAMS)) for method in ("afaf", *reversed(BASELINES))
        ]
        rows += [(method_title(method), *(_cell(e, stream, method, metric) for stream in STREAMS)) for method in CONTROLS]
        text += f"\n### {title}\n\n" + table(("method", *map(title_of, STREAMS)), rows)
    return text


def landing_table(e: Evidence) -> str:
    """The table of the site's landing page, docs/index.md: class-IL ACC as measured here."""
    rows = [(title, *(_here(e, Shape(stream, method), "acc") for stream in STREAMS)) for method, title in LANDING.items()]
    return table(("method", *map(title_of, STREAMS)), rows)


def _cell(e: Evidence, stream: str, method: str, metric: str) -> str:
    what = Shape(stream, method)
    found = e.measured.spread(what, metric)
    printed = paper()["table-2"][stream].get(method, {}).get(metric)
    mark = {"agrees": " ✓", "differs": " ✗"}.get(verdict(printed, found), "") if printed else ""
    here = _here(e, what, metric)
    return f"{printed[0]:.1f}, {here}{mark}" if printed else here


def _here(e: Evidence, what: Shape, metric: str) -> str:
    found = e.measured.spread(what, metric)
    return f"**{found.mean:.1f}** ± {found.std or 0:.1f} ({e.measured.count(what)})" if found else "-"


def claims(e: Evidence) -> str:
    rows = [(str(i), claim.text, _short(claim.verdict(parts)), _counted(parts)) for i, (claim, parts) in enumerate(e.checked, 1)]
    return "## The claims of the text\n" + CLAIMS_HEAD + "\n" + table(("", "claim", "verdict", "comparisons that hold"), rows)


def _counted(parts: Sequence[Part]) -> str:
    return f"{sum(part.verdict == 'holds' for part in parts)} of {len(parts)}"


def _short(verdict: str) -> str:
    return next((short for start, short in SHORT.items() if verdict.startswith(start)), "open")


def _side(found: Paired) -> int:
    """1 if the interval lies above 0, -1 if below, 0 if the seeds do not settle it."""
    if found.low is None or found.high is None or found.n < FEW:
        return 0
    return 1 if found.low > 0 else -1 if found.high < 0 else 0


def _listed(names: Iterable[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last
