"""How many continuations lie behind scores whose file does not say: the grid that the scores lie on.

The counts behind every step's score, of a whole corpus; one pass over its text.

A Beta prior fitted to the counts of some steps, with what follows from it.

What the fit to a corpus tells.

``mprm theory fit``: the paper's model of Monte-Carlo labels, fitted to a corpus.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.data.corpus import Corpus, open_corpus, read_line
from mprm.data.engine import Engine, EngineName, make_engine
from mprm.data.output import Dropped, DroppedRecords, temporary_file
from mprm.data.records import Chunk, lines_of
from mprm.data.rollout_formats import FORMATS
from mprm.data.types import Count, Score
from mprm.data.validate import Problems
from mprm.errors import ConfigError, DataError
from mprm.selection.scan import (
    FAST,
    ROLLOUT,
    ROW_TYPE,
    Counted,
    CountTask,
    LabelCounts,
    Rows,
    count_labels,
    count_tasks,
    gather_counts,
)
from mprm.selection.strategies import DEFAULT_RHO, Ranking, SelectConfig, StrategyName, keep_top
from mprm.theory.arguments import FloatArray
from mprm.theory.beta_binomial import (
    REMEDY,
    Z_95,
    IntArray,
    all_fail,
    eta_eff,
    few_rollouts_factor,
    fit_beta,
    likelihood_slopes,
    log_interval,
    observed_information,
    posterior_mean,
    prior_covariance,
)

MOST = 64
"""Largest number that is tried: a finer grid fits any score of two decimals."""
TOLERANCE = 1e-6
"""How far a score may be from k/N; files write six digits or more."""
ENOUGH = 10
"""Scores between 0 and 1 that a source must have, to tell its grid: fewer may all lie on a coarser one by chance."""
GRID_REMEDY = "name the number of continuations (--continuations N; in Python: continuations=N)"


def grid(scores: FloatArray) -> int | None:
    """The smallest N for which every score is some k/N; None where no N up to `MOST` is.

    Examples
    --------
    >>> grid(np.array([0.25, 0.5, 1.0])), grid(np.array([0.3333333, 0.5])), grid(np.array([0.123]))
    (4, 6, None)
    """
    for N in range(1, MOST + 1):
        if np.all(np.abs(scores * N - np.round(scores * N)) <= TOLERANCE * N):
            return N
    return None


def infer_continuations(
    scores: FloatArray, counts: NDArray[np.int64], sources: Sequence[str], given: int | None = None
) -> IntArray:
    """The number of continuations of each source's steps, from their scores alone; shape (sources,).

    A source with few scores between 0 and 1 takes the grid of all sources together.

    Parameters
    ----------
    scores : shape (kinds,)
        The scores that steps without counts have.
    counts : shape (sources, kinds)
        How many steps have each; a source without any gets 0.
    given
        The number, where the user knows it; every score must lie on its grid.
    """
    is_inner = (scores > 0) & (scores < 1)
    has = counts > 0
    if given is not None:
        if off := _off_grid(scores[has.any(axis=0)], given):
            raise DataError(f"score {off[0]:g} is no k/{given}; the steps do not have {given} continuations each")
        return np.where(has.any(axis=1), given, 0)
    if has.any() and not has[:, is_inner].any():
        raise DataError(
            "all scores are 0 or 1 and no counts are given: hard labels do not tell how success rates vary."
            f" Use the corpus with its MC scores, or {GRID_REMEDY}"
        )
    pooled = grid(scores[has.any(axis=0)])
    found = np.zeros(len(sources), np.int64)
    for number, name in enumerate(sources):
        if not has[number].any():
            continue
        own = grid(scores[has[number]]) if counts[number, is_inner].sum() >= ENOUGH else pooled
        if own is None:
            some = ", ".join(f"{score:g}" for score in scores[has[number] & is_inner].tolist()[:3])
            raise DataError(
                f"the scores of {name} lie on no grid k/N with N up to {MOST} (there are {some}): they are no shares"
                f" of continuations, or were rounded; if they are shares, {GRID_REMEDY}"
            )
        found[number] = own
    return found


def _off_grid(scores: FloatArray, N: int) -> list[float]:
    return list(scores[np.abs(scores * N - np.round(scores * N)) > 0.5e-2 * N].tolist())


Codes = NDArray[np.uint32]

Kind = tuple[float, int | None]
"""A step's score, and how many continuations were sampled; None where the file does not say."""

MOST_KINDS = 1 << 20


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """The steps of a chunk's good rollouts."""

    counted: Counted
    kinds: list[Kind]
    codes: bytes
    """The number of each step's kind, uint32, in the order of the rows."""


class _FastStep(msgspec.Struct, gc=False):
    score: Score
    num_mc_correct: Count | None = None
    num_mc_total: Count | None = None


class _FastRecord(msgspec.Struct, gc=False):
    steps_with_score: list[_FastStep]


_decode = msgspec.json.Decoder(_FastRecord).decode


class _Numbers(dict[Kind, int]):
    """A number for each kind, given when it is first asked for."""

    def __missing__(self, kind: Kind) -> int:
        number = self[kind] = len(self)
        return number


def count_steps(task: CountTask) -> CountedSteps:
    """Count the labels of each rollout in the chunk, and tell each step's kind."""
    counted = count_labels(task)
    numbers, codes = _Numbers(), array("I")
    # a row a line; a count that stopped at a bad record has fewer, and its error is raised soon
    for kind, line in zip(np.frombuffer(counted.rows, ROW_TYPE)["kind"].tolist(), lines_of(task.chunk), strict=False):
        if kind == ROLLOUT:
            codes.extend([numbers[step] for step in _steps(line, task)])
    return CountedSteps(counted, list(numbers), codes.tobytes())


def _steps(line: bytes, task: CountTask) -> list[Kind]:
    """The kind of each step of a good record."""
    if task.chunk.format in FAST:
        try:
            return [(step.score, step.num_mc_total) for step in _decode(line).steps_with_score]
        except msgspec.MsgspecError:
            pass  # good all the same, such as one with a count that is no number
    (rollout,) = read_line(line, FORMATS[task.chunk.format], task.judgement, Problems())
    return [(step.score, step.n_total) for step in rollout.steps]


class StepCounts:
    """Label counts of each rollout and the kind of each step; owns the temporary file that the kinds lie in."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        self.labels = LabelCounts()
        self._numbers = _Numbers()
        self._file = temporary_file(self)
        self._n_steps = 0

    def add(self, part: CountedSteps) -> None:
        """Append a chunk's steps."""
        renumber = np.array([self._numbers[kind] for kind in part.kinds], np.uint32)
        if len(self._numbers) > MOST_KINDS:
            raise DataError(
                f"the scores take more than {MOST_KINDS:,} values: they are no shares k/N of continuations,"
                " and the Beta-Binomial model says nothing of them"
            )
        codes = np.frombuffer(part.codes, np.uint32)
        self._file.write((renumber[codes] if len(renumber) else codes).tobytes())
        self._n_steps += len(codes)

    def finish(self, labels: LabelCounts) -> None:
        """All chunks are there, and so are the rollouts' label counts."""
        self.labels, self.kinds = labels, list(self._numbers)
        self._file.flush()

    def blocks(self) -> Iterator[tuple[int, Rows, Codes]]:
        """(number of the first row, rows, codes of their steps), some at a time."""
        place = 0
        codes = (
            np.memmap(self._file, np.uint32, "r", shape=(self._n_steps,)) if self._n_steps else np.empty(0, np.uint32)
        )
        for start, rows in self.labels.blocks():
            end = place + int(rows["n_steps"].sum(dtype=np.int64))
            yield start, rows, np.asarray(codes[place:end])
            place = end

    def histogram(self, is_kept: Callable[[int, int], NDArray[np.bool_]] | None = None) -> NDArray[np.int64]:
        """How many steps of each source are of each kind, of all rollouts or of some; shape (sources, kinds)."""
        found = np.zeros((len(self.labels.sources), len(self.kinds)), np.int64)
        for start, rows, codes in self.blocks():
            place = rows["source"].astype(np.int64)
            if is_kept is not None:
                place = np.where(is_kept(start, start + len(rows)), place, -1)
            place = np.repeat(place, rows["n_steps"])
            kept = place >= 0
            flat = np.bincount(place[kept] * len(self.kinds) + codes[kept], minlength=found.size)
            found += flat.reshape(found.shape)
        return found

    def where(self, kind: int) -> str:
        """File and line of the first rollout with a step of the kind."""
        for start, rows, codes in self.blocks():
            steps = np.flatnonzero(codes == kind)
            if len(steps):
                row = start + int(np.searchsorted(np.cumsum(rows["n_steps"], dtype=np.int64), steps[0], "right"))
                part = next(part for part in self.labels.parts if 0 <= row - part.first_row < part.n_rows)
                return f"{part.chunk.path}:{part.first_line + row - part.first_row}"
        raise ValueError(f"no step is of kind {kind}")

    def by_rollout(self, values: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.float64]]]:
        """(source, sum over its steps) of each rollout, some at a time.

        Parameters
        ----------
        values : shape (sources, kinds, any)
            What a step of each source and kind adds.
        """
        for _, rows, codes in self.blocks():
            rows = rows[rows["kind"] == ROLLOUT]
            if not len(rows):
                continue
            lengths = rows["n_steps"].astype(np.int64)
            of_step = values[np.repeat(rows["source"], lengths), codes]
            yield rows["source"], np.add.reduceat(of_step, np.cumsum(lengths) - lengths, axis=0)


def count_corpus_steps(
    corpus: Corpus,
    engine: Engine,
    *,
    tau: float = 0.0,
    on_bad: Callable[[Dropped], Any] | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> StepCounts:
    """Read the corpus once; see `mprm.selection.scan.count_corpus`."""
    found = StepCounts()
    parts = engine.map(count_steps, count_tasks(corpus, tau=tau, stop_at_bad=on_bad is None))

    def counted() -> Iterator[Counted]:
        for part in parts:
            found.add(part)
            yield part.counted

    found.finish(gather_counts(corpus, counted(), on_bad=on_bad, on_chunk=on_chunk))
    return found


Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counts of some steps, as a histogram; shapes (kinds,)."""

    k: IntArray
    n: IntArray
    steps: IntArray
    """How many steps have them."""
    is_positive: FloatArray
    """1 where the label is positive, else 0."""

    @property
    def n_positive(self) -> float:
        """How many steps have a positive label."""
        return float(self.steps @ self.is_positive)

    @property
    def n_sampled(self) -> int:
        """How many steps have continuations."""
        return int(self.steps[self.n > 0].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A fitted prior and the covariance of its logarithms."""

    a: float
    b: float
    covariance: FloatArray
    """Of (log a, log b), shape (2, 2)."""

    @property
    def a_interval(self) -> Interval:
        """95% interval of a."""
        return log_interval(self.a, self.covariance[0, 0])

    @property
    def b_interval(self) -> Interval:
        """95% interval of b."""
        return log_interval(self.b, self.covariance[1, 1])

    @property
    def mean(self) -> float:
        """Mean success rate, ``a / (a + b)``."""
        return self.a / (self.a + self.b)

    def expected_negative(self, counts: Counts) -> float:
        """Share of the sampled steps that the prior expects to fail in all their continuations."""
        sampled = counts.n > 0
        fails = all_fail(0, counts.n[sampled], a=self.a, b=self.b)
        return float(counts.steps[sampled] @ fails / counts.n_sampled)


def fitted_prior(counts: Counts) -> tuple[float, float] | str:
    """The prior of most likelihood, or why there is none."""
    try:
        return fit_beta(counts.k, counts.n, counts.steps)
    except DataError as error:
        return str(error).removesuffix(f"; {REMEDY}")  # there is nothing to give


def with_covariance(
    counts: Counts, prior: tuple[float, float], slopes_of_rollouts: FloatArray, n_rollouts: int
) -> Prior | str:
    """The prior with its covariance, or why there is none; see `mprm.theory.beta_binomial.prior_covariance`."""
    a, b = prior
    if n_rollouts < 2:
        return "there is only one rollout, and nothing tells how rollouts vary"
    information = observed_information(counts.k, counts.n, counts.steps, a=a, b=b)
    if np.linalg.eigvalsh(information)[0] <= 0:
        return f"the likelihood has no peak at a = {a:g}, b = {b:g}; there are too few steps"
    factor = few_rollouts_factor(n_rollouts)
    return Prior(a=a, b=b, covariance=factor * prior_covariance(information, slopes_of_rollouts))


@dataclass(frozen=True, slots=True, kw_only=True)
class PseudoPositives:
    """Expected share of pseudo-positives among positive steps."""

    share: float
    """0 where there are no positive steps."""
    interval: Interval
    """95%, from the prior's uncertainty alone."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"share": self.share, "interval": self.interval}


def pseudo_positives(counts: Counts, prior: Prior, *, tau: float) -> PseudoPositives:
    """Mean of ``eta_eff(k)`` over positive steps, with an interval by the delta method."""
    if not counts.n_positive:
        return PseudoPositives(share=0.0, interval=(0.0, 0.0))

    def share(log_a: float, log_b: float) -> float:
        noise = eta_eff(counts.k, counts.n, tau=tau, a=float(np.exp(log_a)), b=float(np.exp(log_b)))
        return float((counts.steps * counts.is_positive) @ noise / counts.n_positive)

    log_a, log_b, h = float(np.log(prior.a)), float(np.log(prior.b)), 1e-4
    slope = np.array(
        [
            share(log_a + h, log_b) - share(log_a - h, log_b),
            share(log_a, log_b + h) - share(log_a, log_b - h),
        ]
    ) / (2 * h)
    value = share(log_a, log_b)
    half = Z_95 * float(np.sqrt(slope @ prior.covariance @ slope))
    return PseudoPositives(share=value, interval=(max(0.0, value - half), min(1.0, value + half)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFit:
    """The model fitted to one source, or to all together."""

    name: str
    n_rollouts: int
    n_steps: int
    n_unsampled: int
    """Steps without a continuation: they weigh nothing in the fit."""
    continuations: tuple[int, ...]
    """Numbers of continuations that occur."""
    is_inferred: bool
    """Whether the scores' grid told them."""
    prior: Prior | None
    why_no_prior: str
    """Empty where there is one."""
    negative: float
    """Share of the sampled steps that failed in all continuations."""
    expected_negative: float | None
    """What the prior expects of it: far from it, one Beta does not describe the source."""
    pseudo_positive: PseudoPositives
    """By the source's own prior; by that of all sources together where it has none."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        prior = self.prior
        return {
            "name": self.name,
            "n_rollouts": self.n_rollouts,
            "n_steps": self.n_steps,
            "n_unsampled": self.n_unsampled,
            "continuations": self.continuations,
            "continuations_inferred": self.is_inferred,
            "prior": None
            if prior is None
            else {
                "a": prior.a,
                "a_interval": prior.a_interval,
                "b": prior.b,
                "b_interval": prior.b_interval,
                "mean": prior.mean,
            },
            "why_no_prior": self.why_no_prior or None,
            "negative": self.negative,
            "expected_negative": self.expected_negative,
            "pseudo_positive": self.pseudo_positive.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """What a count of successes tells, by the prior of all sources together."""

    k: int
    steps: int
    posterior_mean: float
    eta_eff: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetNoise:
    """Pseudo-positives in what a strategy keeps."""

    strategy: str
    n_rollouts: int
    n_steps: int
    n_positive: int
    pseudo_positive: float
    """Expected share of the positive steps."""
    of_all_steps: float
    """Expected share of all its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFit:
    """The model fitted to a corpus."""

    total: SourceFit
    sources: list[SourceFit]
    N: int
    """The number of continuations that most steps have; the table of noise is for it."""
    noise: list[NoiseRow]
    subsets: list[SubsetNoise]
    """All rollouts first, then each strategy."""
    rho: float
    reliable: float
    n_dropped: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "all": self.total.as_dict(),
            "sources": [source.as_dict() for source in self.sources],
            "reliable": self.reliable,
            "N": self.N,
            "eta_eff": [asdict(row) for row in self.noise],
            "rho": self.rho,
            "subsets": [asdict(subset) for subset in self.subsets],
            "dropped": self.n_dropped,
        }


SCORE_TOLERANCE = 1e-5
"""How far a score may be from k/N."""
MOST_CONTINUATIONS = 2**32 - 1
"""As many as a count in a file may be."""
MOST_ROWS = 256
"""Of the table of noise; with more continuations it has the counts that occur."""


def fit_corpus(
    paths: Any,
    *,
    rho: float = DEFAULT_RHO,
    alpha: float = 0.05,
    tau: float = 0.0,
    reliable: float = 0.5,
    seed: int = 0,
    continuations: int | None = None,
    format: str | None = None,
    text_only: bool = False,
    skip_bad: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> CorpusFit:
    """Fit Beta priors to a corpus's counts, and tell how many positive steps they expect to be pseudo-positive.

    Success rates are ``r ~ Beta(a, b)``, overall and in each source; a and b are those of most likelihood given the
    steps' counts. Intervals allow for any dependence between the steps of a rollout. A positive step with k
    successes is pseudo-positive with probability ``eta_eff(k) = Pr(r < reliable | k)``.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    rho, alpha, tau, seed
        Of the strategies' subsets; see `mprm.select`.
    reliable
        A step is reliable when its success rate is at least this, the paper's tau of section 3.3.
    continuations
        How many lie behind each score, where the files do not say and the scores' grid must not tell.

    Examples
    --------
    >>> steps = [{"step": "s", "score": k / 4, "num_mc_correct": k, "num_mc_total": 4} for k in (0, 1, 2, 3, 4)]
    >>> rollouts = [{"question": "?", "steps_with_score": steps}] * 40
    >>> prior = fit_corpus(rollouts, text_only=True).total.prior
    >>> round(prior.a, 3), round(prior.b, 3)  # all counts equally often: the uniform prior
    (1.0, 1.0)
    """
    if not 0 < reliable < 1:
        raise ConfigError(f"reliable must be in (0, 1), got {reliable}")
    if continuations is not None and not 2 <= continuations <= MOST_CONTINUATIONS:
        raise ConfigError(f"continuations must be at least 2 and at most {MOST_CONTINUATIONS}, got {continuations}")
    strategies: tuple[StrategyName, ...] = get_args(StrategyName)
    config = SelectConfig(strategy=strategies, rho=(rho,), alpha=alpha, tau=tau, seed=seed)
    corpus = open_corpus(paths, format=format, text_only=text_only)
    _check_hard_labels(corpus)
    worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
    dropped = DroppedRecords()
    steps = count_corpus_steps(corpus, worker, tau=tau, on_bad=dropped if skip_bad else None, on_chunk=on_chunk)
    return _Fit(steps, config, reliable, continuations).corpus_fit(len(dropped))


def _check_hard_labels(corpus: Corpus) -> None:
    for path, fmt in corpus.formats.items():
        if fmt.labels == "binary":
            raise DataError(
                f"{path}: {fmt.title} holds right or wrong for each step and no MC scores; hard labels do not tell"
                " how success rates vary; fit to the rollouts that the labels were made of"
            )


class _Fit:
    """The tables behind the fit: a row a source, a column a kind of step."""

    def __init__(self, steps: StepCounts, config: SelectConfig, reliable: float, given: int | None) -> None:
        self.steps, self.config, self.reliable = steps, config, reliable
        self.histogram = steps.histogram()
        if not self.histogram.any():
            raise DataError("there is nothing to fit: the corpus has no good rollout; mprm check says why")
        self.score = np.array([score for score, _ in steps.kinds])
        self.is_positive = self.score > config.tau
        self.is_inferred = np.zeros(len(self.histogram), np.bool_)
        self.k, self.n = self._counts(given)

    def _counts(self, given: int | None) -> tuple[IntArray, IntArray]:
        """Successes and continuations of each source's kinds, shapes (sources, kinds)."""
        unknown = np.array([n is None for _, n in self.steps.kinds])
        n = np.array([n or 0 for _, n in self.steps.kinds], np.int64)
        all_n = np.broadcast_to(n, self.histogram.shape).copy()
        if unknown.any():
            own = infer_continuations(
                self.score[unknown], self.histogram[:, unknown], self.steps.labels.sources, given
            )
            all_n[:, unknown] = own[:, None]
            self.is_inferred = (own > 0) & (given is None)
        k = np.round(self.score * n).astype(np.int64)
        off = ~unknown & (np.abs(self.score - k / np.maximum(n, 1)) > SCORE_TOLERANCE)
        if off.any():
            raise DataError(
                f"{self.steps.where(int(np.flatnonzero(off)[0]))}: a step has score {self.score[off][0]:g} of"
                f" {n[off][0]} continuations; no number of successes gives it. Write the number (num_mc_correct) and"
                " the score to six digits, or leave num_mc_total out and name it with --continuations"
            )
        k = np.round(self.score * all_n).astype(np.int64)
        # a source's grid says nothing of the scores that only other sources have
        return np.where(self.histogram > 0, k, 0), np.where(self.histogram > 0, all_n, 0)

    def counts(self, source: int | None) -> Counts:
        """The counts of a source, or of all."""
        chosen = slice(None) if source is None else [source]
        steps = self.histogram[chosen].ravel()
        is_positive = np.broadcast_to(self.is_positive, self.histogram.shape)[chosen].ravel()
        seen = steps > 0
        return Counts(
            k=self.k[chosen].ravel()[seen],
            n=self.n[chosen].ravel()[seen],
            steps=steps[seen],
            is_positive=is_positive[seen].astype(np.float64),
        )

    def corpus_fit(self, n_dropped: int) -> CorpusFit:
        """Everything that the fit tells."""
        names = self.steps.labels.sources
        whole = self.counts(None)
        found = fitted_prior(whole)
        if isinstance(found, str):
            raise DataError(f"no Beta prior fits the corpus: {found}")
        each = [fitted_prior(self.counts(number)) for number in range(len(names))]
        priors = self._with_intervals(found, each)
        overall = priors[-1]
        if isinstance(overall, str):
            raise DataError(f"no Beta prior fits the corpus: {overall}")
        n_rollouts = self.steps.labels.n_lines(ROLLOUT)
        sources = [
            self._source(name, number, n_rollouts[name], priors[number], overall)
            for number, name in enumerate(names)
            if n_rollouts[name]
        ]
        numbers, place = np.unique(whole.n, return_inverse=True)
        N = int(numbers[np.bincount(place, whole.steps * (whole.n > 0)).argmax()])
        return CorpusFit(
            total=self._source("all", None, sum(n_rollouts.values()), overall, overall),
            sources=sources,
            N=N,
            noise=self._noise(whole, N, overall),
            subsets=self._subsets(priors),
            rho=self.config.rho[0],
            reliable=self.reliable,
            n_dropped=n_dropped,
        )

    def _with_intervals(
        self, overall: tuple[float, float], each: list[tuple[float, float] | str]
    ) -> list[Prior | str]:
        """The priors of all sources, and last that of the corpus, with their covariances."""
        slopes = np.zeros((*self.histogram.shape, 4))
        for number, prior in enumerate(each):
            k, n = self.k[number], self.n[number]
            slopes[number, :, 2:] = likelihood_slopes(k, n, a=overall[0], b=overall[1])
            if not isinstance(prior, str):
                slopes[number, :, :2] = likelihood_slopes(k, n, a=prior[0], b=prior[1])
        squares = np.zeros((len(each), 2, 2))
        n_rollouts = self.steps.labels.n_lines(ROLLOUT)
        square_of_all = np.zeros((2, 2))
        for source, sums in self.steps.by_rollout(slopes):
            square_of_all += sums[:, 2:].T @ sums[:, 2:]
            for number in np.unique(source).tolist():
                own = sums[source == number, :2]
                squares[number] += own.T @ own
        found: list[Prior | str] = [
            prior
            if isinstance(prior, str)
            else with_covariance(self.counts(number), prior, squares[number], n_rollouts[name])
            for number, (name, prior) in enumerate(zip(self.steps.labels.sources, each, strict=True))
        ]
        whole = with_covariance(self.counts(None), overall, square_of_all, sum(n_rollouts.values()))
        return [*found, whole]

    def _source(
        self, name: str, source: int | None, n_rollouts: int, prior: Prior | str, overall: Prior
    ) -> SourceFit:
        counts = self.counts(source)
        own = None if isinstance(prior, str) else prior
        sampled = counts.n > 0
        return SourceFit(
            name=name,
            n_rollouts=n_rollouts,
            n_steps=int(counts.steps.sum()),
            n_unsampled=int(counts.steps[~sampled].sum()),
            continuations=tuple(np.unique(counts.n[sampled]).tolist()),
            is_inferred=bool(self.is_inferred.any() if source is None else self.is_inferred[source]),
            prior=own,
            why_no_prior=prior if isinstance(prior, str) else "",
            negative=float(counts.steps[sampled & (counts.k == 0)].sum() / max(1, counts.n_sampled)),
            expected_negative=None if own is None else own.expected_negative(counts),
            pseudo_positive=pseudo_positives(counts, own or overall, tau=self.reliable),
        )

    def _noise(self, whole: Counts, N: int, prior: Prior) -> list[NoiseRow]:
        seen, place = np.unique(whole.k[whole.n == N], return_inverse=True)
        k = np.arange(N + 1) if N <= MOST_ROWS else seen
        steps = np.zeros(len(k))
        steps[np.searchsorted(k, seen)] = np.bincount(place, whole.steps[whole.n == N])
        means = posterior_mean(k, N, a=prior.a, b=prior.b)
        noise = eta_eff(k, N, tau=self.reliable, a=prior.a, b=prior.b)
        rows = zip(k.tolist(), steps.tolist(), means.tolist(), noise.tolist(), strict=True)
        return [NoiseRow(k=k, steps=int(n), posterior_mean=mean, eta_eff=eta) for k, n, mean, eta in rows]

    def _subsets(self, priors: list[Prior | str]) -> list[SubsetNoise]:
        """Expected pseudo-positives of all rollouts and of each strategy's, each step by its source's prior."""
        noise = np.zeros(self.histogram.shape)
        for number, prior in enumerate(priors[:-1]):
            used = priors[-1] if isinstance(prior, str) else prior
            assert isinstance(used, Prior)
            noise[number] = eta_eff(self.k[number], self.n[number], tau=self.reliable, a=used.a, b=used.b)
        noise *= self.is_positive
        labels, config = self.steps.labels, self.config
        found = [_subset_noise("all", sum(labels.n_lines(ROLLOUT).values()), self.histogram, noise, self.is_positive)]
        for strategy in config.strategy:
            ranking = Ranking(strategy=strategy, alpha=config.alpha, seed=config.seed, ties=config.ties)
            kept = keep_top(labels, ranking, lambda source, n: config.n_keep(config.rho[0], source, n))
            n_kept = sum(int(kept.between(start, start + len(rows)).sum()) for start, rows in labels.blocks())
            found.append(_subset_noise(strategy, n_kept, self.steps.histogram(kept.between), noise, self.is_positive))
        return found


def _subset_noise(
    strategy: str, n_rollouts: int, histogram: NDArray[np.int64], noise: FloatArray, is_positive: NDArray[np.bool_]
) -> SubsetNoise:
    n_steps, n_positive = int(histogram.sum()), int(histogram[:, is_positive].sum())
    expected = float(np.sum(histogram * noise))
    return SubsetNoise(
        strategy=strategy,
        n_rollouts=n_rollouts,
        n_steps=n_steps,
        n_positive=n_positive,
        pseudo_positive=expected / max(1, n_positive),
        of_all_steps=expected / max(1, n_steps),
    )
