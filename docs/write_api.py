"""Writes docs/api.md from signatures and docstrings: `python docs/write_api.py`. A test compares the file with what this writes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import afaf

ORDER = ("AFAFClassifier", "run", "resume", "costs", "tune", "open_stream", "Stream", "Task", "Model", "Results", "Summary", "AfafError")
SKIPPED = ("set_fit_request", "set_score_request", "set_partial_fit_request", "set_params", "get_params", "get_metadata_routing")


def reference() -> str:
    assert set(ORDER) | {"__version__"} == set(afaf.__all__), "a public name is missing here"
    parts = ["# Python reference", "", "Written by `python docs/write_api.py` from the code. Everything here is imported from `afaf`.", ""]
    for name in ORDER:
        parts += _entry(name, getattr(afaf, name))
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str, thing: Any) -> list[str]:
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return [f"## {name}", "", *_text(thing)]
    lines = [f"## {name}", "", *_signature(name, thing), *_text(thing)]
    if inspect.isclass(thing):
        for method, value in sorted(vars(thing).items(), key=lambda item: _line(item[1])):
            function = value.__func__ if isinstance(value, classmethod) else value
            if method.startswith("_") or method in SKIPPED or not inspect.isfunction(function) or not function.__doc__:
                continue
            lines += [f"### {name}.{method}", "", *_signature(method, getattr(thing, method)), *_text(function)]
    return lines


def _line(value: Any) -> int:
    """Where it stands in the code: methods are shown in that order."""
    function = value.__func__ if isinstance(value, classmethod) else value
    return function.__code__.co_firstlineno if inspect.isfunction(function) else 0


def _signature(name: str, thing: Any) -> list[str]:
    signature = inspect.signature(thing)
    shown = [str(p.replace(annotation=inspect.Parameter.empty)) for p in signature.parameters.values() if p.name != "self"]
    if any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in signature.parameters.values()):
        first = next(i for i, p in enumerate(q for q in signature.parameters.values() if q.name != "self") if p.kind is p.KEYWORD_ONLY)
        shown.insert(first, "*")
    return ["```python", f"{name}({', '.join(shown)})", "```", ""]


def _text(thing: Any) -> list[str]:
    """The docstring; lines `name: what it is` become a list."""
    lines = []
    for line in (inspect.getdoc(thing) or "").splitlines():
        head, colon, rest = line.partition(": ")
        listed = bool(colon) and all(word.isidentifier() for word in head.split(", "))
        lines.append(f"- `{head}`: {rest}" if listed else line)
    spaced = []
    for before, line in zip(["", *lines], lines, strict=False):
        begins = line.startswith("- ") and before and not before.startswith("- ")  # a list needs an empty line before it
        spaced += ["", line] if begins else [line]
    return [*spaced, ""]


if __name__ == "__main__":
    Path(__file__).with_name("api.md").write_text(reference(), encoding="utf-8")
