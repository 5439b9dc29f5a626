"""A case study as a card: picture, question, steps with their scores, and how its BIS comes about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from mprm.report.card_images import Picture
from mprm.report.case_studies import KINDS, Case
from mprm.report.markup import text
from mprm.rollouts.rollout import Rollout, Step

MOST_QUESTION, MOST_STEP, MOST_STEPS, MOST_SUMMANDS = 1500, 700, 24, 10
"""Characters of a question and of a step, steps of a rollout, scores written out in a sum."""
MOST_IMAGES = 2
LEVELS = ((0.25, "faint"), (0.75, "fair"), (1.0, "firm"))
"""How reliable a positive step is, by its score."""


def cards_markup(
    cases: Sequence[Case], *, alpha: float, tau: float, n_rollouts: dict[str, int], picture: Callable[[str], Picture]
) -> str:
    """The cards, those of each source folded together; the first is open."""
    folds: list[str] = []
    for source, found in groupby(cases, key=lambda case: case.source):
        cards = [_card(case, n_rollouts[source], alpha=alpha, tau=tau, picture=picture) for case in found]
        is_open = " open" if not folds else ""
        folds.append(
            f'<details class="fold"{is_open}><summary>{text(source)} <span>{len(cards)} rollouts</span></summary>'
            f'<div class="cards">{"".join(cards)}</div></details>'
        )
    return "".join(folds)


def _card(case: Case, n_rollouts: int, *, alpha: float, tau: float, picture: Callable[[str], Picture]) -> str:
    rollout = case.rollout
    assert rollout is not None
    title = text(" · ".join(KINDS[kind] for kind in case.kinds))
    verdict = "kept" if case.is_kept else "left"
    steps = "".join(_step(step, tau) for step in rollout.steps[:MOST_STEPS])
    more = len(rollout.steps) - MOST_STEPS
    rest = f'<p class="note">… and {more} more steps.</p>' if more > 0 else ""
    answer = f'<p class="answer">Answer: {text(rollout.answer, most=200)}</p>' if rollout.answer else ""
    question = text(rollout.question, most=MOST_QUESTION)
    pictures = "".join(_picture(name, picture(name)) for name in rollout.images[:MOST_IMAGES])
    if len(rollout.images) > MOST_IMAGES:
        pictures += f'<p class="note">… and {len(rollout.images) - MOST_IMAGES} more images.</p>'
    return (
        f'<article class="card"><header><h4>{title}</h4>'
        f'<span class="badge {verdict}">{"kept" if case.is_kept else "left out"}</span>'
        f"<p>{case.place:,} of {n_rollouts:,} by BIS · <code>{text(case.file)}:{case.line}</code></p></header>"
        f'<div class="asked">{pictures}<p class="question">{question}</p>{answer}</div>'
        f'<ol class="steps">{steps}</ol>{rest}{bis_markup(rollout, alpha=alpha, tau=tau)}</article>'
    )


def _picture(name: str, found: Picture) -> str:
    if found.source:
        size = f'width="{found.width}" height="{found.height}"'
        return f'<figure><img src="{found.source}" {size} alt="{text(name)}" loading="lazy"></figure>'
    return (
        f'<figure class="missing" role="img" aria-label="no picture"><code>{text(name, most=120)}</code>'
        f"<small>{text(found.words, most=200)}</small></figure>"
    )


def _step(step: Step, tau: float) -> str:
    is_positive = step.score > tau
    level = next(name for most, name in LEVELS if step.score <= most) if is_positive else "negative"
    counts = "" if not step.n_total else f" · {step.n_correct} of {step.n_total}"
    unsampled = " · never sampled" if step.never_sampled else ""
    label = "positive" if is_positive else "negative"
    return (
        f'<li class="step {level}"><div class="score"><b>{step.score:.4g}</b>'
        '<svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="6"/>'
        f'<rect class="fill" width="{100 * step.score:.1f}" height="6"/></svg>'
        f"<span>{'+' if is_positive else '−'} {label}{counts}{unsampled}</span></div>"
        f"<p>{text(step.text, most=MOST_STEP)}</p></li>"
    )


def bis_markup(rollout: Rollout, *, alpha: float, tau: float) -> str:
    """The score of a rollout, worked out before the reader's eyes."""
    positive = [score for score in rollout.scores if score > tau]
    n, n_pos = len(rollout.scores), len(positive)
    p_pos = n_pos / n
    mixture = p_pos * (1 - p_pos)
    total = 0.0
    for score in positive:  # from left to right, as it is ranked by
        total += score
    R = total / n_pos if n_pos else 1.0  # noqa: N806 - the paper's symbol
    if n_pos:
        summands = [f"{score:.4g}" for score in positive[:MOST_SUMMANDS]] + (["…"] if n_pos > MOST_SUMMANDS else [])
        why = f"({' + '.join(summands)}) / {n_pos} = {R:.6g}"
    else:
        why = "1, as no step is positive"
    lines = [
        ("p_pos", f"{n_pos} / {n} = {p_pos:.6g}"),
        ("p_pos (1 − p_pos)", f"{mixture:.6g}"),
        ("R", why),
        ("BIS", f"({mixture:.6g} + {alpha:g}) × {R:.6g} = {(mixture + alpha) * R:.6g}"),
    ]
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(words)}</dd>" for name, words in lines)
    return f'<dl class="bis">{rows}</dl>'
