"""PRM800K as OpenAI published it: at each step several completions, one of them gone on from."""

from __future__ import annotations

from typing import Any

from mprm.rollouts.fields import list_field, optional_text, shown, text_field
from mprm.rollouts.format import Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rated_paths import RATINGS, Path, is_rating, leaf_paths
from mprm.rollouts.rollout import Rollout


def recognise(record: Record) -> bool:
    """A question with a problem, and a label with steps."""
    question, label = record.get("question"), record.get("label")
    return isinstance(question, dict) and "problem" in question and isinstance(label, dict) and "steps" in label


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
    """All rollouts of the record: the way that was gone on, and each rated try beside it."""
    question, label = record.get("question"), record.get("label")
    if not isinstance(question, dict) or not isinstance(label, dict):
        report("missing_field", '"question" and "label" must be objects, as in OpenAI\'s files')
        return ()
    problem = text_field(question, "problem", report)
    steps = list_field(label, "steps", report)
    if problem is None or steps is None:
        return ()
    scores: dict[Path, float] = {}
    path: Path | None = ()
    for number, step in enumerate(steps):
        if path is None:
            break  # nothing was chosen at the step before, so nothing follows from it
        if not isinstance(step, dict):
            report("wrong_type", f"step {number} is {shown(step)}; expected an object with completions")
            return ()
        path = _next_path(number, step, path, scores, report)
    answer = optional_text(question, "ground_truth_answer", report)
    if not scores:
        report("no_steps", "no completion of the record is rated; expected at least one")
    return tuple(Rollout(question=problem, steps=steps_, answer=answer) for steps_ in leaf_paths(scores).values())


def _next_path(
    number: int, step: dict[str, Any], path: Path, scores: dict[Path, float], report: Report
) -> Path | None:
    """Add the step's tries to ``scores``; the path that was gone on with, or None at the end."""
    completions = step.get("completions") or []
    if not isinstance(completions, list):
        report("wrong_type", f"step {number} has completions {shown(completions)}; expected a list")
        return None
    for place, completion in enumerate(completions):
        text = completion.get("text") if isinstance(completion, dict) else None
        rating = completion.get("rating") if isinstance(completion, dict) else None
        if not isinstance(text, str) or not is_rating(rating):
            kind = "unrated_step" if isinstance(text, str) and rating is None else "wrong_type"
            report(kind, f"step {number}, completion {place} has rating {shown(rating)}; expected -1, 0 or 1")
            continue
        scores[(*path, text)] = RATINGS[rating]
    human, chosen = step.get("human_completion"), step.get("chosen_completion")
    if isinstance(chosen, int) and 0 <= chosen < len(completions):
        text = completions[chosen].get("text") if isinstance(completions[chosen], dict) else None
        return (*path, text) if isinstance(text, str) and (*path, text) in scores else None
    if isinstance(human, dict) and isinstance(human.get("text"), str):
        # a labeller wrote the step because every try was bad: it is right by construction
        scores[(*path, human["text"])] = 1.0
        return (*path, human["text"])
    return None


PRM800K = Format(
    name="prm800k",
    title="PRM800K",
    labels="binary",
    has_images=False,
    recognise=recognise,
    parse=parse,
    many=True,
)
