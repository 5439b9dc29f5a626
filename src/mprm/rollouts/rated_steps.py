"""PRM800K decoded to plain lists: a question, its steps, and a rating of -1, 0 or 1 for each."""

from __future__ import annotations

from mprm.rollouts.fields import list_field, shown, steps_with_labels, text_field
from mprm.rollouts.format import Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rated_paths import RATINGS, is_rating
from mprm.rollouts.rollout import Rollout


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
    """The record's one rollout."""
    question = text_field(record, "question", report)
    texts = list_field(record, "steps", report)
    ratings = list_field(record, "ratings", report)
    if question is None or texts is None or ratings is None:
        return ()
    for number, rating in enumerate(ratings):
        if not is_rating(rating):
            report("wrong_type", f"step {number} has rating {shown(rating)}; expected -1, 0 or 1")
            return ()
    labels = [RATINGS[rating] for rating in ratings]
    steps = steps_with_labels(texts, labels, report, step_key="steps", label_key="ratings")
    return () if steps is None else (Rollout(question=question, steps=steps),)


RATED_STEPS = Format(
    name="rated-steps",
    title="PRM800K, lists of steps and ratings",
    labels="binary",
    has_images=False,
    recognise=lambda record: record.keys() >= {"question", "steps", "ratings"},
    parse=parse,
)
