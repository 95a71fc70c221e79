"""The invariants of a learner's ledger, and between a learner and its later state."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from afaf.training.learner import Learner


def broken_invariants(learner: Learner) -> list[str]:
    """The broken invariants of a learner, in words; an empty list if all hold."""
    return [*_weights(learner), *_owners(learner), *_records(learner), *_fixed(learner)]


def changed_since(before: Learner, after: Learner) -> list[str]:
    """Differences in what learned tasks own and fixed, in words: there must be none. Dense methods, as the ledger states, are exempt."""
    if not after.ledger.keeps_past:
        return []
    wrong, learned = [], before.tasks_learned
    for l in before.network.spec.edge_numbers:
        rows = len(before.ledger.owner(l))
        owner, later = before.ledger.owner(l), after.ledger.owner(l)[:rows]
        settled = (owner > 0) & (owner <= learned)
        moved = settled & (owner != later)
        if bool(moved.any()):
            wrong.append(f"W_{l}: {int(moved.sum()):,} places of tasks up to {learned} have another owner later")
        differ = settled & ~_same_bits(before.network.weight(l), after.network.weight(l)[:rows])
        if bool(differ.any()):
            wrong.append(f"W_{l}: {int(differ.sum()):,} weights of tasks up to {learned} are not the same later")
    for l, fixed in before.ledger.fixed_by.items():
        later = after.ledger.fixed_by[l]
        released = (fixed > 0) & (fixed != later[: len(fixed)])
        if bool(released.any()):
            wrong.append(f"layer {l}: {int(released.sum())} neurons fixed by tasks up to {learned} are not fixed by them later")
    return wrong


def _weights(learner: Learner) -> Iterator[str]:
    for l in learner.network.spec.edge_numbers:
        weight, owner = learner.network.weight(l), learner.ledger.owner(l)
        stray = int(((owner <= 0) & (weight != 0)).sum())
        if stray:
            yield f"W_{l}: {stray:,} weights that nobody owns are not 0"
        for name, numbers in (("weights", weight), ("biases", learner.network.bias(l))):
            if not bool(torch.isfinite(numbers).all()):
                yield f"W_{l}: {int((~torch.isfinite(numbers)).sum()):,} {name} are not finite"


def _owners(learner: Learner) -> Iterator[str]:
    begun = max(learner.classes_of, default=0)
    for l in learner.network.spec.edge_numbers:
        strangers = learner.ledger.owner(l) > begun
        if bool(strangers.any()):
            yield f"W_{l}: {int(strangers.sum()):,} places belong to tasks that have not begun"
    seen = learner.seen_rows
    if len(seen) != len(set(seen)):
        yield "a class belongs to two tasks"


def _records(learner: Learner) -> Iterator[str]:
    """A task's connections lie between its allocated neurons, and no earlier task had fixed the neurons that it drew as free."""
    ledger = learner.ledger
    tasks = [record.task for record in ledger.records]
    if len(tasks) != len(set(tasks)):
        yield "a task has two records of its allocation"
    for record in ledger.records:
        if not {c.class_id for c in record.classes} <= set(learner.classes_of.get(record.task, ())):
            yield f"the record of task {record.task} names classes of other tasks"
        for l, edge in enumerate(learner.network.spec.edges, 1):
            owned = ledger.owned_by(l, record.task).any(dim=2)
            allowed = torch.zeros_like(owned)
            if l >= record.l_reuse:
                targets, sources = record.targets(l).to(owned.device), record.sources(l).to(owned.device)
                allowed[targets[:, None], edge.columns(sources)[None, :]] = True
            outside = owned & ~allowed
            if bool(outside.any()):
                yield f"W_{l}: {int(outside.sum()):,} connections of task {record.task} lie outside what it was allocated"
        for l, free in record.free.items():
            fixed = ledger.fixed(l)[free.to(ledger.fixed(l).device)]
            taken = (fixed > 0) & (fixed < record.task)
            if bool(taken.any()):
                yield f"layer {l}: task {record.task} drew {int(taken.sum())} neurons as free that earlier tasks had fixed"


def _fixed(learner: Learner) -> Iterator[str]:
    """No task after the one that fixed a neuron owns a connection into it, and its bias, gain and shift have not changed since."""
    network, ledger = learner.network, learner.ledger
    for l, edge in enumerate(network.spec.edges, 1):
        layer, fixed = edge.target, ledger.fixed(edge.target)
        late = (ledger.owner(l) > fixed[:, None, None]) & (fixed > 0)[:, None, None]
        if bool(late.any()):
            yield f"layer {layer}: {int(late.sum()):,} places into fixed neurons belong to tasks after the one that fixed them"
        for task in sorted(network.snapshots):
            then, now = network.snapshots[task], network.parameters
            rows = len(then.biases[l - 1])
            neurons = (fixed[:rows] > 0) & (fixed[:rows] <= task)
            pairs = [(then.biases[l - 1], now.biases[l - 1][:rows])]
            if layer in then.norms:
                pairs += [(then.norms[layer].gain, now.norms[layer].gain), (then.norms[layer].shift, now.norms[layer].shift)]
            moved = neurons & ~torch.stack([_same_bits(a, b) for a, b in pairs]).all(dim=0)
            if bool(moved.any()):
                yield f"layer {layer}: {int(moved.sum())} neurons fixed by task {task} or before have moved since"


def _same_bits(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))
