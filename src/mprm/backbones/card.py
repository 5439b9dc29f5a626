"""``mprm.json``: what a checkpoint was taught, so that it is asked the same way."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mprm import __version__
from mprm.backbones.prompt import MAX_LENGTH, PROMPT_VERSION
from mprm.backbones.step_tokens import NEGATIVE, POSITIVE, STEP_TOKEN
from mprm.errors import ConfigError

CARD = "mprm.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The part of a process reward model that its weights do not say."""

    prompt_version: int = PROMPT_VERSION
    step_token: str = STEP_TOKEN
    positive: str = POSITIVE
    negative: str = NEGATIVE
    max_length: int = MAX_LENGTH
    image_settings: dict[str, int] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    """How steps were labelled: hard at tau, or soft."""
    base_fingerprint: str | None = None
    """Of the checkpoint that training began with."""
    files: dict[str, int] = field(default_factory=dict)
    """Sizes of the files beside it, when the checkpoint was whole."""
    base: str | None = None
    """The checkpoint that training began with; where the adapter's base weights lie."""
    data: dict[str, Any] = field(default_factory=dict)
    """Inputs with their hashes, counts read, trained on and dropped."""
    mprm: str = __version__


def write_card(folder: str | Path, card: Card) -> None:
    """Write ``mprm.json`` into the checkpoint's folder."""
    text = msgspec.json.format(msgspec.json.encode(asdict(card)), indent=2)
    (Path(folder) / CARD).write_bytes(text + b"\n")


def read_card(folder: str | Path) -> Card:
    """The card of a checkpoint, refused where this version of mprm would ask it otherwise than it was taught."""
    path = Path(folder) / CARD
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no {CARD}: it was not trained by mprm train. To score with other weights, write one with"
            " mprm.backbones.card.write_card, naming the prompt and tokens they were trained with."
        )
    try:
        if "prompt_version" not in msgspec.json.decode(path.read_bytes(), type=dict):
            raise ConfigError(f"{path} names no prompt_version; expected what mprm train writes")
        card = msgspec.json.decode(path.read_bytes(), type=Card)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}; expected what mprm train writes") from error
    if card.prompt_version != PROMPT_VERSION:
        raise ConfigError(
            f"{path}: the model was trained with prompt version {card.prompt_version}, this mprm {__version__} asks"
            f" with version {PROMPT_VERSION}; score it with the mprm that trained it ({card.mprm})"
        )
    return card
