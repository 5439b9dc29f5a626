from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mprm.annotation.samplers.local import TransformersSampler
from mprm.annotation.samplers.sampler import Completion, Request, SamplingParams, answers
from mprm.errors import ConfigError, MprmError
from mprm.models.checkpoint import load_backbone
from tests.tiny_models import ALL_BACKBONES, save_tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from mprm.annotation.samplers import decode_batch
from mprm.annotation.samplers.decode_batch import DecodeBatch, PrefixCache
from mprm.annotation.samplers.local import PrefixSampler, can_share_prefixes

SAMPLING = SamplingParams(temperature=1.0, top_p=0.95, top_k=100, max_new_tokens=12)
PREFIXES = ("", "t", "the answer is", "how long is bar 1?\n\nthe bar is 3 long\n\nthe sum of 12 and 30 is")
DEFAULTS = {"eos_token_id": None, "repetition_penalty": None}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("policies")
    return {kind: load_backbone(save_tiny(kind, folder / kind), device="cpu") for kind in ALL_BACKBONES}


@pytest.fixture
def policies(loaded: dict[str, Any]) -> dict[str, Any]:
    for policy in loaded.values():
        policy.model.generation_config.update(**DEFAULTS)
    return loaded


@pytest.fixture
def policy(policies: dict[str, Any]) -> Any:
    return policies["text"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of two shapes, so that they take different numbers of tokens."""
    import numpy as np
    from PIL import Image

    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    paths = []
    for number, size in enumerate(((100, 300, 3), (90, 120, 3))):
        paths.append(folder / f"{number}.png")
        Image.fromarray(rng.integers(0, 255, size, dtype=np.uint8)).save(paths[-1])
    return paths


def completions_of(sampler: Any, requests: list[Request]) -> list[list[Completion]]:
    by_index = dict(answers(sampler, requests))
    return [by_index[number] for number in range(len(requests))]


def nested(pictures: list[Path], **settings: Any) -> list[Request]:
    """Several questions, most with a picture, each with prefixes of several lengths and answers of several lengths."""
    requests = []
    for question in range(5):
        images = (pictures[question % 2],) * (question % 3) if pictures else ()
        for number, prefix in enumerate(PREFIXES):
            sampling = SamplingParams(temperature=0, max_new_tokens=3 + 6 * number + question)
            prompt = "what is " + "12 + " * question + "30?"
            requests.append(Request(prompt=prompt, images=images, prefix=prefix, sampling=sampling, **settings))
    return requests


@pytest.mark.parametrize("kind", ALL_BACKBONES)
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_greedy_answers_are_those_of_generate(
    kind: str, rows: int, policies: dict[str, Any], pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sequence at a time; seven, so that some leave and others join; all together."""
    policy, sizes = policies[kind], []
    requests = nested([] if kind == "text" else pictures)
    expected = completions_of(TransformersSampler(policy, name="p"), requests)
    step = DecodeBatch.step
    monkeypatch.setattr(DecodeBatch, "step", lambda batch, n: (sizes.append(len(batch.sequences)), step(batch, n))[1])
    assert completions_of(PrefixSampler(policy, name="p", rows=rows), requests) == expected
    assert len({completion.text for [completion] in expected}) > 10
    assert max(sizes) == min(rows, len(requests))


@pytest.mark.parametrize("kind", ALL_BACKBONES)
def test_logits_of_a_continuation_are_those_of_the_whole_sequence(
    kind: str, policies: dict[str, Any], pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, seen = policies[kind], []
    images = () if kind == "text" else (pictures[0],)
    forward = DecodeBatch._forward

    def watched(*given: Any) -> Any:
        logits = forward(*given)
        seen.append(logits[0])
        return logits

    monkeypatch.setattr(DecodeBatch, "_forward", watched)
    sampling = SamplingParams(temperature=0, max_new_tokens=4)
    request = Request(prompt="what is it?", images=images, prefix="the bar is 3 long", sampling=sampling)
    others = [replace(request, prompt="and " * n, images=()) for n in (1, 30)]
    completions_of(PrefixSampler(policy, name="p"), [request, *others])

    from PIL import Image

    inputs = policy.encode_chat(request.prompt, [Image.open(p) for p in images], prefix=request.prefix)
    with torch.no_grad():
        whole = policy.model.generate(
            **inputs, do_sample=False, max_new_tokens=4, eos_token_id=[], pad_token_id=0,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    # the first pass reads the prefixes, the others each sample a token
    assert torch.allclose(torch.stack(seen[1:]), torch.cat(whole.logits), atol=2e-6)
    if images:  # and the picture does count
        completions_of(PrefixSampler(policy, name="p"), [replace(request, images=(pictures[1],))])
        assert not torch.allclose(seen[-4], whole.logits[0][0], atol=2e-4)


def test_the_penalty_of_the_generation_config_holds(policies: dict[str, Any], pictures: list[Path]) -> None:
    policy, requests = policies["qwen2_5_vl"], nested(pictures)
    without = completions_of(TransformersSampler(policy, name="p"), requests)
    policy.model.generation_config.repetition_penalty = 1.4
    expected = completions_of(TransformersSampler(policy, name="p"), requests)
    assert expected != without
    for rows in (3, 64):
        assert completions_of(PrefixSampler(policy, name="p", rows=rows), requests) == expected


def test_first_tokens_come_as_often_as_the_policy_makes_them_likely(policy: Any) -> None:
    from scipy.stats import chisquare
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    sampling, n = SamplingParams(temperature=0.3, top_p=0.8, top_k=12, max_new_tokens=1), 3000
    request = Request(prompt="what is 12?", prefix="the", n=n, seed=5, sampling=sampling)
    [completions] = completions_of(PrefixSampler(policy, name="p"), [request])
    ids = policy.encode_chat("what is 12?", prefix="the")["input_ids"]
    with torch.no_grad():
        scores = policy.model(input_ids=ids).logits[:, -1] / 0.3
    expected = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(12)(None, scores)).softmax(-1)[0].double()
    by_text: dict[str, float] = {}  # single bytes of longer characters are all one text
    for token in expected.nonzero()[:, 0].tolist():
        text = policy.tokenizer.decode([token], skip_special_tokens=True)
        by_text[text] = by_text.get(text, 0.0) + float(expected[token] / expected.sum())
    counts = [sum(completion.text == text for completion in completions) for text in by_text]
    assert len(counts) > 4
    assert sum(counts) == n
    assert chisquare(counts, [probability * n for probability in by_text.values()]).pvalue > 0.001


def sampled_requests(pictures: list[Path]) -> list[Request]:
    return [
        Request(prompt=f"{i}+{i}?", images=(pictures[i % 2],), prefix=PREFIXES[i % 4], n=3, seed=i, sampling=SAMPLING)
        for i in range(8)
    ]


@pytest.mark.parametrize("kind", ["internvl", "qwen2_5_vl"])
def test_answers_do_not_depend_on_what_else_is_asked(
    kind: str, policies: dict[str, Any], pictures: list[Path]
) -> None:
    policy, requests = policies[kind], sampled_requests(pictures)
    together = completions_of(PrefixSampler(policy, name="p"), requests)
    assert len({completion.text for row in together for completion in row}) == 24
    assert completions_of(PrefixSampler(policy, name="p"), requests[::-1])[::-1] == together
    assert completions_of(PrefixSampler(policy, name="p", rows=5), requests) == together
    assert [completions_of(PrefixSampler(policy, name="p"), [request])[0] for request in requests] == together


def test_another_seed_gives_other_answers_and_more_answers_begin_with_the_same(policy: Any) -> None:
    request = Request(prompt="q", n=4, seed=1, sampling=SAMPLING)
    sampler = PrefixSampler(policy, name="p")
    first, again, other, more = completions_of(
        sampler, [request, request, replace(request, seed=2), replace(request, n=9)]
    )
    assert first == again == more[:4]
    assert not {completion.text for completion in first} & {completion.text for completion in other}
    assert len({completion.text for completion in more}) == 9


def test_sampling_leaves_the_callers_random_numbers_and_the_model_alone(policy: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    completions_of(PrefixSampler(policy, name="p"), [Request(prompt="q", sampling=SAMPLING)])
    assert torch.equal(torch.rand(4), expected)
    assert policy.model.config._attn_implementation == "sdpa"


def test_an_answer_ends_at_the_first_end_token(policy: Any) -> None:
    request = Request(prompt="q", n=40, seed=1, sampling=SAMPLING)
    [whole] = completions_of(PrefixSampler(policy, name="p", rows=16), [request])
    assert {(completion.finish_reason, completion.n_tokens) for completion in whole} == {("length", 12)}
    policy.model.generation_config.eos_token_id = list(range(60, 120))
    [cut] = completions_of(PrefixSampler(policy, name="p", rows=16), [request])
    assert {completion.finish_reason for completion in cut} == {"stop", "length"}
    assert len({completion.n_tokens for completion in cut}) > 5
    for completion, full in zip(cut, whole, strict=True):
        assert full.text.startswith(completion.text.removesuffix("\ufffd"))
        assert (completion.finish_reason == "length") == (completion.n_tokens == 12)


@pytest.mark.parametrize(("rows", "tokens"), [(5, None), (64, 400), (64, 1)])
def test_neither_rows_nor_tokens_exceed_their_bounds(
    rows: int, tokens: int | None, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, step = [], DecodeBatch.step
    requests = [replace(request, prompt=request.prompt * 3) for request in nested([])]
    requests.append(Request(prompt="q", n=13, sampling=SAMPLING))
    expected = completions_of(PrefixSampler(policy, name="p"), requests)

    def watched(batch: DecodeBatch, n: int) -> None:
        sizes.append((len(batch.sequences), batch._cache.size))
        step(batch, n)

    monkeypatch.setattr(DecodeBatch, "step", watched)
    assert completions_of(PrefixSampler(policy, name="p", rows=rows, tokens=tokens), requests) == expected
    assert max(n for n, _ in sizes) <= rows
    if tokens is None:
        assert max(n for n, _ in sizes) == rows
    else:
        # slots are rounded up to a multiple of 64; one row is let in whatever it needs
        assert all(n_rows * (n_slots - 63) <= max(tokens, n_slots) for _, (n_rows, n_slots) in sizes)
        assert len({n for n, _ in sizes}) > 1 or tokens == 1


def test_prompts_are_computed_once_and_prefixes_together(
    policies: dict[str, Any], pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, seen = policies["qwen2_5_vl"], []
    hook = policy.model.model.visual.register_forward_pre_hook(lambda *_: seen.append(1))
    requests = [
        Request(prompt="q", images=(pictures[0],), prefix="the bar " * n, n=2, sampling=SAMPLING) for n in range(6)
    ]
    completions_of(PrefixSampler(policy, name="p", rows=4), requests)
    assert len(seen) == 1
    others = [replace(request, prompt="r" * i) for i, request in enumerate(requests)]
    completions_of(PrefixSampler(policy, name="p", rows=4, tokens=160), [*others, *others])
    hook.remove()
    assert len(seen) == 1 + 12  # no room to keep a prompt besides the newest
    monkeypatch.setattr(decode_batch, "PREFILL_SLOTS", 1)  # each prefix by itself
    expected = completions_of(PrefixSampler(policy, name="p"), requests)
    monkeypatch.undo()
    assert completions_of(PrefixSampler(policy, name="p"), requests) == expected


def test_prompts_differ_by_their_images(policies: dict[str, Any], pictures: list[Path]) -> None:
    from PIL import Image

    store = PrefixCache(policies["qwen2_5_vl"], max_tokens=1000)
    with torch.inference_mode():
        first, second = (store.prompt(Request(prompt="q", images=(path,))) for path in pictures)
        given = store.prompt(Request(prompt="q", images=(Image.open(pictures[0]),)))
        assert store.prompt(Request(prompt="q", images=(str(pictures[0]),))) is first
    assert len(first.ids) != len(second.ids)
    assert given is not first
    assert torch.equal(given.kv, first.kv)


def test_images_that_cannot_be_used_fail_their_requests_alone(
    policies: dict[str, Any], pictures: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "text.png").write_text("no image")
    good = Request(prompt="q", images=(pictures[0],), n=2, sampling=SAMPLING)
    bad = [replace(good, images=(tmp_path / name,)) for name in ("gone.png", "text.png")]
    completions = completions_of(PrefixSampler(policies["internvl"], name="p", rows=2), [bad[0], good, bad[1], good])
    assert [[completion.finish_reason for completion in row] for row in (completions[0], completions[2])] == [
        ["error"] * 2
    ] * 2
    assert "does not exist" in str(completions[0][0].error)
    assert "not recognised as one of PNG" in str(completions[2][0].error)
    assert (
        completions[1] == completions[3] == completions_of(PrefixSampler(policies["internvl"], name="p"), [good])[0]
    )
    [refused] = completions_of(PrefixSampler(policies["text"], name="p"), [good])
    assert "cannot see images" in str(refused[0].error)


def test_requests_are_taken_for_about_two_batches_and_later_ones_may_depend_on_answers(policy: Any) -> None:
    n_taken, n_answered = 0, 0

    def requests() -> Iterator[Request | None]:
        nonlocal n_taken
        while n_taken < 6:
            n_taken += 1
            yield Request(prompt="q", n=4, seed=n_taken, sampling=SAMPLING)
        while n_answered < 6:
            yield None
        yield Request(prompt="q", seed=7, sampling=SAMPLING)

    indices = []
    for batch in PrefixSampler(policy, name="p", rows=8).sample(requests()):
        if not indices:
            assert n_taken == 4  # four of four sequences are twice eight
        indices += [index for index, _ in batch]
        n_answered += len(batch)
    assert (sorted(indices), indices[-1]) == (list(range(7)), 6)


def test_no_memory_is_reported_with_the_remedy(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(DecodeBatch, "step", fails)
    with pytest.raises(MprmError, match="up to 9 answers at once do not fit into memory; lower --rows-per-batch"):
        completions_of(PrefixSampler(policy, name="p", rows=9), [Request(prompt="q", n=2, sampling=SAMPLING)])


@pytest.mark.parametrize("kind", ALL_BACKBONES)
def test_our_backbones_can_share_prefixes(kind: str, policies: dict[str, Any]) -> None:
    assert can_share_prefixes(policies[kind]) is None


@pytest.mark.parametrize(
    ("name", "value"), [("num_beams", 2), ("min_p", 0.1), ("no_repeat_ngram_size", 3), ("stop_strings", ["x"])]
)
def test_settings_that_are_not_followed_are_reported(
    name: str, value: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy.model.generation_config, name, value)
    assert can_share_prefixes(policy) == f"its generation config sets {name} to {value!r}"
    with pytest.raises(ConfigError, match=f"p cannot be sampled with shared prefixes: its .* sets {name}"):
        PrefixSampler(policy, name="p")


def test_settings_that_do_nothing_are_no_reason(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"num_beams": 1, "top_p": 0.001, "typical_p": 1.0, "do_sample": True}.items():
        monkeypatch.setattr(policy.model.generation_config, name, value)
    assert can_share_prefixes(policy) is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model_type", "mamba", "models of type mamba are not known to be plain decoders"),
        ("_attn_implementation_internal", "eager", "the model attends with eager; expected sdpa"),
        ("layer_types", ["full_attention", "sliding_attention"], "the model attends to a sliding window"),
    ],
)
def test_models_that_it_cannot_drive_are_reported(
    name: str, value: Any, reason: str, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy.model.config, name, value, raising=False)
    if name == "model_type":
        monkeypatch.setattr(type(policy.model.config), name, value)
    assert can_share_prefixes(policy) == reason


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3", "Mistral"])
def test_other_plain_decoders_are_driven_as_well(kind: str, policy: Any) -> None:
    from types import SimpleNamespace

    import transformers

    settings = {"vocab_size": 420, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": 1}
    settings |= {"sliding_window": None} if kind == "Mistral" else {}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    other: Any = SimpleNamespace(
        model=model, tokenizer=policy.tokenizer, chat_ids=policy.chat_ids, encode_chat=policy.encode_chat
    )
    assert can_share_prefixes(other) is None
    requests = nested([])
    expected = completions_of(TransformersSampler(other, name="p"), requests)
    assert completions_of(PrefixSampler(other, name="p", rows=7), requests) == expected


def test_a_sliding_window_is_reported_for_mistral(policy: Any) -> None:
    from types import SimpleNamespace

    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, sliding_window=4)
    config.num_attention_heads = config.num_key_value_heads = 2
    other: Any = SimpleNamespace(model=MistralForCausalLM(config), tokenizer=policy.tokenizer)
    assert can_share_prefixes(other) == "the model attends to a sliding window"


@pytest.mark.parametrize("settings", [{"rows": 0}, {"tokens": 0}])
def test_bounds_below_one_are_refused(settings: dict[str, int], policy: Any) -> None:
    with pytest.raises(ConfigError, match="must be at least 1, got 0"):
        PrefixSampler(policy, name="p", **settings)


@pytest.mark.parametrize("make", [PrefixSampler, TransformersSampler])
def test_an_image_of_a_shape_that_the_policy_cannot_take_fails_alone(policies: dict[str, Any], make: Any) -> None:
    thin, good = Image.new("RGB", (1000, 4)), Image.new("RGB", (56, 56))
    sampling = SamplingParams(max_new_tokens=2)
    requests = [Request(prompt="q", images=(image,), n=2, sampling=sampling) for image in (good, thin, good)]
    completions = dict(answers(make(policies["qwen2_5_vl"], name="p"), requests))
    assert [c.finish_reason == "error" for c in completions[1]] == [True, True]
    assert "1000 × 4 pixels cannot be used" in str(completions[1][0].error)
    assert not any(c.error for number in (0, 2) for c in completions[number])
