"""EWC, MAS and LwF: fine-tuning with something that holds on to the past."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import afaf
from afaf.errors import ConfigError, DivergedError
from afaf.methods import regularised
from afaf.methods.base import TaskContext
from afaf.methods.dense import DenseOptions
from afaf.methods.ewc import EWC, EWCOptions
from afaf.methods.finetune import Finetune
from afaf.methods.lwf import LwF, LwFOptions
from afaf.methods.mas import MAS, MASOptions
from afaf.methods.penalty import kept_terms
from afaf.network.net import Network
from afaf.training.learner import Learner
from afaf.training.losses import distillation
from afaf.training.named import kept_tensors, protected_parameters, state_dict
from afaf.training.plan import Step
from afaf.training.quadratic import QuadraticPenalty, merged
from conftest import small_stream
from small_worlds import numbers, small_spec, world_of
from worlds import probe

ALL: list[tuple[Any, Any]] = [(EWC, EWCOptions()), (MAS, MASOptions()), (LwF, LwFOptions())]


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize(("method", "options"), ALL)
def test_without_strength_it_is_fine_tuning_bit_for_bit(method: Any, options: Any, norm: str) -> None:
    held = world_of(method, replace(options, strength=0.0), norm=norm).learn()
    plain = world_of(Finetune, DenseOptions(loss_over="task"), norm=norm).learn()
    assert all(torch.equal(a, b) for a, b in zip(numbers(held).values(), numbers(plain).values(), strict=True))
    with_it = world_of(method, replace(options, strength=1.0), norm=norm).learn()
    assert not torch.equal(numbers(with_it)["weight/1"], numbers(plain)["weight/1"])


@pytest.mark.parametrize(("method", "options"), ALL)
def test_old_output_rows_stand_still(method: Any, options: Any) -> None:
    rows: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watch(learner: Learner, context: TaskContext) -> None:
        rows.append((learner.network.weight(learner.network.spec.L - 1).clone(), learner.network.bias(learner.network.spec.L - 1).clone()))

    world_of(method, replace(options, strength=1.0)).learn(after_task=watch)
    for task in (1, 2):
        old = slice(0, 2 * task)
        assert torch.equal(rows[task - 1][0][old], rows[-1][0][old])
        assert torch.equal(rows[task - 1][1][old], rows[-1][1][old])


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize(("method", "options"), ALL[:2])
def test_a_stronger_proximal_pull_leaves_important_weights_ever_closer(method: Any, options: Any, norm: str) -> None:
    distances = []
    for strength in (0.0, 1e4, 1e6, 1e8):
        before: dict[str, Any] = {}

        def remember(learner: Learner, context: TaskContext, before: dict[str, Any] = before) -> None:
            before[str(context.task)] = (kept_tensors(learner.memory, "importance/0"), kept_tensors(learner.memory, "anchor/0"))

        learner = world_of(method, replace(options, strength=strength, penalty="proximal"), norm=norm, classes=(2, 2)).learn(
            before_task=remember
        )
        importance, anchor = before["2"]
        now = protected_parameters(learner.network.parameters)
        distances.append(float(sum((importance[name] * (now[name] - anchor[name]).square()).sum() for name in now)))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-5 * distances[0]
    assert len(set(distances)) == len(distances)


def test_a_proximal_step_solves_its_problem() -> None:
    """v minimises (v - w)^2 / (2 lr) + strength / 2 importance (v - anchor)^2: its derivative there is 0."""
    network = Network(small_spec("batch"), seed=1, dtype=torch.float64)
    importance = {name: torch.rand_like(tensor) for name, tensor in protected_parameters(network.parameters).items()}
    anchor = {name: torch.randn_like(tensor) for name, tensor in protected_parameters(network.parameters).items()}
    w = {name: tensor.clone() for name, tensor in protected_parameters(network.parameters).items()}
    output = network.weight(network.spec.L - 1).clone()
    QuadraticPenalty(30.0, importance, anchor, proximal=True).apply(network.parameters, 0.1)
    for name, v in protected_parameters(network.parameters).items():
        assert torch.allclose((v - w[name]) / 0.1 + 30.0 * importance[name] * (v - anchor[name]), torch.zeros_like(v), atol=1e-9)
    assert torch.equal(network.weight(network.spec.L - 1), output)


def test_a_diverging_penalty_stops_the_run_with_advice() -> None:
    settings = {"learn.epochs": 2, "learn.batch_size": 32, "method.strength": 1e9, "method.penalty": "explicit"}
    for method in ("ewc", "mas"):
        with pytest.raises(DivergedError, match=r"penalty makes task 2 diverge.*method\.penalty=proximal.*method\.strength below"):
            afaf.run(afaf.open_stream("split-digits")[:2], method, settings=settings, device="cpu")
        results = afaf.run(afaf.open_stream("split-digits")[:2], method, settings={**settings, "method.penalty": "proximal"}, device="cpu")
        assert results.acc is not None


@pytest.mark.parametrize(
    ("optimiser", "refused"),
    [({}, True), ({"weight_decay": 1e-4}, True), ({"momentum": 0.9}, False), ({"optimiser": "adamw"}, False)],
    ids=["plain", "decay", "momentum", "adamw"],
)
def test_only_without_momentum_is_a_step_refused_that_overshoots_further(optimiser: dict[str, Any], refused: bool) -> None:
    """At lr x strength x importance = 2.5 plain steps leave any bound, while steps with momentum stay stable up to 3.8."""
    world = world_of(EWC, EWCOptions(strength=50.0, penalty="explicit", blend="sum"), classes=(2, 2), **optimiser)
    distances: list[float] = []

    def alike(learner: Learner, context: TaskContext) -> Any:
        return {name: torch.ones_like(tensor) for name, tensor in protected_parameters(learner.network.parameters).items()}

    def watch(learner: Learner, context: TaskContext) -> None:
        anchor, now = kept_tensors(learner.memory, "anchor/0"), protected_parameters(learner.network.parameters)
        distances.extend(float((now[name] - old).abs().max()) for name, old in anchor.items())

    world.method.estimate = alike  # type: ignore[attr-defined]
    if refused:
        with pytest.raises(DivergedError, match="task 2 diverge"):
            world.learn()
    else:
        world.learn(after_epoch=watch)
        assert 0 < max(distances) < 1


@pytest.mark.parametrize("method", [EWC, MAS])
def test_importance_is_measured_on_batches_as_large_as_those_learned_from(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with rotations, which make a batch of images four times as large: gradients cancel within a batch."""
    learned, measured = [], []
    plan, importance = method.plan, regularised.batch_importance

    def planned(*arguments: Any) -> Any:
        made = plan(*arguments)
        learned.append(made.batch_size)
        return made

    def estimated(*arguments: Any, batch_size: int, **rest: Any) -> Any:
        measured.append(batch_size)
        return importance(*arguments, batch_size=batch_size, **rest)

    monkeypatch.setattr(method, "plan", planned)
    monkeypatch.setattr(regularised, "batch_importance", estimated)
    for rotations in (False, True):
        settings = {"learn.epochs": 1, "learn.batch_size": 4, "network.name": "mlp", "parts.rotations": rotations}
        afaf.run(small_stream([2], per_class=12), method, settings=settings, device="cpu")
    assert measured == learned
    assert len(set(measured)) == 2


def test_where_the_network_itself_got_out_of_hand_the_advice_is_a_lower_learning_rate() -> None:
    """Importances that only exploding weights have: no strength of the penalty would be small enough."""
    world = world_of(MAS, MASOptions(strength=1.0, penalty="explicit"))
    estimate = world.method.estimate  # type: ignore[attr-defined]

    def exploding(learner: Learner, context: TaskContext) -> Any:
        return {name: torch.full_like(importance, 1e4) for name, importance in estimate(learner, context).items()}

    world.method.estimate = exploding  # type: ignore[attr-defined]
    with pytest.raises(DivergedError, match=r"task 2 diverge.*an importance of 5e\+03.*lower learn\.lr"):
        world.learn()


def test_a_penalty_on_the_verge_of_diverging_carries_the_advice_in_its_plan() -> None:
    """What an engine says when the loss leaves the finite numbers comes from the plan."""
    world = world_of(EWC, EWCOptions(strength=1.0))
    plans = []
    plan = world.method.plan

    def watched(learner: Learner, context: TaskContext, phase: int) -> Any:
        plans.append(plan(learner, context, phase))
        return plans[-1]

    world.method.plan = watched  # type: ignore[method-assign]
    world.learn()
    assert "proximal" not in plans[0].if_diverging
    assert "method.penalty=proximal" in plans[1].if_diverging


@pytest.mark.parametrize("blend", ["half", "sum", "separate"])
def test_blends(blend: Any) -> None:
    """half: F/2 after one task, F/4 + F'/2 after two; sum adds; separate keeps both, each with its own anchor."""
    estimates, anchors = [], []
    world = world_of(EWC, EWCOptions(strength=1.0, blend=blend), classes=(2, 2))
    estimate = world.method.estimate  # type: ignore[attr-defined]

    def watched(learner: Learner, context: TaskContext) -> Any:
        estimates.append(estimate(learner, context))
        anchors.append({name: tensor.clone() for name, tensor in protected_parameters(learner.network.parameters).items()})
        return estimates[-1]

    world.method.estimate = watched  # type: ignore[attr-defined]
    terms = kept_terms(world.learn().memory)
    first, second = estimates
    for name in first:
        if blend == "separate":
            assert torch.equal(terms[0][0][name], first[name])
            assert torch.equal(terms[1][0][name], second[name])
            assert torch.equal(terms[0][1][name], anchors[0][name])
        else:
            expected = (first[name] / 2 + second[name]) / 2 if blend == "half" else first[name] + second[name]
            assert torch.allclose(terms[0][0][name], expected)
        assert torch.equal(terms[-1][1][name], anchors[1][name])


def test_separate_terms_pull_as_their_sum() -> None:
    network = Network(small_spec(), seed=1, dtype=torch.float64)
    shapes = protected_parameters(network.parameters)
    terms = [({n: torch.rand_like(t) for n, t in shapes.items()}, {n: torch.randn_like(t) for n, t in shapes.items()}) for _ in range(3)]
    for importance, _ in terms:
        importance["bias/1"][:] = 0  # nothing holds these: no 0 / 0
    parameters = copy.deepcopy(network.parameters)
    for tensor in protected_parameters(parameters).values():
        tensor.requires_grad_()
    step = Step(torch.empty(0), torch.empty(0), torch.empty(0), parameters)
    wanted = list(protected_parameters(parameters).values())
    together = torch.autograd.grad(QuadraticPenalty(7.0, *merged(terms))(step.parameters), wanted)
    apart = torch.autograd.grad(sum(QuadraticPenalty(7.0, *term)(step.parameters) for term in terms), wanted)
    assert all(torch.allclose(a, b) for a, b in zip(together, apart, strict=True))


def test_the_explicit_penalty_by_hand() -> None:
    network = Network(small_spec("batch"), seed=2, dtype=torch.float64)
    importance = {name: torch.rand_like(tensor) for name, tensor in protected_parameters(network.parameters).items()}
    anchor = {name: torch.randn_like(tensor) for name, tensor in protected_parameters(network.parameters).items()}
    by_hand = 0.0
    for name, tensor in protected_parameters(network.parameters).items():
        for w, i, a in zip(tensor.flatten().tolist(), importance[name].flatten().tolist(), anchor[name].flatten().tolist(), strict=True):
            by_hand += 5.0 / 2 * i * (w - a) ** 2
    step = Step(torch.empty(0), torch.empty(0), torch.empty(0), network.parameters)
    assert float(QuadraticPenalty(5.0, importance, anchor)(step.parameters)) == pytest.approx(by_hand)
    assert set(importance) == {f"{kind}/{l}" for l in (1, 2, 3) for kind in ("weight", "bias")} | {
        f"{kind}/{l}" for l in (2, 3) for kind in ("gain", "shift")
    }


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_the_teacher_never_changes(norm: str) -> None:
    """While a task is learned the teacher is, to the last bit, the model as it was before the task."""
    before: dict[str, torch.Tensor] = {}
    answers: dict[str, torch.Tensor] = {}
    world = world_of(LwF, LwFOptions(strength=1.0), norm=norm)
    x = probe(world.spec)

    def remember(learner: Learner, context: TaskContext) -> None:
        before.clear()
        before.update({name: tensor.clone() for name, tensor in state_dict(learner.network.parameters).items()})
        answers["before"] = learner.network(x)

    def watch(learner: Learner, context: TaskContext) -> None:
        teacher = kept_tensors(learner.memory, "teacher")
        if context.task == 1:
            assert teacher == {}
            return
        assert teacher.keys() == before.keys()
        assert all(torch.equal(teacher[name], tensor) for name, tensor in before.items())
        assert not torch.equal(learner.network(x), answers["before"])

    world.learn(before_task=remember, after_epoch=watch)


def test_distillation_by_hand() -> None:
    spec = small_spec(dropout=0.0)
    teacher, student = Network(spec, seed=1, dtype=torch.float64), Network(spec, seed=2, dtype=torch.float64)
    for network in (teacher, student):
        for l in range(1, spec.L):
            network.initialise(l, torch.ones(1, 1, 1, dtype=torch.bool))
    x = probe(spec, torch.float64)
    logits = student(x)
    step = Step(x, torch.zeros(len(x), dtype=torch.int64), logits, student.parameters)
    found = distillation(3.0, spec, teacher.parameters, (0, 2), 2.0)(step)
    p, q = (F.softmax(z[:, [0, 2]] / 2.0, 1) for z in (teacher(x), logits))
    assert float(found) == pytest.approx(float(-3.0 * (p * q.log()).sum(1).mean()))
    same = Step(x, step.labels, teacher(x), teacher.parameters)
    entropy = float(-(p * p.log()).sum(1).mean())
    assert float(distillation(1.0, spec, teacher.parameters, (0, 2), 2.0)(same)) == pytest.approx(entropy)  # the least there is


def test_strengths_by_name() -> None:
    from afaf.runs.config import parse_set
    from afaf.runs.setup import set_up
    from afaf.streams.benchmarks import outline_of

    def strength(*assignments: str, method: str = "ewc", stream: str = "split-cifar10") -> float:
        return set_up(outline_of(stream), method, parse_set(assignments)).method.strength  # type: ignore[attr-defined,no-any-return]

    assert (strength(), strength(method="mas"), strength(method="lwf")) == (5000.0, 1.0, 1.0)
    assert strength("method.strength=12.5") == 12.5
    assert strength("method.strength=tuned", "method.strengths.tuned=3") == 3.0
    assert strength("method.strength=tuned", "method.estimator=per-sample", "method.strengths.tuned-per-sample=4") == 4.0
    with pytest.raises(ConfigError, match=r"paper's strength belongs to method\.estimator=batch"):
        strength("method.estimator=per-sample")
    with pytest.raises(ConfigError, match=r"method\.strength"):
        strength("method.strength=-1")
    with pytest.raises(ConfigError, match="did you mean 'tuned'"):
        strength("method.strength=tunned")
    with pytest.raises(ConfigError, match=r"no strength 'tuned' is known for ewc on this stream.*afaf tune"):
        EWC(EWCOptions(strength="tuned"), world_of(EWC, EWCOptions()).method.settings).check(small_spec(), outline_of("split-digits"))
