"""Math-Shepherd: question and steps in one text, each step ended by a mark that the label replaces."""

from __future__ import annotations

import re

from mprm.rollouts.fields import optional_text, shown, text_field
from mprm.rollouts.format import Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rollout import Rollout, Step

MARK = "ки"
SCORES = {"+": 1.0, "-": 0.0}
FIRST_STEP = re.compile(r"\bStep 1\s*:")


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
    """The record's one rollout; ``label`` is read along ``input``, mark by mark."""
    text = text_field(record, "input", report)
    label = text_field(record, "label", report)
    if text is None or label is None:
        return ()
    *pieces, rest = text.split(MARK)
    if not pieces or rest.strip():
        report(
            "labels_and_steps_differ",
            f'"input" does not end with {MARK!r}; expected the mark after every step',
        )
        return ()
    scores, place = [], 0
    for number, piece in enumerate(pieces):
        sign = label[place + len(piece) : place + len(piece) + 1]
        if label[place : place + len(piece)] != piece or sign not in SCORES:
            report("labels_and_steps_differ", f'"label" leaves "input" at step {number}: {shown(label[place:])}')
            return ()
        scores.append(SCORES[sign])
        place += len(piece) + 1
    start = FIRST_STEP.search(pieces[0])
    if start is None:
        report("missing_field", 'no "Step 1:" parts the question from the first step')
        return ()
    question, pieces[0] = pieces[0][: start.start()].strip(), pieces[0][start.start() :]
    steps = tuple(Step(piece.strip(), score) for piece, score in zip(pieces, scores, strict=True))
    return (Rollout(question=question, steps=steps, source=optional_text(record, "task", report)),)


MATH_SHEPHERD = Format(
    name="math-shepherd",
    title="Math-Shepherd",
    labels="binary",
    has_images=False,
    recognise=lambda record: (
        isinstance(record.get("input"), str) and isinstance(record.get("label"), str) and MARK in record["input"]
    ),
    parse=parse,
)
