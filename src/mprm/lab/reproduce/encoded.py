"""The corpus as a backbone reads it, encoded once by all workers together, then known to each of them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mprm.backbones.card import Card
from mprm.backbones.load import family_of
from mprm.backbones.remembering import Memory
from mprm.backbones.step_model import load_step_model
from mprm.lab.reproduce.inputs import WORK, LabInputs
from mprm.rollouts.atomic_write import atomic_write
from mprm.rollouts.corpus import open_corpus
from mprm.training.prepare import chain_of


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the corpus's rollouts, of one backbone."""

    backbone: str
    index: int
    count: int

    def path(self, lab: Path) -> Path:
        """Where what was encoded lies while the experiments run."""
        return lab / WORK / f"encoded-{self.backbone}-{self.index}.pickle"


def encode(part: Part, inputs: LabInputs, *, max_length: int) -> None:
    """Encode the rollouts of a part, with their images, and write them down for all workers."""
    source, memory = inputs.policy(part.backbone), Memory()
    card = Card(image_settings=family_of(source).image_settings, max_length=max_length)
    encoder = load_step_model(source, card, device="cpu", image_root=inputs.images, memory=memory).encoder
    first, end = (inputs.n_rollouts * index // part.count for index in (part.index, part.index + 1))
    for rollout in islice(open_corpus(inputs.file("corpus")), first, end):
        chain = chain_of(rollout)
        if all(encoder.why_unusable(image) is None for image in chain.images):  # training tells of the others
            encoder.see(chain, encoder.measure(chain))
            encoder.n_prompt(chain)
    path = part.path(inputs.folder)
    path.parent.mkdir(exist_ok=True)
    with atomic_write(str(path)) as temporary, temporary.open("wb") as out:
        pickle.dump(memory, out, protocol=pickle.HIGHEST_PROTOCOL)


def recalled(lab: Path, backbone: str) -> Memory:
    """What was encoded for the backbone; nothing where nothing was."""
    memory = Memory()
    for path in sorted((lab / WORK).glob(f"encoded-{backbone}-*.pickle")):
        with path.open("rb") as found:
            part: Memory = pickle.load(found)
        memory.add(part)
    return memory
