r"""From steps rated one at a time to whole rollouts.

PRM800K decoded to plain lists: a question, its steps, and a rating of -1, 0 or 1 for each.

VisualPRM400K-v1.1-Raw: the paper's corpus, steps with Monte-Carlo scores and their counts.

MM-PRM training records: ``Question: …\nProcess: s1<prm>\n\ns2<prm>`` with one number a step.

VisualPRM400K in conversation form: one turn a step, answered with + or -.

Math-Shepherd: question and steps in one text, each step ended by a mark that the label replaces.

PRM800K as OpenAI published it: at each step several completions, one of them gone on from.

PRM800K in stepwise-critic form: one row for each rated next step, with the steps before it.

TRL stepwise supervision: a prompt, its completions, and a truth value for each.

MATH-APS: one question and the search tree over it, each place with its Monte-Carlo value.

All formats by name, and telling which one a file is in from its first record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from typing import Any, TypeGuard

import msgspec

from mprm.data.format import (
    PRM_TOKEN,
    Format,
    Record,
    image_field,
    list_field,
    optional_text,
    score_value,
    shown,
    steps_with_labels,
    text_field,
    turns,
)
from mprm.data.types import Rollout, Step
from mprm.data.validate import Report
from mprm.errors import ConfigError, DataError

RATINGS = {1: 1.0, 0: 1.0, -1: 0.0}
"""PRM800K's ratings as labels; neutral (0) counts as positive, as its authors train on it."""

Path = tuple[str, ...]


def is_rating(value: object) -> TypeGuard[int]:
    """Whether the value is one of the three ratings; a float column holds them as 1.0, 0.0 and -1.0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value in RATINGS


def leaf_paths(scores: dict[Path, float]) -> dict[Path, tuple[Step, ...]]:
    """The rollouts of a tree that is given as the score of each path's last step.

    Parameters
    ----------
    scores
        Score of each path; every beginning of a path must itself be a path.

    Examples
    --------
    >>> sorted(leaf_paths({("a",): 1.0, ("a", "b"): 0.0, ("a", "c"): 1.0}))
    [('a', 'b'), ('a', 'c')]
    """
    inner = {path[:-1] for path in scores}
    return {
        path: tuple(Step(path[j], scores[path[: j + 1]]) for j in range(len(path)))
        for path in scores
        if path not in inner
    }


def parse_rated_steps(record: Record, report: Report) -> tuple[Rollout, ...]:
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
    parse=parse_rated_steps,
)


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


def parse_visualprm_raw(record: Record, report: Report) -> tuple[Rollout, ...]:
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


class _RawRecord(msgspec.Struct, gc=False):
    steps_with_score: tuple[Step, ...]
    question: str | None = None
    question_orig: str | None = None
    image: str | list[str] | None = None
    answer: str | None = None
    source: str | None = None


_decode = msgspec.json.Decoder(_RawRecord).decode


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


def dump_visualprm_raw(rollout: Rollout, _tau: float) -> dict[str, Any]:
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
    parse=parse_visualprm_raw,
    quick=quick,
    dump=dump_visualprm_raw,
    writes="mc",
)

VL_PRM = Format(
    name="vl-prm",
    title="VL-PRM300K",
    labels="mc",
    has_images=True,
    recognise=lambda record: "steps_with_score" in record and "source" in record,
    parse=parse_visualprm_raw,
    quick=quick,
)


append_mm_prm: Callable[[bytes | mmap, int, int, float, bytearray], bool] | None
try:
    from mprm.data._mm_prm import append_mm_prm
except ImportError:  # installed without a compiler: `dump_hard` makes the same bytes, more slowly
    append_mm_prm = None

MM_PRM_QUESTION, MM_PRM_PROCESS = "Question:", "\nProcess:"


def recognise_mm_prm(record: Record) -> bool:
    """A conversation whose second turn is a list of numbers."""
    conversation = record.get("conversations")
    return isinstance(conversation, list) and any(
        isinstance(turn, dict) and isinstance(turn.get("value"), list) for turn in conversation
    )


def parse_mm_prm(record: Record, report: Report) -> tuple[Rollout, ...]:
    """The record's one rollout; its question and steps are cut out of the human turn."""
    talk = turns(record, report)
    if talk is None:
        return ()
    human = next((value for speaker, value in talk if speaker == "human"), None)
    labels = next((value for speaker, value in talk if speaker == "gpt"), None)
    if not isinstance(human, str) or not isinstance(labels, list):
        report("wrong_type", "expected a human turn of text and a gpt turn with a list of scores")
        return ()
    *texts, rest = human.split(PRM_TOKEN)
    if rest.strip():
        report(
            "labels_and_steps_differ",
            f"text after the last {PRM_TOKEN}: {shown(rest.strip())}; expected none",
        )
        return ()
    question = ""
    if texts:
        # the question may itself speak of a process: the last mark before the first step counts
        head, mark, first = texts[0].rpartition(MM_PRM_PROCESS)
        if not mark:
            report("missing_field", 'the human turn has no "Process:" before its first step')
            return ()
        question = head.strip().removeprefix(MM_PRM_QUESTION).strip()
        texts[0] = first
    steps = steps_with_labels(
        [text.strip() for text in texts], labels, report, step_key="human turn", label_key="gpt turn"
    )
    if steps is None:
        return ()
    return (Rollout(question=question, steps=steps, images=image_field(record, report)),)


def training_text(rollout: Rollout) -> str:
    """Question and steps as the model is trained on them."""
    process = "\n\n".join([step.text.strip() + PRM_TOKEN for step in rollout.steps])
    return f"{MM_PRM_QUESTION} {rollout.question.strip()}{MM_PRM_PROCESS} {process}"


class _Turn(msgspec.Struct, gc=False):
    speaker: str = msgspec.field(name="from")
    value: str | list[float]


class _MMPRMRecord(msgspec.Struct, gc=False, kw_only=True):
    image: str | tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    conversations: tuple[_Turn, _Turn]


def _dump(rollout: Rollout, labels: list[float]) -> _MMPRMRecord:
    images = rollout.images
    talk = (_Turn("human", training_text(rollout)), _Turn("gpt", labels))
    if not images:
        return _MMPRMRecord(conversations=talk)
    return _MMPRMRecord(image=images[0] if len(images) == 1 else images, conversations=talk)


def dump_hard(rollout: Rollout, tau: float) -> _MMPRMRecord:
    """Labels 1.0 where the score is strictly above tau, else 0.0."""
    return _dump(rollout, [1.0 if step.score > tau else 0.0 for step in rollout.steps])


def dump_soft(rollout: Rollout, _tau: float) -> _MMPRMRecord:
    """Labels are the scores themselves."""
    return _dump(rollout, [step.score for step in rollout.steps])


MM_PRM = Format(
    name="mm-prm",
    title="MM-PRM",
    labels="either",
    has_images=True,
    recognise=recognise_mm_prm,
    parse=parse_mm_prm,
    dump=dump_hard,
    forbids=PRM_TOKEN,
)

MM_PRM_SOFT = Format(
    name="mm-prm-soft",
    title="MM-PRM with soft labels",
    labels="mc",
    has_images=True,
    recognise=lambda _record: False,  # one record cannot tell soft from hard: "either" above decides
    parse=parse_mm_prm,
    dump=dump_soft,
    writes="mc",
    forbids=PRM_TOKEN,
)


SECTION_QUESTION, SECTION_PROCESS = "### Question:\n", "\n\n### Solution Process:\n"
SCORES = {"+": 1.0, "-": 0.0}


def recognise_visualprm_conversation(record: Record) -> bool:
    """A conversation in which every answer is text."""
    conversation = record.get("conversations")
    return isinstance(conversation, list) and all(
        isinstance(turn, dict) and isinstance(turn.get("value"), str) for turn in conversation
    )


def parse_visualprm_conversation(record: Record, report: Report) -> tuple[Rollout, ...]:
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
    question, mark, first = steps[0][0].partition(SECTION_PROCESS)
    if not mark:
        report("missing_field", 'the first turn has no "### Solution Process:" before its first step')
        return ()
    steps[0] = (first, steps[0][1])
    return (
        Rollout(
            question=question.removeprefix(SECTION_QUESTION).strip(),
            steps=tuple(Step(text, score) for text, score in steps),
            images=image_field(record, report),
        ),
    )


def dump_visualprm_conversation(rollout: Rollout, tau: float) -> dict[str, Any]:
    """One human turn a step, answered + where its score is strictly above tau."""
    record: dict[str, Any] = {"id": -1}
    if rollout.images:
        record["image"] = rollout.images[0] if len(rollout.images) == 1 else list(rollout.images)
    record["conversations"] = conversation = []
    for number, step in enumerate(rollout.steps):
        text = step.text if number else f"{SECTION_QUESTION}{rollout.question}{SECTION_PROCESS}{step.text}"
        conversation.append({"from": "human", "value": text})
        conversation.append({"from": "gpt", "value": "+" if step.score > tau else "-"})
    return record


VISUALPRM_CONVERSATION = Format(
    name="visualprm",
    title="VisualPRM400K, conversation form",
    labels="binary",
    has_images=True,
    recognise=recognise_visualprm_conversation,
    parse=parse_visualprm_conversation,
    dump=dump_visualprm_conversation,
    forbids=SECTION_PROCESS.strip(),
)


MARK = "ки"

FIRST_STEP = re.compile(r"\bStep 1\s*:")


def parse_math_shepherd(record: Record, report: Report) -> tuple[Rollout, ...]:
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
    parse=parse_math_shepherd,
)


def recognise_prm800k(record: Record) -> bool:
    """A question with a problem, and a label with steps."""
    question, label = record.get("question"), record.get("label")
    return isinstance(question, dict) and "problem" in question and isinstance(label, dict) and "steps" in label


def parse_prm800k(record: Record, report: Report) -> tuple[Rollout, ...]:
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
    recognise=recognise_prm800k,
    parse=parse_prm800k,
    many=True,
)


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


def parse_stepwise_critic(record: Record, report: Report) -> tuple[Rollout, ...]:
    """Judge one row alone; its rollout needs the other rows, see `regroup`."""
    _row(record, report)
    return ()


STEPWISE_CRITIC = Format(
    name="stepwise-critic",
    title="PRM800K, stepwise-critic rows",
    labels="binary",
    has_images=False,
    recognise=lambda record: record.keys() >= COLUMNS,
    parse=parse_stepwise_critic,
    many=True,
    regroup=regroup,
)


def parse_trl_stepwise(record: Record, report: Report) -> tuple[Rollout, ...]:
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


def dump_trl_stepwise(rollout: Rollout, tau: float) -> dict[str, Any]:
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
    parse=parse_trl_stepwise,
    dump=dump_trl_stepwise,
)


def parse_math_aps(record: Record, report: Report) -> tuple[Rollout, ...]:
    """Every way from the question to a leaf of the search."""
    question = text_field(record, "question", report)
    search = record.get("reasoning_steps")
    if question is None:
        return ()
    scores: dict[Path, float] = {}
    if isinstance(search, list):
        _read_prefixes(question, search, scores, report)
    elif isinstance(search, dict):
        _read_tree(search, scores, report)
    else:
        report("missing_field", f'"reasoning_steps" holds {shown(search)}; expected a list or a tree')
        return ()
    if not scores:
        report("no_steps", "the search has no step after the question; expected at least one")
    answer = optional_text(record, "final_answer", report)
    return tuple(Rollout(question=question, steps=steps, answer=answer) for steps in leaf_paths(scores).values())


def _read_prefixes(question: str, prefixes: list[Any], scores: dict[Path, float], report: Report) -> None:
    """Hang each prefix under the longest other one that it begins with."""
    values: dict[str, float] = {}
    for number, entry in enumerate(prefixes):
        text = entry.get("solution_prefix") if isinstance(entry, dict) else None
        value = score_value(entry.get("mc_value"), f"prefix {number}", report) if isinstance(entry, dict) else None
        if not isinstance(text, str) or value is None or not text.startswith(question):
            report(
                "wrong_type",
                f"prefix {number} is {shown(entry)}; expected a text that begins with the question",
            )
            continue
        values.setdefault(text[len(question) :].strip(), value)
    values.pop("", None)  # the question itself: its value is no step's
    path_of: dict[str, Path] = {"": ()}
    ways = [""]  # beginnings of the current text, shortest first; sorting puts each below its beginnings
    for text in sorted(values):
        while not text.startswith(ways[-1]):
            ways.pop()
        path = (*path_of[ways[-1]], text[len(ways[-1]) :].strip())
        path_of[text] = path
        scores.setdefault(path, values[text])
        ways.append(text)


def _read_tree(root: dict[str, Any], scores: dict[Path, float], report: Report) -> None:
    """Walk the tree below the question, without recursion: trees can be deep."""
    todo: list[tuple[Any, Path]] = [(child, ()) for child in _children(root, report)]
    while todo:
        node, above = todo.pop()
        text = node.get("text") if isinstance(node, dict) else None
        value = (
            score_value(node.get("mc_value"), f"node {shown(text, 30)}", report) if isinstance(node, dict) else None
        )
        if not isinstance(text, str) or value is None:
            report("wrong_type", f"a node is {shown(node)}; expected text, mc_value and children")
            continue
        path = (*above, text.strip())
        scores.setdefault(path, value)
        todo.extend((child, path) for child in _children(node, report))


def _children(node: dict[str, Any], report: Report) -> list[Any]:
    children = node.get("children") or []
    if not isinstance(children, list):
        report("wrong_type", f"a node has children {shown(children)}; expected a list")
        return []
    return children


MATH_APS = Format(
    name="math-aps",
    title="MATH-APS",
    labels="mc",
    has_images=False,
    recognise=lambda record: "reasoning_steps" in record and "question" in record,
    parse=parse_math_aps,
    many=True,
)


FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        VISUALPRM_RAW,
        VL_PRM,
        MM_PRM,
        MM_PRM_SOFT,
        VISUALPRM_CONVERSATION,
        TRL,
        MATH_SHEPHERD,
        PRM800K,
        STEPWISE_CRITIC,
        RATED_STEPS,
        MATH_APS,
    )
}

WRITABLE = tuple(name for name, fmt in FORMATS.items() if fmt.dump is not None)


def format_named(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}; expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


def recognised(record: Record, file: str) -> Format:
    """The format of a file whose first record this is."""
    for fmt in FORMATS.values():
        if fmt.recognise(record):
            return fmt
    keys = ", ".join(sorted(map(str, record))[:12]) or "none"
    raise DataError(
        f"{file}:1: the record has the fields {keys}, which fit no known format;"
        f" name one with --format: {', '.join(FORMATS)}."
    )
