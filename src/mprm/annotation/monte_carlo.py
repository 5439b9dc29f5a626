"""Monte-Carlo annotation of one question: which requests it takes, and what their completions come to.

A question has rollouts, a rollout has steps, and each step ends a prefix whose continuations are counted: the step's
score is the share of them that reach the gold answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

import msgspec
import xxhash

from mprm.annotation.annotate import AnnotateConfig
from mprm.annotation.journal import COUNTS, Key, QuestionFailedError, Task, Work
from mprm.annotation.samplers.sampler import Request
from mprm.answers.extract import stated_gold
from mprm.answers.options import letter_of, letter_options
from mprm.data.candidates import CANDIDATE_FORMATS, read_candidates
from mprm.data.corpus import LocatedRollout, open_corpus
from mprm.data.output import DroppedRecords
from mprm.data.questions import given_questions, input_entries, read_gold
from mprm.data.records import chunks_of, decode_record, find_files, is_blank, lines_of
from mprm.data.types import STEP_SEPARATOR, BadRecord, Question, split_steps
from mprm.errors import ConfigError, DataError

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
    n_truncated: int = 0  # without an answer at the token limit; they count as not correct
    n_failed: int = 0  # the answer checker failed; they count neither way
    n_sampled: int = 0  # all continuations but those that failed in an earlier run, which are sampled again
    stopped_at: tuple[int, int] | None = None  # (k, n) when the adaptive rule had enough, before all were sampled

    @property
    def n_total(self) -> int:
        """Continuations whose outcome is known."""
        return self.n_correct + self.n_incorrect + self.n_truncated

    @property
    def score(self) -> float:
        return self.n_correct / self.n_total if self.n_total else 0.0

    def as_record(self) -> dict[str, Any]:
        counts = {"num_mc_correct": self.n_correct, "num_mc_total": self.n_total}
        more = {"num_mc_cut": self.n_truncated, "num_mc_failed": self.n_failed}
        return {"step": self.text, "score": self.score, **counts, **{name: n for name, n in more.items() if n}}


@dataclass(slots=True)
class RolloutCounts:
    """A rollout, and the counts of its steps."""

    steps: list[StepCounts]
    finish_reason: str | None = None

    @classmethod
    def of(cls, text: str, finish_reason: str | None, max_steps: int | None) -> RolloutCounts:
        return cls([StepCounts(step) for step in split_steps(text, max_steps)], finish_reason)


@dataclass(slots=True, kw_only=True)
class AnnotationTask(Task):
    """A question under annotation."""

    config: AnnotateConfig
    rollouts: dict[int, RolloutCounts] | None = None  # by number; None before the policy has sampled them

    def digest(self) -> bytes:
        return Task.digest(self) + xxhash.xxh3_128_digest(msgspec.json.encode(self.rollouts))

    def work(self) -> Work:
        """Sample the rollouts, then continuations of all prefixes, round by round."""
        stats = Counter[str](dict.fromkeys(STATS, 0))
        rollouts, self.rollouts = self.rollouts, None  # which nobody needs once this is done
        if rollouts is None:
            outcome = (yield {"rollouts": self._request("rollouts", self.config.rollouts)})["rollouts"]
            stats["n_tokens"] = outcome["n_tokens"]
            rollouts = {
                number: RolloutCounts.of(completion["text"], completion["finish_reason"], self.config.max_steps)
                for number, completion in enumerate(outcome["completions"])
            }
        n_rollouts = len(rollouts)
        rollouts = {number: rollout for number, rollout in rollouts.items() if rollout.steps}
        stats["n_empty"] = n_rollouts - len(rollouts)
        while requests := self._missing(rollouts):
            for part, outcome in (yield requests).items():
                number, index, _ = map(int, part.split("."))
                step = rollouts[number].steps[index]
                for name in COUNTS:
                    setattr(step, name, getattr(step, name) + outcome[name])
                    step.n_sampled += outcome[name]
                    stats[name] += outcome[name]
                    stats["n_continuations"] += outcome[name]
                stats["n_tokens"] += outcome["n_tokens"]
        unscored = [
            f"step {index} of rollout {number}: the answer checker failed on all {step.n_failed} continuations"
            for number, rollout in rollouts.items()
            for index, step in enumerate(rollout.steps)
            if step.n_failed and not step.n_total
        ]
        if unscored or not rollouts:
            raise QuestionFailedError(*(unscored or [f"all {n_rollouts} rollouts are empty"]))
        for number, rollout in rollouts.items():
            self._add_stats(stats, number, rollout)
        return {"records": [self._record(number, rollout) for number, rollout in rollouts.items()], "stats": stats}

    def _missing(self, rollouts: Mapping[int, RolloutCounts]) -> dict[str, Request]:
        """The requests of all prefixes that need more continuations now, by ROLLOUT.STEP.N_SAMPLED."""
        requests = {}
        for number, rollout in rollouts.items():
            for index, step in enumerate(rollout.steps):
                if n := self._n_missing(step, number, index):
                    prefix = STEP_SEPARATOR.join(step.text for step in rollout.steps[: index + 1])
                    is_last = index + 1 == len(rollout.steps)  # the policy may end the answer there
                    part = f"{number}.{index}.{step.n_sampled}"
                    requests[part] = self._request(part, n, prefix if is_last else prefix + STEP_SEPARATOR)
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

    def _add_stats(self, stats: Counter[str], number: int, rollout: RolloutCounts) -> None:
        stats["n_rollouts"] += 1
        stats["n_truncated_rollouts"] += rollout.finish_reason == "length"
        stats["n_steps"] += len(rollout.steps)
        for index, step in enumerate(rollout.steps):
            stats["n_unsampled"] += not step.n_sampled
            if step.stopped_at is None:
                continue
            stats["n_skipped"] += self.config.continuations - step.n_sampled
            if self._is_audited(number, index):
                k, n = step.stopped_at
                stats["n_audited"] += 1
                stats["n_disagreed"] += (k > 0) != (step.n_correct > 0)
                stats["audit_shift"] += k / n - step.score  # type: ignore[assignment]

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
            "response": STEP_SEPARATOR.join(step.text for step in rollout.steps),
            "steps_with_score": [step.as_record() for step in rollout.steps],
            "num_mc_sequences": max(self.config.continuations, *(step.n_total for step in rollout.steps)),
            **({"finish_reason": rollout.finish_reason} if rollout.finish_reason is not None else {}),
            **({"early_stop_at": unsampled[0] - 1} if unsampled else {}),
            **({"source": question.source} if question.source else {}),
        }


def annotation_tasks(
    questions: Any, config: AnnotateConfig, renamed: dict[str, str], dropped: DroppedRecords
) -> tuple[list[AnnotationTask], list[dict[str, Any]]]:
    """The shard's tasks, and the manifest's entries of the files they come from."""
    if (questions is None) == (not config.rollouts_from):
        raise ConfigError("annotate either questions or the rollouts of rollouts_from")
    index, count = map(int, config.shard.split("/"))
    # every N-th, so that each shard has its share of every source
    shard = slice(index - 1, None, count)
    if not config.rollouts_from:
        entries, inputs = given_questions(questions, config.format, config.image_root, renamed)
        return [AnnotationTask.of(question, config) for question in entries[shard]], inputs
    tasks = list(_candidate_tasks(config) if _are_candidates(config) else _corpus_tasks(config, dropped))
    if not tasks:
        raise DataError(f"{', '.join(config.rollouts_from)}: no rollouts; expected at least one")
    return tasks[shard], input_entries(config.rollouts_from)


def _are_candidates(config: AnnotateConfig) -> bool:
    """Whether the first record of the files has several answers to a question."""
    chunks = (chunk for file in find_files(config.rollouts_from) for chunk in chunks_of(file))
    lines = (line for chunk in chunks for line in lines_of(chunk))
    record = decode_record(next((line for line in lines if not is_blank(line)), b""))
    return isinstance(record, dict) and any(fmt.matches(record) for fmt in CANDIDATE_FORMATS.values())


def _candidate_tasks(config: AnnotateConfig) -> Iterator[AnnotationTask]:
    """The tasks of candidates as ``mprm sample`` writes them, which are split into steps."""
    for entry in read_candidates(config.rollouts_from):
        if not entry.question.answer:
            raise DataError(f'{entry.location}: the question has no gold answer; expected one in "answer"')
        task = AnnotationTask.of(entry.question, config)
        task.rollouts = {
            number: RolloutCounts.of(STEP_SEPARATOR.join(each.steps), each.finish_reason, config.max_steps)
            for number, each in enumerate(entry.candidates)
        }
        yield task


def _corpus_tasks(config: AnnotateConfig, dropped: DroppedRecords) -> Iterable[AnnotationTask]:
    """The rollouts of a corpus, by question; their steps stay as they are, with the counts that they carry."""
    tasks: dict[Key, AnnotationTask] = {}
    corpus = open_corpus(config.rollouts_from, format=config.format, text_only=True)
    for row, located in enumerate(corpus.located(on_bad=dropped if config.skip_bad else None)):
        try:
            extra = msgspec.json.decode(located.raw, type=_Extra)
        except (ValueError, RecursionError, msgspec.MsgspecError):  # another format, or other fields of these names
            extra = _Extra()
        task = _corpus_task(located, extra, row, config)
        first = tasks.get(task.key, task)
        if (first.question, first.prompt) != (task.question, task.prompt):  # an id that stands for several questions
            task.question = replace(task.question, id=f"#{row}")
            first = task
        tasks[first.key] = first
        first.rollouts = first.rollouts or {}
        number = extra.rollout or 0
        number = number if number not in first.rollouts else max(first.rollouts) + 1
        steps = [StepCounts(step.text) for step in located.rollout.steps]
        first.rollouts[number] = RolloutCounts(steps, extra.finish_reason)
        more_counts = chain(extra.steps_with_score, repeat(_ExtraStep()))
        for step, counts, more in zip(located.rollout.steps, steps, more_counts, strict=False):
            if not config.fresh and step.n_total and step.n_correct is not None:
                counts.n_correct, counts.n_sampled = step.n_correct, step.n_total
                counts.n_truncated, counts.n_failed = more.num_mc_cut, more.num_mc_failed
                counts.n_incorrect = step.n_total - step.n_correct - more.num_mc_cut
    return tasks.values()


class _ExtraStep(msgspec.Struct):
    num_mc_cut: int = 0
    num_mc_failed: int = 0


class _Extra(msgspec.Struct):
    """What `mprm annotate` writes beyond the format."""

    id: str | None = None
    rollout: int | None = None
    finish_reason: str | None = None
    options: tuple[str, ...] = ()
    steps_with_score: tuple[_ExtraStep, ...] = ()


def _corpus_task(located: LocatedRollout, extra: _Extra, row: int, config: AnnotateConfig) -> AnnotationTask:
    """The question of a rollout, without the rollout."""
    rollout, answer = located.rollout, located.rollout.answer or ""
    try:
        if not answer.strip():
            raise BadRecord('the rollout has no gold answer; expected one in "answer". Take it out, or add an answer')
        gold = letter_of(answer, extra.options) or read_gold(answer)
    except BadRecord as bad:
        raise DataError(f"{located.file}:{located.line}: {bad}") from bad
    question = Question(
        id=f"#{row}" if extra.id is None else extra.id,
        question=rollout.question,
        answer=gold,
        images=rollout.images,
        source=located.source,
        options=extra.options,
        is_extracted=stated_gold(answer) is not None,
    )
    task = AnnotationTask.of(question, config, rollout.prompt)
    task.gold = replace(question, options=question.options or letter_options(question.answer))
    return task
