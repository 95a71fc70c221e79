"""`python -m paper` writes REPRODUCTION.md, its details and figures from paper/results; `python -m paper claims` lists the claims."""

from __future__ import annotations

import argparse

from afaf.sweeps.experiments import read_experiments
from afaf.sweeps.store import Store
from paper import EXPERIMENTS, HERE, RESULTS
from paper.evidence import Evidence
from paper.explanations import Explanations
from paper.pages import write_all


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m paper", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("write", "claims"), default="write")
    what = parser.parse_args().what
    evidence = Evidence(Store(RESULTS).read(), read_experiments(EXPERIMENTS), Explanations.read(HERE / "explanations.toml"))
    if what == "claims":
        for number, (claim, parts) in enumerate(evidence.checked, 1):
            print(f"{number:2}. {claim.text}\n    {claim.verdict(parts)}")
        return
    for path in write_all(evidence, HERE.parent):
        print(f"wrote {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
