"""Monte-Carlo annotation of one question: which requests it takes, and what their answers come to.

A rollout is split into steps. The continuations of the prefix that ends with a step tell the step's worth:
its score is the share of them that reach the right answer.

"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import xxhash

from mprm.annotation.samplers.sampler import Request, SamplingParams, derived_seed
from mprm.annotation.task import Task
from mprm.data.candidate_formats import JOINT, split_steps
from mprm.errors import ConfigError

ROLLOUTS = "rollouts"
"""The part of a question's work that makes its rollouts; the others are ROLLOUT.STEP.DRAWN."""


class Budget(Protocol):
    """How many continuations a prefix gets."""

    def next(self, k: int, n: int) -> int:
        """How many more to draw now, after ``k`` successes among ``n``; 0 when that is enough."""
        ...


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """The same number for every prefix."""

    n_max: int

    def next(self, k: int, n: int) -> int:  # noqa: ARG002
        """What is left."""
        return max(0, self.n_max - n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """How every question is annotated."""

    rollouts: int
    continuations: int
    max_steps: int | None
    early_stop: bool
    sampling: SamplingParams
    seed: int
    budget: Budget
    is_fresh: bool
    """Whether continuations are drawn that may have been drawn before, with the same seed: they must be others."""
    audit: float
    """Share of the prefixes that get all continuations although the budget has decided."""

    def is_audited(self, *names: object) -> bool:
        """By a hash of the prefix's names: the same in every run."""
        digest = xxhash.xxh3_64_intdigest("\0".join(map(str, (self.seed, *names))).encode("utf-8", "surrogatepass"))
        return digest < self.audit * 2**64


@dataclass(slots=True)
class StepCounts:
    """The continuations of one prefix, by what became of them."""

    text: str
    k_given: int = 0
    n_given: int = 0
    cut_given: int = 0
    failed_given: int = 0
    """Successes, continuations, and of those the ones cut off or not judged, that the rollout came with."""
    n_correct: int = 0
    n_incorrect: int = 0
    n_cut: int = 0
    """Without an answer when the token limit cut them off; they count as not correct."""
    n_failed: int = 0
    """Drawn, but the answer checker failed; they count neither way."""
    n_tokens: int = 0
    is_asked: bool = False
    decided: tuple[int, int] | None = None
    """(k, n) when the budget had enough, where that was before all were drawn."""

    @property
    def k(self) -> int:
        """Successes."""
        return self.k_given + self.n_correct

    @property
    def n(self) -> int:
        """Continuations whose outcome is known: the score is k / n."""
        return self.n_given + self.n_correct + self.n_incorrect + self.n_cut

    @property
    def n_drawn(self) -> int:
        """Continuations, those included on which the checker failed."""
        return self.n + self.n_failed

    def entry(self) -> dict[str, Any]:
        """The step as v1.1-Raw writes it."""
        score = self.k / self.n if self.n else 0.0
        entry = {"step": self.text, "score": score, "num_mc_correct": self.k, "num_mc_total": self.n}
        more = {"num_mc_cut": self.cut_given + self.n_cut, "num_mc_failed": self.failed_given + self.n_failed}
        return entry | {name: n for name, n in more.items() if n}


@dataclass(slots=True, kw_only=True)
class AnnotationStats:
    """What annotating has come to; tallies add up."""

    n_rollouts: int = 0
    n_cut_rollouts: int = 0
    """Rollouts that the token limit cut off; they are annotated as far as they go."""
    n_empty: int = 0
    """Rollouts without a word, which have no steps to annotate."""
    n_steps: int = 0
    n_unsampled: int = 0
    """Steps after a first one that never succeeded, left out by the early stop."""
    n_continuations: int = 0
    n_correct: int = 0
    n_cut: int = 0
    n_failed: int = 0
    n_tokens: int = 0
    """Of rollouts and continuations, as far as the policy's server tells."""
    n_spared: int = 0
    """Continuations that the budget left out."""
    n_audited: int = 0
    """Steps that the budget had decided, and that got all continuations all the same."""
    n_disagreed: int = 0
    """Audited steps whose label with all continuations is another than the budget's."""
    audit_shift: float = 0.0
    """Sum over them of the score that the budget would have given less the score of all."""

    def add(self, other: Mapping[str, float]) -> None:
        """Add another tally's fields."""
        for name, n in other.items():
            setattr(self, name, getattr(self, name) + n)


@dataclass(slots=True)
class _Chain:
    number: int
    steps: list[StepCounts]
    finish_reason: str | None = None


@dataclass(slots=True)
class Annotation:
    """One question under way."""

    task: Task
    procedure: Procedure
    chains: dict[int, _Chain] | None = None
    """By number; None before there are any."""
    n_empty: int = 0
    n_tokens: int = 0
    _is_asked: bool = False
    errors: set[str] = field(default_factory=set)
    """Why answers could not be had, where they could not."""

    def __post_init__(self) -> None:
        if self.task.given is None:
            return
        self.n_empty = self.task.n_empty
        self.chains = {
            rollout.number: _Chain(
                rollout.number,
                [StepCounts(step.text, step.k, step.n, step.n_cut, step.n_failed) for step in rollout.steps],
                rollout.finish_reason,
            )
            for rollout in self.task.given
        }

    def wanted(self) -> Iterator[tuple[str, Request]]:
        """Parts that can be asked for now and are not under way; they are from then on."""
        if self.chains is None:
            if not self._is_asked:
                self._is_asked = True
                yield ROLLOUTS, self._request(ROLLOUTS, self.procedure.rollouts)
            return
        for number, chain in self.chains.items():
            for place, step in enumerate(chain.steps):
                needed = self._needed(number, place)
                if needed and not step.is_asked:
                    step.is_asked = True
                    part = f"{number}.{place}.{step.n_drawn}"
                    yield part, self._request(part, needed, _prefix(chain, place))
                if self.procedure.early_stop and (needed or not step.k):
                    break

    def _needed(self, number: int, place: int) -> int:
        """How many more continuations the step gets now."""
        assert self.chains is not None
        step, procedure = self.chains[number].steps[place], self.procedure
        rest = procedure.continuations - step.n_drawn
        if rest <= 0:
            return 0
        needed = min(rest, procedure.budget.next(step.k, step.n))
        if needed or not step.n_drawn:
            return needed or rest
        step.decided = step.decided or (step.k, step.n_drawn)
        return rest if procedure.is_audited(*self.task.key, number, place) else 0

    def _request(self, part: str, n: int, prefix: str = "") -> Request:
        task, procedure = self.task, self.procedure
        return Request(
            prompt=task.prompt,
            images=task.images,
            prefix=prefix,
            n=n,
            seed=derived_seed(procedure.seed, *(["fresh"] if procedure.is_fresh else []), *task.key, part),
            sampling=procedure.sampling,
        )

    def prefix_of(self, part: str) -> str:
        """The text that the continuations of a part continue."""
        assert self.chains is not None
        number, place, _ = map(int, part.split("."))
        return _prefix(self.chains[number], place)

    def take(self, part: str, outcome: Mapping[str, Any]) -> None:
        """What came of a part: the rollouts, or the number of continuations of each fate."""
        if part == ROLLOUTS:
            self._take_rollouts(outcome)
            return
        assert self.chains is not None
        number, place, _ = map(int, part.split("."))
        step = self.chains[number].steps[place]
        for name in ("n_correct", "n_incorrect", "n_cut", "n_failed", "n_tokens"):
            setattr(step, name, getattr(step, name) + outcome[name])
        step.is_asked = False

    def _take_rollouts(self, outcome: Mapping[str, Any]) -> None:
        self.n_tokens += outcome["n_tokens"]
        self.chains = {}
        for number, rollout in enumerate(outcome["rollouts"]):
            steps = split_steps(rollout["text"], self.procedure.max_steps)
            if steps:
                self.chains[number] = _Chain(number, [StepCounts(text) for text in steps], rollout["finish_reason"])
            else:
                self.n_empty += 1

    @property
    def unscored(self) -> list[str]:
        """Steps of which the checker could judge no continuation: the question cannot be written."""
        return [
            f"step {place} of rollout {number}: the answer checker failed on all {step.n_failed} continuations"
            for number, chain in (self.chains or {}).items()
            for place, step in enumerate(chain.steps)
            if step.n_failed and not step.n
        ]

    def records(self) -> list[dict[str, Any]]:
        """The rollouts as v1.1-Raw writes them, once nothing more is wanted."""
        question = self.task.question
        images = list(question.images)
        found = []
        for chain in (self.chains or {}).values():
            record: dict[str, Any] = {"id": question.id, "rollout": chain.number}
            if images:
                record["image"] = images[0] if len(images) == 1 else images
            record |= {
                "question": self.task.prompt,
                "question_orig": question.question,
                "answer": question.answer,
                **({"options": question.options} if question.options else {}),
                "response": JOINT.join(step.text for step in chain.steps),
                "steps_with_score": [step.entry() for step in chain.steps],
                "num_mc_sequences": max(self.procedure.continuations, *(step.n for step in chain.steps)),
            }
            if chain.finish_reason is not None:
                record["finish_reason"] = chain.finish_reason
            unsampled = [place for place, step in enumerate(chain.steps) if not step.n_drawn]
            if unsampled:
                record["early_stop_at"] = unsampled[0] - 1
            if question.source:
                record["source"] = question.source
            found.append(record)
        return found

    def tally(self) -> dict[str, float]:
        """The question's part of the sums; of given rollouts, only what was drawn now."""
        total = AnnotationStats(n_rollouts=len(self.chains or {}), n_empty=self.n_empty, n_tokens=self.n_tokens)
        for number, chain in (self.chains or {}).items():
            total.n_cut_rollouts += chain.finish_reason == "length"
            for place, step in enumerate(chain.steps):
                total.n_steps += 1
                total.n_unsampled += not step.n_drawn
                total.n_continuations += step.n_drawn - step.n_given
                total.n_correct += step.n_correct
                total.n_cut += step.n_cut
                total.n_failed += step.n_failed
                total.n_tokens += step.n_tokens
                if step.decided is not None:
                    is_audited = self.procedure.is_audited(*self.task.key, number, place)
                    total.n_spared += self.procedure.continuations - step.n_drawn
                    total.n_audited += is_audited
                    if is_audited:
                        k, n = step.decided
                        total.n_disagreed += (k > 0) != (step.k > 0)
                        total.audit_shift += k / n - step.k / step.n
        return asdict(total)


def _prefix(chain: _Chain, place: int) -> str:
    """The steps up to this one, and the blank line after it unless the answer ends there."""
    text = JOINT.join(step.text for step in chain.steps[: place + 1])
    return text + JOINT if place + 1 < len(chain.steps) else text


def check_numbers(**numbers: float) -> None:
    """Stop at counts below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ConfigError(f"{name} must be 1 or more, got {number}")
