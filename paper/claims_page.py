"""paper/claims.md: every claim of the paper's text with every comparison that judges it."""

from __future__ import annotations

from collections.abc import Sequence

from paper.claims import Claim
from paper.evidence import Evidence, table
from paper.judgement import Part

HEAD = "# The claims of the paper's text, one by one\n"
HOW_TO_READ = """## How to read it

- A comparison is a difference of means with its 95 % interval: over paired seeds (Student's t), or over all seeds (Welch's t) where pairing
  would leave out more than half of a method's seeds; n is then the smaller number of seeds.
- It *holds* if the interval lies above the bound (0, or what is taken for "much"), and is *contradicted* if it lies below, with three seeds
  or more. It is *smaller than printed* if the interval lies below the difference of the paper's means, taken as they are printed. Else it
  *leans* to one side, and the seeds do not settle it.
- A claim *holds* if all its comparisons do (more than half, where the text says "most"). It *does not hold as stated* if one is
  contradicted also when it is taken as one of so many (Bonferroni; more than half, where the text says "most"). It is *not to the size
  printed* if a comparison is smaller than printed in the same sense. Else it is *not settled*, or *incomplete* where something was not
  measured.
- Two of these rules, Welch's t and *smaller than printed*, were added when the runs of twenty seeds were in. The intervals below let
  a reader judge without them.
- *In the paper's tables*: in how many of the comparisons the paper's own means are on the claim's side.
"""


def claims(e: Evidence) -> str:
    text = "## All claims\n\n"
    rows = [
        (str(i), claim.text, claim.where, claim.in_the_papers_tables(), claim.verdict(parts))
        for i, (claim, parts) in enumerate(e.checked, 1)
    ]
    text += table(("", "claim", "where", "in the paper's tables", "verdict"), rows)
    return text + "\n" + "\n".join(_claim(e, i, claim, parts) for i, (claim, parts) in enumerate(e.checked, 1))


def _claim(e: Evidence, number: int, claim: Claim, parts: Sequence[Part]) -> str:
    known = [one for one in parts if one.verdict != "not measured yet"]
    if not known:
        return ""
    rows = [
        (
            one.text,
            f"{one.bound:g}" if one.found else "-",
            "-" if one.printed is None else f"{one.printed:+.2f}",
            str(one.found or "-"),
            str(one.found.n) if one.found else "-",
            one.verdict,
        )
        for one in known
    ]
    summary = f"<summary>{number}. {claim.text} <b>{claim.verdict(parts)}</b></summary>"
    return f"<details>{summary}\n\n{table(('what', 'should be above', 'the paper prints', 'is', 'n', ''), rows)}\n</details>\n"
