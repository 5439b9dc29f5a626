"""`StepReward`: rewards for reinforcement learning, from the step scores of a process reward model.

One object for TRL's GRPOTrainer (itself), verl (`StepReward.compute_score`) and OpenRLHF (`StepReward.reward_func`).
A completion is split into steps as annotation splits responses, its steps are scored, and an aggregate of the scores
is its reward; the outcome gate gives 0 to a wrong final answer, because a policy learns to please step scores alone.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from mprm.annotation.checker import AnswerChecker
from mprm.answers.options import letter_options
from mprm.data.questions import read_gold
from mprm.data.types import BadRecord, Chain, Question, StepScorer, split_steps
from mprm.errors import ConfigError, DataError, counted, imported, shown
from mprm.evaluation.best_of_n import AGGREGATES
from mprm.evaluation.metrics import FloatArray
from mprm.models.prm import PRM

Aggregate = Callable[[FloatArray], float]
LOWEST = 0.0
"""The reward of a wrong answer, and of a completion without a scored step."""
GOLD_COLUMNS, ROW = ("answer", "solution"), ("question", "images", "image", "options")
END_TOKENS = re.compile(r"(?:\s*(?:<\|[^|<>\s]*\|>|</s>|<eos>|<pad>|<end_of_turn>))+\s*\Z")
"""Tokens that end a response where they are decoded to text."""


def drop_reward(scores: FloatArray, *, rho: float = 0.3, gamma: float = 0.5) -> float:
    """1, or ``1 - gamma`` where a step's score falls by the share ``rho`` or more of the one before.

    With the outcome gate this is the reward of PS-GRPO (arXiv:2501.04686v6, equations 5 and 6): the largest relative
    fall is ``δ = max_j (r_j - r_{j+1}) / r_j``, 0 for a single step and where ``r_j = 0``; a correct answer gets 1
    where ``δ < rho``, else ``1 - gamma``. How high the scores are does not count, only where they fall.

    Examples
    --------
    >>> drop_reward(np.array([0.9, 0.8, 0.8])), drop_reward(np.array([0.2, 0.9, 0.4]))
    (1.0, 0.5)
    """
    falls = scores[:-1] - scores[1:]
    return 1 - gamma if ((falls > 0) & (falls >= rho * scores[:-1])).any() else 1.0  # no division: a score can be 0


REWARDS = {name: AGGREGATES[name] for name in ("mean", "min", "last", "product")} | {"drop": drop_reward}
"""Of the scores r_1 … r_T: ``(1/T) Σ r_t``, ``min_t r_t``, ``r_T``, ``Π_t r_t``, `drop_reward`; all in [0, 1]."""


_Item = tuple[Chain, str, Question | None]
"""What is scored, the response that it is of, and the question that the answer is checked against."""


@dataclass(frozen=True, eq=False)
class StepReward:
    """A reward function: called with prompts and completions, it returns a reward in [0, 1] for each completion.

    ``trl.GRPOTrainer(…, reward_funcs=mprm.StepReward(mprm.PRM.from_pretrained("runs/bis10")))``. Anything with
    ``score_many`` is a scorer; verl and OpenRLHF call it from several threads.
    """

    scorer: StepScorer
    aggregate: str | Aggregate = "drop"
    """A name in `REWARDS`, or a function of the known step scores, such as ``partial(drop_reward, rho=0.2)``."""
    gate: bool = True
    """Whether a wrong final answer gets 0, and is not scored at all; needs gold answers."""
    answer_column: str | None = None
    """The column of gold answers; where it is not given, ``answer`` or else ``solution``."""
    max_steps: int | None = None
    """Where there are more steps, neighbours are joined; as in ``mprm annotate``."""
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(getattr(self.scorer, "score_many", None)):
            remedy = 'expected mprm.PRM.from_pretrained("DIR"), mprm.RemotePRM("URL") or another with score_many'
            raise ConfigError(f"the scorer is {shown(self.scorer)}; {remedy}")
        if not callable(self.aggregate) and self.aggregate not in REWARDS:
            raise ConfigError(f"unknown aggregate {self.aggregate!r}; expected one of {', '.join(REWARDS)}")
        split_steps("", self.max_steps)  # refuses what it cannot use
        if self.gate:
            self._checker  # noqa: B018 - says now what is not installed

    @property
    def __name__(self) -> str:  # trainers log rewards by the function's name
        return "step_reward"

    @cached_property
    def _checker(self) -> AnswerChecker:
        return AnswerChecker()

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """The rewards, in the order of the completions: the interface of TRL's GRPOTrainer (1.16).

        Prompts and completions are texts or lists of messages. Of the dataset's columns, ``question`` is what the
        reward model reads, else the user's last message; ``images`` or ``image`` are its images, paths or PIL images,
        else those in that message; ``options`` are the choices that a gold letter stands for. Other columns, and
        ``completion_ids``, are left alone.
        """
        gold = self.answer_column or next((name for name in GOLD_COLUMNS if name in columns), GOLD_COLUMNS[0])
        if self.gate and gold not in columns:
            wanted = self.answer_column or " or ".join(GOLD_COLUMNS)
            found = f"expected a column {wanted}, found {', '.join(sorted(columns)) or 'none'}"
            raise ConfigError(f"the gate needs gold answers: {found}. Name it with answer_column, or set gate=False")
        row_columns = {name: columns[name] for name in (gold, *ROW) if name in columns}
        _check_lengths(prompts=prompts, completions=completions, **row_columns)
        items = []
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            row = {name: values[index] for name, values in row_columns.items()}
            items.append(self._item(prompt, _text(_parts(completion, "assistant")), row, row.get(gold)))
        return self._rewards(items)

    async def async_reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """The rewards, for GRPOTrainer too; other asynchronous rewards are computed meanwhile."""
        return await asyncio.to_thread(self, prompts, completions, **columns)

    async def compute_score(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,  # the reward managers add their own, such as reward_router_address
    ) -> float:
        """The reward of one response: the interface of verl's reward loop (verl 0.7).

        ``extra_info`` has the ``question``, and the other columns of `__call__`; verl's own images are not passed on.
        """
        row = extra_info or {}
        if not isinstance(row.get("question"), str):
            raise DataError(f"{data_source}: extra_info has no question; expected the text that the model scores")
        items = [self._item(row["question"], solution_str, row, ground_truth)]
        return (await asyncio.to_thread(self._rewards, items))[0]

    def reward_func(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **_: Any
    ) -> dict[str, Any]:
        """Tensors of rewards and scores, and what to log: the interface of OpenRLHF (0.9).

        A query is a prompt and its response. A label is the gold answer; or a mapping with ``answer`` and the other
        columns of `__call__`, where the prompt is more than the question, as in a chat template.
        """
        _check_lengths(queries=queries, prompts=prompts, labels=labels)
        items = []
        for index, (query, prompt, label) in enumerate(zip(queries, prompts, labels, strict=True)):
            start = query.find(prompt)
            if start < 0:
                raise DataError(f"query {index} does not hold its prompt {shown(prompt)}; is the prompt truncated?")
            row = label if isinstance(label, Mapping) else {"answer": label}
            response = END_TOKENS.sub("", query[start + len(prompt) :])
            items.append(self._item(prompt, response, row, row.get("answer")))
        rewards = imported("torch").tensor(self._rewards(items))
        return {"rewards": rewards, "scores": rewards, "extra_logs": {self.__name__: rewards}}

    def _rewards(self, items: Sequence[_Item]) -> list[float]:
        rewards, n_unknown, notes = [LOWEST] * len(items), 0, []
        pairs = [(response, question) for _, response, question in items if question is not None]
        grades = (
            [graded.grade for graded in self._checker.check_many(pairs)] if self.gate else ["correct"] * len(items)
        )
        if n_failed := grades.count("failed"):
            notes.append(f"the checker could not decide on {n_failed:,}, whose reward is {LOWEST:g}")
        indices = [index for index, item in enumerate(items) if item[0].steps and grades[index] == "correct"]
        # a model in this process scores one batch at a time: each thread would need the memory of one
        with self._lock if isinstance(self.scorer, PRM) else nullcontext():
            rows = self.scorer.score_many([items[index][0] for index in indices]) if indices else []
        if [len(row) for row in rows] != [len(items[index][0].steps) for index in indices]:
            raise DataError(f"{type(self.scorer).__name__}.score_many does not give one score for each step")
        function = self.aggregate if callable(self.aggregate) else REWARDS[self.aggregate]
        for index, row in zip(indices, rows, strict=True):
            scores = np.array(row, dtype=np.float64)
            known = scores[~np.isnan(scores)]
            n_unknown += len(scores) - len(known)
            rewards[index] = float(function(known)) if len(known) else LOWEST
        if n_unknown:
            notes.append(f"{counted(n_unknown, 'step')} left out: truncated by the model, they have no score")
        if notes:
            warnings.warn(f"rewards of {counted(len(items), 'completion')}: {'; '.join(notes)}", stacklevel=3)
        return rewards

    def _item(self, prompt: Any, response: str, row: Mapping[str, Any], gold: Any) -> _Item:
        """A completion with what its row of the dataset says; where that says nothing, with what the prompt has."""
        parts = _parts(prompt, "user")
        text = row.get("question") or _text(parts)
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"the prompt {shown(prompt)} holds no question; expected text, or a column question")
        images = next((row[name] for name in ("images", "image") if row.get(name) is not None), None)
        if images is None:
            images = [part["image"] for part in parts if part.get("image") is not None]
        elif not isinstance(images, list | tuple | np.ndarray):
            images = [images]
        chain = Chain(text, split_steps(response, self.max_steps), tuple(images))
        if not self.gate:
            return chain, response, None
        options = () if row.get("options") is None else tuple(row["options"])
        try:
            if gold is None or not str(gold).strip():
                raise BadRecord(f"the gold answer is {gold!r}; expected text")
            answer = read_gold(gold if isinstance(gold, int) else str(gold), options)
        except BadRecord as bad:
            raise DataError(f"{shown(text)}: {bad}") from bad
        options = options or letter_options(answer)
        return chain, response, Question(id="", question=text, answer=answer, options=options)


def _check_lengths(**columns: Sequence[Any]) -> None:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{n} {name}" for name, n in lengths.items())
        raise DataError(f"found {found}; expected as many of each")


def _parts(messages: Any, role: str) -> list[Mapping[str, Any]]:
    """The parts of the user's last message, or of all that the assistant says; a text is one part."""
    if isinstance(messages, str):
        return [{"text": messages}]
    try:
        contents = [message["content"] for message in messages if message["role"] == role]
        contents = [[{"text": each}] if isinstance(each, str) else each or [] for each in contents]
        return [dict(part) for content in contents[-1 if role == "user" else 0 :] for part in content]
    except (LookupError, TypeError, ValueError):
        raise DataError(f"expected a text or a list of messages, found {shown(messages)}") from None


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(part["text"] for part in parts if part.get("text"))
