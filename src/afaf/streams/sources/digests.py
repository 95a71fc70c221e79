"""SHA-256 digests of the published images, decoded, from digests.json; verify.py says what exactly is hashed.

CIFAR-100 has digests of its classes only, not of its parts: the order in which the publisher packs the images was not at hand.
"""

from __future__ import annotations

import json
from importlib.resources import files

DIGESTS: dict[str, dict[str, str]] = json.loads((files(__package__) / "digests.json").read_text(encoding="utf-8"))
