"""MATH-APS: one question and the search tree over it, each place with its Monte-Carlo value.

Two layouts: a flat list of solution prefixes, each the text from the question on, and a tree of
nodes with children. In both, each way from the question to a leaf is a rollout.
"""

from __future__ import annotations

from typing import Any

from mprm.rollouts.fields import optional_text, score_value, shown, text_field
from mprm.rollouts.format import Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rated_paths import Path, leaf_paths
from mprm.rollouts.rollout import Rollout


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
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
    parse=parse,
    many=True,
)
