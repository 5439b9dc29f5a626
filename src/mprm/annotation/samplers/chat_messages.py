"""The messages that a chat server is sent."""

from __future__ import annotations

from typing import Any

from mprm.annotation.samplers.data_url import data_url
from mprm.annotation.samplers.sampler import Request
from mprm.rollouts.place_images import place_images


def chat_messages(request: Request, *, end_mark: str = "") -> list[dict[str, Any]]:
    """One user turn, and the beginning of the answer where there is one, to the letter; a mark may follow it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": _content(request.prompt, request.images)}]
    if request.prefix:
        messages.append({"role": "assistant", "content": request.prefix + end_mark})
    return messages


def _content(prompt: str, images: tuple[Any, ...]) -> str | list[dict[str, Any]]:
    """Text, or text and images: each at its mark, or all before the text where the marks do not fit one to one."""
    if not images:
        return prompt
    parts: list[dict[str, Any]] = []
    for piece in place_images(prompt, len(images)):
        parts += _text(piece) if isinstance(piece, str) else [_image(images[piece])]
    return parts


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text.strip()}] if text.strip() else []


def _image(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}
