"""The corpus, encoded in parts, is what each worker would have encoded."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mprm.data.corpus import open_corpus
from mprm.models.checkpoint import PRMConfig, family_of
from mprm.models.head import load_step_model
from mprm.models.prompt import Memory
from mprm.training.dataset import chain_of
from mprm_lab.policy.architecture import Size, new_policy, save_policy
from mprm_lab.questions import problems_of
from mprm_lab.reproduce.encoded import Part, encode, recalled
from mprm_lab.reproduce.inputs import WORK, LabInputs
from mprm_lab.world import solution, write_images
from tests.conftest import write_jsonl

SIZE = Size(
    hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, vision_hidden=16, vision_layers=1, vision_heads=2
)


@pytest.fixture
def inputs(tmp_path: Path) -> LabInputs:
    problems = problems_of("corpus", 5)
    write_images(problems, tmp_path / "images")
    scored = [[{"step": step, "score": 1.0} for step in solution(one)] for one in problems]
    write_jsonl(
        tmp_path / "corpus.jsonl",
        [
            {"image": one.image, "question": one.question, "steps_with_score": steps}
            for one, steps in zip(problems, scored, strict=True)
        ],
    )
    save_policy(new_policy("internvl", size=SIZE), tmp_path / "policies" / "internvl")
    return LabInputs(folder=tmp_path, n_rollouts=5, hashes={"corpus": "c0", "internvl": "f1"})


def test_all_parts_together_know_every_rollout_and_image(inputs: LabInputs) -> None:
    for index in range(2):
        encode(Part("internvl", index, 2), inputs, max_length=512)
    memory, path = recalled(inputs, "internvl"), inputs.policy("internvl")
    card = PRMConfig(image_settings=family_of(path).image_settings, max_length=512)
    chains = [chain_of(rollout) for rollout in open_corpus(inputs.file("corpus"))]
    alone = load_step_model(path, card, device="cpu", image_root=inputs.images, memory=Memory()).encoder
    shutil.move(inputs.images, inputs.folder / "elsewhere")
    inputs.images.mkdir()
    knowing = load_step_model(path, card, device="cpu", image_root=inputs.images, memory=memory).encoder
    assert (len(memory.n_prompt), len(memory.vision)) == (5, 5)
    known = [knowing.see(chain, knowing.measure(chain)) for chain in chains]  # no image is there any more
    assert all(knowing.why_unusable(chain.images[0]) is None for chain in chains)
    inputs.images.rmdir()
    shutil.move(inputs.folder / "elsewhere", inputs.images)
    for chain, one in zip(chains, known, strict=True):
        other = alone.see(chain, alone.measure(chain))
        assert (one.ids, one.positions, one.images) == (other.ids, other.positions, other.images)
        assert knowing.n_prompt(chain) == alone.n_prompt(chain)
        assert all(np.array_equal(one.vision[name], other.vision[name]) for name in other.vision)


def test_a_rollout_whose_image_is_broken_is_left_to_training(inputs: LabInputs) -> None:
    image = next(iter(open_corpus(inputs.file("corpus")))).images[0]
    (inputs.images / image).write_bytes(b"no picture")
    encode(Part("internvl", 0, 1), inputs, max_length=512)
    memory = recalled(inputs, "internvl")
    assert len(memory.n_prompt) == 4
    assert memory.broken[image] is not None


def test_nothing_is_recalled_where_nothing_was_encoded(inputs: LabInputs) -> None:
    assert not recalled(inputs, "internvl").measured
    assert not (inputs.folder / WORK).exists()


def test_what_was_encoded_of_another_corpus_is_not_taken(inputs: LabInputs) -> None:
    encode(Part("internvl", 0, 1), inputs, max_length=512)
    other = replace(inputs, hashes={**inputs.hashes, "corpus": "another"})
    assert not recalled(other, "internvl").measured
    assert recalled(inputs, "internvl").measured
