"""VisualPRM400K-v1.1-Raw: the paper's corpus, steps with Monte-Carlo scores and their counts.

VL-PRM300K uses the same steps and adds the record's source.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mprm.rollouts.fields import image_field, list_field, optional_text, score_value, shown
from mprm.rollouts.format import Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rollout import Rollout, Step


def _count(step: dict[str, Any], key: str, number: int, report: Report) -> int | None:
    value = step.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        report("odd_field", f'step {number} has "{key}" {shown(value)}; expected a count')
        return None
    return value


def _step(number: int, step: Any, report: Report) -> Step | None:
    if not isinstance(step, dict):
        report("wrong_type", f"step {number} is {shown(step)}; expected an object with step and score")
        return None
    text = step.get("step")
    if not isinstance(text, str):
        kind = "missing_field" if text is None else "wrong_type"
        report(kind, f'step {number} has "step" {shown(text)}; expected text')
    score = score_value(step.get("score"), f"step {number}", report)
    n_correct = _count(step, "num_mc_correct", number, report)
    n_total = _count(step, "num_mc_total", number, report)
    if not isinstance(text, str) or score is None:
        return None
    return Step(text, score, n_correct, n_total)


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
    """The record's one rollout; its source too, where the record names it."""
    entries = list_field(record, "steps_with_score", report)
    prompt = optional_text(record, "question", report)
    original = optional_text(record, "question_orig", report)
    question = next((text.strip() for text in (original, prompt) if text and text.strip()), None)
    if question is None and (original is not None or prompt is not None):
        report("empty_question", '"question" and "question_orig" are empty; expected text in one of them')
    elif question is None:
        report("missing_field", 'neither "question" nor "question_orig" holds text; expected one of them')
    images = image_field(record, report)
    if entries is None or question is None:
        return ()
    steps = tuple(_step(number, entry, report) for number, entry in enumerate(entries))
    if None in steps:
        return ()
    return (
        Rollout(
            question=question,
            steps=steps,  # type: ignore[arg-type]
            images=images,
            prompt=prompt,
            answer=optional_text(record, "answer", report),
            source=optional_text(record, "source", report),
        ),
    )


class _Record(msgspec.Struct, gc=False):
    steps_with_score: tuple[Step, ...]
    question: str | None = None
    question_orig: str | None = None
    image: str | list[str] | None = None
    answer: str | None = None
    source: str | None = None


_decode = msgspec.json.Decoder(_Record).decode


def quick(line: bytes) -> Rollout | None:
    """The rollout of a line in which every field is of its type; None for any other."""
    try:
        record = _decode(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    question = (record.question_orig or "").strip() or (record.question or "").strip()
    image = record.image
    images = () if not image else (image,) if isinstance(image, str) else tuple(image)
    if not question or not all(images):
        return None
    return Rollout(
        question=question,
        steps=record.steps_with_score,
        images=images,
        prompt=record.question,
        answer=record.answer,
        source=record.source,
    )


def dump(rollout: Rollout, _tau: float) -> dict[str, Any]:
    """The rollout as a v1.1-Raw record; counts only where they are known."""
    record: dict[str, Any] = {}
    if rollout.images:
        record["image"] = rollout.images[0] if len(rollout.images) == 1 else list(rollout.images)
    record["question"] = rollout.prompt if rollout.prompt is not None else rollout.question
    record["question_orig"] = rollout.question
    if rollout.answer is not None:
        record["answer"] = rollout.answer
    record["response"] = "\n\n".join(step.text for step in rollout.steps)
    record["steps_with_score"] = [_dump_step(step) for step in rollout.steps]
    n_totals = {step.n_total for step in rollout.steps if step.n_total}
    if len(n_totals) == 1:
        record["num_mc_sequences"] = n_totals.pop()
    if rollout.source is not None:
        record["source"] = rollout.source
    return record


def _dump_step(step: Step) -> dict[str, Any]:
    entry: dict[str, Any] = {"step": step.text, "score": step.score}
    if step.n_correct is not None:
        entry["num_mc_correct"] = step.n_correct
    if step.n_total is not None:
        entry["num_mc_total"] = step.n_total
    return entry


VISUALPRM_RAW = Format(
    name="visualprm-raw",
    title="VisualPRM400K-v1.1-Raw",
    labels="mc",
    has_images=True,
    recognise=lambda record: "steps_with_score" in record and "source" not in record,
    parse=parse,
    quick=quick,
    dump=dump,
    writes="mc",
)

VL_PRM = Format(
    name="vl-prm",
    title="VL-PRM300K",
    labels="mc",
    has_images=True,
    recognise=lambda record: "steps_with_score" in record and "source" in record,
    parse=parse,
    quick=quick,
)
