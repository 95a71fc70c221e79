"""paper/tables.md: every number that the paper prints beside the measured one, with what explains the difference."""

from __future__ import annotations

import math

from afaf.report.measured import Paired, Shape, failure, minus
from paper.evidence import Evidence, beside, explained, is_within, table
from paper.judgement import difference
from paper.main_claims import method_difference
from paper.measured import begun_apart, costs, learning_rate
from paper.printed import method_title, paper, title_of
from paper.settings import BASELINES, CONTROLS, IN_LAST_HIDDEN, PROXIMAL, RANDOM

HOW_TO_READ = """## How to read it

- Measured: mean ± standard deviation (ddof 1) over n seeds, in percent. "2 of 3": one of three seeds diverged, was stopped because its
  penalty would have overshot, or collapsed; it is in no mean and is named below the table. Those left are no fair sample, even where more
  seeds were run in place of those lost.
- *Agrees*: the means differ by no more than what is allowed, the two standard deviations combined (the root of the sum of their squares),
  so that numbers which spread widely agree easily. *Differs*: by more. Fewer than three seeds say nothing. The paper does not say of how
  many runs its ± is. For AFAF it is also said whether the mean lies within the paper's ± alone, which is stricter.
- The precision of each run is in its line of results. Between precisions accuracies differ as between seeds
  ([docs/performance.md](../docs/performance.md)).
"""

NOT_OF_ONE_PIECE = """
**Not of one piece**: runs of AFAF, its variants and SpaceNet are the same until a task reuses, for the same seed and code. On these
streams they were measured at commits between which the arithmetic changed, and are not: paired differences there hold some of that too: """

CONTROLS_HEAD = """## All methods, controls among them

The controls are not in the paper: fine-tuning (the floor where the loss is over all classes seen so far; over the task's own classes, as
the regularisers have it, the floor is EWC with nothing held, among the choices of studies.md), joint training (all data at once), isolated
networks (perfect isolation, with at most SpaceNet's weights; on sim-CIFAR10 with fewer), a ridge regression in closed form on the first
task's features. Task-IL of PackNet is with the task's own mask, and beside it with all connections. *Task found*: the share of images
answered with a class of the right task, averaged over tasks as ACC is.

"""

AGAINST_HEAD = """
AFAF's class-IL ACC less each control's, with the 95 % interval (paired seeds, or Welch's where few seeds are common):

"""

COSTS_HEAD = """## Table 2: costs

Relative to the dense network; known without training. FLOPs by the paper's estimates, *by task* with each task charged for its own
samples only, and *counted* over live connections ([docs/methods.md](../docs/methods.md)). *Same*: to the digits that the paper prints,
which it cuts more often than it rounds.

"""


def state(e: Evidence) -> str:
    rows = []
    for experiment in e.experiments:
        missing = len(experiment.missing(e.lines))
        done = len(experiment.runs) - missing
        failed = sum(run.key in e.lines and failure(e.lines[run.key]) is not None for run in experiment.runs)
        rows.append((experiment.name, experiment.feeds, experiment.title, f"{done} of {len(experiment.runs)}", str(failed or "-")))
    lines = list(e.lines.values())
    text = "## What has been measured\n\n" + table(("experiment", "feeds", "what", "runs", "without numbers"), rows)
    if lines:
        hours = sum(line.get("seconds", 0) for line in lines) / 3600
        used = sorted({f"{line['device']}, {line['engine']} engine in {line['precision']}, torch {line['torch']}" for line in lines})
        commits = sorted({line["commit"][:12] + line["commit"][40:] for line in lines})
        text += f"\n{len(lines)} runs, {hours:.1f} hours of runs (several side by side count each), on: {'; '.join(used)}. "
        text += f"Commits: {', '.join(commits)}.\n"
    return text + _not_of_one_piece(e)


def _not_of_one_piece(e: Evidence) -> str:
    """Where paired seeds also hold what the code changed between commits."""
    apart = begun_apart(e.lines.values())
    if not apart:
        return ""
    told = "; ".join(
        f"{title} ({', '.join(commit[:12] for commit in sorted(apart[stream]))})"
        for stream, title in paper()["streams"].items()
        if stream in apart
    )
    return NOT_OF_ONE_PIECE + f"{told}.\n"


def main_table(e: Evidence) -> str:
    text = "## Table 2: class-IL ACC and BWT\n"
    for stream, title in paper()["streams"].items():
        text += f"\n### {title}\n\n"
        rows, compared = [], []
        for method in (*BASELINES, "afaf"):
            printed = paper()["table-2"][stream][method]
            for what, name in _forms(e, stream, method):
                for metric in ("acc", "bwt"):
                    rows.append((name, metric.upper(), *beside(e, what, metric, printed[metric])))
                    compared.append((what, metric, printed[metric], f"{name} {metric.upper()}"))
        text += table(("method", "", "paper", "measured", "n", "difference (allowed)", "verdict"), rows)
        text += _within_the_papers(e, stream)
        text += _learning_rates(e, stream)
        text += _failures(e, stream)
        text += explained(e, compared)
    return text


def _within_the_papers(e: Evidence, stream: str) -> str:
    """Whether AFAF's mean ACC lies within the paper's own spread."""
    printed = paper()["table-2"][stream]["afaf"]["acc"]
    found = e.measured.spread(Shape(stream, "afaf"), "acc")
    if found is None:
        return ""
    where = "within" if is_within(printed, found) else "**outside**"
    known_to = "" if found.std is None else f" (standard error {found.std / found.n**0.5:.2f})"
    return f"\nAFAF's mean ACC, {found.mean:.2f}{known_to}, lies {where} the paper's {printed[0]:.2f} ± {printed[1]:.2f}.\n"


def _forms(e: Evidence, stream: str, method: str) -> list[tuple[Shape, str]]:
    """A method as the paper has it, and with its penalty in closed form where that was measured."""
    plain, closed = Shape(stream, method), Shape(stream, method, PROXIMAL)
    name = method_title(method)
    return [(plain, name), *([(closed, f"{name}, penalty in closed form")] if e.measured.runs(closed) else [])]


def _learning_rates(e: Evidence, stream: str) -> str:
    """Which methods do not learn at the stream's."""
    usual = learning_rate(stream, "afaf")
    others = {method_title(method): rate for method in paper()["methods"] if (rate := learning_rate(stream, method)) != usual}
    told = ", ".join(f"{name} ({rate:g})" for name, rate in others.items())
    return f"\nLearning rates other than {usual:g}: {told}. With {usual:g} some seeds diverge.\n" if others else ""


def _failures(e: Evidence, stream: str) -> str:
    """Which runs of the preset, or of it with another learning rate, have no numbers, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for what in e.measured.shapes():
        if what.stream == stream and set(what.settings) <= {"learn.lr"}:
            how = f" with learn.lr = {what.settings['learn.lr']}" if what.settings else ""
            for seed, why in e.measured.failures(what).items():
                reasons.setdefault((method_title(what.method) + how, why), []).append(str(seed))
    lines = [f"- {name}, {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)}: {why}.\n" for (name, why), seeds in reasons.items()]
    return "\nRuns without numbers:\n\n" + "".join(lines) if lines else ""


def controls(e: Evidence) -> str:
    """What the paper does not print: task-IL, LA, task-id accuracy, and the controls."""
    rows = []
    metrics = ("acc", "bwt", "la", "acc_task_il", "acc_task_il_unmasked", "task_found")
    for stream, title in paper()["streams"].items():
        for what, name in (form for method in paper()["methods"] for form in _forms(e, stream, method)):
            if e.measured.runs(what):
                values = [str(e.measured.spread(what, metric) or "-") for metric in metrics]
                rows.append((title, name, *values, e.measured.count(what)))
    text = CONTROLS_HEAD
    headings = ("stream", "method", "ACC", "BWT", "LA", "task-IL ACC", "with all connections", "task found", "n")
    return text + (table(headings, rows) if rows else "Not measured yet.\n") + _against_controls(e)


def _against_controls(e: Evidence) -> str:
    """AFAF's class-IL ACC less that of each control."""
    rows = []
    for stream, title in paper()["streams"].items():
        for control in CONTROLS:
            found = difference(method_difference(e.measured, stream, "afaf", control, "acc"))
            if found is not None:
                rows.append((title, f"AFAF less {paper()['methods'][control]}", str(found), str(found.n)))
    return AGAINST_HEAD + table(("stream", "difference of ACC", "measured", "n"), rows) if rows else ""


def costs_table(e: Evidence) -> str:
    rows = []
    for stream, title in paper()["streams"].items():
        dense = paper()["dense"][stream]
        for method in (*BASELINES, "afaf"):
            printed, found = paper()["table-2"][stream][method], costs(stream, method)
            rows.append(
                (
                    title,
                    method_title(method),
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


def ambiguity_table(e: Evidence) -> str:
    text = "## Table 3: class ambiguity\n\n"
    rows, compared = [], []
    for stream in paper()["table-3"]:
        for name, printed in paper()["table-3"][stream].items():
            variant = paper()["variants"][name]
            what = Shape(stream, "afaf", variant["settings"])
            for metric, setting in (("acc", "class-IL"), ("acc_task_il", "task-IL")):
                rows.append((title_of(stream), variant["title"], setting, *beside(e, what, metric, printed[metric])))
                compared.append((what, metric, printed[metric], f"{paper()['streams'][stream]}, {variant['title']}, {setting}"))
    text += table(("stream", "variant", "", "paper", "measured", "n", "difference (allowed)", "verdict"), rows)
    return text + explained(e, compared, after_table_2=True)


def levels_table(e: Evidence) -> str:
    text = "## Table 10: connection level and neuron level\n\n"
    rows, compared = [], []
    for stream in paper()["table-10"]:
        for method, printed in paper()["table-10"][stream].items():
            what = Shape(stream, method)
            for metric, setting in (("acc_task_il", "task-IL"), ("acc", "class-IL")):
                rows.append((title_of(stream), method_title(method), setting, *beside(e, what, metric, printed[metric])))
                compared.append((what, metric, printed[metric], f"{paper()['streams'][stream]}, {paper()['methods'][method]}, {setting}"))
    text += table(("stream", "method", "", "paper", "measured", "n", "difference (allowed)", "verdict"), rows)
    return text + explained(e, compared, after_table_2=True)


def printed_differences(e: Evidence) -> str:
    """Differences of ACC that the text prints."""
    rows = []
    for name, settings, what in (
        ("random", RANDOM, "AFAF less random candidates"),
        ("candidates-in-last-hidden", IN_LAST_HIDDEN, "AFAF less w/ R_{L-1}"),
    ):
        for stream, printed in paper()["text"][name].items():
            mine = e.measured.values(Shape(stream, "afaf"), "acc")
            found = Paired.of(minus(mine, e.measured.values(Shape(stream, "afaf", settings), "acc")).values())
            if found is None:
                judged = "not measured yet"
            elif found.low is None or found.high is None:
                judged = "one seed"
            else:
                judged = "agrees" if found.low <= printed <= found.high else "differs"
            n = str(found.n) if found else "0"
            rows.append((title_of(stream), what, f"{printed:.2f}", str(found) if found else "-", n, judged))
    text = "## Differences printed in the text\n\nOf ACC, over paired seeds, with the 95 % interval; *agrees*: it holds the paper's.\n\n"
    return text + table(("stream", "difference", "paper", "measured", "n", "verdict"), rows)


def contradictions(e: Evidence) -> str:
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


SECTIONS = (
    state,
    main_table,
    controls,
    costs_table,
    ambiguity_table,
    levels_table,
    printed_differences,
    contradictions,
)
