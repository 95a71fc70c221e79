"""The settings every method is built from, as typed data: the sections `learn` and `sparse` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from afaf.bounds import Count, CountOrZero, NotNegative, Percent, Portion, Positive
from afaf.network.ledger import Unit
from afaf.subnets.sizes import Percentage
from afaf.training.optimisers import SGD, AdamW, Optimiser
from afaf.training.schedules import Constant, Cosine, OneCycle, ReduceOnPlateau, Schedule, StepDecay


@dataclass(frozen=True)
class LearnSettings:
    """How a task is learned; partial batches are kept. The defaults are the paper's: plain SGD at a constant rate."""

    epochs: Count = 40
    batch_size: Count = 64
    lr: Positive = 0.1
    optimiser: Literal["sgd", "adamw"] = "sgd"
    momentum: Portion = 0.0  # of sgd
    nesterov: bool = False  # of sgd with momentum
    weight_decay: NotNegative = 0.0  # on the task's own connections; as a gradient (sgd), or decoupled (adamw)
    beta1: Portion = 0.9  # of adamw
    beta2: Portion = 0.999  # of adamw
    epsilon: Positive = 1e-8  # of adamw: added to the root of the mean square
    schedule: Literal["constant", "step", "plateau", "cosine", "one-cycle"] = "constant"  # of lr; the last two change it at each step
    step_at: tuple[Percent, ...] = (50.0, 75.0)  # of the epochs, in percent: where schedule=step divides lr
    divide_by: Positive | None = None  # what lr is divided by; none: 10 with schedule=step, 3 with plateau
    patience: CountOrZero = 0  # of schedule=plateau: epochs without a lower validation loss before lr is divided; 0: 5
    warmup: Percent = 30.0  # of schedule=one-cycle: percent of the steps until lr is reached

    @property
    def plateau(self) -> bool:
        """Whether the rate depends on held-out images; `patience` alone asks for it, too."""
        return self.schedule == "plateau" or (self.schedule == "constant" and self.patience > 0)

    def optimiser_of_plan(self) -> Optimiser:
        if self.optimiser == "adamw":
            return AdamW(self.beta1, self.beta2, self.weight_decay, self.epsilon)
        return SGD(self.momentum, self.nesterov, self.weight_decay)

    def schedule_of_plan(self) -> Schedule:
        if self.plateau:
            return ReduceOnPlateau(self.patience or 5, self.divide_by or 3.0)
        return {
            "constant": Constant(),
            "step": StepDecay(self.step_at, self.divide_by or 10.0),
            "cosine": Cosine(),
            "one-cycle": OneCycle(self.warmup),
        }[self.schedule]


@dataclass(frozen=True)
class SparseSettings:
    """How large a task's sub-network is; every percentage may be given per layer and per range of tasks, see `Percentage`."""

    alloc: Percentage = field(default_factory=lambda: {"conv": 70.0, "fc": 20.0, "output": 10.0})
    density: Percentage = field(default_factory=lambda: {"conv": 25.0, "fc": 25.0, "output": 70.0})
    fixed: Percentage = field(default_factory=lambda: {"conv": 10.0, "fc": 30.0, "output": 100.0})
    drop: Percent = 20.0  # share of a task's connections that each drop-and-grow cycle moves, in percent
    rewire_until: Percent = 100.0  # of the epochs: connections are moved within them only
    unit: Unit = "connection"  # structured sparsity; "weight": single weights within kernels and blocks


@dataclass(frozen=True)
class Settings:
    learn: LearnSettings = field(default_factory=LearnSettings)
    sparse: SparseSettings = field(default_factory=SparseSettings)
