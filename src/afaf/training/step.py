"""One step of training, on the part of the network that a workspace holds.

A `Workspace` is that part: the whole network as it is (eager), or the neurons that matter to the task, gathered into small tensors
(compact). A step reads and writes only the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from afaf.network.forward import EVALUATION, Mode, Parameters, Training, forward
from afaf.network.spec import NetworkSpec
from afaf.subnets.rewire import Importance
from afaf.training.folded_trunk import FoldedTrunk, InplaceForward, fold_trunk
from afaf.training.learner import Learner
from afaf.training.named import Named, trainable, weight_number
from afaf.training.optimisers import Coefficients, Number, buffers_of, zero_buffers
from afaf.training.plan import LearningPlan, Step
from afaf.training.task_data import RngScope, TaskData


@dataclass
class Workspace:
    """Parameters, masks and importances of the kept neurons: all of them, or those that matter to the task."""

    spec: NetworkSpec  # of the whole network: kinds, kernels, operations
    plan: LearningPlan
    parameters: Parameters
    importance: Importance
    moving: dict[int, Tensor]  # l of W_l -> 1 where a weight moves
    biases: dict[int, Tensor]
    norms: dict[int, Tensor]
    norm_neurons: Mapping[int, Tensor | bool] | None
    grad_mask: dict[int, Tensor]
    entry: int = 1  # steps begin at this layer; below is a trunk that does not train
    neurons: dict[int, Tensor] = field(default_factory=dict)  # layer -> indices of the kept neurons; absent if all are kept
    rows: Tensor | None = None  # indices of the kept output rows, None if all are kept
    output_biases: Tensor | None = None  # of all rows: the logits of rows that are not kept; None if all are kept
    features: Tensor | None = None  # places of the `feature_neurons` among the kept ones
    buffers: Named = field(default_factory=dict)  # the optimiser's, by BUFFER/PARAMETER
    coefficients: Sequence[Number] = ()  # the optimiser's, of the present step
    epoch_coefficients: Coefficients = field(default_factory=list)  # of every step of the present epoch
    scope: RngScope = field(default_factory=lambda: RngScope(0, 0))  # of the present steps

    @classmethod
    def whole(cls, learner: Learner, plan: LearningPlan) -> Workspace:
        network = learner.network
        moving = {l: learner.ledger.owned_by(l, plan.task).to(network.dtype) for l in range(plan.first_trainable, network.spec.E + 1)}
        masks, features = (moving, plan.biases, plan.norms, plan.norm_neurons, plan.grad_mask), feature_neurons(learner, plan)
        return cls(network.spec, plan, network.parameters, learner.importance, *masks, features=features, buffers=learner.optimiser_state)

    def mode(self, scope: RngScope, samples: Tensor) -> Training:
        """The forward mode of a training step on these images."""
        return Training(
            keys={layer: scope.key("dropout", layer) for layer in range(2, self.spec.L)},
            samples=samples.to(torch.int32),
            grad_mask=self.grad_mask,
            norm_moves=self.plan.norm_moves,
            neurons=self.neurons,
            norm_neurons=self.norm_neurons,
        )

    @property
    def value_bytes(self) -> int:
        """Bytes of one activation."""
        return self.parameters.weights[-1].element_size()

    def images(self, data: TaskData, samples: Tensor, scope: RngScope) -> Tensor:
        """These images, augmented as in this epoch."""
        return data.batch(samples, scope)[0]

    def begin(self, scope: RngScope, coefficients: Coefficients) -> None:
        """Start an epoch."""
        self.scope, self.epoch_coefficients = scope, coefficients

    def select_step(self, step: Tensor) -> None:
        """Use the coefficients of this step of the epoch."""
        self.coefficients = self.epoch_coefficients[int(step)]

    def mode_now(self, samples: Tensor) -> Training:
        """The forward mode for these images in the current step."""
        return self.mode(self.scope, samples)

    def folded_trunk(self) -> FoldedTrunk:
        """The layers below the entry, folded."""
        return fold_trunk(self.spec, self.parameters, self.neurons, self.entry)

    def trunk_mode(self, scope: RngScope, samples: Tensor, neurons: dict[int, Tensor]) -> Training:
        """The forward mode of the trunk, with these neurons kept."""
        return InplaceForward(**{**vars(self.mode(scope, samples)), "neurons": neurons})

    def leaves(self) -> Parameters:
        """The parameters as leaves of a new graph that share the workspace's memory; those that can move require gradients."""
        parameters = self.parameters
        return Parameters(
            [w.detach().requires_grad_(l in self.moving) for l, w in enumerate(parameters.weights, 1)],
            [b.detach().requires_grad_(l in self.biases) for l, b in enumerate(parameters.biases, 1)],
            {layer: norm.leaf(layer in self.norms) for layer, norm in parameters.norms.items()},
        )

    def masked(self, parameters: Parameters) -> Parameters:
        """The parameters with other tasks' output rows masked; unchanged if only the task's own rows were gathered."""
        return parameters if self.rows is not None else mask_outputs(parameters, self.plan.masked_outputs)

    def as_read(self, leaves: Parameters) -> Parameters:
        """The parameters as the products read them."""
        return leaves

    @torch.no_grad()
    def update(self, leaves: Parameters) -> None:
        """Update everything that may move, and add the step's importance."""
        plan = self.plan
        moves = [(f"weight/{l}", leaves.weights[l - 1], mask) for l, mask in self.moving.items()] + self.small_moves(leaves)
        gradients = [None if tensor.grad is None else tensor.grad.mul_(mask) for _, tensor, mask in moves]
        scale = None if plan.clip is None else clip_scale([gradient.norm() for gradient in gradients if gradient is not None], plan.clip)
        for (name, tensor, mask), gradient in zip(moves, gradients, strict=True):
            if gradient is None:
                continue
            if scale is not None:
                gradient *= scale
            self.optimise(name, tensor, gradient, mask)
        self.after_update()

    def optimise(self, name: str, tensor: Tensor, gradient: Tensor, mask: Tensor) -> None:
        """Update one parameter with its masked and clipped gradient, and add its importance."""
        l, optimiser = weight_number(name), self.plan.optimiser
        buffers = buffers_of(self.buffers, optimiser, name)
        decayed = None if l is None else mask
        gained = optimiser.update(tensor, gradient, decayed, buffers, self.coefficients, self.plan.importance and l is not None)
        if gained is not None and l is not None:
            self.importance.add(l, self.spec.edge(l), gained)

    def after_update(self) -> None:
        """Apply the plan's changes to the parameters after a step."""
        plan, lr = self.plan, self.coefficients[0]
        if plan.penalty is not None and plan.penalty.proximal:
            plan.penalty.apply(self.parameters, lr)
        if plan.after_step is not None:
            plan.after_step(self.parameters, lr)

    def take_step(self, h: Tensor, labels: Tensor, mode: Training) -> tuple[Tensor, Tensor] | None:
        """Learn from one batch; return the loss and the logits, or None if they are stored elsewhere."""
        return take_step(self, h, labels, mode)

    def use_fused_loss(self, step: Tensor, losses: Tensor, right: Tensor) -> None:
        """Store losses and right answers by step, if that is faster than returning them."""

    def flush_importance(self, steps: int) -> None:
        """Called at the end of an epoch of this many steps."""

    def refresh(self) -> None:
        """Called after weights, importances or masks have changed outside a step."""

    def changing(self) -> list[Tensor]:
        """Everything that a step may change."""
        norms = [tensor for norm in self.parameters.norms.values() for tensor in norm.tensors().values()]
        importance = [*self.importance.connections, *self.importance.neurons.values()]
        return [*self.parameters.weights, *self.parameters.biases, *norms, *importance, *self.buffers.values()]

    def small_moves(self, leaves: Parameters) -> list[tuple[str, Tensor, Tensor]]:
        """Biases, gains and shifts that can move: name, tensor, mask."""
        moves = [(f"bias/{l}", leaves.biases[l - 1], mask) for l, mask in self.biases.items()]
        for layer, mask in self.norms.items():
            moves += [(f"gain/{layer}", leaves.norms[layer].gain, mask), (f"shift/{layer}", leaves.norms[layer].shift, mask)]
        return moves


def take_step(work: Workspace, h: Tensor, labels: Tensor, mode: Training) -> tuple[Tensor, Tensor]:
    """Learn from one batch: `h` is its images, or the trunk's features of them. Returns the loss and the logits."""
    leaves = work.leaves()
    logits, features = answer(work.spec, work.masked(work.as_read(leaves)), h, work.features, mode, work.entry)
    logits = logits.to(work.parameters.weights[-1].dtype)
    if work.rows is not None and work.output_biases is not None:
        logits = work.output_biases.repeat(len(h), 1).index_copy(1, work.rows, logits)
    loss = work.plan.loss(Step(h, labels, logits, leaves, features))
    if work.plan.loss_penalty is not None:
        loss = loss + work.plan.loss_penalty(leaves)
    loss.backward()
    work.update(leaves)
    return loss.detach(), logits.detach()


def answer(
    spec: NetworkSpec, parameters: Parameters, h: Tensor, neurons: Tensor | None, mode: Mode = EVALUATION, start: int = 1
) -> tuple[Tensor, Tensor | None]:
    """The logits, and the values of these neurons of the last hidden layer, if given."""
    if neurons is None:
        return forward(spec, parameters, h, mode=mode, start=start), None
    last = forward(spec, parameters, h, mode=mode, start=start, stop=spec.L - 1)
    by_neuron = last.flatten(1).unflatten(1, (parameters.weights[-1].shape[1], -1))
    return forward(spec, parameters, last, mode=mode, start=spec.L - 1), by_neuron[:, neurons].flatten(1)


def feature_neurons(learner: Learner, plan: LearningPlan) -> Tensor | None:
    """The neurons that a loss reads as features: the task's in the last hidden layer, or all if it has no sub-network."""
    spec, record = learner.network.spec, learner.ledger.record_of(plan.task)
    if not plan.features:
        return None
    selected = torch.arange(spec.layer(spec.L - 1).size) if record is None else record.selected(spec, spec.last_hidden)
    return selected.to(learner.network.device)


def start_optimiser(learner: Learner, plan: LearningPlan, first_epoch: int) -> None:
    """Give a learner the buffers of the plan's optimiser, at 0; a run resumed within a phase keeps its own."""
    parameters = trainable(learner.network.parameters, range(plan.first_trainable, learner.network.spec.E + 1))
    fresh = zero_buffers(plan.optimiser, parameters)
    if not first_epoch or fresh.keys() != learner.optimiser_state.keys():
        learner.optimiser_state = fresh


def mask_outputs(parameters: Parameters, masked: Tensor | None) -> Parameters:
    """The parameters with the weights of some output rows at 0."""
    if masked is None:
        return parameters
    weight = parameters.weights[-1] * (~masked).to(parameters.weights[-1].dtype)[:, None, None]
    return Parameters([*parameters.weights[:-1], weight], parameters.biases, parameters.norms)


def clip_scale(norms: list[Tensor], largest: float) -> Tensor:
    """The factor that limits the norm of the whole gradient to `largest`; `norms` are the norms of its parts."""
    return torch.clamp(largest / (torch.stack(norms).norm() + 1e-6), max=1.0)
