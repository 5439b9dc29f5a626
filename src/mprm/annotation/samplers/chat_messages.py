"""The messages that a chat server is sent."""

from __future__ import annotations

import re
from typing import Any

from mprm.annotation.samplers.data_url import data_url
from mprm.annotation.samplers.sampler import Request

IMAGE_MARK = re.compile(r"<image(?:[ _]?(\d+))?>")
"""The place of an image in a prompt, counted from 1 where it has a number."""


def chat_messages(request: Request) -> list[dict[str, Any]]:
    """One user turn, and the beginning of the answer where there is one."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": _content(request.prompt, request.images)}]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix})
    return messages


def _content(prompt: str, images: tuple[Any, ...]) -> str | list[dict[str, Any]]:
    """Text, or text and images: each at its mark, or all before the text where the marks do not fit one to one."""
    if not images:
        return prompt
    marks = list(IMAGE_MARK.finditer(prompt))
    is_numbered = any(mark[1] for mark in marks)
    numbers = [int(mark[1] or 0) - 1 if is_numbered else place for place, mark in enumerate(marks)]
    if sorted(numbers) != list(range(len(images))):
        return [*map(_image, images), *_text(prompt)]
    parts: list[dict[str, Any]] = []
    start = 0
    for mark, number in zip(marks, numbers, strict=True):
        parts += [*_text(prompt[start : mark.start()]), _image(images[number])]
        start = mark.end()
    return parts + _text(prompt[start:])


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text.strip()}] if text.strip() else []


def _image(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}
