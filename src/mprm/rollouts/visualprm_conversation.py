"""VisualPRM400K in conversation form: one turn a step, answered with + or -."""

from __future__ import annotations

from typing import Any

from mprm.rollouts.conversation import turns
from mprm.rollouts.fields import image_field, shown
from mprm.rollouts.format import Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rollout import Rollout, Step

QUESTION, PROCESS = "### Question:\n", "\n\n### Solution Process:\n"
SCORES = {"+": 1.0, "-": 0.0}


def recognise(record: Record) -> bool:
    """A conversation in which every answer is text."""
    conversation = record.get("conversations")
    return isinstance(conversation, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("value"), str) for turn in conversation
    )


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
    """The record's one rollout: human turns are steps, the gpt turn after each its label."""
    talk = turns(record, report)
    if talk is None:
        return ()
    talk = [turn for turn in talk if turn[0] != "system"]
    speakers = [speaker for speaker, _ in talk]
    if not talk or speakers != ["human", "gpt"] * (len(talk) // 2):
        report("wrong_type", f"the turns are {shown(speakers)}; expected human and gpt in turn")
        return ()
    steps = []
    for number, ((_, text), (_, label)) in enumerate(zip(talk[::2], talk[1::2], strict=True)):
        if not isinstance(text, str) or not isinstance(label, str) or label not in SCORES:
            report("wrong_type", f"step {number} is answered {shown(label)}; expected + or -")
            return ()
        steps.append((text, SCORES[label]))
    question, mark, first = steps[0][0].partition(PROCESS)
    if not mark:
        report("missing_field", 'the first turn has no "### Solution Process:" before its first step')
        return ()
    steps[0] = (first, steps[0][1])
    return (
        Rollout(
            question=question.removeprefix(QUESTION).strip(),
            steps=tuple(Step(text, score) for text, score in steps),
            images=image_field(record, report),
        ),
    )


def dump(rollout: Rollout, tau: float) -> dict[str, Any]:
    """One human turn a step, answered + where its score is strictly above tau."""
    record: dict[str, Any] = {"id": -1}
    if rollout.images:
        record["image"] = rollout.images[0] if len(rollout.images) == 1 else list(rollout.images)
    record["conversations"] = conversation = []
    for number, step in enumerate(rollout.steps):
        text = step.text if number else f"{QUESTION}{rollout.question}{PROCESS}{step.text}"
        conversation.append({"from": "human", "value": text})
        conversation.append({"from": "gpt", "value": "+" if step.score > tau else "-"})
    return record


VISUALPRM_CONVERSATION = Format(
    name="visualprm",
    title="VisualPRM400K, conversation form",
    labels="binary",
    has_images=True,
    recognise=recognise,
    parse=parse,
    dump=dump,
    forbids=PROCESS.strip(),
)
