"""Fine-tuning: each task trains the whole network, and nothing protects the past. The lower bound."""

from __future__ import annotations

from afaf.methods.dense import DenseMethod, DenseOptions


class Finetune(DenseMethod[DenseOptions]):
    name = "finetune"
    summary = "trains all weights on each task in turn; nothing protects the past (lower bound)"
    Options = DenseOptions
