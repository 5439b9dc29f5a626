"""Small policies: of the published architectures, loaded as those are, and able to learn."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from mprm.annotation.questions.prompt import prompt_of
from mprm.annotation.samplers.sampler import Decoding, Request, answers
from mprm.backbones.step_tokens import step_tokens
from mprm.errors import ConfigError
from mprm.inference.load_policy import load_policy
from mprm.lab.policy.architecture import Size, new_policy, save_policy
from mprm.lab.policy.train_policy import IGNORED, PolicyTraining, Solutions, train_policy
from mprm.lab.world import SOURCES, as_question, draw, problem, solution, write_images

KINDS = ("qwen2_5_vl", "internvl")
SMALL = Size(
    hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vision_hidden=32, vision_layers=1, vision_heads=2
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_has_the_size_of_the_lab_and_reads_a_picture_as_sixteen_tokens(kind: str) -> None:
    policy = new_policy(kind)
    assert 1e6 < sum(weight.numel() for weight in policy.model.parameters()) < 1e7
    assert policy.family.n_image_tokens(policy.image_processor, 112, 112) == 16
    tokens = step_tokens(policy.tokenizer)  # Yes and No are a token each, <prm> has room
    assert max(tokens.prm, tokens.yes, tokens.no) < policy.model.get_output_embeddings().weight.shape[0]
    for source in SOURCES:
        one = problem(source, 7)
        for text in (prompt_of(as_question(one)), "\n\n".join(solution(one))):
            ids = policy.tokenizer.encode(text, add_special_tokens=False)
            assert policy.tokenizer.decode(ids) == text
            assert len(ids) < 1.4 * len(text.split()) + 40  # about a token a word


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_learns_is_saved_and_answers_in_process(kind: str, tmp_path: Path) -> None:
    policy = new_policy(kind, size=SMALL)
    how = PolicyTraining(n_updates=12, batch_size=16, learning_rate=5e-3, workers=0, device="cpu")
    losses = train_policy(policy, how)
    assert losses[-1] < 0.75 * losses[0]
    save_policy(policy, tmp_path / "policy")
    one = problem("bars-total", 3)
    write_images([one], tmp_path)
    request = Request(
        prompt=prompt_of(as_question(one)),
        images=(tmp_path / one.image,),
        prefix=solution(one)[0] + "\n\n",
        n=3,
        decoding=Decoding(max_new_tokens=8),
    )
    [(_, completions)] = answers(load_policy(tmp_path / "policy", device="cpu"), [request])
    assert [completion.error for completion in completions] == [None] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_taken_of_the_solution_and_its_end_alone(kind: str) -> None:
    policy = new_policy(kind, size=SMALL)
    data = Solutions(policy, 30, seed=1)
    batch = data.collate([data[0], data[16]])
    first = problem(next(iter(SOURCES)), 10_000_000)
    kept = batch["labels"][0] != IGNORED
    told = "\n\n".join(solution(first))
    assert policy.tokenizer.decode(batch["input_ids"][0][kept]) == told + policy.tokenizer.eos_token
    picture = Image.open(io.BytesIO(draw(first))).convert("RGB")
    asked = policy.encode_chat(prompt_of(as_question(first)), [picture])["input_ids"][0]
    assert batch["input_ids"][0][: len(asked)].tolist() == asked.tolist()
    assert not kept[: len(asked)].any()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown backbone 'gpt'"):
        new_policy("gpt")
    with pytest.raises(ConfigError, match="multiple of 8 times"):
        Size(hidden=100)
    with pytest.raises(ConfigError, match="n_updates must be at least 1"):
        PolicyTraining(n_updates=0)
    with pytest.raises(ConfigError, match="seed 10 leaves the problems"):
        Solutions(new_policy("internvl", size=SMALL), 10, seed=10)
