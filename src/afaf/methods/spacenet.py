"""SpaceNet (Sokar et al., Neurocomputing 2021): a sparse sub-network for each task, from free neurons in every layer.

Its important neurons are fixed after the task; drop-and-grow moves connections to them while it learns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

from afaf.methods.base import TaskContext, row_mask
from afaf.methods.own import own_biases, own_norms, used_norms
from afaf.methods.sparse import SparseMethod, SparseOptions
from afaf.subnets.allocate import Request, Subnetwork, allocate_free
from afaf.subnets.consolidate import consolidate
from afaf.subnets.rewire import DropAndGrow
from afaf.subnets.warm_start import start_from_previous
from afaf.training.learner import Learner
from afaf.training.losses import LossOver
from afaf.training.plan import LearningPlan, Rewire


@dataclass(frozen=True)
class SpaceNetOptions(SparseOptions):
    loss_over: LossOver = "all"  # task: its own output rows; seen: all classes so far; all: reserved rows too
    block_gradient: bool = True  # no gradient through fixed neurons (the paper); off: only their weights are constant (released code)
    biases: Literal["selected", "unfixed"] = "selected"  # which biases move; unfixed: of every neuron not fixed (released code)
    norm_moves: bool = True  # batch norm keeps moving in every task (released code); off: frozen after the first
    norms: Literal["all", "used"] = "all"  # which move: all (released code), or those from l_reuse on that the task computes with
    reset_importance: bool = False  # forget the importance of a dropped connection
    start_from: Literal["random", "previous"] = "random"  # new connections begin with random values, or with those of the previous task


S = TypeVar("S", bound=SpaceNetOptions)


class SpaceNet(SparseMethod[S]):
    name = "spacenet"
    summary = "adds a sparse sub-network per task from free neurons, fixes its important neurons"
    Options = SpaceNetOptions

    def allocate(self, learner: Learner, context: TaskContext, request: Request) -> Subnetwork:
        """Draw the task's connections. Methods of this kind differ only here."""
        return allocate_free(request)

    def start(self, learner: Learner, context: TaskContext, phase: int) -> None:
        spec = learner.network.spec
        asked = self.sizes_of(spec, context.task, len(context.classes))
        request = Request(spec, learner.ledger, asked, context.task, context.classes, learner.seed, context.warn)
        subnetwork = self.allocate(learner, context, request)
        for l, places in subnetwork.places.items():
            new = torch.zeros_like(learner.ledger.owner(l), dtype=torch.bool)
            new.view(-1)[places.to(new.device)] = True
            learner.claim(l, context.task, new)
        if self.options.start_from == "previous":
            start_from_previous(learner.network, learner.ledger, subnetwork.record)
        learner.ledger.records.append(subnetwork.record)

    def plan(self, learner: Learner, context: TaskContext, phase: int) -> LearningPlan:
        network, ledger, options = learner.network, learner.ledger, self.options
        record, norm_moves = ledger.record_of(context.task), options.norm_moves or self.strict or context.task == 1
        assert record is not None, "start comes before plan"
        unfixed = {layer: (~ledger.is_fixed(layer)).to(network.dtype) for layer in range(2, network.spec.L)}
        norms = {layer: unfixed[layer] for layer in network.parameters.norms} if norm_moves else {}
        norm_neurons = None
        if self.strict:
            norms = norm_neurons = own_norms(network.spec, record, unfixed)
        elif norm_moves and options.norms == "used":
            norm_neurons = {layer: used.to(network.dtype) for layer, used in used_norms(network.spec, ledger, record).items()}
            norms = {layer: unfixed[layer] * used for layer, used in norm_neurons.items()}
        rewire = self._rewire(learner, context.task)
        of_unfixed = {l: unfixed[edge.target] for l, edge in enumerate(network.spec.edges[:-1], 1)}
        biases = of_unfixed if options.biases == "unfixed" else own_biases(network.spec, record, unfixed, norms)
        own_rows = row_mask(learner, context.classes)
        return self._plan(
            learner,
            context,
            options.loss_over,
            first_trainable=record.l_reuse,
            biases=biases | {network.spec.E: own_rows.to(network.dtype)},
            norms=norms,
            norm_moves=norm_moves,
            norm_neurons=norm_neurons,
            grad_mask=unfixed if options.block_gradient else {},
            masked_outputs=~own_rows,
            logits_only=True,
            importance=rewire is not None or not self.strict,  # strict isolation fixes all neurons, important or not
            rewire=rewire,
            rewire_until=self.settings.sparse.rewire_until,
            rewire_repeats=True,
        )

    def finish(self, learner: Learner, context: TaskContext) -> None:
        spec, orthogonal = learner.network.spec, self.options.orthogonal_output
        sizes = self.sizes_of(spec, context.task, len(context.classes))
        consolidate(spec, learner.ledger, learner.importance, context.task, sizes, orthogonal_output=orthogonal, strict=self.strict)

    def _rewire(self, learner: Learner, task: int) -> Rewire | None:
        """Drop and grow; None where no connection could move."""
        reset, spec = self.options.reset_importance, learner.network.spec
        cycle = DropAndGrow(spec, learner.ledger, task, drop_percent=self.settings.sparse.drop, reset_importance=reset)
        return (lambda learner, _: cycle(learner.network, learner.ledger, learner.importance)) if cycle.fields else None
