"""REPRODUCTION.md: the paper's numbers beside the measured ones, its claims with a verdict, from results/ alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from afaf.files import fill, make_folders, write_whole
from afaf.report.measured import Paired, Shape, Spread, failure, minus
from afaf.sweeps.experiments import Experiment
from afaf.sweeps.store import Key, Line
from paper.claims import CLAIMS, Claim
from paper.explanations import Explanations
from paper.figures import FIGURES, draw_all
from paper.judgement import FEW, Part
from paper.measured import Measured, begun_apart, costs, learning_rate
from paper.printed import paper
from paper.settings import BASELINES, CONTROLS, IN_LAST_HIDDEN, PROXIMAL, RANDOM

HEAD = """# Reproduction

The numbers of *Avoiding Forgetting and Allowing Forward Transfer in Continual Learning via Sparse Networks* (ECML PKDD 2022) beside those
measured here. Everything below is written by `python -m paper` from [paper/results/](paper/results), and costs from the code; the runs
are made by `afaf reproduce NAME` ([how](docs/experiments.md)).
"""

HOW_TO_READ = """## How to read it

- Measured: mean ± standard deviation (ddof 1) over n seeds, in percent. "2 of 3": one of three seeds diverged, was stopped because its
  penalty would have overshot, or collapsed; it is in no mean and is named below the table. Those left are no fair sample, even where more
  seeds were run in place of those lost.
- *Agrees*: the means differ by no more than what is allowed, the two standard deviations combined (the root of the sum of their squares),
  so that numbers which spread widely agree easily. *Differs*: by more. Fewer than three seeds say nothing. The paper does not say of how
  many runs its ± is. For AFAF it is also said whether the mean lies within the paper's ± alone, which is stricter.
- Claims: differences over paired seeds, mean and 95 % interval (Student's t). A comparison *holds* if the interval lies above the bound
  (0, or what is taken for "much"), and is *contradicted* if it lies below, with three seeds or more; it *leans* if the seeds do not
  settle it. A claim *holds* if all its comparisons do (more than half, where the text says "most"). It *does not hold as stated* if one
  is contradicted also when it is taken as one of so many (Bonferroni; more than half, where the text says "most"); else it is *not
  settled*, or *incomplete* where some were not measured. *In the paper's tables*: in how many of the comparisons the paper's own means
  are on the claim's side.
- Seeds spread by several points, as the tables show: a ranking of AFAF and SpaceNet by ACC wants five seeds or more.
- The precision of each run is in its line of results/. Between precisions accuracies differ as between seeds
  ([docs/performance.md](docs/performance.md)).
"""

NOT_OF_ONE_PIECE = """
**Not of one piece**: runs of AFAF, its variants and SpaceNet are the same until a task reuses, for the same seed and code. On these
streams they were measured at commits between which the arithmetic changed, and are not: paired differences there hold some of that too: """
DIFFERS_HEAD = "\nWhere it differs, or AFAF's ACC is outside the paper's ±:\n\n"

CONTROLS_HEAD = """## All methods, controls among them

The controls are not in the paper: fine-tuning (the floor where the loss is over all classes seen so far; over the task's own classes, as
the regularisers have it, the floor is EWC with nothing held, among the choices below), joint training (all data at once), isolated
networks (perfect isolation, with at most SpaceNet's weights; on sim-CIFAR10 with fewer), a ridge regression in closed form on the first
task's features. Task-IL of PackNet is with the task's own mask, and beside it with all connections. *Task found*: the share of images
answered with a class of the right task, averaged over tasks as ACC is.

"""
AGAINST_HEAD = """
AFAF's class-IL ACC less each control's, over paired seeds, with the 95 % interval:

"""
COSTS_HEAD = """## Table 2: costs

Relative to the dense network; known without training. FLOPs by the paper's estimates, *by task* with each task charged for its own
samples only, and *counted* over live connections ([docs/methods.md](docs/methods.md)). *Same*: to the digits that the paper prints, which
it cuts more often than it rounds.

"""


# Experiments that have sections of their own below.
OF_THE_PAPER = {
    "main",
    "baselines",
    "candidate-share",
    "choices",
    "class-ambiguity",
    "density",
    "four-ways",
    "illustrations",
    "l-reuse",
    "levels",
    "representations",
    "selective-transfer",
}


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


class Report:
    """The sections of REPRODUCTION.md."""

    def __init__(self, lines: Mapping[Key, Line], experiments: Sequence[Experiment], explanations: Explanations, images: str):
        self.lines, self.experiments, self.explanations = lines, experiments, explanations
        self.measured = Measured(lines.values())
        self.images = images
        self.streams: dict[str, str] = paper()["streams"]
        self.methods: dict[str, str] = paper()["methods"]

    @cached_property
    def checked(self) -> list[tuple[Claim, list[Part]]]:
        """Every claim with its comparisons."""
        return [(claim, claim.check(self.measured)) for claim in CLAIMS]

    def text(self, drawn: Mapping[str, str]) -> str:
        """The whole page; `drawn` maps figures to the files they were drawn into."""
        of_the_paper = [
            self.main_table,
            self.controls,
            self.costs,
            self.ambiguity_table,
            self.levels_table,
            self.printed_differences,
            self.choices,
            self.others,
            self.claims,
            lambda: self.figures(drawn),
            self.contradictions,
        ]
        return "\n".join([HEAD, self.summary(), HOW_TO_READ, self.state(), *(text for section in of_the_paper if (text := section()))])

    def summary(self) -> str:
        """What it comes to, in a few lines."""
        lines = []
        for method in ("afaf", *reversed(BASELINES)):
            found = {stream: self.measured.spread(Shape(stream, method), "acc") for stream in self.streams}
            judged = [verdict(paper()["table-2"][stream][method]["acc"], spread) for stream, spread in found.items()]
            means = ", ".join(f"{spread.mean:.1f} on {self.streams[stream]}" for stream, spread in found.items() if spread)
            agreeing = f"ACC agrees on {judged.count('agrees')} of {len(judged)} streams"
            lines.append(f"- {self.methods[method]}: {means or 'not measured yet'}; {agreeing}.\n")
        verdicts = [claim.verdict(parts) for claim, parts in self.checked]
        holds, fails, open_ = (sum(one.startswith(words) for one in verdicts) for words in ("holds", "does not hold", "not settled"))
        claims = f"- Claims of the text: {holds} of {len(CLAIMS)} hold. Not as stated: {fails}; not settled by these seeds: {open_}; "
        claims += f"not fully measured: {len(CLAIMS) - holds - fails - open_}.\n"
        return "## In short\n\n" + "".join(lines) + claims

    def state(self) -> str:
        rows = []
        for experiment in self.experiments:
            missing = len(experiment.missing(self.lines))
            done = len(experiment.runs) - missing
            failed = sum(run.key in self.lines and failure(self.lines[run.key]) is not None for run in experiment.runs)
            rows.append((experiment.name, experiment.feeds, experiment.title, f"{done} of {len(experiment.runs)}", str(failed or "-")))
        lines = list(self.lines.values())
        text = "## What has been measured\n\n" + table(("experiment", "feeds", "what", "runs", "without numbers"), rows)
        if lines:
            hours = sum(line.get("seconds", 0) for line in lines) / 3600
            used = sorted({f"{line['device']}, {line['engine']} engine in {line['precision']}, torch {line['torch']}" for line in lines})
            commits = sorted({line["commit"][:12] + line["commit"][40:] for line in lines})
            text += f"\n{len(lines)} runs, {hours:.1f} hours of runs (several side by side count each), on: {'; '.join(used)}. "
            text += f"Commits: {', '.join(commits)}.\n"
        return text + self._not_of_one_piece()

    def _not_of_one_piece(self) -> str:
        """Where paired seeds also hold what the code changed between commits."""
        apart = begun_apart(self.lines.values())
        if not apart:
            return ""
        told = "; ".join(
            f"{title} ({', '.join(commit[:12] for commit in sorted(apart[stream]))})"
            for stream, title in self.streams.items()
            if stream in apart
        )
        return NOT_OF_ONE_PIECE + f"{told}.\n"

    def _compared(self, what: Shape, metric: str, printed: Sequence[float]) -> tuple[str, str, str, str, str]:
        found, n = self.measured.spread(what, metric), self.measured.count(what)
        beside = f"{printed[0]:.2f} ± {printed[1]:.2f}"
        if found is None:
            return beside, "-", n, "-", "no seed came to its end" if self.measured.failures(what) else "not measured yet"
        difference = f"{found.mean - printed[0]:+.2f} (± {allowed(printed, found):.2f})"
        return beside, str(found), n, difference, verdict(printed, found)

    def _explained(self, shapes: Iterable[tuple[Shape, str, Sequence[float], str]], *, after_table_2: bool = False) -> str:
        """A line for each number that differs: what explains it and where that was measured, or that nothing was found yet.

        A number that Table 2 has too is explained there.
        """
        names: dict[str, list[str]] = {}
        evidence: dict[str, dict[str, list[str]]] = {}
        for what, metric, printed, name in shapes:
            if not self._wants_explaining(what, metric, printed):
                continue
            if after_table_2 and not what.settings and metric in ("acc", "bwt"):
                names.setdefault("as in Table 2.", []).append(name)
                continue
            explanation = self.explanations.of(what, metric)
            text = explanation.text if explanation else "not explained yet."
            names.setdefault(text, []).append(name)
            for instead in explanation.shown_by(what) if explanation else []:
                evidence.setdefault(text, {}).setdefault(self._differently(what, instead), []).append(
                    f"{name} {self._measured_instead(instead, what, metric, printed)}"
                )
        lines = [f"- {'; '.join(names[text])}: {text}\n{_evidence(evidence.get(text, {}))}" for text in names]
        return DIFFERS_HEAD + "".join(lines) if lines else ""

    def _wants_explaining(self, what: Shape, metric: str, printed: Sequence[float]) -> bool:
        """Where it differs; and where AFAF's ACC lies outside the paper's own spread, which is stricter."""
        found = self.measured.spread(what, metric)
        if found is None:
            return False
        strictly = metric == "acc" and what == Shape(what.stream, "afaf")
        return verdict(printed, found) == "differs" or (strictly and not is_within(printed, found))

    def _differently(self, what: Shape, instead: Shape) -> str:
        """In which way other runs differ from these."""
        settings = [f"`{key} = {json.dumps(value)}`" for key, value in instead.settings.items()]
        method = [] if instead.method == what.method else [self.methods.get(instead.method, instead.method)]
        return " and ".join([*method, *settings])

    def _measured_instead(self, instead: Shape, what: Shape, metric: str, printed: Sequence[float]) -> str:
        found = self.measured.spread(instead, metric)
        if found is None:
            return "not yet"
        more = Paired.of(minus(self.measured.values(instead, metric), self.measured.values(what, metric)).values())
        paired = "" if more is None else f"; over {more.n} paired seeds {more}"
        return f"{found} (n {self.measured.count(instead)}; {verdict(printed, found)}{paired})"

    def _within_the_papers(self, stream: str) -> str:
        """Whether AFAF's mean ACC lies within the paper's own spread."""
        printed = paper()["table-2"][stream]["afaf"]["acc"]
        found = self.measured.spread(Shape(stream, "afaf"), "acc")
        if found is None:
            return ""
        where = "within" if is_within(printed, found) else "**outside**"
        known_to = "" if found.std is None else f" (standard error {found.std / found.n**0.5:.2f})"
        return f"\nAFAF's mean ACC, {found.mean:.2f}{known_to}, lies {where} the paper's {printed[0]:.2f} ± {printed[1]:.2f}.\n"

    def main_table(self) -> str:
        text = "## Table 2: class-IL ACC and BWT\n"
        for stream, title in self.streams.items():
            text += f"\n### {title}\n\n"
            rows, compared = [], []
            for method in (*BASELINES, "afaf"):
                printed = paper()["table-2"][stream][method]
                for what, name in self._forms(stream, method):
                    for metric in ("acc", "bwt"):
                        rows.append((name, metric.upper(), *self._compared(what, metric, printed[metric])))
                        compared.append((what, metric, printed[metric], f"{name} {metric.upper()}"))
            text += table(("method", "", "paper", "measured", "n", "difference (allowed)", "verdict"), rows)
            text += self._within_the_papers(stream)
            text += self._learning_rates(stream)
            text += self._failures(stream)
            text += self._explained(compared)
        return text

    def _forms(self, stream: str, method: str) -> list[tuple[Shape, str]]:
        """A method as the paper has it, and with its penalty in closed form where that was measured."""
        plain, closed = Shape(stream, method), Shape(stream, method, PROXIMAL)
        name = self.methods[method]
        return [(plain, name), *([(closed, f"{name}, penalty in closed form")] if self.measured.runs(closed) else [])]

    def _learning_rates(self, stream: str) -> str:
        """Which methods do not learn at the stream's."""
        usual = learning_rate(stream, "afaf")
        others = {self.methods[method]: rate for method in self.methods if (rate := learning_rate(stream, method)) != usual}
        told = ", ".join(f"{name} ({rate:g})" for name, rate in others.items())
        return f"\nLearning rates other than {usual:g}: {told}. With {usual:g} some seeds diverge.\n" if others else ""

    def _failures(self, stream: str) -> str:
        """Which runs of the preset, or of it with another learning rate, have no numbers, and why."""
        reasons: dict[tuple[str, str], list[str]] = {}
        for what in self.measured.shapes():
            if what.stream == stream and set(what.settings) <= {"learn.lr"}:
                how = f" with learn.lr = {what.settings['learn.lr']}" if what.settings else ""
                for seed, why in self.measured.failures(what).items():
                    reasons.setdefault((self.methods.get(what.method, what.method) + how, why), []).append(str(seed))
        lines = [
            f"- {name}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}: {why}.\n" for (name, why), seeds in reasons.items()
        ]
        return "\nRuns without numbers:\n\n" + "".join(lines) if lines else ""

    def controls(self) -> str:
        """What the paper does not print: task-IL, LA, task-id accuracy, and the controls."""
        rows = []
        metrics = ("acc", "bwt", "la", "acc_task_il", "acc_task_il_unmasked", "task_found")
        for stream, title in self.streams.items():
            for what, name in (form for method in self.methods for form in self._forms(stream, method)):
                if self.measured.runs(what):
                    values = [str(self.measured.spread(what, metric) or "-") for metric in metrics]
                    rows.append((title, name, *values, self.measured.count(what)))
        text = CONTROLS_HEAD
        headings = ("stream", "method", "ACC", "BWT", "LA", "task-IL ACC", "with all connections", "task found", "n")
        return text + (table(headings, rows) if rows else "Not measured yet.\n") + self._against_controls()

    def _against_controls(self) -> str:
        """AFAF's class-IL ACC less that of each control, over paired seeds."""
        rows = []
        for stream, title in self.streams.items():
            mine = self.measured.values(Shape(stream, "afaf"), "acc")
            for control in CONTROLS:
                found = Paired.of(minus(mine, self.measured.values(Shape(stream, control), "acc")).values())
                if found is not None:
                    rows.append((title, f"AFAF less {self.methods[control]}", str(found), str(found.n)))
        return AGAINST_HEAD + table(("stream", "difference of ACC", "measured", "n"), rows) if rows else ""

    def costs(self) -> str:
        rows = []
        for stream, title in self.streams.items():
            dense = paper()["dense"][stream]
            for method in (*BASELINES, "afaf"):
                printed, found = paper()["table-2"][stream][method], costs(stream, method)
                rows.append(
                    (
                        title,
                        self.methods[method],
                        f"{printed['params']:g}",
                        f"{found.params_ratio:.4f}",
                        _same(printed["params"], found.params_ratio),
                        f"{printed['flops']:g}",
                        "-" if found.paper_flops_ratio is None else f"{found.paper_flops_ratio:.4f}",
                        "-" if found.paper_flops_ratio is None else _same(printed["flops"], found.paper_flops_ratio),
                        "-" if found.paper_flops_by_task_ratio is None else f"{found.paper_flops_by_task_ratio:.3f}",
                        f"{found.counted_flops_ratio:.3f}",
                    )
                )
            found = costs(stream, "finetune")
            same = _same(dense["params"], found.dense_params), _same(dense["flops"], found.dense_flops)
            flops = (f"{dense['flops']:.4g}", f"{found.dense_flops:.4g}")
            rows.append((title, "dense", f"{dense['params']:,}", f"{found.dense_params:,}", same[0], *flops, same[1], "-", "-"))
        headings = ("stream", "method", "#params, paper", "here", "", "FLOPs, paper", "here", "", "by task", "counted")
        return COSTS_HEAD + table(headings, rows)

    def ambiguity_table(self) -> str:
        text = "## Table 3: class ambiguity\n\n"
        rows, compared = [], []
        for stream in paper()["table-3"]:
            for name, printed in paper()["table-3"][stream].items():
                variant = paper()["variants"][name]
                what = Shape(stream, "afaf", variant["settings"])
                for metric, setting in (("acc", "class-IL"), ("acc_task_il", "task-IL")):
                    rows.append((self.streams[stream], variant["title"], setting, *self._compared(what, metric, printed[metric])))
                    compared.append((what, metric, printed[metric], f"{self.streams[stream]}, {variant['title']}, {setting}"))
        text += table(("stream", "variant", "", "paper", "measured", "n", "difference (allowed)", "verdict"), rows)
        return text + self._explained(compared, after_table_2=True)

    def levels_table(self) -> str:
        text = "## Table 10: connection level and neuron level\n\n"
        rows, compared = [], []
        for stream in paper()["table-10"]:
            for method, printed in paper()["table-10"][stream].items():
                what = Shape(stream, method)
                for metric, setting in (("acc_task_il", "task-IL"), ("acc", "class-IL")):
                    rows.append((self.streams[stream], self.methods[method], setting, *self._compared(what, metric, printed[metric])))
                    compared.append((what, metric, printed[metric], f"{self.streams[stream]}, {self.methods[method]}, {setting}"))
        text += table(("stream", "method", "", "paper", "measured", "n", "difference (allowed)", "verdict"), rows)
        return text + self._explained(compared, after_table_2=True)

    def printed_differences(self) -> str:
        """Differences of ACC that the text prints."""
        rows = []
        for name, settings, what in (
            ("random", RANDOM, "AFAF less random candidates"),
            ("candidates-in-last-hidden", IN_LAST_HIDDEN, "AFAF less w/ R_{L-1}"),
        ):
            for stream, printed in paper()["text"][name].items():
                mine = self.measured.values(Shape(stream, "afaf"), "acc")
                found = Paired.of(minus(mine, self.measured.values(Shape(stream, "afaf", settings), "acc")).values())
                if found is None:
                    judged = "not measured yet"
                elif found.low is None or found.high is None:
                    judged = "one seed"
                else:
                    judged = "agrees" if found.low <= printed <= found.high else "differs"
                n = str(found.n) if found else "0"
                rows.append((self.streams[stream], what, f"{printed:.2f}", str(found) if found else "-", n, judged))
        text = (
            "## Differences printed in the text\n\nOf ACC, over paired seeds, with the 95 % interval; *agrees*: it holds the paper's.\n\n"
        )
        return text + table(("stream", "difference", "paper", "measured", "n", "verdict"), rows)

    def choices(self) -> str:
        """What choices that the paper leaves open are worth, each against the default over paired seeds."""
        text = (
            "## Choices that the paper leaves open\n\nWhat each of them is worth (`afaf reproduce choices`); the last column is ACC less "
        )
        text += "that of the default, over paired seeds, with the 95 % interval.\n\n"
        return text + self._variants([experiment for experiment in self.experiments if experiment.name == "choices"])

    def others(self) -> str:
        """Experiments that no table or figure of the paper takes up."""
        text = ""
        for experiment in self.experiments:
            if experiment.name not in OF_THE_PAPER:
                text += (
                    f"## {experiment.title}\n\n`afaf reproduce {experiment.name}`; the last column is ACC less that of the preset, over "
                )
                text += f"paired seeds, with the 95 % interval.\n\n{self._variants([experiment])}\n"
        return text

    def _variants(self, experiments: Sequence[Experiment]) -> str:
        """A row for each variant on each stream."""
        runs = {Shape(run.stream, run.method, run.settings).key: run for experiment in experiments for run in experiment.runs}
        named = Counter((run.stream, run.method, run.variant) for run in runs.values())
        rows = []
        for run in runs.values():
            what, default = Shape(run.stream, run.method, run.settings), Shape(run.stream, run.method)
            name = run.variant or "preset"
            if named[run.stream, run.method, run.variant] > 1:
                name += f" ({', '.join(f'{key} = {json.dumps(value)}' for key, value in run.settings.items()) or 'preset'})"
            head = self.streams.get(run.stream, run.stream), self.methods.get(run.method, run.method), name
            found = [str(self.measured.spread(what, metric) or "-") for metric in ("acc", "bwt", "la", "acc_task_il")]
            gained = Paired.of(minus(self.measured.values(what, "acc"), self.measured.values(default, "acc")).values())
            beside = "not run yet" if self.measured.count(what) == "0" else f"{gained} (n {gained.n})" if gained and what.settings else "-"
            rows.append((*head, *found, self.measured.count(what), beside))
        headings = ("stream", "method", "variant", "ACC", "BWT", "LA", "task-IL ACC", "n", "against the preset")
        return table(headings, rows) if rows else "Not measured yet.\n"

    def claims(self) -> str:
        text = "## The claims of the text\n\n"
        rows = [
            (str(i), claim.text, claim.where, claim.in_the_papers_tables(), claim.verdict(parts))
            for i, (claim, parts) in enumerate(self.checked, 1)
        ]
        text += table(("", "claim", "where", "in the paper's tables", "verdict"), rows)
        return text + "\n" + "\n".join(self._claim(i, claim, parts) for i, (claim, parts) in enumerate(self.checked, 1))

    def _claim(self, number: int, claim: Claim, parts: Sequence[Part]) -> str:
        known = [one for one in parts if one.verdict != "not measured yet"]
        if not known:
            return ""
        rows = [
            (one.text, f"{one.bound:g}" if one.found else "-", str(one.found or "-"), str(one.found.n) if one.found else "-", one.verdict)
            for one in known
        ]
        summary = f"<summary>{number}. {claim.text} <b>{claim.verdict(parts)}</b></summary>"
        return f"<details>{summary}\n\n{table(('what', 'should be above', 'is', 'n', ''), rows)}\n</details>\n"

    def figures(self, drawn: Mapping[str, str]) -> str:
        text = "## The paper's figures\n"
        for name, figure in FIGURES.items():
            text += f"\n### {figure.title}\n\n"
            text += f"![{figure.title}]({self.images}/{drawn[name]})\n\n{figure.caption}\n" if name in drawn else "Not measured yet.\n"
        return text

    def contradictions(self) -> str:
        entries = "".join(f"- {entry}\n" for entry in paper()["contradictions"]["list"])
        text = "## Where the paper contradicts itself, or can be misread\n\n" + entries
        rows = [tuple(entry) for entry in paper()["released-code"]["rows"]]
        text += "\n## Where the paper and the authors' released code differ, and the default here\n\n"
        return text + table(("point", "paper", "released code", "here"), rows)


def _same(printed: float, found: float) -> str:
    """Whether a cost is what the paper prints: ratios to three decimals, FLOPs to four digits, cut or rounded."""
    unit = 1e-3 if printed < 1000 else 10.0 ** (math.floor(math.log10(found)) - 3)
    if printed == found or any(math.isclose(printed, unit * cut(found / unit), rel_tol=1e-9) for cut in (math.floor, round)):
        return "same"
    return "within 0.1 %" if abs(found / printed - 1) < 1e-3 else "differs"


def write_reproduction(
    lines: Mapping[Key, Line], experiments: Sequence[Experiment], explanations: Explanations, page: Path, images: Path
) -> list[Path]:
    """Write the page and its figures; the files written. All are made before any is written."""
    report = Report(lines, experiments, explanations, images.relative_to(page.parent).as_posix())
    with TemporaryDirectory() as place:
        drawn = draw_all(report.measured, Path(place))
        files = {page: report.text({path.stem: path.name for path in drawn}).encode()}
        files |= {images / path.name: path.read_bytes() for path in drawn}
    for path, content in files.items():
        make_folders(path.parent)
        write_whole(path, lambda place, content=content: fill(place, [content]))  # type: ignore[misc]
    return list(files)
