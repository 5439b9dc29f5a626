"""Trees of token sequences, and chains packed into them: the scores and gradients of padded batches.

Each sequence is itself along its branch, nothing that is shared is there twice, no chain sees another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

torch = pytest.importorskip("torch")

from mprm.data.types import Chain
from mprm.errors import ConfigError
from mprm.models.chat import Backbone
from mprm.models.checkpoint import PRMConfig
from mprm.models.head import freeze_vision, step_probabilities
from mprm.models.prefix_tree import (
    Node,
    PrefixTree,
    build_tree,
    collate_tree,
    common_prefix_length,
    pack_chains,
    pack_sequences,
    tree_order,
)
from mprm.models.prm import PRM
from mprm.models.prompt import PromptEncoder, TokenizedChain
from mprm.training import step_loss_sum
from tests.tiny_models import BACKBONES, INTERNVL3, save_tiny

few_ids = st.lists(st.integers(0, 2), min_size=1, max_size=12)  # three ids: many prefixes are common
forests = st.lists(st.tuples(few_ids, st.integers(0, 1)), min_size=1, max_size=12)
Forest = list[tuple[list[int], int]]


def arrays(forest: Forest) -> tuple[list[np.ndarray], list[int]]:
    return [np.array(ids) for ids, _ in forest], [group for _, group in forest]


def test_chains_of_a_question_follow_it_and_a_shared_step_is_there_once() -> None:
    question = [1, 2, 3]
    chains = [np.array([*question, *steps]) for steps in ([7, 8], [4, 5, 6], [4, 5, 9, 9], [4, 5])]
    tree = build_tree(chains, [0] * 4, min_shared=1)
    # 1 2 3 | 4 5 | 6 | 9 9 | 7 8: the fourth chain ends where the second and third part
    assert tree.nodes == (Node(0, 3, -1), Node(3, 5, 0), Node(5, 6, 1), Node(6, 8, 1), Node(8, 10, 0))
    assert tree.leaves == (4, 2, 3, 1)
    assert tree.positions(2).tolist() == [0, 1, 2, 3, 4, 6, 7]


def test_what_is_too_short_to_share_is_repeated() -> None:
    chains = [np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5, 6, 7, 8]), np.array([1, 2, 3, 5, 6, 9])]
    tree = build_tree(chains, [0] * 3, min_shared=3)
    # 1 2 3 is long enough; 5 6 is not: 1 2 3 | 4 | 5 6 7 8 | 5 6 9
    assert tree.nodes == (Node(0, 3, -1), Node(3, 4, 0), Node(4, 8, 0), Node(8, 11, 0))
    # at four, 1 2 3 is not, but 1 2 3 5 6 is: 1 2 3 4 | 1 2 3 5 6 | 7 8 | 9
    assert build_tree(chains, [0] * 3, min_shared=4).nodes[-1].end == 4 + 5 + 2 + 1


def test_a_chain_that_another_one_continues_costs_nothing() -> None:
    tree = build_tree([np.array([1, 2, 3]), np.array([1, 2]), np.array([1, 2, 3])], [0] * 3, min_shared=1)
    assert tree.nodes[-1].end == 3
    assert tree.leaves == (1, 0, 1)


@given(forest=forests, min_shared=st.integers(1, 5))
def test_each_sequence_is_itself_along_its_branch(forest: Forest, min_shared: int) -> None:
    sequences, groups = arrays(forest)
    tree = build_tree(sequences, groups, min_shared=min_shared)
    flat = np.concatenate([sequences[number][begin:end] for number, begin, end in tree.origins])
    assert len(flat) == tree.nodes[-1].end <= sum(map(len, sequences))
    for number, ids in enumerate(sequences):
        assert flat[tree.positions(number)].tolist() == ids.tolist()


@given(forest=forests, min_shared=st.integers(1, 5))
def test_what_continues_a_node_follows_it_without_a_gap(forest: Forest, min_shared: int) -> None:
    tree = build_tree(*arrays(forest), min_shared=min_shared)
    assert [node.start for node in tree.nodes] == [0, *(node.end for node in tree.nodes)][:-1]
    for number in range(len(tree.nodes)):
        below = [other for other in range(len(tree.nodes)) if number in tree.path(other)]
        assert below == list(range(number, number + len(below)))


@given(forest=forests)
def test_sharing_everything_leaves_one_token_for_each_distinct_prefix(forest: Forest) -> None:
    prefixes = {(group, tuple(ids[: end + 1])) for ids, group in forest for end in range(len(ids))}
    assert build_tree(*arrays(forest), min_shared=1).nodes[-1].end == len(prefixes)


def test_equal_ids_of_different_groups_share_nothing() -> None:
    tree = build_tree([np.array([1, 2, 3])] * 2, [0, 1], min_shared=1)
    assert tree.nodes == (Node(0, 3, -1), Node(3, 6, -1))


@given(forest=forests, min_shared=st.integers(1, 5), budget=st.integers(1, 30))
def test_no_pack_has_more_tokens_than_its_budget_unless_it_is_one_sequence(
    forest: Forest, min_shared: int, budget: int
) -> None:
    sequences, groups = arrays(forest)
    packs = list(pack_sequences(sequences, groups, budget, min_shared=min_shared))
    assert [number for pack in packs for number in pack] == tree_order(sequences, groups)
    for pack in packs:
        tree = build_tree([sequences[n] for n in pack], [groups[n] for n in pack], min_shared=min_shared)
        assert len(pack) == 1 or tree.nodes[-1].end <= budget


@given(left=few_ids, right=few_ids)
def test_the_common_prefix_length_is_that_of_the_longest_common_prefix(left: list[int], right: list[int]) -> None:
    n = common_prefix_length(np.array(left), np.array(right))
    assert left[:n] == right[:n]
    assert n == min(len(left), len(right)) or left[n] != right[n]


@dataclass(frozen=True)
class Reader:
    """A model whose attention matters: with weights as they are initialised, every token would score alike."""

    model: Any
    encoder: PromptEncoder
    images: tuple[Image.Image, ...]


@pytest.fixture(scope="module", params=BACKBONES)
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    path = save_tiny(request.param, tmp_path_factory.mktemp(request.param))
    prm = PRM.from_pretrained(path, PRMConfig(), device="cpu")
    with torch.no_grad():
        for name, weight in prm.model.named_parameters():
            if weight.dim() > 1 and "visual" not in name and "vision_tower" not in name:
                weight *= 8
    freeze_vision(prm.model)
    rng = np.random.default_rng(0)
    sizes = () if request.param == "text" else ((80, 60), (200, 40), (30, 90))
    images = (Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for w, h in sizes)
    return Reader(prm.model, prm.encoder, tuple(images))


SHOWN = ((), (0,), (0, 1), (2, 2), (1,))
QUESTIONS = ("what is 12 + 30?", "how long is bar 1? " * 4, "compare <image> with <image> and say")
WORDS = st.sampled_from(("the sum of 12 and 30 is 42", "no", "so the answer is 7 " * 4, "", "hm"))
steps = st.lists(WORDS, min_size=1, max_size=4).map(tuple)
drawn = st.lists(st.tuples(st.sampled_from(QUESTIONS), st.sampled_from(SHOWN), steps), min_size=1, max_size=7)
within = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
Drawn = list[tuple[str, tuple[int, ...], tuple[str, ...]]]


def encoded(reader: Reader, some: Drawn, max_length: int = 8192) -> list[TokenizedChain]:
    encoder = replace(reader.encoder, max_length=max_length)
    chains = [
        Chain(question if "<image>" not in question or len(shown) > 1 else "which?", chain,
              tuple(reader.images[i] for i in shown) if reader.images else ())
        for question, shown, chain in some
    ]  # fmt: skip
    return [chain for chain in map(encoder.encode, chains) if chain.prm_positions]


@torch.no_grad()
def plain_scores(reader: Reader, batch: list[TokenizedChain]) -> torch.Tensor:
    return step_probabilities(reader.model.eval()(**reader.encoder.collate(batch))["logits"])


@torch.no_grad()
def tree_scores(reader: Reader, batch: list[TokenizedChain], **options: Any) -> torch.Tensor:
    return step_probabilities(reader.model.eval()(**collate_tree(reader.encoder, batch, **options))["logits"])


def gradients(reader: Reader, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = reader.model.train()
    model.zero_grad()
    labels = (torch.arange(len(inputs["prm_index"])) % 3 == 0).float()
    loss = step_loss_sum(model(**inputs)["logits"], labels)
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


@within
@given(some=drawn, min_shared=st.sampled_from((1, 8, 32)))
def test_scores_equal_those_of_padded_batches(reader: Reader, some: Drawn, min_shared: int) -> None:
    batch = encoded(reader, some)
    together = plain_scores(reader, batch)
    torch.testing.assert_close(tree_scores(reader, batch, min_shared=min_shared), together, atol=1e-5, rtol=0)
    alone = torch.cat([plain_scores(reader, [chain]) for chain in batch])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


@within
@given(some=drawn, min_shared=st.sampled_from((1, 32)))
def test_loss_and_gradients_equal_those_of_padded_batches(reader: Reader, some: Drawn, min_shared: int) -> None:
    batch = encoded(reader, some)
    loss, plain = gradients(reader, reader.encoder.collate(batch))
    tree_loss, tree = gradients(reader, collate_tree(reader.encoder, batch, min_shared=min_shared))
    torch.testing.assert_close(tree_loss, loss, rtol=1e-5, atol=1e-5)
    assert plain.keys() == tree.keys()
    overall = torch.cat([gradient.flatten() for gradient in plain.values()]).norm()
    for name, gradient in plain.items():
        # some are zero but for rounding, such as those of biases that softmax does not see
        assert (tree[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6 * overall, name
    for projector in reader.encoder.family.projectors(reader.model):
        if any(chain.images for chain in batch):
            assert all(weight.grad.any() for weight in projector.parameters())


@within
@given(some=drawn, max_length=st.integers(90, 260))
def test_scores_of_truncated_chains_are_the_same_too(reader: Reader, some: Drawn, max_length: int) -> None:
    batch = encoded(reader, some, max_length)
    if batch:
        torch.testing.assert_close(tree_scores(reader, batch), plain_scores(reader, batch), atol=1e-5, rtol=0)


def candidates(reader: Reader, n: int = 4) -> list[TokenizedChain]:
    """Chains of one question, the first two of which begin with the same step."""
    first = ("the answer is 7 " * 3, "the answer is 7 " * 3, "no, it is 42", "hm hm " * 8)
    shown = (0, 1) if reader.images else ()
    return encoded(reader, [(QUESTIONS[1], shown, (step, f"so {k}", "the end")) for k, step in enumerate(first)][:n])


def test_one_branch_is_the_chain_itself(reader: Reader) -> None:
    (chain,) = candidates(reader, 1)
    inputs = collate_tree(reader.encoder, [chain])
    assert inputs["input_ids"][0].tolist() == chain.input_ids[: chain.prm_positions[-1] + 1]
    assert len(inputs["tree"].nodes) == 1
    torch.testing.assert_close(tree_scores(reader, [chain]), plain_scores(reader, [chain]), atol=1e-6, rtol=0)


def test_no_branch_sees_another(reader: Reader) -> None:
    batch = candidates(reader)
    other = encoded(reader, [(QUESTIONS[1], (0, 1) if reader.images else (), ("something else " * 5, "and more"))])
    before = tree_scores(reader, batch)
    beside = tree_scores(reader, [*batch, *other])[: len(before)]
    torch.testing.assert_close(beside, before, atol=1e-6, rtol=0)
    # the test can tell: a tree in which the third branch continues the second gives other scores
    inputs = collate_tree(reader.encoder, batch, min_shared=1)
    nodes = list(inputs["tree"].nodes)
    leaves = [n for n in range(len(nodes)) if n not in {node.parent for node in nodes}]
    nodes[leaves[2]] = replace(nodes[leaves[2]], parent=leaves[1])
    with torch.no_grad():
        leaking = step_probabilities(reader.model(**{**inputs, "tree": PrefixTree(tuple(nodes))})["logits"])
    assert (leaking - before).abs().max() > 1e-3


def test_what_chains_share_is_computed_once(reader: Reader) -> None:
    batch = candidates(reader)
    ids = [chain.scored_ids.tolist() for chain in batch]
    prefixes = {tuple(chain[: end + 1]) for chain in ids for end in range(len(chain))}
    # one token for each distinct prefix: question and images once, the first step of two chains once
    n_tokens = collate_tree(reader.encoder, batch, min_shared=1)["input_ids"].shape[1]
    assert n_tokens == len(prefixes) < sum(map(len, ids)) / 2
    calls: list[int] = []
    if reader.images:
        tower = reader.encoder.family.vision_tower(reader.model)
        hook = tower.register_forward_hook(lambda *_: calls.append(1))
        tree_scores(reader, batch)
        hook.remove()
        assert calls == [1]
        plain = reader.encoder.collate(batch)["pixel_values"]
        assert len(collate_tree(reader.encoder, batch)["pixel_values"]) == len(plain) / 4


def test_images_are_needed_of_one_chain_alone(reader: Reader) -> None:
    batch = candidates(reader)
    bare = [batch[0], *(replace(chain, vision={}) for chain in batch[1:])]
    torch.testing.assert_close(tree_scores(reader, bare), tree_scores(reader, batch), atol=0, rtol=0)


def test_equal_words_about_other_images_share_nothing(reader: Reader) -> None:
    if not reader.images:
        return
    batch = encoded(reader, [("what?", (shown,), ("it is 7",)) for shown in (0, 0)])
    inverted = Image.fromarray(255 - np.asarray(reader.images[0]))
    batch.append(reader.encoder.encode(Chain("what?", ("it is 7",), (inverted,))))
    assert batch[0].input_ids == batch[2].input_ids
    scores = tree_scores(reader, batch)
    torch.testing.assert_close(scores, plain_scores(reader, batch), atol=1e-5, rtol=0)
    assert abs(scores[0] - scores[2]) > 1e-3 > 1e-6 > abs(scores[0] - scores[1])
    assert len(collate_tree(reader.encoder, batch)["tree"].nodes) == 2


def test_chains_of_a_question_come_into_one_pack_as_far_as_they_fit(reader: Reader) -> None:
    batch = candidates(reader) + encoded(reader, [("other " * 20, (), ("a", "b"))])
    (whole,) = pack_chains(batch, 10_000)
    assert sorted(whole) == [0, 1, 2, 3, 4]
    longest = max(len(chain.input_ids) for chain in batch)
    for pack in pack_chains(batch, longest + 20):
        assert collate_tree(reader.encoder, [batch[n] for n in pack])["input_ids"].shape[1] <= longest + 20


def test_gradient_checkpointing_runs_the_same_tree_again(reader: Reader) -> None:
    inputs = collate_tree(reader.encoder, candidates(reader), min_shared=1)
    _, whole = gradients(reader, inputs)
    reader.model.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        _, again = gradients(reader, inputs)
    finally:
        reader.model.gradient_checkpointing_disable()
    for name, gradient in whole.items():
        torch.testing.assert_close(again[name], gradient, msg=name)


def test_the_vision_tower_leaves_nothing_for_backward_and_stays_in_eval_mode(reader: Reader) -> None:
    if not reader.images:
        return
    seen: list[tuple[bool, bool]] = []
    tower = reader.encoder.family.vision_tower(reader.model)
    last = getattr(tower, "blocks", None) or tower.encoder.layer
    hook = last[-1].register_forward_hook(
        lambda module, _, out: seen.append(((out if torch.is_tensor(out) else out[0]).requires_grad, module.training))
    )
    reader.model.gradient_checkpointing_enable({"use_reentrant": False})  # as training does
    try:
        for inputs in (collate_tree(reader.encoder, candidates(reader)), reader.encoder.collate(candidates(reader))):
            gradients(reader, inputs)
    finally:
        reader.model.gradient_checkpointing_disable()
        hook.remove()
    assert seen == [(False, False)] * 2


def test_the_prompts_length_is_what_chains_of_a_question_share_but_for_a_token(reader: Reader) -> None:
    images = reader.images[:2]
    chains = [Chain(QUESTIONS[0], (step,), images) for step in ("the sum", "7 is")]
    left, right = (reader.encoder.tokenize(chain).scored_ids for chain in chains)
    assert reader.encoder.n_prompt_tokens(reader.encoder.prompt(chains[0])) - common_prefix_length(left, right) in (
        0,
        1,
    )


@pytest.mark.parametrize("kind", INTERNVL3)
def test_internvl_with_another_language_model_takes_trees_too(kind: str, tmp_path: Any) -> None:
    prm = PRM.from_pretrained(save_tiny(kind, tmp_path), PRMConfig(), device="cpu")
    assert prm.model.config.text_config.model_type == INTERNVL3[kind]
    reader = Reader(prm.model, prm.encoder, (Image.new("RGB", (80, 60), "red"), Image.new("RGB", (60, 60), "blue")))
    batch = candidates(reader)
    torch.testing.assert_close(tree_scores(reader, batch), plain_scores(reader, batch), atol=1e-5, rtol=0)


def test_a_model_that_drops_attention_in_training_takes_padded_batches_alone(tmp_path: Any) -> None:
    path = save_tiny("text", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.1}))
    assert "drops 10% of its attention" in PRM.from_pretrained(path, PRMConfig(), device="cpu").model.why_no_trees


def test_a_model_of_an_unknown_kind_takes_padded_batches_alone(tmp_path: Any) -> None:
    prm = PRM.from_pretrained(save_tiny("text", tmp_path), PRMConfig(), device="cpu", attention="eager")
    chain = prm.encoder.encode(Chain("q", ("a", "b")))
    assert "attends with eager" in prm.model.why_no_trees
    with pytest.raises(ConfigError, match="cannot read packed trees: the model attends with eager"):
        prm.model(**collate_tree(prm.encoder, [chain]))
    assert prm.model(**prm.encoder.collate([chain]))["logits"].shape == (2, 2)


def test_what_is_saved_does_not_name_our_attention(reader: Reader, tmp_path: Any) -> None:
    reader.model.save_pretrained(tmp_path)
    assert "mprm" not in (tmp_path / "config.json").read_text()


def test_an_image_is_shown_at_its_own_mark_whatever_the_order_of_the_marks(reader: Reader) -> None:
    if not reader.images:
        return
    left, right, _ = reader.images
    in_turn = Chain("is <image1> larger than <image2>?", ("it is 7",), (left, right))
    turned = Chain("is <image2> larger than <image1>?", ("it is 7",), (right, left))
    crossed = Chain("is <image2> larger than <image1>?", ("it is 7",), (left, right))
    batch = [reader.encoder.encode(chain) for chain in (in_turn, turned, crossed)]
    assert batch[0].input_ids == batch[1].input_ids
    assert batch[0].image_key == batch[1].image_key != batch[2].image_key
    assert all((batch[0].vision[name] == batch[1].vision[name]).all() for name in batch[0].vision)
    scores = tree_scores(reader, batch)
    torch.testing.assert_close(scores, plain_scores(reader, batch), atol=1e-5, rtol=0)
    assert abs(scores[0] - scores[2]) > 1e-4 > 1e-6 > abs(scores[0] - scores[1])


def test_a_policy_is_shown_an_image_at_its_own_mark_too(reader: Reader) -> None:
    if not reader.images:
        return
    left, right, _ = reader.images
    encoder = reader.encoder
    backbone = Backbone(encoder.family, reader.model, encoder.tokenizer, encoder.image_processor)
    in_turn = backbone.encode_chat("is <image1> larger than <image2>?", [left, right])
    turned = backbone.encode_chat("is <image2> larger than <image1>?", [right, left])
    for name, tensor in in_turn.items():
        assert torch.equal(tensor, turned[name])
