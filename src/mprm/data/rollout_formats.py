r"""Formats of MC-annotated and labelled rollouts.

To add one: write its parse function, which turns a decoded record into rollouts, and a `RolloutFormat` in
`ROLLOUT_FORMATS`. docs/formats.md shows a record of each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from mmap import mmap
from typing import Any, Literal, NamedTuple, TypeGuard

import msgspec

from mprm.data.format import (
    PRM_TOKEN,
    Data,
    Format,
    by_name,
    field,
    fields,
    has,
    image_field,
    optional_text,
    score_value,
    steps_with_labels,
)
from mprm.data.types import STEP_SEPARATOR, BadRecord, Issues, Rollout, Step
from mprm.errors import shown

append_mm_prm: Callable[[bytes | mmap, int, int, float, bytearray], bool] | None
try:
    from mprm.data._mm_prm import append_mm_prm
except ImportError:  # installed without a compiler: `write_mm_prm` makes the same bytes, more slowly
    append_mm_prm = None


class ParsedLine(NamedTuple):
    """What one line of a chunk gave."""

    number: int
    """Line within the chunk, from 0."""
    raw: bytes
    rollouts: tuple[Rollout, ...]
    """Empty for a record that cannot be used."""
    issues: Issues


@dataclass(frozen=True, slots=True)
class RolloutFormat(Format[Rollout]):
    """One way in which people store rollouts."""

    write: Callable[[Rollout, float], dict[str, Any]] | None = None
    """The rollout as a record of this format, labels cut at tau; None: only read."""
    _: KW_ONLY
    labels: Literal["mc", "binary", "either"] = "binary"
    """``mc``: success rates, and ``write`` needs them; ``binary``: right or wrong; ``either``: the numbers decide."""
    has_images: bool = True
    decode: Callable[[bytes], Rollout | None] | None = None
    """The rollout of a line whose fields are all of their types; None for any other, which ``parse`` takes."""
    forbids: str | None = None
    """Text that a step or question must not hold, because this format ends a step with it."""
    many: bool = False
    """Whether one record holds several rollouts, or one rollout several records."""
    regroup: Callable[[Iterable[ParsedLine]], Iterator[ParsedLine]] | None = None
    """Puts rollouts together that are spread over lines, from what each line gave."""


def _image_entry(rollout: Rollout) -> dict[str, Any]:
    images = rollout.images
    return {"image": images[0] if len(images) == 1 else list(images)} if images else {}


# VisualPRM400K-v1.1-Raw, the paper's corpus, and VL-PRM300K, which adds the source of each record.


def parse_raw(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """The record's one rollout; its source too, where the record names it."""
    prompt, original = optional_text(data, "question", issues), optional_text(data, "question_orig", issues)
    question = next((text.strip() for text in (original, prompt) if text and text.strip()), None)
    if question is None:
        kind = "missing_field" if original is None and prompt is None else "empty_question"
        issues.add(kind, '"question" and "question_orig" are empty or missing; expected text in one of them')
    images = image_field(data, issues)
    entries = field(data, "steps_with_score", list)
    steps = [_parse_step(index, entry, issues) for index, entry in enumerate(entries)]
    good = tuple(step for step in steps if step is not None)
    if question is None or len(good) < len(steps):
        return ()
    answer, source = optional_text(data, "answer", issues), optional_text(data, "source", issues)
    return (Rollout(question=question, steps=good, images=images, prompt=prompt, answer=answer, source=source),)


def _score(value: Any, where: str, issues: Issues) -> float | None:
    try:
        return score_value(value, where)
    except BadRecord as bad:
        issues.add_bad(bad)
        return None


def _parse_step(index: int, step: Any, issues: Issues) -> Step | None:
    if not isinstance(step, dict):
        issues.add("wrong_type", f"step {index} is {shown(step)}; expected an object with step and score")
        return None
    text = step.get("step")
    if not isinstance(text, str):
        kind = "missing_field" if text is None else "wrong_type"
        issues.add(kind, f'step {index} has "step" {shown(text)}; expected text')
    score = _score(step.get("score"), f"step {index}", issues)
    counts: list[int | None] = []
    for key in ("num_mc_correct", "num_mc_total"):
        value = step.get(key)
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32
        if value is not None and not is_count:
            issues.add("odd_field", f'step {index} has "{key}" {shown(value)}; expected a count')
        counts.append(value if is_count else None)
    return None if not isinstance(text, str) or score is None else Step(text, score, *counts)


class _RawRecord(msgspec.Struct, gc=False):
    steps_with_score: tuple[Step, ...]
    question: str | None = None
    question_orig: str | None = None
    image: str | list[str] | None = None
    answer: str | None = None
    source: str | None = None


_decode_raw_record = msgspec.json.Decoder(_RawRecord).decode


def decode_raw(line: bytes) -> Rollout | None:
    """The rollout of a line in which every field is of its type; None for any other."""
    try:
        record = _decode_raw_record(line)
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


def _without_none(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def write_raw(rollout: Rollout, _tau: float) -> dict[str, Any]:
    """The rollout as a v1.1-Raw record; counts only where they are known."""
    n_totals = {step.n_total for step in rollout.steps if step.n_total}
    record = {
        **_image_entry(rollout),
        "question": rollout.prompt if rollout.prompt is not None else rollout.question,
        "question_orig": rollout.question,
        "answer": rollout.answer,
        "response": STEP_SEPARATOR.join(step.text for step in rollout.steps),
        "steps_with_score": [_without_none(step) for step in msgspec.to_builtins(rollout.steps)],
        "num_mc_sequences": n_totals.pop() if len(n_totals) == 1 else None,
        "source": rollout.source,
    }
    return _without_none(record)


# Conversations: MM-PRM with a list of numbers, VisualPRM400K with + or - after each step.

QUESTION, PROCESS = "Question:", "\nProcess:"
SECTION_QUESTION, SECTION_PROCESS = "### Question:\n", "\n\n### Solution Process:\n"
SIGNS = {"+": 1.0, "-": 0.0}


def _turns(data: Data) -> Iterator[tuple[str, Any]]:
    """(speaker, value) of each turn of a conversation."""
    for index, turn in enumerate(field(data, "conversations", list)):
        if not isinstance(turn, dict) or not isinstance(turn.get("from"), str) or "value" not in turn:
            raise BadRecord(f"turn {index} is {shown(turn)}; expected an object with from and value")
        yield turn["from"], turn["value"]


def _turn_values(data: Data) -> list[Any]:
    """The value of each turn; None for what is none."""
    turns = data["conversations"] if isinstance(data["conversations"], list) else [None]
    return [turn.get("value") if isinstance(turn, dict) else None for turn in turns]


def parse_mm_prm(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """The record's one rollout; its question and steps are cut out of the human turn."""
    first_turns = dict(reversed(list(_turns(data))))
    human, labels = first_turns.get("human"), first_turns.get("gpt")
    if not isinstance(human, str) or not isinstance(labels, list):
        raise BadRecord("expected a human turn of text and a gpt turn with a list of scores")
    *texts, rest = human.split(PRM_TOKEN)
    if rest := rest.strip():
        raise BadRecord(f"text after the last {PRM_TOKEN}: {shown(rest)}; expected none", "labels_and_steps_differ")
    question = ""
    if texts:
        # the question may itself speak of a process: the last mark before the first step counts
        head, mark, first = texts[0].rpartition(PROCESS)
        if not mark:
            raise BadRecord('the human turn has no "Process:" before its first step', "missing_field")
        head = re.sub(r"^(?:<image>\n)+(?=Question:(?!.*<image>))", "", head.strip(), flags=re.DOTALL)  # first anyway
        question = head.removeprefix(QUESTION).strip()
        texts[0] = first
    texts = [text.strip() for text in texts]
    steps = steps_with_labels(texts, labels, step_key="human turn", label_key="gpt turn")
    return (Rollout(question=question, steps=steps, images=image_field(data, issues)),)


def training_text(rollout: Rollout) -> str:
    """Question and steps as the model is trained on them."""
    process = STEP_SEPARATOR.join([step.text.strip() + PRM_TOKEN for step in rollout.steps])
    return f"{QUESTION} {rollout.question.strip()}{PROCESS} {process}"


def _conversation(rollout: Rollout, labels: list[float]) -> dict[str, Any]:
    turns = [{"from": "human", "value": training_text(rollout)}, {"from": "gpt", "value": labels}]
    return {**_image_entry(rollout), "conversations": turns}


def write_mm_prm(rollout: Rollout, tau: float) -> dict[str, Any]:
    """Labels 1.0 where the score is strictly above tau, else 0.0."""
    return _conversation(rollout, [1.0 if step.score > tau else 0.0 for step in rollout.steps])


def write_mm_prm_soft(rollout: Rollout, _tau: float) -> dict[str, Any]:
    """Labels are the scores themselves."""
    return _conversation(rollout, [step.score for step in rollout.steps])


def parse_visualprm(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """The record's one rollout: human turns are steps, the gpt turn after each its label."""
    turns = [turn for turn in _turns(data) if turn[0] != "system"]
    speakers = [speaker for speaker, _ in turns]
    if not turns or speakers != ["human", "gpt"] * (len(turns) // 2):
        raise BadRecord(f"the turns are {shown(speakers)}; expected human and gpt in turn")
    steps = []
    for index, ((_, text), (_, label)) in enumerate(zip(turns[::2], turns[1::2], strict=True)):
        if not isinstance(text, str) or not isinstance(label, str) or label not in SIGNS:
            raise BadRecord(f"step {index} is answered {shown(label)}; expected + or -")
        steps.append(Step(text, SIGNS[label]))
    question, mark, first = steps[0].text.partition(SECTION_PROCESS)
    if not mark:
        raise BadRecord('the first turn has no "### Solution Process:" before its first step', "missing_field")
    question = question.removeprefix(SECTION_QUESTION).strip()
    steps[0] = Step(first, steps[0].score)
    return (Rollout(question=question, steps=tuple(steps), images=image_field(data, issues)),)


def write_visualprm(rollout: Rollout, tau: float) -> dict[str, Any]:
    """One human turn a step, answered + where its score is strictly above tau."""
    turns = []
    for index, step in enumerate(rollout.steps):
        text = step.text if index else f"{SECTION_QUESTION}{rollout.question}{SECTION_PROCESS}{step.text}"
        turns.append({"from": "human", "value": text})
        turns.append({"from": "gpt", "value": "+" if step.score > tau else "-"})
    return {"id": -1, **_image_entry(rollout), "conversations": turns}


# Text: TRL stepwise supervision, Math-Shepherd.


def parse_trl(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """The record's one rollout: a prompt, its completions, and a boolean for each."""
    prompt, texts, labels = fields(data, issues, prompt=str, completions=list, labels=list)
    steps = steps_with_labels(texts, labels, step_key="completions", label_key="labels")
    source = optional_text(data, "source", issues)
    return (Rollout(question=prompt, steps=steps, images=image_field(data, issues), source=source),)


def write_trl(rollout: Rollout, tau: float) -> dict[str, Any]:
    """Labels true where the score is strictly above tau; images are kept where there are any."""
    return {
        "prompt": rollout.question,
        "completions": [step.text for step in rollout.steps],
        "labels": [step.score > tau for step in rollout.steps],
        **_image_entry(rollout),
    }


STEP_END = "ки"
"""Math-Shepherd's mark after each step, which the label replaces."""


def _is_math_shepherd(data: Data) -> bool:
    text, label = data.get("input"), data.get("label")
    return isinstance(text, str) and isinstance(label, str) and STEP_END in text


def parse_math_shepherd(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """The record's one rollout; ``label`` is read along ``input``, mark by mark."""
    text, label = fields(data, issues, input=str, label=str)
    *pieces, rest = text.split(STEP_END)
    if not pieces or rest.strip():
        problem = f'"input" does not end with {STEP_END!r}; expected the mark after every step'
        raise BadRecord(problem, "labels_and_steps_differ")
    scores, start = [], 0
    for index, piece in enumerate(pieces):
        sign = label[start + len(piece) : start + len(piece) + 1]
        if label[start : start + len(piece)] != piece or sign not in SIGNS:
            problem = f'"label" leaves "input" at step {index}: {shown(label[start:])}'
            raise BadRecord(problem, "labels_and_steps_differ")
        scores.append(SIGNS[sign])
        start += len(piece) + 1
    first = re.search(r"\bStep 1\s*:", pieces[0])
    if first is None:
        raise BadRecord('no "Step 1:" parts the question from the first step', "missing_field")
    question, pieces[0] = pieces[0][: first.start()].strip(), pieces[0][first.start() :]
    steps = tuple(Step(piece.strip(), score) for piece, score in zip(pieces, scores, strict=True))
    return (Rollout(question=question, steps=steps, source=optional_text(data, "task", issues)),)


# PRM800K in three layouts, and MATH-APS: trees of steps. Steps are rated in the light of the steps before them, with
# several tries at the same depth; each try that no other continues ends a rollout, so every rating is in one.

RATINGS = {1: 1.0, 0: 1.0, -1: 0.0}
"""PRM800K's ratings as labels; neutral (0) counts as positive, as its authors train on it."""
StepPath = tuple[str, ...]


def is_rating(value: object) -> TypeGuard[int]:
    """Whether the value is one of the three ratings; a float column holds them as 1.0, 0.0 and -1.0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value in RATINGS


def leaf_paths(scores: dict[StepPath, float]) -> dict[StepPath, tuple[Step, ...]]:
    """The rollouts of a tree, from the score of each path's last step; every prefix of a path is itself a path."""
    inner = {path[:-1] for path in scores}
    return {
        path: tuple(Step(path[j], scores[path[: j + 1]]) for j in range(len(path)))
        for path in scores
        if path not in inner
    }


def parse_rated_steps(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """The record's one rollout: lists of steps and of ratings."""
    question, texts, ratings = fields(data, issues, question=str, steps=list, ratings=list)
    for index, rating in enumerate(ratings):
        if not is_rating(rating):
            raise BadRecord(f"step {index} has rating {shown(rating)}; expected -1, 0 or 1")
    labels = [RATINGS[rating] for rating in ratings]
    steps = steps_with_labels(texts, labels, step_key="steps", label_key="ratings")
    return (Rollout(question=question, steps=steps),)


def parse_scored_steps(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """The record's one rollout: lists of steps and of scores or booleans; what ``--map`` makes of others' records."""
    question, texts, scores = fields(data, issues, question=str, steps=list, scores=list)
    steps = steps_with_labels(texts, scores, step_key="steps", label_key="scores")
    answer, source = optional_text(data, "answer", issues), optional_text(data, "source", issues)
    return (Rollout(question=question, steps=steps, images=image_field(data, issues), answer=answer, source=source),)


def _is_prm800k(data: Data) -> bool:
    question, label = data.get("question"), data.get("label")
    return isinstance(question, dict) and "problem" in question and isinstance(label, dict) and "steps" in label


def parse_prm800k(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """All rollouts of the record: the path that was continued, and each rated try beside it."""
    question, label = data.get("question"), data.get("label")
    if not isinstance(question, dict) or not isinstance(label, dict):
        raise BadRecord('"question" and "label" must be objects, as in OpenAI\'s files', "missing_field")
    tree = {"problem": question.get("problem"), "steps": label.get("steps")}
    problem, steps = fields(tree, issues, problem=str, steps=list)
    scores: dict[StepPath, float] = {}
    path: StepPath | None = ()
    for index, step in enumerate(steps):
        if path is None:
            break  # nothing was chosen at the step before, so nothing follows from it
        if not isinstance(step, dict):
            raise BadRecord(f"step {index} is {shown(step)}; expected an object with completions")
        path = _next_path(index, step, path, scores, issues)
    if not scores:
        issues.add("no_steps", "no completion of the record is rated; expected at least one")
    return _rollouts_of_tree(problem, scores, optional_text(question, "ground_truth_answer", issues))


def _rollouts_of_tree(question: str, scores: dict[StepPath, float], answer: str | None) -> tuple[Rollout, ...]:
    return tuple(Rollout(question=question, steps=steps, answer=answer) for steps in leaf_paths(scores).values())


def _next_path(
    index: int, step: dict[str, Any], path: StepPath, scores: dict[StepPath, float], issues: Issues
) -> StepPath | None:
    """Add the step's tries to ``scores``; the path that was continued, or None at the end."""
    completions = step.get("completions") or []
    if not isinstance(completions, list):
        issues.add("wrong_type", f"step {index} has completions {shown(completions)}; expected a list")
        return None
    for number, completion in enumerate(completions):
        entry = completion if isinstance(completion, dict) else {}
        text, rating = entry.get("text"), entry.get("rating")
        if not isinstance(text, str) or not is_rating(rating):
            kind = "unrated_step" if isinstance(text, str) and rating is None else "wrong_type"
            issues.add(kind, f"step {index}, completion {number} has rating {shown(rating)}; expected -1, 0 or 1")
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


def parse_stepwise_critic(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """The steps up to the one that the row rates; nan for the scores of the others, and of an unrated one.

    `regroup_stepwise_critic` makes whole rollouts of the rows.
    """
    question, before, text = fields(data, issues, instruction=str, responses=list, next_response=str)
    if not all(isinstance(step, str) for step in before):
        raise BadRecord(f'"responses" holds {shown(before)}; expected a list of texts')
    rating, score = data.get("rating"), math.nan
    if is_rating(rating):
        score = RATINGS[rating]
    elif rating is not None:
        raise BadRecord(f'"rating" is {shown(rating)}; expected -1, 0 or 1')
    elif data.get("is_human_response"):
        score = 1.0  # written by a labeller because every try was bad
    else:
        issues.add("unrated_step", "next_response has no rating; the row was left out")
    steps = (*(Step(step, math.nan) for step in before), Step(text, score))
    return (Rollout(question=question, steps=steps, answer=optional_text(data, "answer", issues)),)


def regroup_stepwise_critic(rows: Iterable[ParsedLine]) -> Iterator[ParsedLine]:
    """The rollouts of a file whose rows stand together by question."""
    question, answer = "", None
    scores: dict[StepPath, float] = {}
    first_row: dict[StepPath, ParsedLine] = {}

    def finish() -> Iterator[ParsedLine]:
        for path, steps in leaf_paths(scores).items():
            rollout = Rollout(question=question, steps=steps, answer=answer)
            yield first_row[path]._replace(rollouts=(rollout,), issues=Issues())

    for row in rows:
        for prefix in row.rollouts:
            if prefix.question != question:
                yield from finish()
                question, answer, scores, first_row = prefix.question, None, {}, {}
            answer = prefix.answer or answer
            path, score = tuple(step.text for step in prefix.steps), prefix.scores[-1]
            if len(path) > 1 and path[:-1] not in scores:
                row.issues.add("missing_field", "the step before next_response has no rated row above this one")
            elif not math.isnan(score):
                first_row.setdefault(path, row)
                scores.setdefault(path, score)
        yield row._replace(rollouts=())
    yield from finish()


def parse_math_aps(data: Data, issues: Issues) -> tuple[Rollout, ...]:
    """Every path from the question to a leaf of the search: a list of solution prefixes, or a tree of nodes."""
    question, search = field(data, "question", str), data.get("reasoning_steps")
    scores: dict[StepPath, float] = {}
    if isinstance(search, list):
        _read_prefixes(question, search, scores, issues)
    elif isinstance(search, dict):
        _read_tree(search, scores, issues)
    else:
        raise BadRecord(f'"reasoning_steps" holds {shown(search)}; expected a list or a tree', "missing_field")
    if not scores:
        issues.add("no_steps", "the search has no step after the question; expected at least one")
    return _rollouts_of_tree(question, scores, optional_text(data, "final_answer", issues))


def _scored_text(entry: Any, key: str, where: str, issues: Issues, prefix: str = "") -> tuple[str, float] | None:
    """(text under ``key``, score) of an entry of the search; None, and an issue, where it has not both."""
    text = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text.startswith(prefix):
        expected = f"{key}{' that begins with the question' if prefix else ''} and mc_value"
        issues.add("wrong_type", f"{where} is {shown(entry)}; expected {expected}")
        return None
    score = _score(entry.get("mc_value"), f"{where} {shown(text, 30)}", issues)
    return None if score is None else (text[len(prefix) :].strip(), score)


def _read_prefixes(question: str, prefixes: list[Any], scores: dict[StepPath, float], issues: Issues) -> None:
    """Put each prefix under the longest other one that it begins with."""
    values: dict[str, float] = {}
    for index, entry in enumerate(prefixes):
        if scored := _scored_text(entry, "solution_prefix", f"prefix {index}", issues, question):
            values.setdefault(*scored)
    values.pop("", None)  # the question itself: its value is no step's
    path_of: dict[str, StepPath] = {"": ()}
    parents = [""]  # prefixes of the current text, shortest first; sorting puts each below its own prefixes
    for text in sorted(values):
        while not text.startswith(parents[-1]):
            parents.pop()
        path = (*path_of[parents[-1]], text[len(parents[-1]) :].strip())
        path_of[text] = path
        scores.setdefault(path, values[text])
        parents.append(text)


def _read_tree(root: dict[str, Any], scores: dict[StepPath, float], issues: Issues) -> None:
    """Walk the tree below the question, without recursion: trees can be deep."""
    stack: list[tuple[Any, StepPath]] = [(child, ()) for child in _children(root, issues)]
    while stack:
        node, above = stack.pop()
        if scored := _scored_text(node, "text", "node", issues):
            path = (*above, scored[0])
            scores.setdefault(path, scored[1])
            stack.extend((child, path) for child in _children(node, issues))


def _children(node: dict[str, Any], issues: Issues) -> list[Any]:
    children = node.get("children") or []
    if not isinstance(children, list):
        issues.add("wrong_type", f"a node has children {shown(children)}; expected a list")
        return []
    return children


ROLLOUT_FORMATS: dict[str, RolloutFormat] = by_name(
    RolloutFormat("vl-prm", has("steps_with_score", "source"), parse_raw, labels="mc", decode=decode_raw),
    # after vl-prm, whose records have a source too
    RolloutFormat("visualprm-raw", has("steps_with_score"), parse_raw, write_raw, labels="mc", decode=decode_raw),
    RolloutFormat(
        "mm-prm",
        has("conversations", when=lambda data: any(isinstance(value, list) for value in _turn_values(data))),
        parse_mm_prm,
        write_mm_prm,
        labels="either",
        forbids=PRM_TOKEN,
    ),
    RolloutFormat(
        "mm-prm-soft",
        has("conversations", when=lambda _: False),  # one record cannot tell soft from hard: "either" above decides
        parse_mm_prm,
        write_mm_prm_soft,
        labels="mc",
        forbids=PRM_TOKEN,
    ),
    RolloutFormat(
        "visualprm",
        has("conversations", when=lambda data: all(isinstance(value, str) for value in _turn_values(data))),
        parse_visualprm,
        write_visualprm,
        forbids=SECTION_PROCESS.strip(),
    ),
    RolloutFormat("trl", has("prompt", "completions", "labels"), parse_trl, write_trl, has_images=False),
    RolloutFormat(
        "math-shepherd", has("input", "label", when=_is_math_shepherd), parse_math_shepherd, has_images=False
    ),
    RolloutFormat("prm800k", has("question", "label", when=_is_prm800k), parse_prm800k, has_images=False, many=True),
    RolloutFormat(
        "stepwise-critic",
        has("instruction", "responses", "next_response", "rating"),
        parse_stepwise_critic,
        has_images=False,
        many=True,
        regroup=regroup_stepwise_critic,
    ),
    RolloutFormat("rated-steps", has("question", "steps", "ratings"), parse_rated_steps, has_images=False),
    RolloutFormat(
        "math-aps", has("question", "reasoning_steps"), parse_math_aps, labels="mc", has_images=False, many=True
    ),
    RolloutFormat(
        "scored-steps", has("question", "steps", "scores"), parse_scored_steps, labels="either", has_images=False
    ),
)
WRITABLE = tuple(name for name, fmt in ROLLOUT_FORMATS.items() if fmt.write is not None)
"""Formats that mprm writes."""
