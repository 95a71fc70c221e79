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
    """Changes in what learned tasks own and have fixed, in words; there must be none. Dense methods, as the ledger states, are exempt."""
    return list(_changes(before, after)) if after.ledger.keeps_past else []


def _changes(before: Learner, after: Learner) -> Iterator[str]:
    learned = before.tasks_learned
    for l in before.network.spec.edge_numbers:
        owner = before.ledger.owner(l)
        rows, settled = len(owner), (owner > 0) & (owner <= learned)
        yield from _if_any(
            settled & (owner != after.ledger.owner(l)[:rows]),
            f"W_{l}: {{:,}} places of tasks up to {learned} have another owner later",
        )
        yield from _if_any(
            settled & ~_same_bits(before.network.weight(l), after.network.weight(l)[:rows]),
            f"W_{l}: {{:,}} weights of tasks up to {learned} are not the same later",
        )
    for l, fixed in before.ledger.fixed_by.items():
        released = (fixed > 0) & (fixed != after.ledger.fixed_by[l][: len(fixed)])
        yield from _if_any(released, f"layer {l}: {{}} neurons fixed by tasks up to {learned} are not fixed by them later")


def _if_any(wrong: Tensor, words: str) -> Iterator[str]:
    """The message with the number of wrong places filled in; nothing if there are none."""
    if count := int(wrong.sum()):
        yield words.format(count)


def _weights(learner: Learner) -> Iterator[str]:
    for l in learner.network.spec.edge_numbers:
        weight, owner = learner.network.weight(l), learner.ledger.owner(l)
        yield from _if_any((owner <= 0) & (weight != 0), f"W_{l}: {{:,}} weights that nobody owns are not 0")
        for name, numbers in (("weights", weight), ("biases", learner.network.bias(l))):
            yield from _if_any(~torch.isfinite(numbers), f"W_{l}: {{:,}} {name} are not finite")


def _owners(learner: Learner) -> Iterator[str]:
    begun = max(learner.classes_of, default=0)
    for l in learner.network.spec.edge_numbers:
        yield from _if_any(learner.ledger.owner(l) > begun, f"W_{l}: {{:,}} places belong to tasks that have not begun")
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
            yield from _if_any(owned & ~allowed, f"W_{l}: {{:,}} connections of task {record.task} lie outside what it was allocated")
        for l, free in record.free.items():
            fixed = ledger.fixed(l)[free.to(ledger.fixed(l).device)]
            earlier = (fixed > 0) & (fixed < record.task)
            yield from _if_any(earlier, f"layer {l}: task {record.task} drew {{}} neurons as free that earlier tasks had fixed")


def _fixed(learner: Learner) -> Iterator[str]:
    """No task after the one that fixed a neuron owns a connection into it, and its bias, gain and shift have not changed since."""
    network, ledger = learner.network, learner.ledger
    for l, edge in enumerate(network.spec.edges, 1):
        layer, fixed = edge.target, ledger.fixed(edge.target)
        late = (ledger.owner(l) > fixed[:, None, None]) & (fixed > 0)[:, None, None]
        yield from _if_any(late, f"layer {layer}: {{:,}} places into fixed neurons belong to tasks after the one that fixed them")
        for task in sorted(network.snapshots):
            then, now = network.snapshots[task], network.parameters
            rows = len(then.biases[l - 1])
            neurons = (fixed[:rows] > 0) & (fixed[:rows] <= task)
            pairs = [(then.biases[l - 1], now.biases[l - 1][:rows])]
            if layer in then.norms:
                pairs += [(then.norms[layer].gain, now.norms[layer].gain), (then.norms[layer].shift, now.norms[layer].shift)]
            moved = neurons & ~torch.stack([_same_bits(a, b) for a, b in pairs]).all(dim=0)
            yield from _if_any(moved, f"layer {layer}: {{}} neurons fixed by task {task} or before have moved since")


def _same_bits(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))
