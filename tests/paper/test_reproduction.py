"""The pages say of every number and claim what the results say, and nothing where they say nothing."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from afaf.errors import ConfigError
from afaf.report.measured import Paired, Shape, minus
from afaf.runs.results import Spread
from afaf.streams.benchmarks import outline_of
from afaf.sweeps.experiments import Planned, read_experiments
from afaf.sweeps.store import Line, Store
from paper import EXPERIMENTS, HERE, RESULTS, summary, tables
from paper.claims import CLAIMS
from paper.evidence import Evidence, verdict
from paper.explanations import Explanations
from paper.figures import FIGURES, in_common
from paper.judgement import Part, Unpaired, difference, overall, part
from paper.measured import Measured, begun_apart, first_reuse, task_found
from paper.pages import texts, write_all
from paper.printed import paper
from paper.settings import LOWEST
from paper.studies import choices


def made_up(run: Planned, spread: float = 2.0) -> Line:
    """A line such as a run would leave; its accuracies are drawn, not measured."""
    draw = random.Random(str(run.key))
    n_tasks = len(outline_of(run.stream))
    R = [[80 - 5 * (j - i) + draw.gauss(0, spread) for i in range(j + 1)] for j in range(n_tasks)]
    names = outline_of(run.stream).class_names
    kept: dict[str, Any] = {
        "ledger": {
            "layers": ["input", "dense 1", "classes"],
            "owner": [[[1, 2], [0, 2]], [[1, 0]]],
            "fixed": [[0, 0], [1, 2], [0]],
            "candidates": {"2": {"3": {"2": [1]}}},
        },
        "class-means": {"neurons": [0, 1], "tasks": names, "means": {c: [draw.random(), draw.random()] for task in names for c in task}},
    }
    return {
        "stream": run.stream,
        "method": run.method,
        "settings": dict(run.settings),
        "seed": run.seed,
        "acc": sum(R[-1]) / n_tasks,
        "bwt": sum(R[-1][i] - R[i][i] for i in range(n_tasks - 1)) / (n_tasks - 1),
        "la": sum(R[i][i] for i in range(n_tasks)) / n_tasks,
        "acc_task_il": 90 + draw.gauss(0, 1),
        "R": R,
        "R_task_il": [[90.0] * (j + 1) for j in range(n_tasks)],
        "kept": {name: kept[name] for name in run.keep},
        "seconds": 1.0,
        "device": "none",
        "engine": "none",
        "precision": "none",
        "torch": "0",
        "commit": "0" * 40,
    }


@pytest.fixture(scope="module")
def everything() -> dict[Any, Line]:
    runs = [run for experiment in read_experiments(EXPERIMENTS) for run in experiment.runs]
    return {run.key: made_up(run) for run in sorted(runs, key=lambda run: len(run.keep))}


def evidence(lines: dict[Any, Line], explanations: Explanations | None = None) -> Evidence:
    return Evidence(lines, read_experiments(EXPERIMENTS), explanations or Explanations())


def all_pages(lines: dict[Any, Line]) -> str:
    return "\n".join(texts(evidence(lines), []).values())


def test_the_pages_in_the_repository_are_what_the_command_writes(tmp_path: Path) -> None:
    written = write_all(evidence(Store(RESULTS).read(), Explanations.read(HERE / "explanations.toml")), tmp_path)
    for path in written:
        there = HERE.parent / path.relative_to(tmp_path)
        if path.suffix == ".svg":  # drawn a little differently by another matplotlib
            assert there.exists(), "run `python -m paper`"
        else:
            assert there.read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), f"{there.name}: run `python -m paper`"
    assert {path.name for path in (HERE / "images").iterdir()} == {path.name for path in written if path.suffix == ".svg"}


def test_without_results_every_number_and_claim_is_not_measured_yet() -> None:
    assert "✓" not in summary.numbers(evidence({})).split("\n###")[1]
    assert "agrees |" not in tables.main_table(evidence({}))
    for claim in CLAIMS:
        parts = claim.judged(Measured([]))
        assert all(one.verdict == "not measured yet" or one.exact is not None for one in parts), claim.text
    assert all_pages({}).count("Not measured yet.") == len(FIGURES) + 2


def test_with_all_results_every_number_of_the_paper_and_every_claim_has_a_verdict(everything: dict[Any, Line], tmp_path: Path) -> None:
    measured = Measured(everything.values())
    for claim in CLAIMS:
        if "no room" not in claim.text:
            assert not [one.text for one in claim.judged(measured) if one.verdict in ("not measured yet", "one seed")], claim.text
    written = write_all(evidence(everything), tmp_path)
    assert {path.stem for path in written if path.suffix == ".svg"} == set(FIGURES)
    text = "".join(path.read_text(encoding="utf-8") for path in written if path.suffix == ".md")
    assert "Not measured yet." not in text
    for table in ("table-2", "table-3", "table-10"):
        for by_name in paper()[table].values():
            for numbers in by_name.values():
                for metric in ("acc", "bwt", "acc_task_il"):
                    if metric in numbers:
                        mean, std = numbers[metric]
                        assert f"| {mean:.2f} ± {std:.2f} |" in text


def test_the_short_page_says_whether_afaf_beats_spacenet_and_what_beats_afaf(everything: dict[Any, Line]) -> None:
    """Raise AFAF above SpaceNet on Mix and LwF above AFAF everywhere: the sentences follow."""

    def changed(line: Line) -> Line:
        if line["settings"]:
            return line
        if line["stream"] == "mix" and line["method"] == "spacenet":
            return {**line, "acc": 10.0 + line["seed"] % 2}
        return {**line, "acc": 99.0 - line["seed"] % 2} if line["method"] == "lwf" else line

    minute = summary.in_one_minute(evidence({key: changed(line) for key, line in everything.items()}))
    spacenet, above = (next(line for line in minute.splitlines() if question in line) for question in ("SpaceNet?", "What beats"))
    assert re.search(r"In ACC: yes on [^;.]*Mix", spacenet)
    assert re.search(r"Beyond chance: [^.]*LwF \(split-CIFAR10 by", above.replace(".", ""))


def test_a_number_agrees_up_to_the_combined_spread() -> None:
    printed = [50.0, 3.0]
    assert verdict(printed, Spread(55.0, 4.0, 5)) == "agrees"
    assert verdict(printed, Spread(55.1, 4.0, 5)) == "differs"
    assert verdict(printed, Spread(80.0, 1.0, 2)) == verdict(printed, Spread(50.0, None, 1)) == "too few seeds"
    assert verdict(printed, None) == "not measured yet"


@pytest.mark.parametrize(
    ("printed", "found", "expected"),
    [
        (0.154, 0.15451, "same"),
        (0.155, 0.15451, "same"),
        (0.153, 0.15451, "differs"),
        (14.97e14, 1.49762e15, "same"),
        (23459520, 23459520, "same"),
        (3.081, 3.0800, "within 0.1 %"),
        (0.089, 0.090002, "differs"),
    ],
)
def test_costs_are_compared_as_the_paper_prints_them(printed: float, found: float, expected: str) -> None:
    assert tables._same(printed, found) == expected


def test_the_interval_is_students() -> None:
    found = Paired.of([1.0, 2.0, 3.0])
    assert found is not None
    assert found.low is not None
    assert (found.mean, found.n) == (2.0, 3)
    assert found.mean - found.low == pytest.approx(4.302653 / 3**0.5, rel=1e-5)  # t of 2 degrees of freedom, std 1


def test_seeds_are_paired() -> None:
    assert minus({0: 1.0, 1: 5.0, 7: 9.0}, {1: 2.0, 0: 4.0, 3: 0.0}) == {0: -3.0, 1: 3.0}


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 1.1, 0.9], "holds"),
        ([-1.0, -1.1, -0.9], "contradicted"),
        ([5.0, -4.0, 0.5], "leans that way"),
        ([-5.0, 4.0, -0.5], "leans the other way"),
        ([1.0], "one seed"),
        ([], "not measured yet"),
    ],
)
def test_a_part_holds_only_beyond_the_spread_of_the_seeds(differences: list[float], expected: str) -> None:
    assert part("", dict(enumerate(differences))).verdict == expected


def test_a_claim_holds_only_if_all_of_it_does() -> None:
    yes, no, open_ = (part("", dict(enumerate(values))) for values in ([1.0, 1.1, 1.0], [-1.0, -1.1, -1.0], [9.0, -1.0, 3.0]))
    assert overall([yes, yes]) == "holds"
    assert overall([yes, no]).startswith("does not hold as stated")
    assert overall([yes, open_]).startswith("not settled")
    assert overall([yes, Part("", None)]).startswith("incomplete")


def test_a_claim_about_most_cases_holds_if_most_of_it_does() -> None:
    yes, no, open_ = (part("", dict(enumerate(values))) for values in ([1.0, 1.1, 1.0], [-1.0, -1.1, -1.0], [9.0, -1.0, 3.0]))
    assert overall([yes, yes, no], most=True).startswith("holds: ")
    assert overall([yes, no, no], most=True).startswith("does not hold as stated")
    assert overall([yes, no, open_, open_], most=True).startswith("not settled")


def test_one_contradiction_among_many_comparisons_may_be_chance() -> None:
    against = part("", {0: -1.0, 1: -1.5, 2: -2.0, 3: -1.0})  # one-sided p about 0.005
    open_ = part("", {0: 5.0, 1: -5.0, 2: 1.0})
    assert against.verdict == "contradicted"
    assert overall([against, open_]).startswith("does not hold as stated")
    assert overall([against] + 9 * [open_]).startswith("not settled by these seeds: contradicted in 1")


def test_few_seeds_of_one_method_are_compared_with_all_of_another() -> None:
    many, few = {seed: 50.0 + seed % 3 for seed in range(20)}, {0: 40.0, 1: 41.0, 2: 42.0}
    found = difference([(1, many), (-1, few)])
    assert isinstance(found, Unpaired)
    expected = stats.ttest_ind(list(many.values()), list(few.values()), equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found.chance_of_so_low(0) == pytest.approx(1 - expected.pvalue / 2)
    paired = difference([(1, many), (-1, {seed: value - 1 for seed, value in many.items()})])
    assert not isinstance(paired, Unpaired)
    assert paired == Paired.of([1.0] * 20)


def test_a_difference_below_the_printed_one_is_smaller_than_printed() -> None:
    unsure = dict(enumerate([0.5, -0.4, 0.3, -0.2]))
    assert part("", unsure).verdict == "leans that way"
    near, far = (replace(part("", unsure), printed=printed) for printed in (0.3, 5.0))
    assert (near.verdict, far.verdict) == ("leans that way", "smaller than printed")
    assert overall([far]).startswith("not to the size printed")
    assert overall([replace(part("", dict(enumerate([1.0, 1.1, 0.9]))), printed=5.0)]) == "holds"


def test_each_claim_is_also_held_against_the_papers_own_means() -> None:
    by_text = {claim.text: claim.in_the_papers_tables() for claim in CLAIMS}
    assert by_text["AFAF outperforms all other methods in class-IL ACC, on every stream."] == "20 of 20"
    assert by_text["LwF outperforms the other regularisers in most cases ..."] == "5 of 6"  # EWC is above it on sim-CIFAR100
    assert by_text["Orthogonal output weights increase ACC."] == "2 of 2"
    assert by_text["Dissimilar tasks have different representations."] == "-"


def test_runs_that_must_have_begun_alike_and_did_not_are_named(everything: dict[Any, Line]) -> None:
    """Made-up runs share no beginning; when those of Mix do, Mix is no more among them."""
    assert set(begun_apart(everything.values())) >= {"mix", "sim-cifar10"}
    reuse = first_reuse("mix")
    alike = []
    for line in everything.values():
        if line["stream"] == "mix":
            same = [[float(line["seed"]) + len(line["settings"].get("method.biases", ""))] * (j + 1) for j in range(reuse - 1)]
            line = {**line, "R": same + line["R"][reuse - 1 :]}
        alike.append(line)
    assert "mix" not in begun_apart(alike)
    assert "sim-cifar10" in begun_apart(alike)
    assert "**Not of one piece**" in tables.state(evidence(everything))


def test_claims_follow_the_numbers(everything: dict[Any, Line]) -> None:
    """Lower every accuracy of the lowest candidates: the claim about them holds, and is contradicted the other way round."""
    claim = next(claim for claim in CLAIMS if claim.text == "The lowest candidates have much lower LA and ACC (here: by ten points).")
    for change, expected in ((-30, "holds"), (+30, "contradicted")):
        lines = []
        for line in everything.values():
            if line["settings"] == LOWEST:
                line = {**line, "acc": line["acc"] + change, "R": [[value + change for value in row] for row in line["R"]]}
            lines.append(line)
        assert {one.verdict for one in claim.judged(Measured(lines))} == {expected}


def test_a_diverged_run_is_told_and_its_penalty_in_closed_form_compared(everything: dict[Any, Line]) -> None:
    lines = dict(everything)
    for key, line in everything.items():
        if line["method"] == "ewc" and not line["settings"]:
            about = {
                name: line[name] for name in ("stream", "method", "settings", "seed", "device", "engine", "precision", "torch", "commit")
            }
            lines[key] = {**about, "failed": "the penalty makes task 2 diverge"}
    text = all_pages(lines)
    assert "| EWC, penalty in closed form | ACC |" in text
    assert "- EWC, seeds 0, 1, 2, 3, 4, 5, 6, 7: the penalty makes task 2 diverge." in text
    assert "no seed came to its end" in text


def test_choices_are_compared_with_the_default_over_paired_seeds(everything: dict[Any, Line]) -> None:
    lines = dict(everything)
    choice = {"method.reset_importance": True}
    for key, line in everything.items():
        if line["stream"] == "mix" and line["settings"] == choice:
            default = next(
                one
                for one in everything.values()
                if (one["stream"], one["method"], one["seed"]) == ("mix", "afaf", line["seed"]) and not one["settings"]
            )
            lines[key] = {**line, "acc": default["acc"] + 3 + line["seed"]}
    section = choices(evidence(lines))
    row = next(row for row in section.splitlines() if row.startswith("| Mix | AFAF | importance forgotten"))
    assert row.endswith("| 3 | +4.00 [+1.52, +6.48] (n 3) |")
    assert "| sim-CIFAR10 | AFAF | importance forgotten" in section
    assert "not run yet" in choices(evidence({}))


def test_figures_compare_the_seeds_that_all_have() -> None:
    assert in_common({"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {1: 5.0, 2: 6.0}, "c": {}}) == {"a": [2.0, 3.0], "b": [5.0, 6.0]}
    assert in_common({"a": {0: 1.0}, "b": {1: 5.0}}) == {"a": [1.0], "b": [5.0]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[explanation", "TOML"),
        ("explanation = 3\n", "explanation must be a list"),
        ('[[explanation]]\nstream = "mix"\n', "lacks text"),
        ('[[explanation]]\ntext = " "\n', "text"),
        ('[[explanatin]]\ntext = "x"\n', "unknown table 'explanatin'"),
        ('[[explanation]]\ntext = "x"\nmetod = "ewc"\n', "unknown key .*metod': did you mean .*method'"),
        ('[[explanation]]\ntext = "x"\nstream = ["mix", "mixx"]\n', "unknown stream 'mixx'"),
        ('[[explanation]]\ntext = "x"\nmetric = "accuracy"\n', "unknown metric 'accuracy'"),
        ('[[explanation]]\ntext = "x"\nshown_by = { method = "nope", settings = { "learn.lr" = 1 } }\n', "unknown method 'nope'"),
        ('[[explanation]]\ntext = "x"\nshown_by = { settings = {} }\n', "shown_by lacks settings"),
        ('[[explanation]]\ntext = "x"\nshown_by = { settings = { method.biases = "x" } }\n', "settings"),
        ('[[explanation]]\ntext = "x"\nshown_by = 3\n', "shown_by.* must be a table"),
    ],
)
def test_explanations_that_cannot_be_read_are_an_error_that_names_the_file(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "explanations.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"explanations\.toml.*{told}|{told}.*explanations\.toml"):
        Explanations.read(tmp_path / "explanations.toml")


def test_an_explanation_stands_where_a_number_differs(tmp_path: Path, everything: dict[Any, Line]) -> None:
    (tmp_path / "explanations.toml").write_text('[[explanation]]\nstream = "mix"\nmethod = "lwf"\nmetric = "acc"\ntext = "because."\n')
    text = tables.main_table(evidence(everything, Explanations.read(tmp_path / "explanations.toml")))
    assert "LwF ACC: because." in text
    assert Explanations.read(tmp_path / "explanations.toml").of(Shape("sim-cifar10", "lwf"), "acc") is None


def test_beside_an_explanation_stands_what_was_measured_where_it_says_to_look(tmp_path: Path, everything: dict[Any, Line]) -> None:
    (tmp_path / "explanations.toml").write_text(
        '[[explanation]]\nstream = ["split-cifar10", "sim-cifar100"]\nmethod = "lwf"\nmetric = "acc"\n'
        'shown_by = { method = "ewc", settings = { "method.strength" = 0 } }\ntext = "because."\n'
    )
    text = tables.main_table(evidence(everything, Explanations.read(tmp_path / "explanations.toml")))
    found = Measured(everything.values()).spread(Shape("sim-cifar100", "ewc", {"method.strength": 0}), "acc")
    assert f"- LwF ACC: because.\n  - Measured with EWC and `method.strength = 0`: LwF ACC {found} (n 3; differs; over 3 pair" in text
    without = {key: line for key, line in everything.items() if line["settings"] != {"method.strength": 0}}
    assert "LwF ACC not yet." in tables.main_table(evidence(without, Explanations.read(tmp_path / "explanations.toml")))


def test_an_explanation_can_be_shown_by_several(tmp_path: Path, everything: dict[Any, Line]) -> None:
    entry = '[[explanation]]\nstream = "mix"\nmethod = "lwf"\nmetric = "acc"\ntext = "because."\nshown_by = [{}]\n'
    shown = ['{ method = "ewc", settings = { "method.strength" = 0 } }', '{ settings = { "learn.lr" = 0.5 } }']
    (tmp_path / "explanations.toml").write_text(entry.format(", ".join(shown)))
    text = tables.main_table(evidence(everything, Explanations.read(tmp_path / "explanations.toml")))
    assert "Measured with EWC and `method.strength = 0`: LwF ACC" in text
    assert "Measured with `learn.lr = 0.5`: LwF ACC not yet." in text
    (tmp_path / "explanations.toml").write_text(entry.format(shown[0] + ", 3"))
    with pytest.raises(ConfigError, match="shown_by"):
        Explanations.read(tmp_path / "explanations.toml")


def test_what_table_2_explains_is_not_told_again(tmp_path: Path, everything: dict[Any, Line]) -> None:
    (tmp_path / "explanations.toml").write_text('[[explanation]]\nstream = "mix"\nmethod = "afaf"\ntext = "because."\n')
    lines = {
        key: {**line, "acc": 1.0} if line["stream"] == "mix" and line["method"] == "afaf" else line for key, line in everything.items()
    }
    written = evidence(lines, Explanations.read(tmp_path / "explanations.toml"))
    assert "- AFAF ACC; AFAF BWT: because." in tables.main_table(written)
    for again in (tables.ambiguity_table(written), tables.levels_table(written)):
        assert "Mix, AFAF, class-IL: as in Table 2." in again
    of_its_own = next(line for line in tables.ambiguity_table(written).splitlines() if line.endswith(": because."))
    assert "Mix, w/ l_reuse = L-1, class-IL" in of_its_own
    assert "Mix, AFAF, class-IL" not in of_its_own


def test_afafs_acc_is_explained_where_it_lies_outside_the_papers_own_spread_though_it_agrees(everything: dict[Any, Line]) -> None:
    mean, std = paper()["table-2"]["mix"]["afaf"]["acc"]
    lines = dict(everything)
    for key, line in everything.items():
        if line["stream"] == "mix" and line["method"] == "afaf" and not line["settings"]:
            lines[key] = {**line, "acc": mean + std + 1 + (8 if line["seed"] % 2 else -5)}
    text = tables.main_table(evidence(lines))
    assert "| agrees |" in next(row for row in text.split("### Mix")[1].splitlines() if row.startswith("| AFAF | ACC"))
    assert "AFAF ACC" in text.split("### Mix")[1].split("Where it differs")[1]


def test_a_seed_that_collapsed_is_in_no_mean_and_is_named(everything: dict[Any, Line]) -> None:
    lines = dict(everything)
    ewc = [key for key, line in lines.items() if line["stream"] == "sim-cifar100" and line["method"] == "ewc" and not line["settings"]]
    dead = lines[ewc[0]]["seed"]
    alive_until_3 = [[90.0] * (j + 1) if j in (0, 2) else [50.0] * (j + 1) for j in range(8)]
    lines[ewc[0]] = {**lines[ewc[0]], "R_task_il": alive_until_3}
    measured = Measured(lines.values())
    assert dead not in measured.values(Shape("sim-cifar100", "ewc"), "acc")
    text = tables.main_table(evidence(lines))
    assert f"| {len(ewc) - 1} of {len(ewc)} |" in text
    assert f"- EWC, seed {dead}: the network collapsed in task 4 and guesses from there on (ACC " in text


def test_of_fewer_than_three_seeds_nothing_holds() -> None:
    assert part("", {0: 5.0, 1: 5.1}).verdict == "leans that way"
    assert part("", {0: 5.0, 1: 5.1, 2: 5.2}).verdict == "holds"
    assert part("", {0: 5.0, 1: 5.1, 2: 5.2}, bound=5.5).verdict == "contradicted"


def test_what_is_contradicted_does_not_hold_whatever_is_still_missing() -> None:
    against, missing = part("", {0: -5.0, 1: -5.1, 2: -5.2}), part("", {})
    assert overall([against, missing]).startswith("does not hold as stated: contradicted in 1, not measured yet in 1 of 2")


def test_the_right_task_is_that_of_the_classes_per_task_in_the_settings() -> None:
    """Each class is taken for the one ten further on, within its half of the classes."""
    shifted = [[int(answer == c // 50 * 50 + (c + 10) % 50) for answer in range(100)] for c in range(100)]
    line = {"stream": "split-cifar100", "settings": {"stream.classes_per_task": 50}, "confusion": shifted}
    assert task_found(line) == 100
    assert task_found({**line, "settings": {}}) == 0
