"""The reproduction of the AFAF paper (ECML PKDD 2022): its numbers, claims and figures, judged from results alone.

A user of afaf like any other: afaf does not import it, and the wheel does not contain it. `afaf reproduce` makes the results,
`python -m paper` writes REPRODUCTION.md and its details.
"""

from pathlib import Path

HERE = Path(__file__).parent
EXPERIMENTS, RESULTS = HERE / "experiments", HERE / "results"
