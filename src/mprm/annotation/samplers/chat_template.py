"""Chat templates: where a checkpoint keeps its own, and how one is made to leave the last turn open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mprm.errors import ConfigError

END_MARK = "<mprm: the answer goes on here>"
"""Follows the beginning of an answer; what the template renders from here on is cut off."""


def open_template(template: str) -> str:
    """The template, cut where the last message is marked with `END_MARK`, so that its turn stays open.

    The whole chat is rendered first, without the opening of a new turn. White space before the mark stays
    even where the template trims messages: the mark is their end then.
    """
    # the line end belongs to the tag before it, so that the template begins at the beginning of a line as before
    return (
        "{%- set add_generation_prompt = false %}{%- set mprm_chat %}\n"
        f"{template}"
        "{%- endset %}{{- mprm_chat.rsplit('" + END_MARK + "', 1)[0] -}}"
    )


def read_chat_template(path: str | Path) -> str:
    """The chat template of a checkpoint's folder, or that in a file: Jinja, or JSON with a ``chat_template``."""
    path = Path(path).expanduser()
    if path.is_dir():
        for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
            if (path / name).is_file() and (found := _of_file(path / name)) is not None:
                return found
        raise ConfigError(f"{path} has no chat template: looked for chat_template.jinja and in tokenizer_config.json")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; expected a chat template, or a checkpoint that has one")
    found = _of_file(path)
    if found is None:
        raise ConfigError(f"{path} holds no chat_template")
    return found


def _of_file(path: Path) -> str | None:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return text
    try:
        found: Any = json.loads(text).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if isinstance(found, list):  # several, by name
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found if isinstance(found, str) else None
