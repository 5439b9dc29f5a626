"""PRM800K in stepwise-critic form: one row for each rated next step, with the steps before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mprm.rollouts.fields import list_field, optional_text, shown, text_field
from mprm.rollouts.format import Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rated_paths import RATINGS, Path, is_rating, leaf_paths
from mprm.rollouts.rollout import Rollout

COLUMNS = {"instruction", "responses", "next_response", "rating"}


def _row(record: Record, report: Report) -> tuple[str, Path, float | None] | None:
    """(question, steps with the rated one last, its score or None) of one row."""
    question = text_field(record, "instruction", report)
    before = list_field(record, "responses", report)
    text = text_field(record, "next_response", report)
    if question is None or before is None or text is None:
        return None
    if not all(isinstance(step, str) for step in before):
        report("wrong_type", f'"responses" holds {shown(before)}; expected a list of texts')
        return None
    rating = record.get("rating")
    if rating is None and record.get("is_human_response"):
        return question, (*before, text), 1.0  # written by a labeller because every try was bad
    if rating is None:
        report("unrated_step", "next_response has no rating; the row was left out")
        return question, (*before, text), None
    if not is_rating(rating):
        report("wrong_type", f'"rating" is {shown(rating)}; expected -1, 0 or 1')
        return None
    return question, (*before, text), RATINGS[rating]


def regroup(rows: Iterable[tuple[int, Record]], report_at: Callable[[int], Report]) -> Iterator[tuple[int, Rollout]]:
    """The rollouts of a file whose rows stand together by question."""
    question: str | None = None
    scores: dict[Path, float] = {}
    first_row: dict[Path, int] = {}
    answer: str | None = None

    def finish() -> Iterator[tuple[int, Rollout]]:
        for path, steps in leaf_paths(scores).items():
            assert question is not None
            yield first_row[path], Rollout(question=question, steps=steps, answer=answer)

    for number, record in rows:
        report = report_at(number)
        row = _row(record, report)
        if row is None:
            continue
        if row[0] != question:
            yield from finish()
            question, scores, first_row, answer = row[0], {}, {}, None
        answer = optional_text(record, "answer", report) or answer
        _, path, score = row
        if len(path) > 1 and path[:-1] not in scores:
            report("missing_field", "the step before next_response has no rated row above this one")
        elif score is not None:
            first_row.setdefault(path, number)
            scores.setdefault(path, score)
    yield from finish()


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
    """Judge one row alone; its rollout needs the other rows, see `regroup`."""
    _row(record, report)
    return ()


STEPWISE_CRITIC = Format(
    name="stepwise-critic",
    title="PRM800K, stepwise-critic rows",
    labels="binary",
    has_images=False,
    recognise=lambda record: record.keys() >= COLUMNS,
    parse=parse,
    many=True,
    regroup=regroup,
)
