from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mprm.annotation.samplers import sampler as protocol
from mprm.annotation.samplers.local import TransformersSampler
from mprm.annotation.samplers.sampler import Completion, Request, SamplingParams, derived_seed
from mprm.errors import ConfigError
from mprm.models.checkpoint import load_backbone
from tests.tiny_models import save_tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SAMPLING = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=12)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("policies")
    kinds = ("text", "internvl", "qwen2_5_vl")
    return {kind: load_backbone(save_tiny(kind, folder / kind), device="cpu") for kind in kinds}


@pytest.fixture
def policy(policies: dict[str, Any]) -> Any:
    backbone = policies["text"]
    backbone.model.generation_config.eos_token_id = backbone.tokenizer.eos_token_id
    return backbone


def answers(sampler: TransformersSampler, requests: list[Request]) -> list[list[Completion]]:
    by_request = dict(protocol.answers(sampler, requests))
    return [by_request[number] for number in range(len(requests))]


def questions(n: int = 4, **settings: Any) -> list[Request]:
    return [Request(prompt=f"{i}+{i}?", n=3, seed=100 + i, sampling=SAMPLING, **settings) for i in range(n)]


def test_the_same_seed_gives_the_same_answers_and_another_seed_others(policy: Any) -> None:
    sampler = TransformersSampler(policy, name="p")
    first, again = answers(sampler, questions()), answers(sampler, questions())
    assert first == again
    assert len({completion.text for row in first for completion in row}) == 12
    other = [Request(prompt="0+0?", n=3, seed=7, sampling=SAMPLING)]
    assert answers(sampler, other)[0] != first[0]


def test_answers_do_not_depend_on_the_order_of_the_questions_nor_on_the_others(policy: Any) -> None:
    sampler = TransformersSampler(policy, name="p")
    requests = questions()
    all_at_once = answers(sampler, requests)
    assert answers(sampler, requests[::-1])[::-1] == all_at_once
    assert [answers(sampler, [request])[0] for request in requests] == all_at_once


def test_sampling_leaves_the_callers_random_numbers_alone(policy: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    answers(TransformersSampler(policy, name="p"), questions(1))
    assert torch.equal(torch.rand(4), expected)


def test_more_answers_than_fit_into_a_batch_are_sampled_batch_by_batch(policy: Any) -> None:
    request = Request(prompt="q", n=5, seed=11, sampling=SAMPLING)
    completions = answers(TransformersSampler(policy, name="p", rows_per_batch=2), [request])[0]
    batches = [
        answers(TransformersSampler(policy, name="p"), [Request(prompt="q", n=n, seed=seed, sampling=SAMPLING)])[0]
        for n, seed in ((2, 11), (2, derived_seed(11, 2)), (1, derived_seed(11, 4)))
    ]
    assert completions == [completion for batch in batches for completion in batch]
    assert len({completion.text for completion in completions}) == 5


def test_an_answer_ends_at_the_first_end_token(policy: Any) -> None:
    sampler = TransformersSampler(policy, name="p")
    [whole] = answers(sampler, questions(1))
    # every token from 60 to 200 ends an answer now: the same samples, cut there
    ends = set(range(60, 200))
    policy.model.generation_config.eos_token_id = sorted(ends)
    [cut] = answers(TransformersSampler(policy, name="p"), questions(1))
    assert {completion.finish_reason for completion in whole} == {"length"}
    assert [completion.n_tokens for completion in whole] == [12] * 3
    assert "stop" in {completion.finish_reason for completion in cut}
    for completion, full in zip(cut, whole, strict=True):
        assert full.text.startswith(completion.text.removesuffix("\ufffd"))
        assert (completion.finish_reason == "length") == (completion.n_tokens == 12)


def test_temperature_0_is_greedy_decoding(policy: Any) -> None:
    greedy = SamplingParams(temperature=0, max_new_tokens=6)
    request = Request(prompt="q", seed=1, sampling=greedy)
    [completion] = answers(TransformersSampler(policy, name="p"), [request])[0]
    ids = policy.encode_chat("q")["input_ids"]
    n_prompt = ids.shape[1]
    for _ in range(6):
        with torch.no_grad():
            ids = torch.cat([ids, policy.model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert completion.text == policy.tokenizer.decode(ids[0, n_prompt:], skip_special_tokens=True)


def test_a_prefix_is_continued_and_not_repeated(policy: Any) -> None:
    greedy = SamplingParams(temperature=0, max_new_tokens=8)
    prefix = "the answer is"
    [completion] = answers(
        TransformersSampler(policy, name="p"), [Request(prompt="q", prefix=prefix, sampling=greedy)]
    )[0]
    ids = policy.encode_chat("q", prefix=prefix)["input_ids"]
    assert policy.tokenizer.decode(ids[0]).endswith(prefix)
    with torch.no_grad():
        first = int(policy.model(input_ids=ids).logits[0, -1].argmax())
    assert completion.n_tokens
    assert not completion.text.startswith(prefix)
    assert completion.text.startswith(
        policy.tokenizer.decode([first], skip_special_tokens=True).removesuffix("\ufffd")
    )


@pytest.mark.parametrize("kind", ["internvl", "qwen2_5_vl"])
def test_every_row_sees_the_whole_image(kind: str, policies: dict[str, Any], tmp_path: Path) -> None:
    """Several tiles or patches to an image: no row may get those of another place."""
    from PIL import Image

    picture = Image.new("RGB", (300, 100))
    picture.putdata([(x % 256, (x // 7) % 256, (x // 300) % 256) for x in range(300 * 100)])
    picture.save(tmp_path / "a.png")
    policy, seen = policies[kind], []
    hook = policy.model.model.language_model.register_forward_pre_hook(
        lambda _module, _args, given: seen.append(given["inputs_embeds"]), with_kwargs=True
    )
    sampler = TransformersSampler(policy, name="p")
    for n in (1, 3):
        answers(sampler, [Request(prompt="What is it?", images=(tmp_path / "a.png",), n=n, sampling=SAMPLING)])
    hook.remove()
    alone, *_, together = [embeds for embeds in seen if embeds.shape[1] > 1]
    assert together.shape == (3, *alone.shape[1:])
    assert torch.allclose(together, alone.expand_as(together), atol=1e-6)
    ids = policy.encode_chat("What is it?", [picture])["input_ids"][0]
    image_rows = alone[0][ids == policy.tokenizer.convert_tokens_to_ids(policy.family.image_tokens[1])]
    assert len(image_rows.unique(dim=0)) > 4  # the places of the picture do differ


def test_images_that_cannot_be_used_fail_their_question_alone(policy: Any, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (30, 30)).save(tmp_path / "a.png")
    (tmp_path / "text.png").write_text("no image")
    names = ("gone.png", "text.png", "a.png")
    requests = [Request(prompt="q", images=(tmp_path / name,), n=2, sampling=SAMPLING) for name in names]
    completions = answers(TransformersSampler(policy, name="p"), [*requests, Request(prompt="q", sampling=SAMPLING)])
    assert [[completion.finish_reason for completion in row] for row in completions[:3]] == [["error"] * 2] * 3
    assert "does not exist" in str(completions[0][0].error)
    assert "not recognised as one of PNG" in str(completions[1][0].error)
    assert "cannot see images" in str(completions[2][0].error)
    assert completions[3][0].finish_reason != "error"


def test_a_policy_without_an_end_token_is_refused() -> None:
    no_end = SimpleNamespace(eos_token_id=None)
    policy: Any = SimpleNamespace(model=SimpleNamespace(generation_config=no_end), tokenizer=no_end)
    with pytest.raises(ConfigError, match="no end-of-text token"):
        TransformersSampler(policy, name="p")
