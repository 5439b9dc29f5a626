"""``mprm theory fit``: the paper's model of Monte-Carlo labels, fitted to a corpus.

Success rates are ``r ~ Beta(a, b)``, overall and in each source; a and b are those of most likelihood given every
step's k of N. Steps are counted in one pass over the text: those with the same score and N are of one kind, so that
the fit works on a table of sources by kinds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mprm.config import PAPER_STRATEGIES, Alpha, Option, ScanOptions, Seed, Tau, selection, takes
from mprm.data.corpus import Corpus, flattened, open_corpus, parse_line
from mprm.data.engine import Engine, make_engine
from mprm.data.output import DroppedRecords
from mprm.data.records import lines_of
from mprm.data.rollout_formats import ROLLOUT_FORMATS
from mprm.data.types import Issues, location
from mprm.errors import DataError
from mprm.progress import Progress, silent
from mprm.selection import scan
from mprm.selection.select import SelectConfig
from mprm.selection.stats import ROW_TYPE, BoolArray, LabelCounts, OnBad, gather_counts
from mprm.selection.strategies import keep_top
from mprm.theory import beta_binomial
from mprm.theory.beta_binomial import Z_95, all_fail, eta_eff, log_interval, scipy_special
from mprm.theory.equations import FloatArray, IntArray

MAX_GRID = 64
"""Largest number that is tried: a finer grid fits any score of two decimals."""
GRID_TOLERANCE = 1e-6
"""How far a score may be from k/N; files write six digits or more."""
MIN_INNER_SCORES = 10
"""Scores between 0 and 1 that a source needs to tell its grid: fewer may all lie on a coarser one by chance."""
GRID_REMEDY = "name the number of continuations (--continuations N; in Python: continuations=N)"


def grid(scores: FloatArray) -> int | None:
    """The smallest N for which every score is some k/N; None where no N up to `MAX_GRID` is.

    >>> grid(np.array([0.25, 0.5, 1.0])), grid(np.array([0.3333333, 0.5])), grid(np.array([0.123]))
    (4, 6, None)
    """
    fitting = (N for N in range(1, MAX_GRID + 1) if np.all(_off_grid(scores, N) <= GRID_TOLERANCE))
    return next(fitting, None)


def _off_grid(scores: FloatArray, N: int | IntArray) -> FloatArray:
    """How far each score is from the nearest k/N."""
    return np.abs(scores - np.round(scores * N) / np.maximum(N, 1))


def infer_continuations(
    scores: FloatArray, counts: NDArray[np.int64], sources: Sequence[str], given: int | None = None
) -> IntArray:
    """The number of continuations of each source's steps, from their scores alone; shape (sources,).

    ``counts``, shape (sources, kinds), is how many steps have each score. A source with few scores between 0 and 1
    takes the grid of all sources together; one without any gets 0. A number that is given must hold all scores.
    """
    is_inner = (scores > 0) & (scores < 1)
    has = counts > 0
    present = scores[has.any(axis=0)]
    if given is not None:
        if len(off := present[_off_grid(present, given) > 0.5e-2]):
            raise DataError(f"score {off[0]:g} is no k/{given}; the steps do not have {given} continuations each")
        return np.where(has.any(axis=1), given, 0)
    if has.any() and not has[:, is_inner].any():
        raise DataError(
            "all scores are 0 or 1 and no counts are given: hard labels do not tell how success rates vary."
            f" Use the corpus with its MC scores, or {GRID_REMEDY}"
        )
    pooled = grid(present)
    numbers = np.zeros(len(sources), np.int64)
    for index in np.flatnonzero(has.any(axis=1)).tolist():
        own = grid(scores[has[index]]) if counts[index, is_inner].sum() >= MIN_INNER_SCORES else pooled
        if own is None:
            some = ", ".join(f"{score:g}" for score in scores[has[index] & is_inner].tolist()[:3])
            raise DataError(
                f"the scores of {sources[index]} lie on no grid k/N with N up to {MAX_GRID} (there are {some}): they"
                f" are no shares of continuations, or were rounded; if they are shares, {GRID_REMEDY}"
            )
        numbers[index] = own
    return numbers


Kind = tuple[float, int | None]
"""A step's score, and how many continuations were sampled; None where the file does not say."""
MAX_KINDS = 1 << 20


def count_steps(task: scan.CountTask) -> tuple[scan.Counted, list[Kind], bytes]:
    """Label counts of the chunk's rollouts, the kinds of their steps, and each step's kind by number, as uint32."""
    counted, fmt = scan.count_labels(task), ROLLOUT_FORMATS[task.chunk.format]
    numbers: dict[Kind, int] = {}
    codes = array("I")
    # a row a line; a count that stopped at a bad record has fewer, and its error is raised soon
    kinds = np.frombuffer(counted.rows, ROW_TYPE)["kind"].tolist()
    for kind, line in zip(kinds, lines_of(task.chunk), strict=False):
        if kind == scan.ROLLOUT:
            (rollout,) = parse_line(line, fmt, None, Issues())  # validated when it was counted
            codes.extend([numbers.setdefault((s.score, s.n_total), len(numbers)) for s in rollout.steps])
    return counted, list(numbers), codes.tobytes()


@dataclass(frozen=True)
class StepCounts:
    """Label counts of each rollout and the kind of each step."""

    labels: LabelCounts
    kinds: list[Kind]
    codes: NDArray[np.uint32]
    """The number of each step's kind, rollout after rollout."""

    def histogram(self, is_kept: BoolArray | None = None) -> NDArray[np.int64]:
        """How many steps of each source are of each kind, of all rows or of some; shape (sources, kinds)."""
        rows, codes = self.labels.rows, self.codes
        source, n_steps = rows["source"].astype(np.int64), rows["n_steps"]
        if is_kept is not None:
            codes, source, n_steps = codes[np.repeat(is_kept, n_steps)], source[is_kept], n_steps[is_kept]
        shape = (len(self.labels.sources), len(self.kinds))
        cells = np.repeat(source, n_steps) * shape[1] + codes
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)

    def where(self, kind: int) -> str:
        """File and line of the first rollout with a step of the kind."""
        ends = np.cumsum(self.labels.rows["n_steps"], dtype=np.int64)
        row = int(np.searchsorted(ends, np.flatnonzero(self.codes == kind)[0], "right"))
        part = next(part for part in self.labels.parts if 0 <= row - part.first_row < part.n_rows)
        return location(part.chunk.path, part.first_line + row - part.first_row)

    def sums(self, values: FloatArray) -> tuple[NDArray[np.uint32], FloatArray]:
        """Source of each rollout, and the sums over its steps of (sources, kinds, C) values, shape (rollouts, C)."""
        rows = self.labels.rows[self.labels.rows["kind"] == scan.ROLLOUT]
        n_steps = rows["n_steps"].astype(np.int64)
        of_step, starts = np.repeat(rows["source"], n_steps), np.cumsum(n_steps) - n_steps
        columns = [np.add.reduceat(column[of_step, self.codes], starts) for column in np.moveaxis(values, -1, 0)]
        return rows["source"], np.stack(columns, axis=-1)


def count_corpus_steps(
    corpus: Corpus, engine: Engine, *, tau: float = 0.0, on_bad: OnBad = None, progress: Progress = silent
) -> StepCounts:
    """Read the corpus once; see `mprm.selection.stats.gather_counts`."""
    numbers: dict[Kind, int] = {}
    codes = bytearray()

    def counting() -> Iterator[scan.Counted]:
        parts = scan.start_counting(corpus, engine, tau=tau, stop_at_bad=on_bad is None, count=count_steps)
        for counted, kinds, of_part in parts:
            renumber = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], np.uint32)
            if len(numbers) > MAX_KINDS:
                raise DataError(
                    f"the scores take more than {MAX_KINDS:,} values: they are no shares of continuations"
                )
            codes.extend(renumber[np.frombuffer(of_part, np.uint32)].tobytes())
            yield counted

    labels = gather_counts(corpus, counting(), on_bad=on_bad, progress=progress)
    return StepCounts(labels, list(numbers), np.frombuffer(codes, np.uint32))


class Counts(NamedTuple):
    """The counts of some steps, as a histogram; shapes (kinds,)."""

    k: IntArray
    n: IntArray
    steps: IntArray
    is_positive: BoolArray


@dataclass(frozen=True, slots=True)
class Prior:
    """A fitted Beta prior."""

    a: float
    a_interval: tuple[float, float]
    b: float
    b_interval: tuple[float, float]
    mean: float
    """Mean success rate, ``a / (a + b)``."""
    covariance: FloatArray
    """Of (log a, log b), shape (2, 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFit:
    """The model fitted to one source, or to all together."""

    name: str
    n_rollouts: int
    n_steps: int
    n_unsampled: int
    """Steps without a continuation: they weigh nothing in the fit."""
    continuations: tuple[int, ...]
    continuations_inferred: bool
    prior: Prior | None
    why_no_prior: str | None
    negative: float
    """Share of the sampled steps that failed in all continuations."""
    expected_negative: float | None
    """The prior's expectation of it: where the two are far apart, one Beta does not describe the source."""
    pseudo_positive: float
    """Expected share of pseudo-positives among positive steps, by the source's own prior, or by that of all sources
    where it has none; 0 where there are no positive steps."""
    pseudo_positive_interval: tuple[float, float]
    """95%, from the prior's uncertainty alone."""

    def as_dict(self) -> dict[str, Any]:
        contents = asdict(self)
        if self.prior is not None:
            del contents["prior"]["covariance"]
        interval = contents.pop("pseudo_positive_interval")
        return contents | {"pseudo_positive": {"share": self.pseudo_positive, "interval": interval}}


class NoiseRow(NamedTuple):
    """What a count of successes tells, by the prior of all sources together."""

    k: int
    steps: int
    posterior_mean: float
    eta_eff: float


class SubsetNoise(NamedTuple):
    """Expected pseudo-positives in what a strategy keeps."""

    strategy: str
    n_rollouts: int
    n_steps: int
    n_positive: int
    pseudo_positive: float
    """Share of the positive steps."""
    of_all_steps: float


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
        return {
            "all": self.total.as_dict(),
            "sources": [source.as_dict() for source in self.sources],
            "reliable": self.reliable,
            "N": self.N,
            "eta_eff": [row._asdict() for row in self.noise],
            "rho": self.rho,
            "subsets": [subset._asdict() for subset in self.subsets],
            "dropped": self.n_dropped,
        }


@dataclass(frozen=True, kw_only=True)
class FitConfig(ScanOptions):
    """Fit the Beta-Binomial model to a corpus, overall and per source.

    Gives the priors with 95% intervals, the effective noise of each count, the expected share of pseudo-positives,
    and how much of each strategy's subset they make up. "mprm-lab theory" simulates the paper's analysis.
    """

    rho: Annotated[float, selection("Fraction that each strategy keeps of a source.", above=0, at_most=1)] = 0.1
    alpha: Alpha = 0.05
    tau: Tau = 0.0
    reliable: Annotated[
        float, Option("A step is reliable when its success rate is at least this.", above=0, below=1)
    ] = 0.5
    seed: Seed = 0
    continuations: Annotated[
        int | None,
        Option(
            "Continuations behind each score, where files do not say; else the scores' grid tells.",
            at_least=2,
            at_most=2**32 - 1,
        ),
    ] = None


@takes(FitConfig)
def fit_corpus(
    paths: Any, config: FitConfig | None = None, *, progress: Progress = silent, **options: Any
) -> CorpusFit:
    """Beta priors of a corpus's success rates, and how many positive steps they expect to be pseudo-positive.

    Intervals allow for any dependence between the steps of a rollout. A positive step with k successes is
    pseudo-positive with probability ``eta_eff(k) = Pr(r < reliable | k)``.

    >>> steps = [{"step": "s", "score": k / 4, "num_mc_correct": k, "num_mc_total": 4} for k in (0, 1, 2, 3, 4)]
    >>> rollouts = [{"question": "?", "steps_with_score": steps}] * 40
    >>> prior = fit_corpus(rollouts, text_only=True).total.prior
    >>> round(prior.a, 3), round(prior.b, 3)  # all counts equally often: the uniform prior
    (1.0, 1.0)
    """
    config = FitConfig.of(config, options)
    corpus = open_corpus(paths, **config.reading())
    for path, fmt in corpus.formats.items():
        if fmt.labels == "binary":
            raise DataError(
                f"{location(path)}: {fmt.name} holds right or wrong for each step and no MC scores, which alone tell"
                " how success rates vary; fit to the rollouts that the labels were made of"
            )
    engine, dropped = make_engine(config, n_bytes=corpus.n_bytes), DroppedRecords()
    on_bad = dropped if config.skip_bad else None
    steps = count_corpus_steps(flattened(corpus, on_bad), engine, tau=config.tau, on_bad=on_bad, progress=progress)
    return Fit(steps, config).corpus_fit(len(dropped))


fit = fit_corpus
"""By the name of its command, ``mprm theory fit``."""


SCORE_TOLERANCE = 1e-5
"""How far a score may be from k/N where the file gives N."""
MAX_NOISE_ROWS = 256
"""With more continuations the table of noise has the counts that occur."""


class Fit:
    """The tables behind the fit: a row a source, a column a kind of step."""

    def __init__(self, steps: StepCounts, config: FitConfig) -> None:
        self.steps, self.config = steps, config
        self.histogram = steps.histogram()
        if not self.histogram.any():
            raise DataError("there is nothing to fit: the corpus has no usable rollout; mprm check says why")
        self.score = np.array([score for score, _ in steps.kinds])
        self.is_positive = self.score > config.tau
        self.is_inferred = np.zeros(len(self.histogram), np.bool_)
        self.k, self.n = self._successes()

    def _successes(self) -> tuple[IntArray, IntArray]:
        """Successes and continuations of each source's kinds, shapes (sources, kinds)."""
        is_unknown = np.array([n is None for _, n in self.steps.kinds])
        n = np.array([n or 0 for _, n in self.steps.kinds], np.int64)
        of_source = np.broadcast_to(n, self.histogram.shape).copy()
        if is_unknown.any():
            given, sources = self.config.continuations, self.steps.labels.sources
            own = infer_continuations(self.score[is_unknown], self.histogram[:, is_unknown], sources, given)
            of_source[:, is_unknown] = own[:, None]
            self.is_inferred = (own > 0) & (given is None)
        is_off = (_off_grid(self.score, n) > SCORE_TOLERANCE) & ~is_unknown
        if is_off.any():
            raise DataError(
                f"{self.steps.where(int(np.flatnonzero(is_off)[0]))}: a step has score {self.score[is_off][0]:g} of"
                f" {n[is_off][0]} continuations; no number of successes gives it. Write the score to six digits, or"
                " leave num_mc_total out and name it with --continuations"
            )
        k = np.round(self.score * of_source).astype(np.int64)
        # a source's grid says nothing of the scores that only other sources have
        return np.where(self.histogram > 0, k, 0), np.where(self.histogram > 0, of_source, 0)

    def counts(self, source: int | None) -> Counts:
        chosen = slice(None) if source is None else source
        steps = self.histogram[chosen]
        is_positive, seen = np.broadcast_to(self.is_positive, steps.shape), steps > 0
        return Counts(self.k[chosen][seen], self.n[chosen][seen], steps[seen], is_positive[seen])

    def corpus_fit(self, n_dropped: int = 0) -> CorpusFit:
        *priors, overall = self._priors()
        if isinstance(overall, str):
            raise DataError(f"no Beta prior fits the corpus: {overall}")
        n_rollouts = self.steps.labels.n_rollouts
        whole = self.counts(None)
        numbers, index = np.unique(whole.n, return_inverse=True)
        N = int(numbers[np.bincount(index, whole.steps * (whole.n > 0)).argmax()])
        return CorpusFit(
            total=self._source("all", None, sum(n_rollouts.values()), overall, overall),
            sources=[
                self._source(name, source, n_rollouts[name], priors[source], overall)
                for source, name in enumerate(n_rollouts)
                if n_rollouts[name]
            ],
            N=N,
            noise=self._noise(whole, N, overall),
            subsets=list(self._subsets(priors, overall)),
            rho=self.config.rho,
            reliable=self.config.reliable,
            n_dropped=n_dropped,
        )

    def _priors(self) -> list[Prior | str]:
        """The prior of each source, and last that of all together; or why there is none."""
        groups = [self.counts(source) for source in (*range(len(self.histogram)), None)]
        fitted = [_fitted(group) for group in groups]
        a, b = np.array([(np.nan, np.nan) if isinstance(prior, str) else prior for prior in fitted]).T[..., None]
        # slopes of each rollout's likelihood: at its source's own prior, and at that of all
        source, own = self.steps.sums(beta_binomial.likelihood_slopes(self.k, self.n, a=a[:-1], b=b[:-1]))
        _, of_all = self.steps.sums(beta_binomial.likelihood_slopes(self.k, self.n, a=a[-1], b=b[-1]))
        slopes = [*(own[source == number] for number in range(len(self.histogram))), of_all]
        return [
            prior if isinstance(prior, str) else _with_interval(group, prior, slopes_of_group)
            for group, prior, slopes_of_group in zip(groups, fitted, slopes, strict=True)
        ]

    def _source(
        self, name: str, source: int | None, n_rollouts: int, prior: Prior | str, overall: Prior
    ) -> SourceFit:
        counts = self.counts(source)
        own = None if isinstance(prior, str) else prior
        sampled = counts.steps * (counts.n > 0)
        n_steps, n_sampled = int(counts.steps.sum()), int(sampled.sum())
        expected = None if own is None else float(sampled @ all_fail(0, counts.n, a=own.a, b=own.b) / n_sampled)
        pseudo, interval = pseudo_positives(counts, own or overall, tau=self.config.reliable)
        return SourceFit(
            name=name,
            n_rollouts=n_rollouts,
            n_steps=n_steps,
            n_unsampled=n_steps - n_sampled,
            continuations=tuple(np.unique(counts.n[counts.n > 0]).tolist()),
            continuations_inferred=bool(self.is_inferred.any() if source is None else self.is_inferred[source]),
            prior=own,
            why_no_prior=prior if isinstance(prior, str) else None,
            negative=float(sampled[counts.k == 0].sum() / max(1, n_sampled)),
            expected_negative=expected,
            pseudo_positive=pseudo,
            pseudo_positive_interval=interval,
        )

    def _noise(self, whole: Counts, N: int, prior: Prior) -> list[NoiseRow]:
        seen, index = np.unique(whole.k[whole.n == N], return_inverse=True)
        k = np.arange(N + 1) if N <= MAX_NOISE_ROWS else seen
        steps = np.zeros(len(k), np.int64)
        steps[np.searchsorted(k, seen)] = np.bincount(index, whole.steps[whole.n == N])
        means = beta_binomial.posterior_mean(k, N, a=prior.a, b=prior.b)
        noise = eta_eff(k, N, tau=self.config.reliable, a=prior.a, b=prior.b)
        return list(map(NoiseRow, k.tolist(), steps.tolist(), means.tolist(), noise.tolist()))

    def _subsets(self, priors: Sequence[Prior | str], overall: Prior) -> Iterator[SubsetNoise]:
        """Expected pseudo-positives of all rollouts and of each strategy's, each step by its source's prior."""
        labels, config = self.steps.labels, self.config
        used = [overall if isinstance(prior, str) else prior for prior in priors]
        a, b = np.array([(prior.a, prior.b) for prior in used]).T[..., None]
        noise = eta_eff(self.k, self.n, tau=config.reliable, a=a, b=b) * self.is_positive
        n_keep = partial(SelectConfig(rho=(config.rho,)).n_keep, config.rho)
        kept: dict[str, BoolArray] = {"all": labels.rows["kind"] == scan.ROLLOUT}
        for strategy in PAPER_STRATEGIES:
            kept[strategy] = keep_top(labels, strategy, n_keep, alpha=config.alpha, seed=config.seed).mask
        for strategy, is_kept in kept.items():
            histogram = self.steps.histogram(is_kept)
            n_steps, n_positive = int(histogram.sum()), int(histogram[:, self.is_positive].sum())
            expected = float(np.sum(histogram * noise))
            shares = expected / max(1, n_positive), expected / max(1, n_steps)
            yield SubsetNoise(strategy, int(is_kept.sum()), n_steps, n_positive, *shares)


def _fitted(counts: Counts) -> tuple[float, float] | str:
    try:
        return beta_binomial.fit_beta(counts.k, counts.n, counts.steps)
    except DataError as error:
        return str(error).removesuffix(f"; {beta_binomial.REMEDY}")  # there is nothing to give


def _with_interval(counts: Counts, prior: tuple[float, float], slopes: FloatArray) -> Prior | str:
    """The prior with its uncertainty, from the slopes of each rollout's likelihood, shape (rollouts, 2)."""
    (a, b), n_rollouts = prior, len(slopes)
    if n_rollouts < 2:
        return "there is only one rollout, and nothing tells how rollouts vary"
    information = beta_binomial.observed_information(counts.k, counts.n, counts.steps, a=a, b=b)
    if np.linalg.eigvalsh(information)[0] <= 0:
        return f"the likelihood has no peak at a = {a:g}, b = {b:g}; there are too few steps"
    # few rollouts: G / (G - 1), for their slopes sum to 0 at the maximum, and Student's t in place of the normal
    t = float(scipy_special().stdtrit(n_rollouts - 1, 0.975))
    widened = n_rollouts / (n_rollouts - 1) * (t / Z_95) ** 2
    covariance = widened * beta_binomial.prior_covariance(information, slopes.T @ slopes)
    a_interval, b_interval = log_interval(a, covariance[0, 0]), log_interval(b, covariance[1, 1])
    return Prior(a, a_interval, b, b_interval, a / (a + b), covariance)


def pseudo_positives(counts: Counts, prior: Prior, *, tau: float) -> tuple[float, tuple[float, float]]:
    """Mean of ``eta_eff(k)`` over positive steps, with a 95% interval by the delta method."""
    positive = counts.steps * counts.is_positive
    if not positive.any():
        return 0.0, (0.0, 0.0)

    def share(logs: FloatArray) -> float:
        a, b = np.exp(logs)
        return float(positive @ eta_eff(counts.k, counts.n, tau=tau, a=a, b=b) / positive.sum())

    logs, h = np.log([prior.a, prior.b]), 1e-4
    slope = np.array([share(logs + step) - share(logs - step) for step in h * np.eye(2)]) / (2 * h)
    value = share(logs)
    half = Z_95 * float(np.sqrt(slope @ prior.covariance @ slope))
    return value, (max(0.0, value - half), min(1.0, value + half))
