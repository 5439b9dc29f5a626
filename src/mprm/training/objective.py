"""What a model is trained towards: the targets that Monte-Carlo counts are turned into, and the losses.

To add a label scheme: a function of `StepCounts` in `LABELS`, and its name in `LabelScheme` of the config. To add a
loss: a function of logits and `StepBatch`, its name in `LossName`, a line in `Objective.loss_sum`, and in
`Objective.n_items` what the sum is divided by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mprm.config import EngineOptions
from mprm.data.corpus import Corpus
from mprm.data.engine import make_engine
from mprm.data.output import DroppedRecords
from mprm.data.types import Rollout
from mprm.errors import DataError
from mprm.models.head import concentrations
from mprm.progress import Progress
from mprm.selection.scan import problem_number
from mprm.selection.stats import FloatArray, IntArray, LabelCounts, flat_counts
from mprm.selection.strategies import Rollouts
from mprm.theory import beta_binomial
from mprm.training.config import TrainConfig

IGNORED = -100.0
"""The target of a step that has no part in the loss."""
UNKNOWN = 0
"""Continuations of a step where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """A rollout's scores s_j, each of ``n_mc`` continuations, and what labels may need besides."""

    scores: Sequence[float]
    n_mc: Sequence[int]
    tau: float = 0.0
    accuracy: float = 1.0
    """Of the policy on the rollout's problem, see `Rollouts.accuracy`."""
    prior: tuple[float, float] = (1.0, 1.0)
    reliable: float = 0.5


def hard_labels(step: StepCounts) -> list[float]:
    """1 where a score is strictly above tau, else 0."""
    # strict: a step that never succeeded stays negative at tau = 0
    return [float(score > step.tau) for score in step.scores]


def soft_labels(step: StepCounts) -> list[float]:
    """The scores themselves."""
    return [float(score) for score in step.scores]


def monotone_labels(step: StepCounts) -> list[float]:
    """1 where the score of a step or of a later one is above tau, else 0.

    What continues a later step continues this one too: if it can still succeed there, it can here.

    >>> monotone_labels(StepCounts(scores=[0.5, 0.0, 0.25, 0.0], n_mc=[8] * 4))
    [1.0, 1.0, 1.0, 0.0]
    """
    hard = np.array(hard_labels(step))
    repaired: list[float] = np.maximum.accumulate(hard[::-1])[::-1].tolist()
    return repaired


def monotone_soft_labels(step: StepCounts) -> list[float]:
    """The falling sequence that is nearest to the scores: isotonic regression, weighted by continuations.

    Neighbours that rise are pooled: ``argmin Σ_j N_j (t_j − s_j)²`` with ``t_1 ≥ t_2 ≥ …``.

    >>> monotone_soft_labels(StepCounts(scores=[0.5, 0.0, 0.25, 0.0], n_mc=[8] * 4))
    [0.5, 0.125, 0.125, 0.0]
    """
    blocks: list[list[float]] = []  # weight, mean, number of steps
    for score, n in zip(step.scores, step.n_mc, strict=True):
        blocks.append([float(n or 1), float(score), 1])
        while len(blocks) > 1 and blocks[-2][1] < blocks[-1][1]:
            weight, mean, count = blocks.pop()
            both = blocks[-1][0] + weight
            blocks[-1] = [both, (blocks[-1][0] * blocks[-1][1] + weight * mean) / both, blocks[-1][2] + count]
    return [mean for _, mean, count in blocks for _ in range(int(count))]


def posterior_labels(step: StepCounts) -> list[float]:
    """Probability that a step is reliable given its counts: ``Pr(r ≥ reliable | k of N) = 1 − η_eff(k)``.

    Instead of k > 0, which calls every step positive that succeeded once. The prior is ``Beta(a, b)``.
    """
    n = np.array(step.n_mc)
    k = np.rint(np.array(step.scores) * n).astype(np.int64)
    a, b = step.prior
    labels: list[float] = (1 - beta_binomial.eta_eff(k, n, tau=step.reliable, a=a, b=b)).tolist()
    return labels


N_SOFT = 2
"""Steps before the first zero that SCAN softens."""


def scan_labels(step: StepCounts) -> list[float]:
    """SCAN's: 1 up to the first step with score 0, which is 0; the two before it min(1, s / accuracy); then nothing.

    Monte Carlo finds an error late rather than early, because the policy repairs some; how often it does depends on
    its accuracy on the problem.

    >>> scan_labels(StepCounts(scores=[1.0, 0.75, 0.25, 0.0, 0.0], n_mc=[8] * 5, accuracy=0.5))
    [1.0, 1.0, 0.5, 0.0, -100.0]
    """
    hard = hard_labels(step)
    if 0.0 not in hard:
        return hard
    first = hard.index(0.0)
    soft = [min(1.0, score / step.accuracy) if step.accuracy else 1.0 for score in step.scores[:first]]
    kept = max(0, first - N_SOFT)
    return [*hard[:kept], *soft[kept:], 0.0, *[IGNORED] * (len(hard) - first - 1)]


LABELS: dict[str, Callable[[StepCounts], list[float]]] = {
    "hard": hard_labels,
    "soft": soft_labels,
    "monotone": monotone_labels,
    "monotone-soft": monotone_soft_labels,
    "posterior": posterior_labels,
    "scan": scan_labels,
}


class Labeler:
    """The targets of each rollout of a corpus, by a config's label scheme."""

    def __init__(self, corpus: Corpus, config: TrainConfig, progress: Progress) -> None:
        self._config, self._accuracy = config, dict[int, float]()
        self.settings: dict[str, Any] = {"scheme": config.labels}
        """What labels were made with, for ``prm_config.json``."""
        if config.labels in ("hard", "monotone", "scan"):
            self.settings["tau"] = config.tau
        prior = config.prior
        if config.labels == "scan":
            engine = make_engine(EngineOptions(), n_bytes=corpus.n_bytes)
            _, counts, _ = flat_counts(corpus, engine, config, tau=config.tau, progress=progress, with_details=True)
            self._accuracy = _accuracy_of_problems(counts)
        if config.labels == "posterior":
            ignored = DroppedRecords() if config.skip_bad else None
            prior = prior or fitted_prior(located.rollout for located in corpus.located(on_bad=ignored))
            self.settings |= {"prior": list(prior), "reliable": config.reliable}
        self._prior = (prior[0], prior[1]) if prior else (1.0, 1.0)

    def __call__(self, rollout: Rollout) -> tuple[list[float], list[int]]:
        """The targets of the steps, and the continuations of each; raises `DataError` where it needs these."""
        config, totals = self._config, [step.n_total for step in rollout.steps]
        # a step that was never sampled follows one that never succeeded: as if none of its continuations did
        n_mc = [total or max((n for n in totals if n), default=UNKNOWN) for total in totals]
        needs_n = config.loss == "beta-binomial" or config.labels == "posterior"
        if needs_n and (None in totals or UNKNOWN in n_mc):
            raise DataError(NO_COUNTS)
        if config.loss == "beta-binomial":
            return soft_labels(StepCounts(scores=rollout.scores, n_mc=n_mc)), n_mc
        accuracy = 1.0
        if config.labels == "scan":
            accuracy = self._accuracy.get(problem_number(rollout.question, rollout.images), 1.0)
        counts = StepCounts(
            scores=rollout.scores,
            n_mc=n_mc,
            tau=config.tau,
            accuracy=accuracy,
            prior=self._prior,
            reliable=config.reliable,
        )
        return LABELS[config.labels](counts), n_mc


NO_COUNTS = (
    "the steps do not say how many continuations they have; expected num_mc_total, which --loss beta-binomial and"
    " --labels posterior need"
)


def _accuracy_of_problems(counts: LabelCounts) -> dict[int, float]:
    members = np.sort(np.concatenate([*counts.rollouts, np.empty(0, np.intp)]).astype(np.intp))
    rollouts = Rollouts(counts.taken(members), scores=counts.of_steps(counts.scores, members))
    return dict(zip(rollouts["problem"].tolist(), rollouts.accuracy.tolist(), strict=True))


def fitted_prior(rollouts: Iterable[Rollout]) -> tuple[float, float]:
    """The Beta prior of success rates that fits the counts of all steps best."""
    counts = Counter(
        (round(step.score * step.n_total), step.n_total) for each in rollouts for step in each.steps if step.n_total
    )
    if not counts:
        raise DataError(NO_COUNTS)
    k, n = np.array(list(counts)).T
    try:
        return beta_binomial.fit_beta(k, n, np.array(list(counts.values())))
    except DataError as error:
        reason = str(error).removesuffix(f"; {beta_binomial.REMEDY}")
        raise DataError(f"--labels posterior: {reason}; give a and b with --prior A B") from None


# The losses. Each gives a sum; the caller divides by that of `Objective.n_items` over the whole global batch, so that
# a step's weight does not depend on who shares its micro-batch or its device.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Targets of the S steps of a micro-batch."""

    labels: Tensor
    """Shape (S,): in [0, 1]; negative where a step is ignored."""
    n_mc: Tensor
    """Shape (S,): continuations of each."""
    chains: Tensor
    """Shape (S,): which rollout of the micro-batch it belongs to, from 0, in order."""


def step_loss_sum(logits: Tensor, labels: Tensor, *, negative_weight: float = 1.0) -> Tensor:
    r"""Cross-entropy of Yes against No, summed over the steps whose label is not ignored.

    ``-Σ_j [y_j log p_j + w (1 - y_j) log(1 - p_j)]`` with ``p = softmax(z_yes, z_no)_yes = σ(z_yes - z_no)``; w is
    the negative weight, as if each negative step came w times.

    ``logits``, shape (S, 2): Yes, then No. ``labels``, shape (S,): in [0, 1]; negative where the step is ignored.
    """
    margin = logits[:, 0] - logits[:, 1]
    # where(): an ignored step must not spoil the sum, but stays in the graph for the other ranks' sake
    targets = labels.clamp(min=0)
    losses = F.binary_cross_entropy_with_logits(margin, targets, reduction="none")
    if negative_weight != 1:
        losses = losses + (negative_weight - 1) * (1 - targets) * F.softplus(margin)
    return losses.where(labels >= 0, 0.0).sum()


def beta_binomial_loss_sum(logits: Tensor, batch: StepBatch) -> Tensor:
    r"""Minus the Beta-Binomial log-likelihood of the counts, summed over the steps that are not ignored.

    ``-Σ_j log [C(N, k) B(a + k, b + N - k) / B(a, b)]``, k = s N, with the mean a / (a + b) = σ(z_yes - z_no) and the
    concentration a + b of `mprm.models.head.concentrations`. ``logits``, shape (S, 3).
    """
    is_used, n = batch.labels >= 0, batch.n_mc.double()
    k = torch.round(batch.labels.clamp(min=0) * n)
    concentration = concentrations(logits)
    margin = (logits[:, 0] - logits[:, 1]).double()
    # neither mean and 1 - mean, nor b + n - k: where b is small, nothing of it would be left
    a, b = concentration * torch.sigmoid(margin), concentration * torch.sigmoid(-margin)
    choose = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    likelihood = choose + _log_beta(a + k, b + (n - k)) - _log_beta(a, b)
    return -likelihood.where(is_used, 0.0).sum()


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


BELOW = -1e4
"""Below every score; not -inf, whose gradients are nan."""


def ranking_loss_sum(logits: Tensor, batch: StepBatch, *, zeta: float) -> Tensor:
    r"""PQM's ranking loss (arXiv:2410.11287, equation 10), summed over chains.

    With Q = z_yes - z_no, C the chain's positive steps in order, W its negative ones and Q_0 = 0 for the question:
    ``-(1 / (|C| + 1)) Σ_{t=0..|C|} log [exp Q_t / (Σ_{q<=t} exp Q_q + Σ_{w in W} exp(Q_w + ζ))]``. Values rise along
    the correct steps and are below those of the question, by a margin, at wrong ones. Chains without a step that
    counts add nothing.
    """
    margin = (logits[:, 0] - logits[:, 1]).float()
    n_chains = int(batch.chains[-1]) + 1
    counts = torch.bincount(batch.chains, minlength=n_chains)
    columns = torch.arange(len(margin), device=margin.device) - (counts.cumsum(0) - counts)[batch.chains]
    shape = n_chains, int(counts.max()) + 1  # the question first

    def table(values: Tensor, is_in: Tensor, first: float) -> Tensor:
        filled = torch.full(shape, BELOW, device=margin.device)
        filled[:, 0] = first
        return filled.index_put((batch.chains[is_in], columns[is_in] + 1), values[is_in])

    is_positive, is_negative = batch.labels > 0.5, (batch.labels >= 0) & (batch.labels <= 0.5)
    positive = table(margin, is_positive, 0.0)
    against = torch.logsumexp(table(margin + zeta, is_negative, BELOW), dim=1, keepdim=True)
    terms = positive - torch.logaddexp(torch.logcumsumexp(positive, dim=1), against)
    is_term = (positive > BELOW / 2).float()
    has_step = torch.zeros(n_chains, device=margin.device).index_add(0, batch.chains, (batch.labels >= 0).float()) > 0
    losses = -(terms * is_term).sum(1) / is_term.sum(1)
    return losses.where(has_step, 0.0).sum()


@dataclass(frozen=True, slots=True)
class Objective:
    """A config's loss."""

    config: TrainConfig

    def n_items(self, labels_S: FloatArray, n_steps_N: IntArray) -> FloatArray:
        """What each rollout adds to the divisor: its steps that count, with their weights; 1 for a loss of chains.

        ``labels_S`` are those of all rollouts, one after the other; ``n_steps_N`` says how many each has.
        """
        weights = 1 + (self.config.negative_weight - 1) * (1 - labels_S)
        sums = np.add.reduceat(np.where(labels_S >= 0, weights, 0.0), np.cumsum(n_steps_N) - n_steps_N)
        return (sums > 0).astype(np.float64) if self.config.loss == "ranking" else sums

    def loss_sum(self, logits: Tensor, batch: StepBatch) -> Tensor:
        config = self.config
        if config.loss == "beta-binomial":
            return beta_binomial_loss_sum(logits, batch)
        if config.loss == "ranking":
            return ranking_loss_sum(logits, batch, zeta=config.zeta)
        return step_loss_sum(logits, batch.labels, negative_weight=config.negative_weight)
