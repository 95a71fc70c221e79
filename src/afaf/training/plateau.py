"""Follow the plateau schedule, which depends on the loss on held-out images after each epoch, penalties included.

The network with the lowest loss is kept. After `patience` epochs without a lower loss the rate is divided, and learning continues from the
best epoch with the optimiser's buffers at 0; it ends when the rate falls below the lowest. The final network is that of the best epoch. All
state is in `learner.memory`, so that a run can be resumed in between.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch

from afaf.training.learner import Learner
from afaf.training.named import Named, forget_tensors, keep_tensors, kept_tensors, state_dict
from afaf.training.optimisers import reset_optimiser
from afaf.training.plan import LearningPlan, Step
from afaf.training.schedules import ReduceOnPlateau
from afaf.training.step import answer, feature_neurons, mask_outputs
from afaf.training.task_data import TaskData

KEPT = "schedule"
BATCH = 512  # held-out images at a time


@dataclass
class PlateauState:
    lr: float
    best: float = torch.inf
    left: float = 0  # epochs without a lower loss until the rate is divided


class Plateau:
    """Follows a `ReduceOnPlateau` schedule while one plan is carried out."""

    def __init__(self, learner: Learner, plan: LearningPlan, schedule: ReduceOnPlateau, first_epoch: int):
        assert plan.held_out is not None, "the plateau schedule needs held-out images"
        self.learner, self.plan, self.schedule, self.held_out = learner, plan, schedule, plan.held_out
        kept = learner.memory.get(f"{KEPT}/state") if first_epoch else None
        self.state = PlateauState(plan.lr, left=schedule.patience) if kept is None else PlateauState(*kept.tolist())

    @property
    def lr(self) -> float:
        return self.state.lr

    @property
    def ended(self) -> bool:
        return self.state.lr < self.schedule.lowest

    def epoch_ended(self) -> None:
        """Keep the network if its loss is the lowest so far; else count the epoch, and go back to the best one when patience runs out."""
        learner, state = self.learner, self.state
        loss = loss_on(learner, self.plan, self.held_out)
        if loss < state.best:
            state.best, state.left = loss, self.schedule.patience
            keep_tensors(learner.memory, f"{KEPT}/best", self._network())
        else:
            state.left -= 1
            if state.left <= 0:
                state.lr, state.left = state.lr / self.schedule.divide_by, self.schedule.patience
                self._go_back()
        learner.memory[f"{KEPT}/state"] = torch.tensor(astuple(state), dtype=torch.float64)

    def finish(self) -> None:
        """Restore the best network, and remove the stored state."""
        self._go_back()
        forget_tensors(self.learner.memory, KEPT)

    def _network(self) -> Named:
        """Parameters, and the owners of connections where rewiring moves them."""
        owners = self.learner.ledger.owners if self.plan.rewire is not None else []
        return state_dict(self.learner.network.parameters) | {f"owner/{l}": owner for l, owner in enumerate(owners, 1)}

    @torch.no_grad()
    def _go_back(self) -> None:
        """Go back to the best epoch; there is none if no loss was finite."""
        network = self._network()
        for name, tensor in kept_tensors(self.learner.memory, f"{KEPT}/best").items():
            network[name].copy_(tensor)
        reset_optimiser(self.learner.optimiser_state)


@torch.no_grad()
def loss_on(learner: Learner, plan: LearningPlan, data: TaskData) -> float:
    """The loss of a plan on images that it does not learn from, in evaluation mode."""
    data = data.with_views(plan.views)
    network, total = learner.network, torch.zeros((), dtype=torch.float64, device=learner.network.device)
    parameters, neurons = mask_outputs(network.parameters, plan.masked_outputs), feature_neurons(learner, plan)
    for samples in torch.arange(len(data), device=data.device).split(BATCH):
        images, labels = data.batch(samples)
        logits, features = answer(network.spec, parameters, images, neurons)
        total += plan.loss(Step(images, labels, logits, network.parameters, features)) * len(samples)
    penalty = 0.0 if plan.penalty is None or plan.penalty.proximal else float(plan.penalty(network.parameters))
    return float(total) / len(data) + penalty
