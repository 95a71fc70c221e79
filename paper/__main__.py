"""`python -m paper` writes REPRODUCTION.md and its figures from paper/results; `python -m paper claims` lists the claims."""

from __future__ import annotations

import argparse

from afaf.sweeps.experiments import read_experiments
from afaf.sweeps.store import Store
from paper import EXPERIMENTS, HERE, RESULTS
from paper.claims import CLAIMS
from paper.explanations import Explanations
from paper.measured import Measured
from paper.report import write_reproduction


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("write", "claims"), default="write")
    what = parser.parse_args().what
    lines = Store(RESULTS).read()
    if what == "claims":
        for number, claim in enumerate(CLAIMS, 1):
            print(f"{number:2}. {claim.text}\n    {claim.verdict(claim.check(Measured(lines.values())))}")
        return
    explanations = Explanations.read(HERE / "explanations.toml")
    page = HERE.parent / "REPRODUCTION.md"
    for path in write_reproduction(lines, read_experiments(EXPERIMENTS), explanations, page, HERE / "images"):
        print(f"wrote {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
