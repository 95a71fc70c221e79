"""One self-contained HTML page of a run, of runs compared, or of a folder of results; for phones too, dark or light."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape

from afaf.errors import RunError
from afaf.files import check_output, write_output
from afaf.files.marks import HTML_MARK
from afaf.runs.folder import FILES, check_links, checkpoints_in, read_log, read_results, report_command, resume_command
from afaf.sweeps.outcome import sweep_of
from afaf.text import printable
from afaf.version import __version__

MARK = f'{HTML_MARK} {__version__}">'
MAY_BREAK = re.compile(r"(?<=[./_:-])(?=[^\W\d])|(?<=\w{16})(?=\w)")  # after punctuation, and in words too long for a phone


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    body: str  # HTML
    intro: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    sections: tuple[Section, ...]
    footer: str

    def html(self) -> str:
        environment = Environment(loader=PackageLoader("afaf.report"), autoescape=select_autoescape(["html", "j2"]), trim_blocks=True)
        sections = [section for section in self.sections if section.body]
        template = environment.get_template("page.html.j2")
        return printable(template.render(title=self.title, subtitle=self.subtitle, sections=sections, footer=self.footer, mark=MARK))


def chart(title: str, drawn: str, *, below: str = "") -> str:
    """Wrap a drawing in its box; return nothing for an empty drawing."""
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="chart">{heading}{drawn}{below}</div>' if drawn else ""


def charts(*boxes: str) -> str:
    return f'<div class="charts">{"".join(boxes)}</div>' if any(boxes) else ""


def number_cards(cards: Iterable[tuple[str, str, str]]) -> str:
    """Boxes of (value, name, explanation)."""
    boxes = (
        f'<div class="number"><small>{escape(name)}</small><b>{escape(value)}</b><small>{escape(unbroken(explanation))}</small></div>'
        for value, name, explanation in cards
    )
    return f'<div class="cards">{"".join(boxes)}</div>'


def unbroken(text: str) -> str:
    """Keep a standard deviation on the same line as its ±."""
    return text.replace("± ", "±\u00a0")


def breakable(text: str) -> str:
    """Return a name as HTML that a narrow column may break between its parts."""
    return "<wbr>".join(escape(part) for part in MAY_BREAK.split(text))


def number(value: float | None) -> str:
    """Return a value for a table; a dash if there is none."""
    return "–" if value is None else f"{value:.2f}"


def commits(known: Iterable[str | None]) -> str:
    """Name the commits that computed the results; runs of earlier versions do not say theirs."""
    return f"Commits: {', '.join(sorted({commit[:12] + commit[40:] if commit else 'unknown' for commit in known}))}."


def folded(summary: str, body: str, *, is_open: bool = False) -> str:
    """Return HTML that is hidden until a click."""
    return f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>{body}</details>"


def stack(*boxes: str) -> str:
    """Charts below each other in the space of one."""
    return f'<div class="stack">{"".join(boxes)}</div>'


def html_table(headings: list[str], rows: list[list[str]], *, total_rows: int = 0, words: tuple[int, ...] = ()) -> str:
    """Return a table of text; the last `total_rows` rows are emphasised, columns in `words` are left-aligned."""

    def cell(tag: str, place: int, text: str) -> str:
        aligned = ' class="words"' if place in words else ""
        shown = breakable(text) if place == 0 else escape(unbroken(text))
        return f"<{tag}{aligned}>{shown}</{tag}>"

    head = "".join(cell("th", i, name) for i, name in enumerate(headings))
    body = ""
    for j, row in enumerate(rows):
        mark = ' class="total"' if j >= len(rows) - total_rows else ""
        body += f"<tr{mark}>" + "".join(cell("td", i, text) for i, text in enumerate(row)) + "</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def runs_in(sources: Sequence[Path]) -> list[Path]:
    """Return the finished run folders among these folders and within them, sorted by seed."""
    folders = {path.parent.resolve(): path.parent for source in sources for path in _within(source, "results.json")}
    return sorted(folders.values(), key=lambda path: (read_results(path).seed, path.parts))


def _within(source: Path, name: str) -> list[Path]:
    """Return the files of this name of a run folder, or of all run folders within a folder."""
    return [source / name] if (source / name).exists() else sorted(source.rglob(name))


class UnfinishedRun(UserWarning):
    """Warns of a run that is left out of a page."""


class RepeatedRun(UserWarning):
    """Warns of a run that is left out of a page because it was repeated."""


def not_finished(source: Path) -> str:
    """Say how to continue a run without results; one that diverged would diverge again in the same way; a search ends its own trials."""
    log = source / "log.jsonl"
    with contextlib.suppress(ValueError):
        events = list(read_log(log)) if log.exists() else []
        if events and events[-1].get("event") == "diverged":
            return f"the run in {source} stopped, and resuming it would end the same way: {events[-1]['why']}"
    sweep = sweep_of(source)
    if sweep is not None:
        return f"the run in {source} is a trial that a search stopped early or has not ended yet: {report_command(sweep)} shows all trials"
    return f"the run in {source} is not finished: {resume_command(source)} goes on with it"


def files_read(sources: Sequence[Path]) -> list[Path]:
    """Return the files that a page is made from."""
    runs = [*sources, *(path.parent for source in sources for path in _within(source, "config.json"))]
    of_runs = [file for run in runs for file in (*(run / name for name in FILES if name != "report.html"), *checkpoints_in(run))]
    return [
        *of_runs,
        *(file for source in sources for kind in ("*.jsonl", "*.toml", "sweep.json", "journal.log") for file in source.glob(kind)),
    ]


def write_report(source: Path | Sequence[Path], out: Path | None = None, *, force: bool = False) -> Path:
    """Write the page of runs or of a results folder; by default to report.html in the folder that holds them all."""
    sources = [source] if isinstance(source, Path) else list(source)
    for folder in sources:
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder: name run folders, folders that hold runs, or a folder of results")
    common = sources[0] if len(sources) == 1 else Path(os.path.commonpath([folder.absolute() for folder in sources]))
    path, inputs = out or common / "report.html", files_read(sources)
    check_output(path, "html", inputs, force=force)
    try:
        text = _page(sources).html()
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        named = ", ".join(map(str, sources))
        raise RunError(f"{named} cannot be shown, since a file in it is damaged or missing ({error}): afaf doctor checks a run") from None
    write_output(path, "html", text.encode(), inputs, force=force)
    return path


def _page(sources: Sequence[Path]) -> Page:
    from afaf.report.results_page import comparison_page, differ_only_in_seed, results_page, without_repeats
    from afaf.report.run_page import run_page
    from afaf.report.sweep_page import sweep_page

    if len(sources) == 1 and (sources[0] / "sweep.json").exists():
        return sweep_page(sources[0])
    runs, begun = runs_in(sources), [path.parent for source in sources for path in _within(source, "config.json")]
    unfinished = [folder for folder in begun if not (folder / "results.json").exists()]
    for folder in runs:
        check_links(folder)
    if unfinished and not runs:
        raise RunError("\n".join(map(not_finished, unfinished)))
    for folder in unfinished:
        warnings.warn(f"left out: {not_finished(folder)}", UnfinishedRun, stacklevel=3)
    if runs:
        runs, notes = without_repeats(runs, named=sources)
        for note in notes:
            warnings.warn(note, RepeatedRun, stacklevel=3)
        page = run_page(runs) if differ_only_in_seed(runs) else comparison_page(runs)
        return replace(page, footer=". ".join([page.footer.rstrip(". "), *notes]) + ".") if notes else page
    if len(sources) == 1 and list(sources[0].glob("*.jsonl")):
        return results_page(sources[0])
    named = ", ".join(map(str, sources))
    raise RunError(f"{named} holds no finished run and no results: a run folder has results.json, a results folder *.jsonl")
