"""Monte-Carlo annotation of one question: which requests it takes, and what their completions come to.

A question has rollouts, a rollout has steps, and each step ends a prefix whose continuations are counted: the step's
score is the share of them that reach the gold answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from mprm.annotation.run import COUNTS, Outcome, QuestionFailedError, Task, Work
from mprm.annotation.samplers.sampler import Request
from mprm.data.candidate_formats import JOINT, split_steps

if TYPE_CHECKING:
    from mprm.annotation.annotate import AnnotateConfig


STATS = (
    *("n_rollouts", "n_truncated_rollouts", "n_empty", "n_steps", "n_unsampled", "n_continuations", *COUNTS),
    *("n_tokens", "n_skipped", "n_audited", "n_disagreed", "audit_shift"),
)
"""Sums over questions, which docs/annotation.md explains; of rollouts that were given, only what was sampled now."""


@dataclass(slots=True)
class StepCounts:
    """A step, and what became of the continuations of the prefix that ends with it."""

    text: str
    n_correct: int = 0
    n_incorrect: int = 0
    n_truncated: int = 0
    """Without an answer at the token limit; they count as not correct."""
    n_failed: int = 0
    """The answer checker failed; they count neither way."""
    n_sampled: int = 0
    """All continuations but those that failed in an earlier run, which are sampled again."""
    stopped_at: tuple[int, int] | None = None
    """(k, n) when the adaptive rule had enough, where that was before all were sampled."""

    @property
    def n_total(self) -> int:
        """Continuations whose outcome is known."""
        return self.n_correct + self.n_incorrect + self.n_truncated

    @property
    def score(self) -> float:
        """Share of the continuations that succeed."""
        return self.n_correct / self.n_total if self.n_total else 0.0

    def as_record(self) -> dict[str, Any]:
        """The step as v1.1-Raw writes it."""
        counts = {"num_mc_correct": self.n_correct, "num_mc_total": self.n_total}
        more = {"num_mc_cut": self.n_truncated, "num_mc_failed": self.n_failed}
        return {"step": self.text, "score": self.score, **counts, **{name: n for name, n in more.items() if n}}


@dataclass(slots=True)
class RolloutCounts:
    """A rollout, and the counts of its steps."""

    steps: list[StepCounts]
    finish_reason: str | None = None


@dataclass(slots=True, kw_only=True)
class AnnotationTask(Task):
    """A question under annotation."""

    config: AnnotateConfig
    rollouts: dict[int, RolloutCounts] | None = None
    """By number; None before the policy has sampled them."""
    stats: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(STATS, 0)))

    def digest(self) -> bytes:
        """Changes with whatever the annotation depends on."""
        return Task.digest(self) + xxhash.xxh3_128_digest(msgspec.json.encode(self.rollouts))

    def add_rollout(self, number: int, texts: Sequence[str], finish_reason: str | None) -> list[StepCounts]:
        """The steps of a rollout that is added; one without a word is only counted."""
        rollout = RolloutCounts([StepCounts(text) for text in texts], finish_reason)
        self.rollouts = {**(self.rollouts or {}), **({number: rollout} if texts else {})}
        self.stats["n_empty"] += not texts
        return rollout.steps

    def work(self) -> Work:
        """Sample the rollouts, then continuations of all prefixes, round by round."""
        if self.rollouts is None:
            outcomes = yield {"rollouts": self._request("rollouts", self.config.rollouts)}
            self.stats["n_tokens"] += outcomes["rollouts"]["n_tokens"]
            for number, completion in enumerate(outcomes["rollouts"]["completions"]):
                steps = split_steps(completion["text"], self.config.max_steps)
                self.add_rollout(number, steps, completion["finish_reason"])
        rollouts, self.rollouts = self.rollouts or {}, None  # which nobody needs once this is done
        while requests := self._missing(rollouts):
            for part, outcome in (yield requests).items():
                self._count(rollouts, part, outcome)
        unscored = [
            f"step {index} of rollout {number}: the answer checker failed on all {step.n_failed} continuations"
            for number, rollout in rollouts.items()
            for index, step in enumerate(rollout.steps)
            if step.n_failed and not step.n_total
        ]
        if unscored or not rollouts:
            raise QuestionFailedError(*(unscored or [f"all {self.stats['n_empty']} rollouts are empty"]))
        for number, rollout in rollouts.items():
            self._add_stats(number, rollout)
        records = [self._record(number, rollout) for number, rollout in rollouts.items()]
        return {"records": records, "stats": dict(self.stats)}

    def _missing(self, rollouts: Mapping[int, RolloutCounts]) -> dict[str, Request]:
        """The requests of all prefixes that need more continuations now, by ROLLOUT.STEP.N_SAMPLED."""
        requests = {}
        for number, rollout in rollouts.items():
            for index, step in enumerate(rollout.steps):
                n = self._n_missing(step, number, index)
                if n:
                    prefix = JOINT.join(step.text for step in rollout.steps[: index + 1])
                    is_last = index + 1 == len(rollout.steps)  # the policy may end the answer there
                    part = f"{number}.{index}.{step.n_sampled}"
                    requests[part] = self._request(part, n, prefix if is_last else prefix + JOINT)
                if self.config.early_stop and (n or not step.n_correct):
                    break
        return requests

    def _n_missing(self, step: StepCounts, number: int, index: int) -> int:
        n_left = self.config.continuations - step.n_sampled
        if n_left <= 0 or not self.config.adaptive:
            return max(0, n_left)
        n_next = min(n_left, self.config.n_next(step.n_correct, step.n_total))
        if n_next or not step.n_sampled:
            return n_next or n_left
        step.stopped_at = step.stopped_at or (step.n_correct, step.n_sampled)
        return n_left if self._is_audited(number, index) else 0

    def _is_audited(self, number: int, index: int) -> bool:
        """By a hash of the prefix's names: the same in every run."""
        names = "\0".join(map(str, (self.config.seed, *self.key, number, index)))
        return xxhash.xxh3_64_intdigest(names.encode("utf-8", "surrogatepass")) < self.config.audit * 2**64

    def _request(self, part: str, n: int, prefix: str = "") -> Request:
        # continuations that may have been sampled before with the same seed must be others
        fresh = ["fresh"] if self.config.fresh else []
        return self.request(n, *fresh, *self.key, part, prefix=prefix)

    def _count(self, rollouts: Mapping[int, RolloutCounts], part: str, outcome: Outcome) -> None:
        number, index, _ = map(int, part.split("."))
        step = rollouts[number].steps[index]
        for name in COUNTS:
            setattr(step, name, getattr(step, name) + outcome[name])
        n = sum(outcome[name] for name in COUNTS)
        step.n_sampled += n
        self.stats.update({name: outcome[name] for name in (*COUNTS, "n_tokens")}, n_continuations=n)

    def _add_stats(self, number: int, rollout: RolloutCounts) -> None:
        n_unsampled = sum(not step.n_sampled for step in rollout.steps)
        is_truncated = rollout.finish_reason == "length"
        self.stats.update(
            n_rollouts=1, n_truncated_rollouts=is_truncated, n_steps=len(rollout.steps), n_unsampled=n_unsampled
        )
        for index, step in enumerate(rollout.steps):
            if step.stopped_at is None:
                continue
            self.stats["n_skipped"] += self.config.continuations - step.n_sampled
            if self._is_audited(number, index):
                k, n = step.stopped_at
                has_other_label = (k > 0) != (step.n_correct > 0)
                self.stats.update(n_audited=1, n_disagreed=has_other_label, audit_shift=k / n - step.score)  # type: ignore[call-overload]

    def _record(self, number: int, rollout: RolloutCounts) -> dict[str, Any]:
        question, images = self.question, list(self.question.images)
        unsampled = [index for index, step in enumerate(rollout.steps) if not step.n_sampled]
        return {
            "id": question.id,
            "rollout": number,
            **({"image": images[0] if len(images) == 1 else images} if images else {}),
            "question": self.prompt,
            "question_orig": question.question,
            "answer": question.answer,
            **({"options": question.options} if question.options else {}),
            "response": JOINT.join(step.text for step in rollout.steps),
            "steps_with_score": [step.as_record() for step in rollout.steps],
            "num_mc_sequences": max(self.config.continuations, *(step.n_total for step in rollout.steps)),
            **({"finish_reason": rollout.finish_reason} if rollout.finish_reason is not None else {}),
            **({"early_stop_at": unsampled[0] - 1} if unsampled else {}),
            **({"source": question.source} if question.source else {}),
        }
