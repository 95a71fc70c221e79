"""The settings every method is built from, as typed data: the sections `learn` and `sparse` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from afaf.bounds import Count, CountOrZero, Percent, Positive
from afaf.network.ledger import Unit
from afaf.subnets.sizes import Percentage


@dataclass(frozen=True)
class LearnSettings:
    """How a task is learned: plain SGD; partial batches are kept."""

    epochs: Count = 40
    batch_size: Count = 64
    lr: Positive = 0.1
    patience: CountOrZero = 0  # epochs without a lower validation loss until lr falls, as in FACIL (dense methods); 0: it is constant


@dataclass(frozen=True)
class SparseSettings:
    """How large a task's sub-network is; every percentage may be given per layer and per range of tasks, see `Percentage`."""

    alloc: Percentage = field(default_factory=lambda: {"conv": 70.0, "fc": 20.0, "output": 10.0})
    density: Percentage = field(default_factory=lambda: {"conv": 25.0, "fc": 25.0, "output": 70.0})
    fixed: Percentage = field(default_factory=lambda: {"conv": 10.0, "fc": 30.0, "output": 100.0})
    drop: Percent = 20.0  # share of a task's connections that each drop-and-grow cycle moves, in percent
    unit: Unit = "connection"  # structured sparsity; "weight": single weights within kernels and blocks


@dataclass(frozen=True)
class Settings:
    learn: LearnSettings = field(default_factory=LearnSettings)
    sparse: SparseSettings = field(default_factory=SparseSettings)
