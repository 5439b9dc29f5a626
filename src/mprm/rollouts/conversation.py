"""The turns of a ``conversations`` field."""

from __future__ import annotations

from typing import Any

from mprm.rollouts.fields import list_field, shown
from mprm.rollouts.format import Record
from mprm.rollouts.problem import Report


def turns(record: Record, report: Report) -> list[tuple[str, Any]] | None:
    """(speaker, value) of each turn; None, and a report, when the field is not of that form."""
    conversation = list_field(record, "conversations", report)
    if conversation is None:
        return None
    talk = []
    for number, turn in enumerate(conversation):
        if not isinstance(turn, dict) or not isinstance(turn.get("from"), str) or "value" not in turn:
            report("wrong_type", f"turn {number} is {shown(turn)}; expected an object with from and value")
            return None
        talk.append((turn["from"], turn["value"]))
    return talk
