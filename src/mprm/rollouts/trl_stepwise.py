"""TRL stepwise supervision: a prompt, its completions, and a truth value for each."""

from __future__ import annotations

from typing import Any

from mprm.rollouts.fields import image_field, list_field, optional_text, steps_with_labels, text_field
from mprm.rollouts.format import Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rollout import Rollout


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
    """The record's one rollout."""
    prompt = text_field(record, "prompt", report)
    texts = list_field(record, "completions", report)
    labels = list_field(record, "labels", report)
    if prompt is None or texts is None or labels is None:
        return ()
    steps = steps_with_labels(texts, labels, report, step_key="completions", label_key="labels")
    if steps is None:
        return ()
    source = optional_text(record, "source", report)
    return (Rollout(question=prompt, steps=steps, images=image_field(record, report), source=source),)


def dump(rollout: Rollout, tau: float) -> dict[str, Any]:
    """Labels true where the score is strictly above tau; images ride along where there are any."""
    record: dict[str, Any] = {
        "prompt": rollout.question,
        "completions": [step.text for step in rollout.steps],
        "labels": [step.score > tau for step in rollout.steps],
    }
    if rollout.images:
        record["image"] = rollout.images[0] if len(rollout.images) == 1 else list(rollout.images)
    return record


TRL = Format(
    name="trl",
    title="TRL stepwise supervision",
    labels="binary",
    has_images=False,
    recognise=lambda record: {"prompt", "completions", "labels"} <= record.keys(),
    parse=parse,
    dump=dump,
)
