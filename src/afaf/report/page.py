"""One HTML file that shows a run, the seeds of a run, or a folder of results: self-contained, for a phone as for a desk, dark or light."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape

from afaf.errors import RunError
from afaf.files import check_output, fill, write_output
from afaf.files.marks import HTML_MARK
from afaf.runs.folder import FILES, check_links, checkpoints_in, read_json, read_log, resume_command
from afaf.text import printable
from afaf.version import __version__

MARK = f'{HTML_MARK} {__version__}">'
MAY_BREAK = re.compile(r"(?<=[./_:-])(?=[^\W\d])|(?<=\w{16})(?=\w)")  # after punctuation; in a word, where no phone has room for it


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
    """A chart in its box; nothing where nothing was drawn."""
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="chart">{heading}{drawn}{below}</div>' if drawn else ""


def charts(*boxes: str) -> str:
    return f'<div class="charts">{"".join(boxes)}</div>' if any(boxes) else ""


def number_card(value: str, name: str, explained: str) -> str:
    return f'<div class="number"><small>{escape(name)}</small><b>{escape(value)}</b><small>{escape(unbroken(explained))}</small></div>'


def unbroken(text: str) -> str:
    """A spread stays on the line of its ±."""
    return text.replace("± ", "±\u00a0")


def breakable(text: str) -> str:
    """HTML of a name, which a narrow column breaks between its parts."""
    return "<wbr>".join(escape(part) for part in MAY_BREAK.split(text))


def stack(*boxes: str) -> str:
    """Charts one below the other, in the place of one."""
    return f'<div class="stack">{"".join(boxes)}</div>'


def html_table(headings: list[str], rows: list[list[str]], *, total_rows: int = 0, words: tuple[int, ...] = ()) -> str:
    """Cells are text; the last `total_rows` rows stand out, columns in `words` are aligned to the left."""

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


def runs_in(source: Path) -> list[Path]:
    """The finished run folders that a path names: itself, or those within it, by seed."""
    if (source / "results.json").exists():
        return [source]
    found = [path.parent for path in source.glob("*/results.json")]
    return sorted(found, key=lambda path: (read_json(path / "results.json")["seed"], path.name))


class UnfinishedRun(UserWarning):
    """A run that a page leaves out."""


def unfinished_in(source: Path) -> list[Path]:
    """The run folders within a path that hold no results yet."""
    return sorted(path.parent for path in source.glob("*/config.json") if not (path.parent / "results.json").exists())


@contextlib.contextmanager
def readable_runs(source: Path) -> Iterator[None]:
    """Files of a run that make no sense are the run's fault, and said so."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise RunError(
            f"{source} cannot be shown, since a file in it is damaged or missing ({error}): afaf doctor looks a run over"
        ) from None


def not_finished(source: Path) -> str:
    """What to do about a run without results: one that diverged would diverge again, to the same bits."""
    log = source / "log.jsonl"
    with contextlib.suppress(ValueError):
        told = list(read_log(log)) if log.exists() else []
        if told and told[-1].get("event") == "diverged":
            return f"the run in {source} stopped, and going on would end the same way: {told[-1]['why']}"
    return f"the run in {source} is not finished: {resume_command(source)} goes on with it"


def files_read(source: Path) -> list[Path]:
    """The files that a page of a run, of runs or of results is made from."""
    runs = [source, *(path.parent for path in source.glob("*/config.json"))]
    of_runs = [file for run in runs for file in (*(run / name for name in FILES if name != "report.html"), *checkpoints_in(run))]
    return [*of_runs, *source.glob("*.jsonl"), *source.glob("*.toml")]


def write_report(source: Path, out: Path | None = None, *, force: bool = False) -> Path:
    """The page of a run folder, of a folder of runs, or of a results folder; `out` defaults to a file in that folder."""
    from afaf.report.results_page import results_page
    from afaf.report.run_page import run_page

    if (source / "config.json").exists() and not (source / "results.json").exists():
        raise RunError(not_finished(source))
    if not source.is_dir():
        raise RunError(f"{source} is no folder: name a run folder, a folder of runs that differ in their seed, or a folder of results")
    place, inputs = out or source / "report.html", files_read(source)
    check_output(place, "html", inputs, force=force)
    with readable_runs(source):
        runs, unfinished = runs_in(source), unfinished_in(source)
        for path in runs:
            check_links(path)
        if runs:
            for path in unfinished:
                warnings.warn(f"left out: {not_finished(path)}", UnfinishedRun, stacklevel=2)
            text = run_page(runs).html()
        elif unfinished:
            raise RunError("\n".join(map(not_finished, unfinished)))
        elif list(source.glob("*.jsonl")):
            text = results_page(source).html()
        else:
            raise RunError(f"{source} holds no finished run and no results: a run folder has results.json, a results folder *.jsonl")
    write_output(place, "html", lambda part: fill(part, [text.encode()]), inputs, force=force)
    return place
