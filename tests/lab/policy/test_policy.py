"""Small policies: of the published architectures, loaded as those are, and able to learn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mprm.annotation.samplers.load import load_policy
from mprm.annotation.samplers.sampler import Request, SamplingParams, answers
from mprm.data.questions import prompt_of
from mprm.errors import ConfigError
from mprm.models import step_tokens, use_window_attention
from mprm_lab.policy.architecture import Size, new_policy, save_policy
from mprm_lab.policy.dataset import BATCHES_PER_POOL, IGNORE_INDEX, TASKS, PolicyDataset, grounding_task
from mprm_lab.policy.train import (
    PATCH_LOSS_WEIGHT,
    REPLAYED,
    PolicyTrainConfig,
    _batches,
    _inputs,
    _loss,
    train_policy,
)
from mprm_lab.world import SOURCES, draw, problem, solution, write_images
from mprm_lab.world.problems import GROUNDING_PROMPT

KINDS = ("qwen2_5_vl", "internvl")
SMALL = Size(
    hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vision_hidden=32, vision_layers=1, vision_heads=2
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_has_the_size_of_the_lab_and_reads_a_picture_as_sixteen_tokens(kind: str) -> None:
    policy = new_policy(kind)
    assert 1e6 < sum(weight.numel() for weight in policy.model.parameters()) < 1e7
    assert policy.family.n_image_tokens(policy.image_processor, 112, 112) == 16
    layer = policy.model.model.language_model.layers[0].mlp.up_proj.weight
    assert abs(layer.std() * layer.shape[1] ** 0.5 - 1) < 0.05  # not transformers' 0.02
    assert abs(policy.model.get_input_embeddings().weight.std() - 1) < 0.05
    tokens = step_tokens(policy.tokenizer)  # Yes and No are a token each, <prm> has room
    assert max(tokens.prm, tokens.yes, tokens.no) < policy.model.get_output_embeddings().weight.shape[0]
    for source in SOURCES:
        example = problem(source, 7)
        for text in (prompt_of(example.as_question()), "\n\n".join(solution(example))):
            ids = policy.tokenizer.encode(text, add_special_tokens=False)
            assert policy.tokenizer.decode(ids) == text
            assert len(ids) < 1.4 * len(text.split()) + 40  # about a token a word


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_learns_is_saved_and_answers_in_process(kind: str, tmp_path: Path) -> None:
    policy = new_policy(kind, size=SMALL)
    how = PolicyTrainConfig(
        n_optimizer_steps=13, n_pools=2, batch_size=16, learning_rate=5e-3, dataloader_workers=0, device="cpu"
    )
    losses = train_policy(policy, how)
    assert losses[-1] < 0.8 * losses[0]
    save_policy(policy, tmp_path / "policy")
    example = problem("bars-total", 3)
    write_images([example], tmp_path)
    request = Request(
        prompt=prompt_of(example.as_question()),
        images=(tmp_path / example.image,),
        prefix=solution(example)[0] + "\n\n",
        n=3,
        sampling=SamplingParams(max_new_tokens=8),
    )
    [(_, completions)] = answers(load_policy(tmp_path / "policy", device="cpu"), [request])
    assert [completion.error for completion in completions] == [None] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_the_targets_tokens_and_the_patch_words(kind: str) -> None:
    policy = new_policy(kind, size=SMALL)
    data = PolicyDataset(policy, 1, batch_size=1, seed=1)
    assert len(data) == BATCHES_PER_POOL
    problems = [problem(source, 10_000_000) for source in list(SOURCES)[:BATCHES_PER_POOL]]
    _, batches = data.collate_pool([data[index] for index in range(BATCHES_PER_POOL)])
    assert len(batches) == BATCHES_PER_POOL * len(TASKS)
    assert [batch.is_solving for batch in batches] == [True] * BATCHES_PER_POOL + [False] * (
        BATCHES_PER_POOL * (len(TASKS) - 1)
    )
    for number, batch in enumerate(batches):
        example = problems[batch.pictures[0]]
        prompt, target = TASKS[number // BATCHES_PER_POOL](example)
        labels, ids = batch.inputs["labels"][0], batch.inputs["input_ids"][0]
        picture = draw(example).convert("RGB")
        before = policy.encode_chat(prompt, [picture])["input_ids"][0]
        assert ids[: len(before)].tolist() == before.tolist()
        assert (labels[len(before) :] == ids[len(before) :]).all()
        assert policy.tokenizer.decode(ids[len(before) :]) == target + policy.tokenizer.eos_token
        # before it, each token of the picture is followed by a name of what is there
        shown = before == policy.tokenizer.convert_tokens_to_ids(policy.family.image_tokens[1])
        named = [policy.tokenizer.decode([label]).strip() for label in labels[1 : len(before) + 1][shown]]
        assert all(name in words for name, words in zip(named, example.scene.patch_words(), strict=True))
        assert (labels[: len(before)] != IGNORE_INDEX).sum() == 16


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_read_as_its_rows_are_one_by_one(kind: str) -> None:
    policy = new_policy(kind, size=SMALL)
    data = PolicyDataset(policy, 1, batch_size=3, seed=0)
    use_window_attention(policy.family.vision_tower(policy.model))
    rows = [data[number] for number in range(len(data))]
    pixels, batches = data.collate_pool(rows)
    batch = batches[1]
    inputs = _inputs(pixels, batch)
    together = policy.model(**{k: v for k, v in inputs.items() if k != "labels"}).logits
    look_plainly = new_policy(kind, size=SMALL)
    for row, number in enumerate(batch.pictures.tolist()):
        ids = torch.tensor([rows[number]["examples"][0][0]])
        vision = {name: torch.as_tensor(array) for name, array in rows[number]["vision"].items()}
        inputs = {"input_ids": ids, **vision, **policy.family.batch_inputs(policy.tokenizer, ids)}
        alone = look_plainly.model(**inputs, attention_mask=torch.ones_like(ids)).logits[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, rtol=1e-4, atol=1e-5)


def test_batches_of_a_pool_hold_every_row_of_every_task_once_and_pad_little() -> None:
    policy = new_policy("internvl", size=SMALL)
    data = PolicyDataset(policy, 1, batch_size=5, seed=0)
    rows = [data[number] for number in range(len(data))]
    _, batches = data.collate_pool(rows)
    pad = policy.tokenizer.pad_token_id
    for number in range(len(TASKS)):
        of_task = batches[number * BATCHES_PER_POOL : (number + 1) * BATCHES_PER_POOL]
        ids_of = {
            int(picture): [token for token in ids.tolist() if token != pad]
            for batch in of_task
            for picture, ids in zip(batch.pictures, batch.inputs["input_ids"], strict=True)
        }
        assert ids_of == {index: row["examples"][number][0] for index, row in enumerate(rows)}
        n_padded = sum(batch.inputs["input_ids"].numel() for batch in of_task)
        assert n_padded < 0.9 * len(rows) * max(len(row["examples"][number][0]) for row in rows)


def test_all_tasks_come_until_their_share_is_over_and_then_solutions_alone() -> None:
    policy = new_policy("internvl", size=SMALL)
    how = PolicyTrainConfig(
        n_optimizer_steps=60, n_pools=1, multitask=0.5, batch_size=1, dataloader_workers=0, device="cpu"
    )
    batches = list(_batches(policy, how, "cpu"))
    texts = [policy.tokenizer.decode(batch.inputs["input_ids"][0]) for _, batch in batches]
    is_solution = ["answer is \\boxed" in text for text in texts]
    assert is_solution == [batch.is_solving for _, batch in batches]
    assert len(texts) == 60
    n_new = BATCHES_PER_POOL * len(TASKS)
    first = texts[: (1 + REPLAYED) * n_new]
    assert len(set(first)) == n_new, "all of the new ones, with older ones among them"
    assert sorted(first[:n_new]) != sorted(set(first)), "in no order"
    assert not all(is_solution[len(first) : 30])
    assert all(is_solution[30:])


def test_older_batches_come_again_while_new_ones_come() -> None:
    policy = new_policy("internvl", size=SMALL)
    how = PolicyTrainConfig(
        n_optimizer_steps=48, n_pools=9, multitask=1.0, batch_size=1, dataloader_workers=0, device="cpu"
    )
    seen = [str(batch.inputs["input_ids"].tolist()) for _, batch in _batches(policy, how, "cpu")]
    n_new, n_pool = BATCHES_PER_POOL * len(TASKS), (1 + REPLAYED) * BATCHES_PER_POOL * len(TASKS)
    assert len(seen) == 48
    for start in range(0, 48, n_pool):
        assert len(set(seen[start : start + n_pool]) - set(seen[:start])) == n_new
    assert set(seen[n_pool : 2 * n_pool]) & set(seen[:n_pool])


@pytest.mark.parametrize("kind", KINDS)
def test_what_enters_the_language_model_names_the_patches_in_their_order(kind: str) -> None:
    policy = new_policy(kind, size=SMALL)
    data = PolicyDataset(policy, 1, batch_size=2, seed=0)
    pixels, batches = data.collate_pool([data[number] for number in range(len(data))])
    batch = batches[0]
    entered: dict[str, Any] = {}
    language = policy.model.model.language_model
    with language.register_forward_pre_hook(lambda _m, _a, named: entered.update(named), with_kwargs=True):
        loss = _loss(policy, pixels, batch)
    text_loss = policy.model(**_inputs(pixels, batch)).loss
    shown = batch.inputs["input_ids"] == policy.tokenizer.convert_tokens_to_ids(policy.family.image_tokens[1])
    named = policy.model.lm_head(language.norm(entered["inputs_embeds"][shown]))
    names = batch.inputs["labels"][:, 1:][shown[:, :-1]]  # those that leave it
    assert torch.equal(names, batch.patch_ids.flatten())
    torch.testing.assert_close(loss, text_loss + PATCH_LOSS_WEIGHT * torch.nn.functional.cross_entropy(named, names))


def test_what_is_said_of_a_picture_is_true() -> None:
    for source, n_items in (("grid-sum", 16), ("bars-total", None), ("shapes-points", 16)):
        example = problem(source, 3)
        values = {name[len("value ") :]: value for name, value in example.facts.items() if name.startswith("value ")}
        assert n_items is None or len(values) == n_items
        prompt, target = grounding_task(example)
        assert prompt == GROUNDING_PROMPT
        said = re.findall(r"(cell \d+|bar [A-Z]) ([^,]+)(?:, |\.$)", target)
        assert len(said) == min(10, len(values))
        assert dict(said).items() <= values.items()


def test_training_without_an_optimizer_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="n_optimizer_steps must be at least 1"):
        PolicyTrainConfig(n_optimizer_steps=0)
