"""The workspace of steps on CUDA for any network: everything that a captured step reads is in fixed device memory.

Each W_l has *compute weights*: a copy in the precision that products read fastest. Products read the compute weights, and
gradients are taken with respect to them.

Weights are shaped (outputs, inputs, block) as everywhere. In memory those of a convolution are stored as (outputs, block, inputs), the
order in which it reads maps; those of a dense layer in the order of their shape, so that a connection's weights are adjacent and only
the task's connections need be accessed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from afaf.network.forward import Parameters, Training
from afaf.subnets.rewire import Importance
from afaf.training.cuda.fused import FusedNorms
from afaf.training.named import weight_number
from afaf.training.optimisers import SGD, Coefficients, buffers_of
from afaf.training.step import Workspace
from afaf.training.task_data import RngScope

Moves = list[tuple[str, Tensor, Tensor]]  # name, tensor, mask


@dataclass
class DeviceWorkspace(Workspace):
    """A workspace whose steps can be captured: dropout keys and the optimiser's coefficients are read from device memory.

    It computes with PyTorch's own operations and the kernels for norms, whatever the network; with `autocast`, products are in bfloat16.
    All tensors are laid out in memory as products read them.
    """

    keys: Tensor = field(default_factory=lambda: torch.empty(0))  # of dropout in each layer, at the present epoch
    table: Tensor = field(default_factory=lambda: torch.empty(0))  # (steps, numbers): the optimiser's coefficients of an epoch,
    current: Tensor = field(default_factory=lambda: torch.empty(0))  # (numbers,): and of the present step, where graphs read them
    autocast: bool = False
    dense_masks: dict[str, Tensor] = field(default_factory=dict)
    compute_weights: list[Tensor] = field(default_factory=list)
    read: list[Tensor] = field(default_factory=list)  # the leaves of the current step: compute weights that require gradients

    @classmethod
    def on_device(cls, work: Workspace, autocast: bool) -> DeviceWorkspace:
        here = cls(**vars(work), autocast=autocast)
        here.lay_out()
        if autocast:
            here.compute_weights = [w.to(torch.bfloat16, copy=True) for w in here.parameters.weights]
        here.place_on_device()
        return here

    def lay_out(self) -> None:
        """Store everything shaped like weights in the weights' memory order."""
        weights = [self.laid_out(l, w) for l, w in enumerate(self.parameters.weights, 1)]
        self.parameters = Parameters(weights, self.parameters.biases, self.parameters.norms)
        self.importance = Importance([self.laid_out(l, c) for l, c in enumerate(self.importance.connections, 1)], self.importance.neurons)
        self.moving = {l: self.laid_out(l, mask) for l, mask in self.moving.items()}
        self.buffers = {name: self._laid_out_buffer(name, buffer) for name, buffer in self.buffers.items()}
        if self.plan.penalty is not None:
            self.plan = replace(self.plan, penalty=self.plan.penalty.laid_out(self.laid_out))

    def laid_out(self, l: int, tensor: Tensor) -> Tensor:
        """A tensor shaped like W_l, (outputs, inputs, block), in the memory order of W_l."""
        if self.spec.edge(l).product.maps:
            return tensor.permute(0, 2, 1).contiguous().permute(0, 2, 1)
        return tensor.contiguous()

    def _laid_out_buffer(self, name: str, buffer: Tensor) -> Tensor:
        _, kind, number = name.split("/")
        return self.laid_out(int(number), buffer) if kind == "weight" else buffer

    def place_on_device(self, dtype: torch.dtype = torch.float64) -> None:
        """Allocate the device tensors of keys and coefficients."""
        plan = self.plan
        self.keys = self._keys_of(self.scope)
        self.current = torch.zeros(len(plan.optimiser.coefficients(plan.lr, 1)), device=self.keys.device, dtype=dtype)
        self.coefficients = list(self.current)

    def begin(self, scope: RngScope, coefficients: Coefficients) -> None:
        """Copy the epoch's keys and coefficients to where captured steps read them."""
        super().begin(scope, coefficients)
        self.keys.copy_(self._keys_of(scope))
        table = torch.tensor(coefficients, dtype=self.current.dtype).to(self.current.device)
        self.table = self.table.copy_(table) if len(self.table) else table
        self.current.copy_(self.table[0])

    def select_step(self, step: Tensor) -> None:
        if self.plan.schedule.per_step or len(self.current) > 1:
            self.current.copy_(self.table.index_select(0, step)[0])

    def mode_now(self, samples: Tensor) -> Training:
        return FusedNorms(**{**vars(super().mode_now(samples)), "keys": dict(enumerate(self.keys))})

    def take_step(self, h: Tensor, labels: Tensor, mode: Training) -> tuple[Tensor, Tensor] | None:
        with torch.autocast(h.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            return super().take_step(h, labels, mode)

    def as_read(self, leaves: Parameters) -> Parameters:
        """All weights are converted together: autocast would convert each, and its order in memory, by itself."""
        if not self.autocast:
            return leaves
        torch._foreach_copy_([self.compute_weights[l - 1] for l in self.moving], [leaves.weights[l - 1].detach() for l in self.moving])
        return Parameters(self._compute_leaves(), leaves.biases, leaves.norms)

    def _compute_leaves(self) -> list[Tensor]:
        self.read = [compute_weight.detach().requires_grad_(l in self.moving) for l, compute_weight in enumerate(self.compute_weights, 1)]
        return list(self.read)

    def _read_gradients(self, leaves: Parameters) -> None:
        """Add the gradients of the compute weights to those of loss terms on the weights themselves."""
        if not self.autocast:
            return
        found = {l: gradient for l in self.moving if (gradient := self.read[l - 1].grad) is not None}
        gradients = [torch.empty_like(leaves.weights[l - 1]) for l in found]
        if found:
            torch._foreach_copy_(gradients, list(found.values()))
        for l, gradient in zip(found, gradients, strict=True):
            more = leaves.weights[l - 1].grad
            leaves.weights[l - 1].grad = gradient if more is None else gradient + more

    @torch.no_grad()
    def update(self, leaves: Parameters) -> None:
        """Update all parameters together if importances are not needed: a step has hundreds of small tensors."""
        self._read_gradients(leaves)
        optimiser, plan = self.plan.optimiser, self.plan
        if not isinstance(optimiser, SGD) or plan.importance or plan.clip is not None:
            return super().update(leaves)
        weights = [(f"weight/{l}", leaves.weights[l - 1], mask) for l, mask in self.moving.items()]
        self._update_together(optimiser, weights, self.small_moves(leaves))
        self.after_update()

    def _update_together(self, optimiser: SGD, weights: Moves, small: Moves) -> None:
        moves = [(name, tensor, mask) for name, tensor, mask in [*weights, *small] if tensor.grad is not None]
        if not moves:
            return
        gradients = [tensor.grad for _, tensor, _ in moves if tensor.grad is not None]
        masks = [self._dense_mask(name, tensor, mask) for name, tensor, mask in moves]
        torch._foreach_mul_(gradients, masks)
        decayed = [mask if weight_number(name) is not None else None for (name, _, _), mask in zip(moves, masks, strict=True)]
        buffers = [buffers_of(self.buffers, optimiser, name) for name, _, _ in moves]
        optimiser.update_together([tensor.detach() for _, tensor, _ in moves], gradients, decayed, buffers, self.coefficients[0])

    def _dense_mask(self, name: str, tensor: Tensor, mask: Tensor) -> Tensor:
        """A mask laid out like its tensor, as kernels for many tensors require."""
        if mask.shape == tensor.shape:
            return mask
        if name not in self.dense_masks:
            self.dense_masks[name] = torch.empty_like(tensor).copy_(mask.expand_as(tensor))
        return self.dense_masks[name]

    def refresh(self) -> None:
        for name, mask in self.dense_masks.items():
            l = weight_number(name)
            if l is not None:
                mask.copy_(self.moving[l].expand_as(mask))

    def _keys_of(self, scope: RngScope) -> Tensor:
        """The dropout key of each layer in this epoch, on the device."""
        keys = [scope.key("dropout", layer) for layer in range(self.spec.L)]
        return torch.tensor(keys, dtype=torch.int32).to(self.parameters.biases[0].device, non_blocking=True)
