"""Where a chat server is, and how it is spoken to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """See `HTTPSampler`."""

    base_url: str
    """Without ``/chat/completions``."""
    model: str
    api_key: str | None = None
    concurrency: int = 64
    timeout_s: float = 600.0
    retries: int = 6
    backoff_s: float = 1.0
    patience_s: float = 900.0
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    """The policy's own, for servers that continue an answer only with its help."""
