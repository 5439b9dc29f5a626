"""A chain of steps without labels: what a process reward model scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Chain:
    """A question, its images, and the steps that someone took to answer it."""

    question: str
    steps: tuple[str, ...]
    images: tuple[Any, ...] = ()
    """Paths as the data names them, or PIL images."""
