"""Step counts and Monte-Carlo scores of the sample corpus, fitted to published averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mprm_lab.draws import Draws

N_MC = 16
"""Continuations sampled a step, the paper's N."""
ALL_NEGATIVE_SHARE = 0.05
"""Of the rollouts with an error, those that are wrong from their first step."""
RECOVERING_SHARE = 0.1
"""Of the mixed rollouts that are long enough for it, those that find back to the right answer."""
UNSAMPLED_SHARE = 0.5
"""Of the rollouts with an error, those whose later steps were never sampled."""
MEAN_TOLERANCE = 0.001
"""Close enough to the average score; fitting closer would hang on single draws."""


@dataclass(frozen=True, slots=True)
class Course:
    """Where a rollout goes wrong, and where it finds back; steps count from 0."""

    n_steps: int
    ease: float
    """How easy its question is, in [0, 1]."""
    slip_at: int | None = None
    """First step that never succeeds."""
    back_at: int | None = None
    """Step after which some continuations succeed again."""

    @property
    def n_zeros(self) -> int:
        """Number of steps that never succeed."""
        if self.slip_at is None:
            return 0
        return (self.n_steps if self.back_at is None else self.back_at) - self.slip_at

    def is_zero(self, step: int) -> bool:
        """Whether the step never succeeds."""
        return self.slip_at is not None and self.slip_at <= step < self.slip_at + self.n_zeros


@dataclass(frozen=True, slots=True)
class Sampled:
    """How many of the continuations after a step succeeded."""

    n_correct: int
    n_total: int


def draw_n_steps(draws: Draws, n_rollouts: int, *, mean: float) -> list[int]:
    """Number of steps of each rollout, at least 2, with this mean."""
    n_trials = round(3 * (mean - 2))
    share = (mean - 2) / n_trials
    n_steps = [2 + sum(draws.chance(share) for _ in range(n_trials)) for _ in range(n_rollouts)]
    return nudged(draws, n_steps, round(mean * n_rollouts), low=2, highs=[2 + n_trials] * n_rollouts)


def nudged(draws: Draws, counts: Sequence[int], total: int, *, low: int, highs: Sequence[int]) -> list[int]:
    """The counts, some of them moved by ones within their bounds, so that they sum to ``total``."""
    moved = list(counts)
    left = min(max(total, low * len(moved)), sum(highs)) - sum(moved)
    while left:
        number = draws.between(0, len(moved) - 1)
        step = 1 if left > 0 else -1
        if low <= moved[number] + step <= highs[number]:
            moved[number] += step
            left -= step
    return moved


def draw_courses(
    draws: Draws, n_steps: Sequence[int], eases: Sequence[float], *, error_share: float, mixed_share: float
) -> list[Course]:
    """Where each rollout goes wrong.

    Parameters
    ----------
    error_share
        Share of all steps that never succeed.
    mixed_share
        Share of rollouts with some of these steps and some others.
    """
    courses = [Course(n, ease) for n, ease in zip(n_steps, eases, strict=True)]
    # hard questions first, but not strictly
    order = sorted(range(len(courses)), key=lambda number: eases[number] + 0.7 * draws.uniform())
    n_mixed = round(mixed_share * len(courses))
    n_negative = round(n_mixed * ALL_NEGATIVE_SHARE)
    for number in order[:n_negative]:
        courses[number] = Course(n_steps[number], eases[number], slip_at=0)
    mixed = order[n_negative : n_negative + n_mixed]
    # two draws: errors in the middle of a rollout are more common than at its ends
    n_zeros = [1 + int((draws.uniform() + draws.uniform()) / 2 * (n_steps[number] - 1)) for number in mixed]
    n_left = round(error_share * sum(n_steps)) - sum(course.n_zeros for course in courses)
    n_zeros = nudged(draws, n_zeros, n_left, low=1, highs=[n_steps[number] - 1 for number in mixed])
    for number, n in zip(mixed, n_zeros, strict=True):
        courses[number] = _mixed_course(draws, n_steps[number], eases[number], n)
    return courses


def _mixed_course(draws: Draws, n_steps: int, ease: float, n_zeros: int) -> Course:
    last_slip = n_steps - 2 - n_zeros  # leaves a step that finds back, and the answer
    if last_slip >= 1 and draws.chance(RECOVERING_SHARE):
        return Course(n_steps, ease, slip_at=last_slip, back_at=n_steps - 2)
    return Course(n_steps, ease, slip_at=n_steps - n_zeros)


def draw_samples(draws: Draws, courses: Sequence[Course], *, mean_mc: float) -> list[list[Sampled]]:
    """Successes of every step of every rollout, with this mean over all steps.

    A continuation succeeds with a probability that starts at ``ease ** hardness``, rises to 1 along a
    right rollout and falls towards the first error of a wrong one; ``hardness`` is fitted by bisection.
    """
    noise = [[[draws.uniform() for _ in range(N_MC)] for _ in range(c.n_steps)] for c in courses]
    n_all = sum(course.n_steps for course in courses) * N_MC
    low, high = 0.0, 16.0
    while True:
        hardness = (low + high) / 2
        n_correct = [
            [_n_correct(course, step, hardness, noise[number][step]) for step in range(course.n_steps)]
            for number, course in enumerate(courses)
        ]
        excess = sum(map(sum, n_correct)) / n_all - mean_mc
        if abs(excess) < MEAN_TOLERANCE:
            return [_sampled(draws, course, row) for course, row in zip(courses, n_correct, strict=True)]
        low, high = (hardness, high) if excess > 0 else (low, hardness)


def _n_correct(course: Course, step: int, hardness: float, noise: Sequence[float]) -> int:
    if course.is_zero(step):
        return 0
    if step == course.back_at:
        return 1 + int(noise[0] * N_MC) % 3
    start: float = course.ease**hardness
    if course.slip_at is None or step > course.slip_at:
        probability = start + (1 - start) * (step / (course.n_steps - 1)) ** 2
    else:
        probability = start * (1 - 0.4 * (step + 1) / (course.slip_at + 1))
    # a step that is not an error succeeds at least once
    return max(1, sum(value < probability for value in noise))


def _sampled(draws: Draws, course: Course, row: Sequence[int]) -> list[Sampled]:
    stops_early = course.slip_at is not None and course.back_at is None and draws.chance(UNSAMPLED_SHARE)
    return [
        Sampled(n, 0 if stops_early and course.slip_at is not None and step > course.slip_at else N_MC)
        for step, n in enumerate(row)
    ]
