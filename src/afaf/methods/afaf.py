"""AFAF (Sokar et al., ECML PKDD 2022): SpaceNet that, after learning something similar, *reuses* it.

From task `first_reuse` on, layers below l_reuse are constant, and new connections are drawn per class between neurons that already respond
to the class (its candidates) and free ones (Algorithm 1). That is the only difference from SpaceNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from afaf.bounds import Percent, Within
from afaf.errors import ConfigError
from afaf.methods.base import TaskContext
from afaf.methods.spacenet import SpaceNet, SpaceNetOptions
from afaf.network.ledger import Neurons
from afaf.network.spec import NetworkSpec
from afaf.streams.tasks import Outline
from afaf.subnets.allocate import Request, Subnetwork, allocate_free, allocate_reusing
from afaf.subnets.candidates import Rule, choose_candidates, neuron_scores
from afaf.subnets.sizes import rest, share
from afaf.training.learner import Learner


@dataclass(frozen=True)
class AFAFOptions(SpaceNetOptions):
    first_reuse: Annotated[int, Within(2)] = 3  # the first task that reuses
    l_reuse: int = 4  # connections are added from W_l_reuse on: 2..L-2, L-1 as an ablation; 1 under strict isolation
    candidates: Rule = "most"  # by mean activation; separating: tell an output's images from the others'; random, lowest: ablations
    candidate_share: Percent = 30.0  # percent of alloc_l that are candidates; the rest are free neurons
    candidates_in_last_hidden: bool = False  # ablation: candidates among the sources of the output weights


class AFAF(SpaceNet[AFAFOptions]):
    name = "afaf"
    summary = "SpaceNet that reuses: per class, draws on neurons that already respond to it (the paper's method)"
    Options = AFAFOptions

    def check(self, spec: NetworkSpec, outline: Outline) -> None:
        options = self.options
        if not (1 if self.strict else 2) <= options.l_reuse <= spec.E:
            raise ConfigError(
                f"method.l_reuse = {options.l_reuse} is outside 2..{spec.E}: network '{spec.name}' has weights W_1..W_{spec.E} "
                f"(2..{spec.E - 1} as the paper allows, {spec.E} as its ablation; 1 with method.strict)"
            )
        super().check(spec, outline)

    def late_options(self) -> tuple[int, frozenset[str]]:
        """Options of reuse have no influence before the first task that reuses."""
        return self.options.first_reuse, frozenset({"l_reuse", "candidates", "candidate_share", "candidates_in_last_hidden"})

    def reuses(self, task: int) -> bool:
        return task >= self.options.first_reuse

    def first_new(self, spec: NetworkSpec, task: int) -> int:
        return self.options.l_reuse if self.reuses(task) else 1

    def free_drawn(self, spec: NetworkSpec, task: int, group: int, alloc: int) -> int:
        has_candidates = self.reuses(task) and (group != spec.last_hidden or self.options.candidates_in_last_hidden)
        return rest(self.options.candidate_share, alloc) if has_candidates else alloc

    def allocate(self, learner: Learner, context: TaskContext, request: Request) -> Subnetwork:
        if not self.reuses(context.task):
            return allocate_free(request)
        images = {c: context.data.batches(class_id=c) for c in context.classes}
        scores = neuron_scores(learner.network, images, self.options.candidates)
        return allocate_reusing(
            request,
            {c: self._candidates(scores[c], request, c) for c in context.classes},
            l_reuse=self.options.l_reuse,
            candidate_share=self.options.candidate_share,
            candidates_in_last_hidden=self.options.candidates_in_last_hidden,
        )

    def _candidates(self, score: dict[int, Tensor], request: Request, class_id: int) -> Neurons:
        """R_l^c of the groups from l_reuse on, taken at their last layers; the ablations reach into the last hidden layer too."""
        spec, options = request.spec, self.options
        last_hidden = spec.last_hidden

        def choose(s: int, count: int) -> Tensor:
            draw = request.draw("candidates", s, class_id)
            # Strict isolation fixes every neuron that a task uses: a free candidate would be one more than the task's share.
            among = torch.nonzero(request.ledger.is_fixed(s)).flatten() if self.strict else None
            return choose_candidates(score[spec.groups[s][-1]], count, options.candidates, draw, among).cpu()

        if options.l_reuse == spec.E:  # free neurons there would have no input: all sources are candidates
            return {last_hidden: choose(last_hidden, request.sizes.alloc[last_hidden])}
        groups = [s for s in spec.groups_from(options.l_reuse) if s != last_hidden or options.candidates_in_last_hidden]
        return {s: choose(s, share(options.candidate_share, request.sizes.alloc[s])) for s in groups}


class AFAFPlus(AFAF):
    """AFAF with the parts that help beyond the paper. The method is the same: its preset enables them (runs/presets/plus.py)."""

    name = "afaf-plus"
    summary = "AFAF with strict isolation, a better recipe, rotation self-labels and a router (beyond the paper)"
