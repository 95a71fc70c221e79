"""The page: one file that shows everything of a run and asks nothing of a network; looked at in a real browser where there is one."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from typer.testing import CliRunner

import afaf
from afaf.cli.main import app
from afaf.errors import DivergedError, RunError, UnfinishedLine
from afaf.methods import method_names
from afaf.network.ledger import Ledger
from afaf.network.net import Network
from afaf.network.spec import Layer, NetworkSpec
from afaf.report.figures import FREE_USED, _count_neurons, ledger_figure, save
from afaf.report.for_papers import curves, over_time
from afaf.report.ledger_facts import NOBODY, candidates_drawn, first_users, neuron_layers, owned_layers, reused_from
from afaf.report.measured import Measured
from afaf.report.page import RepeatedRun, UnfinishedRun, breakable, html_table, write_report
from afaf.report.results_page import method_colours, results_page
from afaf.report.run_page import Runs
from afaf.report.svg import _ticks
from afaf.runs.config import merge
from afaf.runs.folder import RunFolder, read_epochs
from afaf.storage.model_file import Model
from afaf.sweeps.executor import LocalExecutor
from afaf.sweeps.experiments import read_experiment
from afaf.sweeps.reproduce import Reproduction
from afaf.sweeps.store import Store
from afaf.training.learner import Learner
from small_worlds import small_spec

SECTIONS = ("headline", "r-matrix", "over-time", "confusion", "ledger", "candidates", "curves", "costs", "seeds", "settings")
BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        afaf.run(
            "split-digits", "afaf", seed=seed, device="cpu", out=folder / f"seed-{seed}", settings={"learn.epochs": 3, "run.images": 30}
        )
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    (folder / "small.toml").write_text(
        'title = "t"\nfeeds = "f"\n[[grid]]\nstreams = ["digit-pairs"]\nmethods = ["afaf", "joint"]\nseeds = 2\n'
        '[grid.variants]\nplain = {}\nrandom = { "learn.epochs" = 2 }\n'
    )
    Reproduction([read_experiment(folder / "small.toml")], Store(folder), LocalExecutor("cpu")).carry_out()
    return folder


def test_a_page_holds_every_section_and_nothing_from_elsewhere(seeds: Path) -> None:
    page = write_report(seeds).read_text(encoding="utf-8")
    assert re.findall(r'<section id="([^"]+)"', page) == list(SECTIONS)
    assert not re.search(r"https?://|<link|@import|src=|url\(", page)
    assert len(page) < 3_000_000
    first = json.loads((seeds / "seed-0" / "results.json").read_text())
    second = json.loads((seeds / "seed-1" / "results.json").read_text())
    mean = (first["R"][4][2] + second["R"][4][2]) / 2
    assert f"after task 5, accuracy on task 3\n(4, 5): {mean:.2f} %" in page
    assert f"{(first['acc'] + second['acc']) / 2:.1f}</b>" in page


def test_one_run_has_a_page_too_and_so_has_every_kind_of_method(tmp_path: Path) -> None:
    for method in ("finetune", "packnet", "joint", "ridge"):
        afaf.run("split-digits", method, device="cpu", out=tmp_path / method, settings={"learn.epochs": 1, "run.images": 10})
        page = write_report(tmp_path / method, tmp_path / "pages" / f"{method}.html").read_text(encoding="utf-8")
        assert set(re.findall(r'<section id="([^"]+)"', page)) == set(SECTIONS)
    page = write_report(tmp_path).read_text(encoding="utf-8")  # and all of them together, compared
    assert 'id="stream-split-digits"' in page


@pytest.mark.parametrize("high", [1e-6, 0.7, 100.0, 1e10, 1e30])
def test_an_axis_has_a_few_ticks_however_large_its_values_are(high: float) -> None:
    ticks = _ticks(0.0, high)
    assert 2 <= len(ticks) <= 6
    assert all(0 <= tick <= high * 1.001 + 1e-9 for tick in ticks)


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"config": {"learn": {"lr": 0.5}}}, "learn.lr = 0.5"),
        ({"config": {"sparse": {"alloc": {"all": 12}}}}, "alloc.all = 12"),
        ({"data_digest": "0"}, "data_digest = &#34;0&#34;"),
        ({"config": {"run": {"checkpoint": 7.0, "chunk": 64}, "evaluate": {"batch_size": 3}}, "device": "cuda:1"}, None),
    ],
)
def test_only_runs_that_differ_in_nothing_but_their_seed_are_averaged(
    changed: dict[str, Any], setting: str | None, seeds: Path, tmp_path: Path
) -> None:
    """Others are compared; the page names the setting."""
    both = shutil.copytree(seeds, tmp_path / "both")
    about = json.loads((both / "seed-1" / "config.json").read_text())
    (both / "seed-1" / "config.json").write_text(json.dumps(merge(about, changed)))
    page = write_report(both).read_text(encoding="utf-8")
    assert ('id="variants"' in page) == (setting is not None)
    if setting is not None:
        assert html.unescape(setting) in html.unescape(page.replace("<wbr>", ""))


def test_of_runs_that_are_the_same_a_folder_of_runs_has_the_newest(seeds: Path, tmp_path: Path) -> None:
    both = shutil.copytree(seeds, tmp_path / "both")
    for name, seconds in (("seed-1", 51_234), ("again", 61_234), ("before", 41_234)):
        folder = both / name if name == "seed-1" else shutil.copytree(seeds / "seed-1", both / name)
        results = json.loads((folder / "results.json").read_text())
        (folder / "results.json").write_text(json.dumps(results | {"seconds": float(seconds)}))
        os.utime(folder / "results.json", (seconds, seconds))
    told = CliRunner().invoke(app, ["report", str(both), "--figures", str(tmp_path / "figures")], env={"COLUMNS": "1000"})
    assert told.exit_code == 0, told.output
    page = (both / "report.html").read_text(encoding="utf-8")
    assert [seconds in page for seconds in ("41234", "51234", "61234")] == [False, False, True]
    for text in (told.stderr, page):
        assert all(str(both / name) in text for name in ("seed-1", "before", "again"))
    assert any((tmp_path / "figures").iterdir())


def test_the_same_run_named_twice_is_refused_and_one_that_is_named_is_kept(seeds: Path, tmp_path: Path) -> None:
    both = shutil.copytree(seeds, tmp_path / "both")
    again = shutil.copytree(both / "seed-1", tmp_path / "again")
    with pytest.raises(RunError, match="do not differ in their seed, 1"):
        write_report([both / "seed-1", again], tmp_path / "page.html")
    with pytest.warns(RepeatedRun, match=re.escape(f"{both / 'seed-1'}, ")):
        write_report([both, again], tmp_path / "page.html")


def test_reading_a_run_calls_no_function_that_it_names(tmp_path: Path, digits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "networks_of_somebody.py"
    module.write_text("from afaf.network.zoo import mlp as net", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = {"network.name": "networks_of_somebody:net", "learn.epochs": 1, "run.images": 10}
    afaf.run(digits[:2], "finetune", settings=settings, out=tmp_path / "run", device="cpu")
    module.write_text("raise SystemExit('was imported')", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "networks_of_somebody")
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "networks_of_somebody" not in sys.modules


def test_names_of_classes_cannot_break_the_page(tmp_path: Path, digits: Any) -> None:
    run = tmp_path / "run"
    afaf.run(digits, "afaf", device="cpu", out=run, settings={"learn.epochs": 1, "run.images": 10})
    found = json.loads((run / "results.json").read_text())
    found["class_names"][0][0] = '<script>alert("x")</script>'
    (run / "results.json").write_text(json.dumps(found))
    page = write_report(run).read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_folder_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no finished run and no results"):
        write_report(tmp_path)
    told = CliRunner().invoke(app, ["report", str(tmp_path / "nothing")])
    assert told.exit_code == 2
    assert "nothing is not a folder" in " ".join(told.stderr.split())


def test_the_ledger_is_counted_whole(seeds: Path) -> None:
    model = Model.load(seeds / "seed-0" / "model.safetensors")
    spec = model.learner.network.spec
    assert sum(sum(layer.by_task.values()) * spec.edge(layer.l).block for layer in owned_layers(model)) == model.learner.params
    for layer in neuron_layers(model):
        assert sum(layer.fixed.values()) + layer.used <= layer.total
    drawn = candidates_drawn(model)
    assert {one.task for one in drawn} == {3, 4, 5}  # those that reuse
    for one in drawn:
        assert sum(one.origins.values()) == 72  # 30 % of 240 allocated neurons
        assert all(origin < one.task for origin in one.origins)
    reused = reused_from(model)
    assert reused[1] == {}
    assert all(earlier < task for task, counts in reused.items() for earlier in counts)
    assert any(reused[task] for task in (3, 4, 5))


@pytest.mark.parametrize("unit", ["connection", "weight"])
def test_a_neuron_is_used_from_the_first_connection_into_or_out_of_it(unit: Any) -> None:
    spec = small_spec()
    ledger = Ledger(spec, unit)
    for task, l, neuron, below, part in ((2, 2, 0, 1, 3), (3, 2, 5, 1, 0), (2, 3, 4, 5, 0), (4, 2, 7, 2, 0)):
        ledger.owner(l)[neuron, below, part if unit == "weight" else 0] = task
    if unit == "weight":
        ledger.owner(2)[0, 1, 5:7] = torch.tensor([4, 1])
    first = 1 if unit == "weight" else 2
    assert {i: int(task) for i, task in enumerate(first_users(spec, ledger, 2)) if task != NOBODY} == {1: first, 2: 4}
    assert {i: int(task) for i, task in enumerate(first_users(spec, ledger, 3)) if task != NOBODY} == {0: first, 5: 2, 7: 4}


def test_connections_of_depthwise_and_grouped_convolutions_are_counted(tmp_path: Path) -> None:
    """Only pairs that exist, and reuse by the neuron itself."""
    hidden = (Layer("conv", 4), Layer("depthwise", 4, padding=1), Layer("conv", 6, groups=2, padding=1))
    learner = Learner.fresh(Network(NetworkSpec("small", (1, 8, 8), hidden, 4)))
    learner.classes_of = {1: (0, 1), 2: (2, 3)}
    learner.ledger.fix(2, 1, torch.tensor([0, 3]))
    for l in (2, 3):
        learner.claim(l, 2, learner.ledger.owner(l) == 0)
    model = Model(learner, "afaf", [["a", "b"], ["c", "d"]], [])
    assert [(layer.by_task, layer.total) for layer in owned_layers(model)] == [({}, 4), ({2: 4}, 4), ({2: 12}, 12), ({}, 24)]
    assert reused_from(model) == {1: {}, 2: {1: 2 + 6}}
    assert [layer.used for layer in neuron_layers(model)] == [2, 6]
    save(ledger_figure(model), tmp_path / "ledger.png")


def test_the_page_and_the_picture_count_the_same_neurons_as_used(seeds: Path) -> None:
    model = Model.load(seeds / "seed-0" / "model.safetensors")
    ledger = model.learner.ledger
    ledger.owners[1][:, 0] = 1  # the first neuron of layer 2 leads somewhere,
    ledger.owners[0][0], ledger.fixed(2)[0] = 0, 0  # though nothing leads into it
    axes = Figure().add_subplot()
    layers = neuron_layers(model)
    _count_neurons(axes, layers)
    drawn = [bar.get_width() for bar in axes.patches if bar.get_facecolor() == to_rgba(FREE_USED)]
    assert drawn == pytest.approx([100 * layer.used / layer.total for layer in layers])


def test_what_was_reused_is_said_of_the_right_task(seeds: Path) -> None:
    found = reused_from(Model.load(seeds / "seed-0" / "model.safetensors"))
    text = write_report(seeds / "seed-0").read_text(encoding="utf-8")
    assert found[3][1] > 0
    for task, counts in found.items():
        for earlier, number in counts.items():
            assert re.search(rf"task {task}: {number:,} connections start\s+from neurons fixed by task {earlier}\b", text)


def test_a_run_that_diverged_is_not_said_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        afaf.run("split-digits", "finetune", settings={"learn.epochs": 2, "learn.lr": 1e6}, device="cpu", out=tmp_path / "run")
    with pytest.raises(RunError, match="would end the same way: the loss is not finite"):
        write_report(tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").write_text('{"event": "ep')
    with pytest.raises(RunError, match="goes on with it"):
        write_report(tmp_path / "run")


def test_runs_that_cannot_be_shown_say_why(seeds: Path, tmp_path: Path) -> None:
    run = shutil.copytree(seeds / "seed-0", tmp_path / "run")
    for name in ("results.json", "config.json", "log.jsonl"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(RunError, match=rf"{name} is damaged.*afaf doctor"):
            write_report(run)
        (run / name).write_text("[]\n")
        with pytest.raises(RunError, match=rf"{name} is damaged.*afaf doctor"):
            write_report(run)
        (run / name).write_bytes(whole)
    (run / "results.json").unlink()
    with pytest.raises(RunError, match="not finished: afaf run --resume"):
        write_report(run)


def test_seeds_that_are_not_finished_are_left_out_and_named(seeds: Path, tmp_path: Path) -> None:
    part = shutil.copytree(seeds, tmp_path / "part")
    runs = sorted(path.parent for path in part.glob("*/results.json"))
    (runs[0] / "results.json").unlink()
    with pytest.warns(UnfinishedRun, match=rf"left out: the run in {re.escape(str(runs[0]))} is not finished: .*--resume"):
        write_report(part)
    for run in runs[1:]:
        (run / "results.json").unlink()
    with pytest.raises(RunError, match=rf"{re.escape(str(runs[-1]))} is not finished"):
        write_report(part)


def test_a_line_of_the_log_that_was_left_unfinished_is_passed_over(seeds: Path, tmp_path: Path) -> None:
    run = shutil.copytree(seeds / "seed-0", tmp_path / "run")
    epochs = read_epochs(run / "log.jsonl")
    with (run / "log.jsonl").open("a") as log:
        log.write('{"event": "epoch", "task": 1, "ph')
    RunFolder(run).log({"event": "resumed"})
    with pytest.warns(UnfinishedLine, match=r"log.jsonl, line \d+, is unfinished"):
        assert read_epochs(run / "log.jsonl") == epochs


def test_figures_for_a_paper(seeds: Path, results: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(seeds), "--out", str(tmp_path / "p.html"), "--figures", str(tmp_path / "f")])
    assert done.exit_code == 0, done.output
    for name in ("r-matrix", "ledger", "over-time", "confusion", "curves"):
        assert (tmp_path / "f" / f"{name}.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")
        assert (tmp_path / "f" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_figures_of_results_are_one_a_stream(results: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(results), "--out", str(tmp_path / "p.html"), "--figures", str(tmp_path / "f")])
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "f").iterdir()} == {"accuracy-digit-pairs.svg", "accuracy-digit-pairs.pdf"}


def test_results_without_a_finished_preset_make_no_figures_and_say_so(tmp_path: Path) -> None:
    results = stored(tmp_path / "results", ("digit-pairs", "afaf", {"learn.epochs": 2}))
    told = CliRunner().invoke(app, ["report", str(results), "--out", str(tmp_path / "p.html"), "--figures", str(tmp_path / "f")])
    assert told.exit_code == 2
    assert not (tmp_path / "f").exists()


def test_tasks_and_epochs_are_whole_on_an_axis_and_one_epoch_is_seen(tmp_path: Path) -> None:
    afaf.run("digit-pairs", "finetune", device="cpu", out=tmp_path / "run", settings={"learn.epochs": 1, "run.images": 10})
    runs = Runs([tmp_path / "run"])
    for axes in (*over_time(runs).axes, *curves(runs).axes):
        assert all(tick == int(tick) for tick in axes.get_xticks())
    assert {line.get_marker() for axes in curves(runs).axes for line in axes.get_lines()} == {"o"}


def stored(place: Path, *kinds: tuple[str, str, dict[str, Any]], failed: int = 0) -> Path:
    """Results of one seed for each (stream, method, settings), all with the same numbers, and some runs that stopped."""
    numbers = {"R": [[90.0], [40.0, 80.0]], "acc": 60.0, "bwt": -50.0, "la": 85.0, "acc_task_il": 85.0, "seconds": 1.0}
    lines = [
        {"stream": stream, "method": method, "settings": settings, "seed": 0, "commit": "c", "device": "cpu", **numbers}
        | {"R_task_il": [[90.0], [90.0, 80.0]]}
        for stream, method, settings in kinds
    ]
    lines += [{**lines[0], "seed": seed + 1, "failed": "the loss is not finite"} for seed in range(failed)]
    place.mkdir()
    (place / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def test_methods_are_compared_with_the_best_and_variants_with_their_preset_over_paired_seeds(tmp_path: Path) -> None:
    folder = stored(tmp_path / "r", *(("digit-pairs", name, settings) for name in ("afaf", "ewc") for settings in ({}, {"learn.lr": 0.5})))
    lines = [json.loads(line) for line in (folder / "some.jsonl").read_text().splitlines()]
    higher = {"afaf": 3.0, "ewc": 0.0}
    lines = [
        {**line, "seed": seed, "acc": 50 + seed + higher[line["method"]] + len(line["settings"])} for line in lines for seed in (0, 1, 2)
    ]
    (folder / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sections = {section.id: section.body for section in results_page(folder).sections}
    assert "-3.00 [-3.00, -3.00] (n 3)" in sections["stream-digit-pairs"]  # EWC less AFAF
    assert sections["variants"].count("+1.00 [+1.00, +1.00] (n 3)") == 2


def test_methods_have_colours_that_can_be_told_apart(tmp_path: Path) -> None:
    """In CIELAB, with full colour vision and without the red or the green cones (Machado et al., 2009)."""
    methods = method_names()
    colours = method_colours(Measured(Store(stored(tmp_path / "r", *(("digit-pairs", name, {}) for name in methods))).read().values()))
    assert list(colours) == methods
    rgb = np.array([to_rgb(colour) for colour in colours.values()])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    protanopia = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    deuteranopia = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    xyz_of = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    for seen in (np.eye(3), np.array(protanopia), np.array(deuteranopia)):
        xyz = np.clip(linear @ seen.T, 0, 1) @ (xyz_of / xyz_of.sum(1, keepdims=True)).T
        x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
        lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], 1)
        apart = np.linalg.norm(lab[:, None] - lab, axis=2) + 1000 * np.eye(len(lab))
        assert apart.min() > 15


def test_variants_stand_below_the_preset_of_their_own_method_and_name_the_section_of_what_changed(tmp_path: Path) -> None:
    kinds = [("digit-pairs", name, {}) for name in ("afaf", "ewc")]
    kinds += [("digit-pairs", "ewc", {"method.strength": 0}), ("digit-pairs", "lwf", {"sparse.density.W_1": 0.5})]
    (section,) = (one for one in results_page(stored(tmp_path / "r", *kinds)).sections if one.id == "variants")
    names = [name.replace("<wbr>", "") for name in re.findall(r"<tr><td>(.*?)</td>", section.body)]
    assert names == ["ewc (preset)", "ewc (method.strength = 0)", "lwf (density.W_1 = 0.5)"]


def test_runs_without_numbers_are_counted_too(tmp_path: Path) -> None:
    assert "1 of 3 runs have numbers" in results_page(stored(tmp_path / "r", ("digit-pairs", "afaf", {}), failed=2)).subtitle
    assert results_page(stored(tmp_path / "whole", ("digit-pairs", "afaf", {}))).subtitle.startswith("1 run ")


def test_one_of_a_thing_is_not_many(tmp_path: Path) -> None:
    page = results_page(stored(tmp_path / "r", ("digit-pairs", "afaf", {})))
    text = page.subtitle + "".join(section.body for section in page.sections)
    assert not re.findall(r"(?<![\d.,])1(?:</\w+>|<[^>]*>|\s)+(?:runs|seeds|kinds|seconds)\b", text)


def test_a_narrow_table_breaks_between_words_and_before_a_spread() -> None:
    assert "<td>48.16 ±\u00a01.18</td>" in html_table(["method", "ACC"], [["ewc", "48.16 ± 1.18"]])
    assert breakable("isolated networks") == "isolated networks"
    assert breakable("learn.batch_size = 0.5") == "learn.<wbr>batch_<wbr>size = 0.5"
    assert breakable("<b>") == "&lt;b&gt;"
    assert max(map(len, breakable("x" * 40).split("<wbr>"))) <= 16  # a word that no phone has room for


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("no Chromium here: apt-get install chromium to test the page in a browser")
    driver = pytest.importorskip("playwright.sync_api", reason="no driver for Chromium here: pip install playwright")
    with driver.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("kind", ["seeds", "results"])
def test_in_a_browser(browser: Any, request: pytest.FixtureRequest, kind: str, width: int, scheme: str) -> None:
    page_file = write_report(request.getfixturevalue(kind))
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
    page = context.new_page()
    troubles: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda one: asked.append(one.url))
    page.goto(page_file.as_uri())
    assert troubles == []
    assert asked == [page_file.as_uri()]
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = "[...document.querySelectorAll('.chart, table, svg, .number')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    assert page.evaluate(wider) == 0
    assert page.evaluate("[...document.querySelectorAll('table')].filter(t => t.scrollWidth > t.parentElement.clientWidth).length") == 0
    for section in SECTIONS if kind == "seeds" else ("headline", "stream-digit-pairs", "r-matrix", "confusion", "seeds"):
        assert page.locator(f"#{section}").is_visible()
    cell = page.locator("#r-matrix rect[data-v]").first
    cell.scroll_into_view_if_needed()
    cell.hover()
    tip = page.locator("#tip")
    assert tip.evaluate("e => getComputedStyle(e).opacity") == "1"
    assert re.search(r"after task 1.*: \d+\.\d+ %", tip.inner_text(), re.S)
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    ink, paper = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
    brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert (brightness[0] < brightness[1]) == (scheme == "light")
    context.close()
