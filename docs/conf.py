"""The documentation site: `make docs` builds it into build/site, and fails on any warning.

The source folder is the root of the repository, so that one relative link works in the repository view and on the site.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from afaf.version import __version__

ROOT = Path(__file__).parents[1]
project = "afaf"
author = "The afaf developers"
copyright = author
version = release = __version__
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "REPRODUCTION.md", "docs/**.md", "paper/**.md"]
exclude_patterns = [".*", "build", "dist", "runs", "docs/_*"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_enable_extensions = ["colon_fence", "attrs_block"]
myst_heading_anchors = 3
suppress_warnings = [
    "myst.header",
    "toc.not_included",
]  # skipped levels of headings; pages that are only linked to

smartquotes = False
default_role = "code"  # docstrings put code between single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
maximum_signature_line_length = 90
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!afaf\.\w+$).*")]  # other packages and inner modules, which the reference does not list
# A link to a folder works in the repository view; the site shows its text.
folders = [folder for pattern in ("*", "*/*") for folder in ROOT.glob(pattern) if folder.is_dir() and not folder.name.startswith(".")]
nitpick_ignore = [("myst", up + folder.relative_to(ROOT).as_posix() + end) for folder in folders for up in ("", "../") for end in ("", "/")]

html_theme = "furo"
html_title = "afaf"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "to-landing-page.html"}
templates_path = ["_templates"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

LOADED = re.compile(
    r"""(<(?:script|img|iframe|source)\b[^>]*\bsrc=          # what a page loads ...
    |<link\b[^>]*\brel="(?!canonical|next|prev)[^>]*\bhref=
    |\burl\()["']?(?:https?:)?//                            # ... from another host""",
    re.VERBOSE,
)


def refuse_foreign_resources(app: Sphinx, error: Exception | None) -> None:
    """Fail if a page or a style sheet of the site loads a script, a font or an image from elsewhere."""
    if error is not None:
        return
    for file in sorted(Path(app.outdir).rglob("*")):
        if file.suffix in {".html", ".css"} and (match := LOADED.search(file.read_text(encoding="utf-8"))):
            raise SphinxError(f"{file.relative_to(app.outdir)} loads something from elsewhere: {match.group()}")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", refuse_foreign_resources)
