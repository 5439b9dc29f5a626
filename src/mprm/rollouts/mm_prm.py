r"""MM-PRM training records: ``Question: …\nProcess: s1<prm>\n\ns2<prm>`` with one number a step."""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap

import msgspec

from mprm.rollouts.conversation import turns
from mprm.rollouts.fields import image_field, shown, steps_with_labels
from mprm.rollouts.format import PRM_TOKEN, Format, Record
from mprm.rollouts.problem import Report
from mprm.rollouts.rollout import Rollout

append_mm_prm: Callable[[bytes | mmap, int, int, float, bytearray], bool] | None
try:
    from mprm.rollouts._mm_prm_line import append_mm_prm
except ImportError:  # installed without a compiler: `dump_hard` makes the same bytes, more slowly
    append_mm_prm = None

QUESTION, PROCESS = "Question:", "\nProcess:"


def recognise(record: Record) -> bool:
    """A conversation whose second turn is a list of numbers."""
    conversation = record.get("conversations")
    return isinstance(conversation, list) and any(
        isinstance(turn, dict) and isinstance(turn.get("value"), list) for turn in conversation
    )


def parse(record: Record, report: Report) -> tuple[Rollout, ...]:
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
        head, mark, first = texts[0].rpartition(PROCESS)
        if not mark:
            report("missing_field", 'the human turn has no "Process:" before its first step')
            return ()
        question = head.strip().removeprefix(QUESTION).strip()
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
    return f"{QUESTION} {rollout.question.strip()}{PROCESS} {process}"


class _Turn(msgspec.Struct, gc=False):
    speaker: str = msgspec.field(name="from")
    value: str | list[float]


class _Record(msgspec.Struct, gc=False, kw_only=True):
    image: str | tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    conversations: tuple[_Turn, _Turn]


def _dump(rollout: Rollout, labels: list[float]) -> _Record:
    images = rollout.images
    talk = (_Turn("human", training_text(rollout)), _Turn("gpt", labels))
    if not images:
        return _Record(conversations=talk)
    return _Record(image=images[0] if len(images) == 1 else images, conversations=talk)


def dump_hard(rollout: Rollout, tau: float) -> _Record:
    """Labels 1.0 where the score is strictly above tau, else 0.0."""
    return _dump(rollout, [1.0 if step.score > tau else 0.0 for step in rollout.steps])


def dump_soft(rollout: Rollout, _tau: float) -> _Record:
    """Labels are the scores themselves."""
    return _dump(rollout, [step.score for step in rollout.steps])


MM_PRM = Format(
    name="mm-prm",
    title="MM-PRM",
    labels="either",
    has_images=True,
    recognise=recognise,
    parse=parse,
    dump=dump_hard,
    forbids=PRM_TOKEN,
)

MM_PRM_SOFT = Format(
    name="mm-prm-soft",
    title="MM-PRM with soft labels",
    labels="mc",
    has_images=True,
    recognise=lambda _record: False,  # one record cannot tell soft from hard: "either" above decides
    parse=parse,
    dump=dump_soft,
    writes="mc",
    forbids=PRM_TOKEN,
)
