"""Small policies: of the published architectures, loaded as those are, and able to learn."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mprm.annotation.samplers.sampler import Request, SamplingParams, answers, load_policy
from mprm.data import Chain, Solution
from mprm.data.questions import prompt_of
from mprm.errors import ConfigError
from mprm.models import PromptEncoder, step_tokens, use_window_attention
from mprm_lab.policy import train
from mprm_lab.policy.architecture import Size, new_policy, save_policy
from mprm_lab.policy.dataset import (
    BUCKET,
    IGNORE_INDEX,
    MARKERS,
    PolicyDataset,
    Pool,
    Row,
    RowWriter,
    grounding_task,
    image_features,
)
from mprm_lab.policy.train import PolicyTrainConfig, layer_states, policy_loss, train_policy
from mprm_lab.world import SOURCES, SPLITS, draw, problem, solution, write_images
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


def small_config(**options: Any) -> PolicyTrainConfig:
    sizes = {"n_problems": 60, "tokens_per_batch": 3200, "learning_rate": 5e-3, "warmup": 2}
    return PolicyTrainConfig(**(sizes | {"dataloader_workers": 0, "device": "cpu"} | options))


def rollouts(n: int) -> list[Solution]:
    """Solutions of one source, every other step called wrong, the first one neutral."""
    problems = [problem("grid-sum", SPLITS["checking"].start + number) for number in range(n)]
    return [
        Solution(
            problem=each.id,
            question=each.question,
            steps=tuple(solution(each)),
            labels=tuple([0, 1, -1] * 5)[: len(solution(each))],
            images=(each.image,),
        )
        for each in problems
    ]


def pool_of(policy: Any, n_problems: int, *, tokens: int = 3200, checked: int = 0) -> tuple[Pool, list[Row]]:
    data = PolicyDataset(policy, n_problems, seed=1, rollouts=rollouts(checked))
    items = [data[index] for index in range(len(data))]
    return data.collate_pool(items, tokens=tokens), [row for item in items for _, rows, _ in item for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_learns_is_saved_and_answers_in_process(kind: str, tmp_path: Path) -> None:
    policy = new_policy(kind, size=SMALL)
    losses = train_policy(policy, small_config(n_optimizer_steps=13))
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
def test_a_solution_is_learned_with_its_end_and_image_tokens_name_their_patches(kind: str) -> None:
    policy, example = new_policy(kind, size=SMALL), problem("shapes-points", 3)
    writer, picture = RowWriter(policy), draw(example).convert("RGB")
    text, prompt = "\n\n".join(solution(example)), prompt_of(example.as_question())
    row = writer.written(prompt, text, picture, writer.patch_ids(example))
    before = policy.encode_chat(prompt, [picture])["input_ids"][0].numpy()
    assert row.ids[: len(before)].tolist() == before.tolist()
    is_image = row.ids == writer.image_token
    named = [policy.tokenizer.decode([label]).strip() for label in row.targets[is_image]]
    assert len(named) == 16
    assert all(name in words for name, words in zip(named, example.scene.patch_words(), strict=True))
    learned = row.targets[(row.targets != IGNORE_INDEX) & ~is_image]
    assert policy.tokenizer.decode(learned) == text + policy.tokenizer.eos_token
    assert row.targets[len(before) - 1 :].tolist() == [*row.ids[len(before) :], IGNORE_INDEX]
    assert (row.verdicts == IGNORE_INDEX).all()
    assert not row.is_checked.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", range(3))
def test_steps_are_checked_at_their_markers_in_the_layout_of_reward_models_and_others(kind: str, layout: int) -> None:
    policy, example = new_policy(kind, size=SMALL), problem("grid-sum", 3)
    writer, picture, steps = RowWriter(policy), draw(example).convert("RGB"), solution(example)
    labels = [0, 1, -1, 1, -1, 1, 1][: len(steps)]
    row = writer.marked(example, picture, steps, layout=layout, marker=2, labels=labels)
    decode, marker = policy.tokenizer.decode, policy.tokenizer.convert_tokens_to_ids(MARKERS[2])
    if layout == 0:
        tokens = step_tokens(policy.tokenizer)._replace(prm=marker)
        encoder = PromptEncoder(policy.tokenizer, policy.image_processor, policy.family, tokens)
        chain = encoder.tokenize(Chain(example.question, tuple(steps), (picture,)))
        assert row.ids.tolist() == chain.input_ids
    said = [decode([token]) if token != IGNORE_INDEX else "" for token in row.verdicts[row.ids == marker]]
    assert said == [{0: "", 1: "Right", -1: "Wrong"}[label] for label in labels]
    assert (row.verdicts[row.ids != marker] == IGNORE_INDEX).all()
    assert decode(row.ids[row.is_checked > 0]).strip().split("\n\n") == steps
    assert (row.targets == IGNORE_INDEX).all()
    read = writer.marked(example, picture, steps, layout=layout, marker=2, patch_ids=writer.patch_ids(example))
    assert read.ids.tolist() == row.ids.tolist()
    assert (read.targets[read.ids == marker] == IGNORE_INDEX).all(), "what follows a marker is left to verdicts"
    learned = read.targets[(read.targets != IGNORE_INDEX) & (read.ids != writer.image_token)]
    assert decode(learned).strip() == "".join(steps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_read_as_its_rows_are_one_by_one(kind: str) -> None:
    policy = new_policy(kind, size=SMALL)
    use_window_attention(policy.family.vision_tower(policy.model))
    pool, _ = pool_of(policy, 6, tokens=800)
    batch = pool.batches[0]
    with torch.no_grad():
        features = image_features(policy.model, pool.pictures[batch.pictures], pool.grid)
        language = policy.model.model.language_model
        together = policy.model.lm_head(language.norm(layer_states(policy, batch, features)[-1]))
        look_plainly = new_policy(kind, size=SMALL)
        for row, number in enumerate(batch.pictures.tolist()):
            ids = batch.input_ids[row : row + 1]
            inputs = {"pixel_values": pool.pictures[number].float()}
            inputs |= {} if pool.grid is None else {"image_grid_thw": torch.as_tensor(pool.grid)}
            inputs |= {"input_ids": ids, **policy.family.batch_inputs(policy.tokenizer, ids)}
            alone = look_plainly.model(**inputs, attention_mask=torch.ones_like(ids)).logits[0]
            torch.testing.assert_close(together[row], alone, rtol=1e-4, atol=1e-5)


def test_batches_of_a_pool_hold_every_row_once_and_pad_little() -> None:
    policy = new_policy("internvl", size=SMALL)
    pool, rows = pool_of(policy, 45, checked=10)
    pad, seen, n_tokens = policy.tokenizer.pad_token_id, list[str](), 0
    for batch in pool.batches:
        assert batch.input_ids.numel() <= 3200
        assert batch.input_ids.shape[1] % BUCKET == 0
        n_tokens += batch.input_ids.numel()
        is_row = ((batch.targets != IGNORE_INDEX) | (batch.verdicts != IGNORE_INDEX)).any(1)  # not one that fills up
        seen += [str([token for token in ids.tolist() if token != pad]) for ids in batch.input_ids[is_row]]
    assert sorted(seen) == sorted(str(row.ids.tolist()) for row in rows)
    assert n_tokens < 1.3 * sum(len(row.ids) for row in rows)
    assert len(pool.pictures) == 55
    assert len([row for row in rows if row.is_checked.any()]) == 2 * 10, "each rollout in two layouts"


def test_older_batches_come_again_while_new_ones_come_and_then_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "PROBLEMS_PER_POOL", 15)
    data = PolicyDataset(new_policy("internvl", size=SMALL), 45, seed=0)
    batches = train._batches(data, small_config(tokens_per_batch=1200), "cpu")
    n_new = [
        len(data.collate_pool([data[i] for i in range(start, start + 15)], tokens=1200).batches)
        for start in (0, 15, 30)
    ]
    seen = [str(batch.input_ids.tolist()) for _, batch in islice(batches, 2 * sum(n_new) + sum(n_new))]
    start = 0
    for n in n_new:
        assert len(set(seen[start : start + 2 * n]) - set(seen[:start])) == n
        start += 2 * n
    assert seen[: n_new[0]] != sorted(set(seen[: n_new[0]]), key=seen.index) or set(seen[2 * n_new[0] : start]) & set(
        seen[: 2 * n_new[0]]
    ), "older ones among them"
    assert set(seen[start:]) == set(seen[:start]), "and at the end each of them once"


def test_losses_are_means_over_what_they_count_and_flags_ask_for_what_was_not_expected() -> None:
    policy = new_policy("internvl", size=SMALL)
    pool, _ = pool_of(policy, 15, tokens=20_000, checked=8)
    head = torch.nn.Linear(SMALL.hidden, 1)
    for batch in pool.batches:
        features = image_features(policy.model, pool.pictures[batch.pictures], pool.grid)
        states = layer_states(policy, batch, features)
        norm, words = policy.model.model.language_model.norm, policy.model.lm_head
        early, last = words(norm(states[0])), words(norm(states[1]))  # 2 layers: half of them is 1
        entropy = torch.nn.functional.cross_entropy
        expected = train.PATCH_LOSS_WEIGHT * entropy(words(norm(features)), batch.patch_ids)
        is_target, is_verdict = batch.targets != IGNORE_INDEX, batch.verdicts != IGNORE_INDEX
        for logits, labels, mask in ((last, batch.targets, is_target), (early, batch.targets, is_target)):
            expected += entropy(logits[mask], labels[mask])
        expected += entropy(last[is_verdict], batch.verdicts[is_verdict])
        losses, weights = [], []
        for row, position in batch.is_checked.nonzero().tolist():
            probability = early[row, position - 1].softmax(-1)[batch.input_ids[row, position]]
            state = states[0][row, position]  # 3 * 2 // 4 = 1
            flag = head(torch.nn.functional.rms_norm(state, state.shape))[0]
            is_expected = (probability > train.SURPRISE).float()
            losses.append(torch.nn.functional.binary_cross_entropy_with_logits(flag, is_expected))
            weights.append(1.0 if is_expected else train.SURPRISE_WEIGHT)
        weight = torch.tensor(weights)
        expected += (torch.stack(losses) * weight).sum() / weight.sum()
        torch.testing.assert_close(policy_loss(policy, batch, features, head), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_policy_learns_to_tell_marked_steps_apart() -> None:
    policy, rows = new_policy("internvl", size=SMALL), rollouts(6)
    train_policy(policy, small_config(n_optimizer_steps=150, n_problems=3), rollouts=rows)
    pool, _ = pool_of(policy, 3, checked=6)
    for batch in pool.batches:
        with torch.no_grad():
            features = image_features(policy.model, pool.pictures[batch.pictures], pool.grid)
            states = layer_states(policy, batch, features)[-1]
            said = policy.model.lm_head(policy.model.model.language_model.norm(states)).argmax(-1)
        is_verdict = batch.verdicts != IGNORE_INDEX
        assert (said[is_verdict] == batch.verdicts[is_verdict]).float().mean() > 0.9


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
