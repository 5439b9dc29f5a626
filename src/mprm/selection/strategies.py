"""What each strategy ranks rollouts by, the seeded order of ties, and the cut.

A strategy is a function from `Rollouts` to a number for each, larger is kept first; -inf does not qualify, and is
kept only to fill up. To add one: write the function and an entry in `STRATEGIES`. Another package names its own in an
entry point of the group ``mprm.strategies``, and Python takes any function, ``mprm.select(paths, strategy=my_rank)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import lgamma
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mprm.config import STRATEGY_GROUP, StrategyName, name_of_strategy, nearest, strategy_names
from mprm.errors import ConfigError, DataError, MprmError, shown
from mprm.selection.scan import ROLLOUT
from mprm.selection.score_table import Columns
from mprm.selection.stats import (
    FREQUENT_ERRORS,
    BoolArray,
    FloatArray,
    IntArray,
    LabelCounts,
    R_of,
    Rows,
    bis_of,
    is_mixed,
    mean_mc_of,
)


def random_order(seed: int, source: str, index: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A random number for each rollout, shape (N,); no two of one source are equal.

    The SplitMix64 stream that starts at a hash of (seed, source), at the positions ``index``: the same on every
    machine, in every shard order, on any number of cores.

    >>> random_order(0, "ai2d", np.arange(2, dtype=np.uint64)).tolist()
    [651717391976472452, 214633533871704631]
    """
    digest = blake2b(f"{seed}\n{source}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    z = np.uint64(int.from_bytes(digest, "little")) + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Rollouts as columns: N of one source, or of all where sources are pooled, with M steps together.

    ``rollouts["n_steps"]``, and likewise ``n_pos``, ``n_words``, ``n_mc`` (continuations of a step), ``n_leading``
    (positive steps before the first negative one), ``sum_pos``, ``sum_all`` and ``problem`` (a number for each
    question with its images), are arrays of shape (N,). A column of ``--columns`` has shape (N,), or (M,) where it
    holds a list for each rollout, a number a step; nan stands for none.
    """

    rows: Rows = field(repr=False)
    scores: FloatArray = field(default_factory=lambda: np.empty(0), repr=False)
    """Of all steps, rollout by rollout, shape (M,)."""
    order: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64), repr=False)
    """The seeded random order, smallest first, shape (N,); ties are broken by it anyway."""
    alpha: float = 0.05
    tau: float = 0.0
    columns: Mapping[str, FloatArray] = field(default_factory=dict, repr=False)
    unusable: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the columns of the table hold that are no numbers."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> NDArray[Any]:
        own = self.rows.dtype.names or ()
        if name in own:  # which a table of other options must not replace
            values = self.rows[name]
            return values.astype(np.int64) if values.dtype == np.uint32 else np.asarray(values)  # -n must not wrap
        if name in self.columns:
            return self.columns[name]
        if name in self.unusable:
            found = f"the table's column {name!r} holds {self.unusable[name]}"
            raise ConfigError(f"{found}; expected numbers, or lists with a number for each step")
        if name == "prm_scores":
            remedy = "mprm score --model DIR --out FILE writes it, and --columns FILE reads it"
            raise ConfigError(f"there is no column {name!r}, a model's score of each step: {remedy}")
        have = nearest(name, (*own, *self.columns))
        raise ConfigError(f"there is no column {name!r}: {have}. --columns FILE adds those of a table")

    def of_steps(self, name: str) -> FloatArray:
        """A column with a number for each step, shape (M,)."""
        values = self[name]
        if len(values) != len(self.scores) or name not in self.columns:
            raise ConfigError(
                f"the column {name!r} has one number a rollout; expected a list, a number for each step"
            )
        return values

    @property
    def starts(self) -> IntArray:
        """Where each rollout's steps begin among the M, shape (N,)."""
        n_steps = self.rows["n_steps"].astype(np.int64)
        return np.cumsum(n_steps) - n_steps

    def mean_of(self, values_M: NDArray[Any]) -> FloatArray:
        """The mean of a number of each step, over the steps of each rollout that have one: (M,) to (N,)."""
        known = ~np.isnan(values_M)
        if known.all():
            return np.asarray(np.add.reduceat(values_M, self.starts, dtype=np.float64) / self.rows["n_steps"])
        sums = np.add.reduceat(np.where(known, values_M, 0.0), self.starts)
        with np.errstate(invalid="ignore"):
            return np.asarray(sums / np.add.reduceat(known.astype(np.float64), self.starts))

    def mean_of_problem(self, values_N: NDArray[Any]) -> FloatArray:
        """The mean of a number of each rollout, over the rollouts of its problem: (N,) to (N,)."""
        _, index = np.unique(self.rows["problem"], return_inverse=True)
        return np.asarray((np.bincount(index, values_N) / np.bincount(index))[index])

    @property
    def accuracy(self) -> FloatArray:
        """Share of first tries that solve each rollout's problem, estimated by the mean score of its first steps.

        A first step is the policy's own, and its continuations are the policy's: their success rate is, on average,
        the policy's accuracy on the problem.
        """
        return self.mean_of_problem(self.scores[self.starts])


def rank_bis(rollouts: Rollouts) -> FloatArray:
    """BIS, ``(p_pos (1 − p_pos) + α) R``: mixed labels and reliable positives first."""
    return bis_of(rollouts.rows, rollouts.alpha)


def rank_random(rollouts: Rollouts) -> FloatArray:
    """All equal: the random order decides alone."""
    return np.zeros(len(rollouts))


def rank_low_mc(rollouts: Rollouts) -> FloatArray:
    """Lowest mean score first."""
    return -mean_mc_of(rollouts.rows)


def rank_mixed(rollouts: Rollouts) -> FloatArray:
    """Mixed rollouts first, at random; then the others, at random."""
    return is_mixed(rollouts.rows).astype(np.float64)


def rank_reliable(rollouts: Rollouts) -> FloatArray:
    """Highest R first."""
    return R_of(rollouts.rows)


FREQUENT_ALPHA = 0.5


def rank_bis_adaptive(rollouts: Rollouts) -> FloatArray:
    """BIS with a smoothing of 0.5 instead of alpha where over a tenth of the source's steps are negative.

    Where errors are rare, a random subset has too few of them, and BIS finds them. Where they are frequent, BIS with
    a small alpha keeps nothing but mixed rollouts, even those whose positive steps can hardly be trusted. At 0.5, one
    comes before a rollout in which every continuation succeeds only if its R is above ``0.5 / (0.5 + p (1 − p))``.
    """
    n_steps, n_pos = rollouts["n_steps"].sum(), rollouts["n_pos"].sum()
    is_rare = n_steps - n_pos <= FREQUENT_ERRORS * n_steps
    return bis_of(rollouts.rows, rollouts.alpha if is_rare else FREQUENT_ALPHA)


def rank_bis_sampled(rollouts: Rollouts) -> FloatArray:
    """A draw without replacement, each rollout with odds of its BIS: ``log(u) / BIS``, u uniform in (0, 1).

    The largest of these keys are such a draw (Efraimidis and Spirakis, 2006). It keeps what BIS likes more often, and
    some of everything.
    """
    u = (rollouts.order.astype(np.float64) + 0.5) / 2.0**64
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.minimum(u, 1 - 2.0**-53)) / rank_bis(rollouts))


def rank_drop(rollouts: Rollouts) -> FloatArray:
    """Largest fall of the score from one step to the next first, ``max_j (s_j − s_{j+1})``; 0 without a fall."""
    falls = np.zeros(len(rollouts.scores))
    falls[1:] = rollouts.scores[:-1] - rollouts.scores[1:]
    falls[rollouts.starts] = 0  # what is before a rollout's first step is another rollout's
    return np.maximum.reduceat(falls, rollouts.starts)


MIDDLE = 0.5


def rank_difficulty(rollouts: Rollouts) -> FloatArray:
    """Problems of middling difficulty first, ``−|accuracy − 1/2|``: see `Rollouts.accuracy`."""
    # rounded: 1/3 and 2/3 are as far from 1/2, and the last bit must not choose between them
    return np.asarray(-np.round(np.abs(rollouts.accuracy - MIDDLE), 12), np.float64)


SCAN_ACCURACY = 0.75


def rank_scan(rollouts: Rollouts) -> FloatArray:
    """Problems that the policy mostly solves, right and wrong solutions in equal numbers: SCAN's filter.

    Only rollouts of a problem whose accuracy is 0.75 or more qualify. Right rollouts (the last step is
    positive) and wrong ones are each in random order, and the i-th of both have the same rank, so that as many are
    kept of each while there are both. ``mprm train --labels scan`` has SCAN's labels.
    """
    is_right = rollouts.scores[rollouts.starts + rollouts.rows["n_steps"] - 1] > rollouts.tau
    passes = rollouts.accuracy >= SCAN_ACCURACY
    rank = np.full(len(rollouts), -np.inf)
    for group in (passes & is_right, passes & ~is_right):
        members = np.flatnonzero(group)
        rank[members[np.argsort(rollouts.order[members])]] = -np.arange(len(members), dtype=np.float64)
    return rank


MOST_CONTINUATIONS = 100_000


def rank_agreement(rollouts: Rollouts) -> FloatArray:
    """Labels on which two annotators agree first: the share of a rollout's steps.

    The second annotator's scores are the column ``scores`` of ``--columns``, such as ``mprm score --steps`` makes of
    its rollouts. Without a table, the two are two random halves of a step's N continuations, and the rank is the
    expected share: ``Σ_j C(k, j) C(N − k, h − j) / C(N, h) [(j / h > τ) = ((k − j) / (N − h) > τ)]`` with k successes
    of N and h = ⌊N / 2⌋. A step with another number of continuations than its rollout's largest counts as if it had
    that many.
    """
    if rollouts.columns or rollouts.unusable:
        if "scores" not in rollouts.columns:
            raise ConfigError("agreement needs the column 'scores' of a second annotator: mprm score SECOND --steps")
        theirs, own = rollouts.of_steps("scores"), rollouts.scores
        if np.array_equal(theirs, own) and ((own > 0) & (own < 1)).any():
            raise ConfigError("agreement: the table's scores are the corpus's own; expected a second annotator's")
        agree = (theirs > rollouts.tau) == (rollouts.scores > rollouts.tau)
        return rollouts.mean_of(np.where(np.isnan(theirs), np.nan, agree))
    n_mc = rollouts["n_mc"]
    if n_few := int((n_mc < 2).sum()):
        found = f"{n_few:,} of {len(n_mc):,} rollouts say of no step that it has two continuations (num_mc_total)"
        raise ConfigError(f"agreement: {found}; name a second annotator's scores with --columns FILE")
    distinct, index = np.unique(n_mc, return_inverse=True)
    if distinct[-1] > MOST_CONTINUATIONS:
        found = f"a step has num_mc_total {distinct[-1]:,}; expected at most {MOST_CONTINUATIONS:,}"
        raise DataError(f"agreement: {found}; name a second annotator's scores with --columns FILE")
    first = np.cumsum([0, *distinct + 1])
    n_M, first_M = distinct[:1], first[:1]
    if len(distinct) > 1:
        n_M, first_M = (np.repeat(values[index], rollouts["n_steps"]) for values in (distinct, first))
    pair = first_M + (rollouts.scores * n_M + 0.5).astype(np.int64)  # a number for each N and k ≤ N
    shares = np.zeros(first[-1])
    for number in np.flatnonzero(np.bincount(pair)).tolist():
        at = int(np.searchsorted(first, number, side="right")) - 1
        shares[number] = _halves_agree(int(distinct[at]), int(number - first[at]), rollouts.tau)
    return rollouts.mean_of(shares[pair])


def _halves_agree(n: int, k: int, tau: float) -> float:
    """Probability that two random halves of n continuations, k of them successes, have the same label."""
    h = n // 2
    j = np.arange(max(0, h - (n - k)), min(k, h) + 1)
    logs = np.array([_log_comb(k, i) + _log_comb(n - k, h - i) for i in j.tolist()]) - _log_comb(n, h)
    return float(np.exp(logs)[(j / h > tau) == ((k - j) / (n - h) > tau)].sum())


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def rank_disagreement(rollouts: Rollouts) -> FloatArray:
    """Where a model differs most from the counts: the mean of ``|m − s|`` over the steps, m its score.

    Here and below, steps that the model truncates are left out, and rollouts without any other do not qualify.
    """
    return _known(rollouts.mean_of(np.abs(rollouts.of_steps("prm_scores") - rollouts.scores)))


def rank_uncertainty(rollouts: Rollouts) -> FloatArray:
    """Where a model is least sure: the mean of ``m (1 − m)`` over the steps, m its score."""
    scores = rollouts.of_steps("prm_scores")
    return _known(rollouts.mean_of(scores * (1 - scores)))


def _known(rank: FloatArray) -> FloatArray:
    return np.where(np.isnan(rank), -np.inf, rank)


def rank_bis_filtered(rollouts: Rollouts) -> FloatArray:
    """BIS without likely pseudo-positives: a positive step is none where a model's score is below 0.5.

    p_pos and R are those of the positive steps that are left.
    """
    is_pos = (rollouts.scores > rollouts.tau) & ~(rollouts.of_steps("prm_scores") < MIDDLE)
    p_pos, mean_pos = rollouts.mean_of(is_pos), rollouts.mean_of(np.where(is_pos, rollouts.scores, 0.0))
    R = np.divide(mean_pos, p_pos, out=np.ones(len(rollouts)), where=p_pos > 0)
    return np.asarray((p_pos * (1 - p_pos) + rollouts.alpha) * R)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to rank rollouts."""

    rank: Callable[[Rollouts], FloatArray]
    is_random_within_rank: bool = False
    """Whether rollouts of equal rank are sampled at random on purpose; file order is then no choice."""
    needs_details: bool = True
    """Whether it ranks by single scores or by problem, not by the sums of a row alone."""


STRATEGIES: dict[str, Strategy] = {
    "bis": Strategy(rank_bis, needs_details=False),
    "random": Strategy(rank_random, is_random_within_rank=True, needs_details=False),
    "low-mc": Strategy(rank_low_mc, needs_details=False),
    "mixed": Strategy(rank_mixed, is_random_within_rank=True, needs_details=False),
    "reliable": Strategy(rank_reliable, needs_details=False),
    "bis-adaptive": Strategy(rank_bis_adaptive, needs_details=False),
    "bis-sampled": Strategy(rank_bis_sampled, is_random_within_rank=True, needs_details=False),
    "drop": Strategy(rank_drop),
    "difficulty": Strategy(rank_difficulty, is_random_within_rank=True),
    "scan": Strategy(rank_scan, is_random_within_rank=True),
    "agreement": Strategy(rank_agreement),
    "disagreement": Strategy(rank_disagreement),
    "uncertainty": Strategy(rank_uncertainty),
    "bis-filtered": Strategy(rank_bis_filtered),
}


def strategy_of(strategy: StrategyName) -> Strategy:
    """The strategy of a name, one that another package registered, or a function of `Rollouts`."""
    if callable(strategy):
        return Strategy(strategy)
    if strategy in STRATEGIES:
        return STRATEGIES[strategy]
    from importlib.metadata import entry_points

    found = [entry for entry in entry_points(group=STRATEGY_GROUP) if entry.name == strategy]
    if not found:
        raise ConfigError(f"unknown strategy {strategy!r}; {nearest(strategy, strategy_names())}")
    try:
        loaded = found[0].load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"strategy {strategy!r} cannot be loaded from {found[0].value}: {error}") from error
    if not callable(getattr(loaded, "rank", loaded)):
        raise ConfigError(f"strategy {strategy!r} is {shown(loaded)} in {found[0].value}; expected a function")
    return loaded if isinstance(loaded, Strategy) else Strategy(loaded)


def tie_order(counts: LabelCounts, source: int, *, seed: int) -> NDArray[np.uint64]:
    """The random order of a source's rollouts; a rollout's position in its source counts bad records too."""
    records = counts.records[source]
    order = random_order(seed, counts.sources[source], np.arange(len(records), dtype=np.uint64))
    is_rollout: BoolArray = counts.rows["kind"][records] == ROLLOUT
    return order[is_rollout]


class Kept(NamedTuple):
    """What is kept of a corpus."""

    mask: BoolArray
    """Which rows."""
    n_by_ties: int | None
    """How many of them are of the rank of others that are left out; None where the strategy chooses at random."""
    n_unqualified: int = 0
    """How many of them have the rank -inf: they fill up where too few qualify."""


def keep_top(
    counts: LabelCounts,
    strategy: StrategyName,
    n_keep: Callable[[str | None, int], int],
    *,
    alpha: float,
    seed: int,
    tau: float = 0.0,
    by_file_order: bool = False,
    pool: bool = False,
    by_length: bool = False,
    columns: Columns | None = None,
) -> Kept:
    """Which rows are kept: the best rollouts of each source, or with ``pool`` of all sources together.

    ``n_keep`` gives how many, from the source (None when pooled) and its number of rollouts. ``by_file_order`` keeps
    the first in the file among equal ranks, as the paper's code does, instead of a random choice. ``by_length`` ranks
    rollouts of equal length among themselves; every length gets its share (`length_strata`).
    """
    kept, n_by_ties, n_unqualified = np.zeros(len(counts.rows), np.bool_), 0, 0
    entry = strategy_of(strategy)
    numbers = range(len(counts.sources))
    for group in [tuple(numbers)] if pool else [(number,) for number in numbers]:
        members = np.concatenate([counts.rollouts[number] for number in group] or [np.empty(0, np.intp)])
        n = n_keep(None if pool else counts.sources[group[0]], len(members))
        if n == 0:
            continue
        order = np.concatenate([tie_order(counts, number, seed=seed) for number in group])
        if not (np.diff(members) > 0).all():  # pooled sources that are interleaved in a file
            by_row = np.argsort(members)
            members, order = members[by_row], order[by_row]
        rows = counts.taken(members)
        rollouts = Rollouts(_read_only(rows), order=_read_only(order), alpha=alpha, tau=tau)
        if entry.needs_details:
            scores = counts.of_steps(counts.scores, members)
            table = {} if columns is None else columns.taken(counts, members)
            unusable = columns.unusable if columns else {}
            rollouts = replace(rollouts, scores=_read_only(scores), columns=table, unusable=unusable)
        rank = _ranked(entry, rollouts, strategy)
        if by_file_order and not entry.is_random_within_rank:
            order = members.astype(np.uint64)
        for stratum, n_of_stratum in length_strata(rows["n_steps"], n) if by_length else [(slice(None), n)]:
            ranks = rank[stratum]
            chosen = best(ranks, order[stratum], n_of_stratum)
            kept[members[stratum][chosen]] = True
            last = ranks[chosen].min()
            n_last = int((ranks[chosen] == last).sum())
            n_by_ties += n_last if n_last < (ranks == last).sum() else 0
            n_unqualified += int(np.isneginf(ranks[chosen]).sum())
    return Kept(kept, None if entry.is_random_within_rank else n_by_ties, n_unqualified)


def _read_only(array: Any) -> Any:
    """What a strategy sees of an array that is used after it."""
    view = array.view()
    view.setflags(write=False)
    return view


def _ranked(entry: Strategy, rollouts: Rollouts, strategy: StrategyName) -> FloatArray:
    """The rank as float64, if it is one number a rollout."""
    name, n = name_of_strategy(strategy), len(rollouts)
    try:
        rank = entry.rank(rollouts)
    except MprmError:
        raise
    except (Exception, SystemExit) as error:  # of somebody's own function
        raise ConfigError(f"strategy {name} failed: {type(error).__name__}: {error}") from error
    try:
        array = np.asarray(rank)
        array = array.astype(np.float64) if array.dtype.kind in "bfiu" else np.array(None)
    except (TypeError, ValueError, OverflowError):
        array = np.array(None)
    if array.dtype != np.float64:
        raise ConfigError(f"strategy {name} gives {shown(rank)}; expected a number for each rollout")
    if array.shape != (n,):
        raise ConfigError(f"strategy {name} gives an array of shape {array.shape}; expected ({n},), one a rollout")
    if n_nan := int(np.isnan(array).sum()):
        raise ConfigError(f"strategy {name} gives nan for {n_nan:,} of {n:,} rollouts; expected numbers")
    return array


def length_strata(n_steps: NDArray[Any], n: int) -> Iterator[tuple[NDArray[np.intp], int]]:
    """The rollouts of each length, and how many of them to keep: ``n`` in all, each length its share.

    Lengths are exact. Wider bins would be filled from their short end, which mixes labels best. Shares are rounded
    along the lengths, so that rare long rollouts together get theirs.

    >>> [(stratum.tolist(), n) for stratum, n in length_strata(np.array([2, 9, 2, 5, 2, 2]), 3)]
    [([0, 2, 4, 5], 2), ([3], 1)]
    """
    by_length = np.argsort(n_steps, kind="stable")
    cuts = np.flatnonzero(np.diff(n_steps[by_length])) + 1
    n_done = 0
    for stratum, end in zip(np.split(by_length, cuts), [*cuts.tolist(), len(n_steps)], strict=True):
        n_until = (2 * end * n + len(n_steps)) // (2 * len(n_steps))
        if n_until > n_done:
            yield stratum, n_until - n_done
        n_done = n_until


def best(rank: FloatArray, order: NDArray[np.uint64], n: int) -> NDArray[np.intp]:
    """Indices of the ``n`` with the largest rank; among equal ranks those with the smallest ``order``.

    >>> best(np.array([0.3, 0.1, 0.1, 0.2]), np.array([7, 9, 5, 1], np.uint64), 3).tolist()
    [0, 3, 2]
    """
    cut = np.partition(rank, len(rank) - n)[len(rank) - n]
    above, tied = np.flatnonzero(rank > cut), np.flatnonzero(rank == cut)
    n_tied = n - len(above)
    if n_tied < len(tied):
        tied = tied[np.argpartition(order[tied], n_tied - 1)[:n_tied]]
    return np.concatenate([above, tied])
