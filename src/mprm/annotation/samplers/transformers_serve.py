"""What ``transformers serve`` wants otherwise."""

from __future__ import annotations

import json
from typing import Any

UNKNOWN_FIELDS = "Unexpected fields in the request"
"""How it refuses fields that it does not know; other servers ignore them, or refuse in other words."""


def for_transformers_serve(body: dict[str, Any]) -> dict[str, Any]:
    """The request with ``top_k``, and whether tokens are drawn at all, in a generation config.

    It knows no other place for them, and takes the likeliest token always, at any temperature, where
    neither the request nor the checkpoint's ``generation_config.json`` says ``do_sample``.
    """
    how = {"do_sample": body["temperature"] > 0, "top_k": body.get("top_k", 0)}
    given = json.loads(body.get("generation_config") or "{}")
    rest = {name: value for name, value in body.items() if name != "top_k"}
    return rest | {"generation_config": json.dumps(how | given)}
