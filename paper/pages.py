"""All files that `python -m paper` writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from afaf.files import make_folders, write_whole
from paper import claims_page, studies, summary, tables
from paper.evidence import Evidence
from paper.figures import draw_all

BACK = (
    "Written by `python -m paper` from [paper/results](../paper/results) alone. "
    "[REPRODUCTION.md](../REPRODUCTION.md) is the short version.\n"
)


def texts(e: Evidence, drawn: Iterable[str]) -> dict[str, str]:
    """Every page by its path in the repository; `drawn` are the files of the figures."""
    by_figure = {Path(name).stem: name for name in drawn}
    sections = {
        "paper/tables.md": (
            "# The paper's numbers, one by one\n",
            BACK,
            tables.HOW_TO_READ,
            *(section(e) for section in tables.SECTIONS),
        ),
        "paper/claims.md": (claims_page.HEAD, BACK, claims_page.HOW_TO_READ, claims_page.claims(e)),
        "paper/studies.md": ("# Figures and studies\n", BACK, studies.figures(by_figure), studies.choices(e), studies.others(e)),
    }
    short = {"REPRODUCTION.md": summary.page(e), "docs/_measured.md": summary.landing_table(e)}
    return short | {path: "\n".join(filter(None, parts)) for path, parts in sections.items()}


def write_all(e: Evidence, root: Path) -> list[Path]:
    """Write all pages and figures below `root`; the files written. All are made before any is written."""
    with TemporaryDirectory() as place:
        drawn = draw_all(e.measured, Path(place))
        files = {root / path: text.encode() for path, text in texts(e, [path.name for path in drawn]).items()}
        files |= {root / "paper" / "images" / path.name: path.read_bytes() for path in drawn}
    for path, content in files.items():
        make_folders(path.parent)
        write_whole(path, content)
    return list(files)
