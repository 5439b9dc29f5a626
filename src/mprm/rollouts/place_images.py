"""Where the images of a question stand in its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mprm.rollouts.judge import IMAGE_MARK


def place_images(question: str, n_images: int) -> list[str | int]:
    """The question with each image (by number) at its mark, or all before it where the marks do not fit.

    Marks are ``<image>``, one for each image in order, or ``<image1>``, ``<image2>``, … each once. Where
    they do not fit the images one to one, all images stand before the question and marks stay as text.

    Examples
    --------
    >>> place_images("Is <image> larger than <image>?", 2)
    ['Is ', 0, ' larger than ', 1, '?']
    >>> place_images("Find x.", 1)
    [0, 'Find x.']
    """
    marks = list(IMAGE_MARK.finditer(question)) if n_images else []
    digits = [re.search(r"\d+", mark.group()) for mark in marks]
    if marks and not any(digits):
        numbers = list(range(len(marks)))
    else:
        numbers = [int(digit.group()) - 1 for digit in digits if digit]
    if len(numbers) != len(marks) or sorted(numbers) != list(range(n_images)):
        return [*range(n_images), question]
    pieces: list[str | int] = []
    end = 0
    for mark, number in zip(marks, numbers, strict=True):
        pieces += [question[end : mark.start()], number]
        end = mark.end()
    return [piece for piece in [*pieces, question[end:]] if piece != ""]


def as_placed(question: str, images: Sequence[Any]) -> tuple[Any, ...]:
    """The images in the order in which they stand in the question, which ``<image2>`` before ``<image1>`` turns.

    A model deals the embeddings of the images out to their tokens in this order.

    Examples
    --------
    >>> as_placed("Is <image2> larger than <image1>?", ["a.png", "b.png"])
    ('b.png', 'a.png')
    """
    return tuple(images[piece] for piece in place_images(question, len(images)) if isinstance(piece, int))
