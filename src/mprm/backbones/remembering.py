"""An encoder that remembers, for many short runs on the same data in one process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from mprm.backbones.family import Arrays
from mprm.backbones.prompt import Encoded, PromptEncoder
from mprm.errors import ConfigError
from mprm.rollouts.chain import Chain


@dataclass(slots=True)
class Memory:
    """What encoders of one kind made of chains and images; needs room for all of it, as nothing is forgotten."""

    measured: dict[Chain, Encoded] = field(default_factory=dict)
    n_prompt: dict[Chain, int] = field(default_factory=dict)
    vision: dict[tuple[Any, ...], Arrays] = field(default_factory=dict)
    """Of images in the order in which they stand in a question."""
    broken: dict[str, str | None] = field(default_factory=dict)
    """Why an image cannot be used; None where it can."""
    asked_by: Any = None
    """What its encoders have in common."""


class RememberingEncoder(PromptEncoder):
    """`PromptEncoder` that looks into a memory first; the files that it reads must not change meanwhile."""

    def __init__(self, *args: Any, memory: Memory, **options: Any) -> None:
        super().__init__(*args, **options)
        settings = (self.family.name, self.tokens, self.max_length, str(self.image_root))
        asked_by = (*settings, self.tokenizer.get_vocab(), str(self.image_processor))
        if memory.asked_by not in (None, asked_by):
            raise ConfigError("a memory serves encoders of one tokenizer, image processor and image root alone")
        memory.asked_by = asked_by
        self.memory = memory

    def measure(self, chain: Chain) -> Encoded:
        """See `PromptEncoder.measure`."""
        if not _has_paths(chain):
            return super().measure(chain)
        found = self.memory.measured.get(chain)
        if found is None:
            found = self.memory.measured[chain] = super().measure(chain)
        return found

    def n_prompt(self, chain: Chain) -> int:
        """See `PromptEncoder.n_prompt`."""
        if not _has_paths(chain):
            return super().n_prompt(chain)
        found = self.memory.n_prompt.get(chain)
        if found is None:
            found = self.memory.n_prompt[chain] = super().n_prompt(chain)
        return found

    def see(self, chain: Chain, measured: Encoded) -> Encoded:
        """See `PromptEncoder.see`."""
        if not measured.positions or not chain.images or not _has_paths(chain):
            return super().see(chain, measured)
        found = self.memory.vision.get(measured.images)
        if found is None:
            found = self.memory.vision[measured.images] = super().see(chain, measured).vision
        return replace(measured, vision=found)

    def why_unusable(self, image: str) -> str | None:
        """See `PromptEncoder.why_unusable`."""
        if image not in self.memory.broken:
            self.memory.broken[image] = super().why_unusable(image)
        return self.memory.broken[image]


def _has_paths(chain: Chain) -> bool:
    """Whether all images are named by paths; those in memory are not remembered."""
    return all(isinstance(image, str) for image in chain.images)
