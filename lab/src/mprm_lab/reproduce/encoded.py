"""The corpus as a backbone reads it, encoded once by all workers together, then known to each of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from mprm.data.corpus import open_corpus
from mprm.data.output import atomic_write
from mprm.data.types import Chain
from mprm.models.checkpoint import PRMConfig, family_of
from mprm.models.head import load_step_model
from mprm.models.prompt import Encoded, Memory
from mprm.training.dataset import chain_of
from mprm_lab.reproduce.inputs import WORK, LabInputs

_Chain = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Question, steps and paths of images."""


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the corpus's rollouts, of one backbone."""

    backbone: str
    index: int
    count: int

    def path(self, inputs: LabInputs) -> Path:
        """Where what was encoded lies while the experiments run."""
        return inputs.folder / WORK / f"{_stem(inputs, self.backbone)}-{self.index}.msgpack"


def _stem(inputs: LabInputs, backbone: str) -> str:
    """Names the data, too: another corpus's, should it lie there, is not taken for this one's."""
    return f"encoded-{backbone}-{inputs.hashes['corpus']}-{inputs.hashes[backbone]}"


def encode(part: Part, inputs: LabInputs, *, max_length: int) -> None:
    """Encode the rollouts of a part, with their images, and write them down for all workers."""
    source, memory = inputs.policy(part.backbone), Memory()
    card = PRMConfig(image_settings=family_of(source).image_settings, max_length=max_length)
    encoder = load_step_model(source, card, device="cpu", image_root=inputs.images, memory=memory).encoder
    first, end = (inputs.n_rollouts * index // part.count for index in (part.index, part.index + 1))
    for rollout in islice(open_corpus(inputs.file("corpus")), first, end):
        chain = chain_of(rollout)
        if all(encoder.why_unusable(image) is None for image in chain.images):  # training tells of the others
            encoder.see(chain, encoder.measure(chain))
            encoder.n_prompt(chain)
    path = part.path(inputs)
    path.parent.mkdir(exist_ok=True)
    with atomic_write(str(path)) as temporary:
        temporary.write_bytes(msgspec.msgpack.encode(_written(memory)))


def recalled(inputs: LabInputs, backbone: str) -> Memory:
    """What was encoded for the backbone; nothing where nothing was."""
    memory = Memory()
    for path in sorted((inputs.folder / WORK).glob(f"{_stem(inputs, backbone)}-*.msgpack")):
        _read(msgspec.msgpack.decode(path.read_bytes(), type=_Written), memory)
    return memory


class _Written(msgspec.Struct, array_like=True):
    """A memory in plain numbers and texts."""

    measured: list[tuple[_Chain, list[int], list[int], int, tuple[str, ...]]]
    n_prompt: list[tuple[_Chain, int]]
    vision: list[tuple[tuple[str, ...], dict[str, tuple[str, tuple[int, ...], bytes]]]]
    broken: dict[str, str | None]


def _written(memory: Memory) -> _Written:
    return _Written(
        [(_parts(chain), one.ids, one.positions, one.n_steps, one.images) for chain, one in memory.measured.items()],
        [(_parts(chain), n) for chain, n in memory.n_prompt.items()],
        [
            (images, {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()})
            for images, arrays in memory.vision.items()
        ],
        memory.broken,
    )


def _read(found: _Written, memory: Memory) -> None:
    """Add what was written to a memory."""
    for parts, ids, positions, n_steps, images in found.measured:
        memory.measured[Chain(*parts)] = Encoded(ids, positions, n_steps, images=images)
    memory.n_prompt |= {Chain(*parts): n for parts, n in found.n_prompt}
    for images, arrays in found.vision:
        memory.vision[images] = {
            name: np.frombuffer(bytearray(content), kind).reshape(shape)
            for name, (kind, shape, content) in arrays.items()
        }
    memory.broken |= found.broken


def _parts(chain: Chain) -> _Chain:
    return chain.question, chain.steps, chain.images
