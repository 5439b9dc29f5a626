from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from mprm.annotation.samplers.decode_batch import (
    GAMMA,
    BatchParams,
    exponential_noise,
    penalized,
    sample_tokens,
    sequence_keys,
    splitmix64,
)
from mprm.annotation.samplers.sampler import SamplingParams

PLAIN = SamplingParams(temperature=1.0, top_p=1.0, top_k=0)
GREEDY = SamplingParams(temperature=0.0)
SETTINGS = [
    PLAIN,
    SamplingParams(temperature=0.5, top_p=1.0, top_k=0),
    SamplingParams(temperature=1.3, top_p=1.0, top_k=5),
    SamplingParams(temperature=1.0, top_p=0.7, top_k=0),
    SamplingParams(temperature=0.7, top_p=0.9, top_k=8),
    SamplingParams(temperature=2.0, top_p=0.5, top_k=50),
]


def sampled(logits: Any, settings: list[SamplingParams], numbers: range | None = None, positions: Any = None) -> Any:
    n_rows = len(settings)
    params = BatchParams(settings, sequence_keys(7, numbers or range(n_rows)), vocab_size=logits.shape[1])
    positions = torch.zeros(n_rows, dtype=torch.int64) if positions is None else positions
    return sample_tokens(logits.expand(n_rows, -1), params, positions)


def probabilities(logits: Any, sampling: SamplingParams) -> Any:
    """As transformers filters them."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores.softmax(-1)


def test_the_hash_is_splitmix64() -> None:
    # the published first outputs of SplitMix64 from state 0, whose state grows by GAMMA
    states = torch.arange(1, 4) * GAMMA
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [number % 2**64 for number in splitmix64(states).tolist()] == expected


def test_the_noise_is_exponential_and_never_zero() -> None:
    from scipy.stats import kstest

    keys = torch.tensor(sequence_keys(3, range(20)))
    noise = exponential_noise(keys, torch.arange(20), torch.arange(5000)).double()
    assert noise.shape == (20, 5000)
    assert float(noise.min()) > 0
    assert kstest(noise.flatten().numpy(), "expon").pvalue > 0.01
    # neighbours in each direction are as strangers: 4 standard errors of a correlation of 95,000 pairs are 0.013
    for other in (noise[:, 1:], noise[1:]):
        pairs = torch.stack([noise[: len(other), : other.shape[1]].flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.013


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**63, 2**64 + 5])
def test_any_number_can_be_a_seed(seed: int) -> None:
    keys = [*sequence_keys(seed, range(3)), *sequence_keys(seed + 1, range(3))]
    assert len(set(keys)) == 6
    assert sequence_keys(seed, [2]) == keys[2:3]
    assert all(-(2**63) <= key < 2**63 for key in keys)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_tokens_come_as_often_as_transformers_would_sample_them(sampling: SamplingParams) -> None:
    from scipy.stats import chisquare

    torch.manual_seed(0)
    logits, n = 2 * torch.randn(1, 40), 20_000
    expected = probabilities(logits, sampling)[0].double()
    tokens = sampled(logits, [sampling] * n)
    counts = torch.bincount(tokens, minlength=40)
    assert not counts[expected == 0].any()
    often = expected * n >= 5  # the rest as one class, where it is not too rare for the test itself
    classes = [(int(counts[often][i]), float(expected[often][i])) for i in range(int(often.sum()))]
    rest = (int(counts[~often].sum()), float(expected[~often].sum()))
    if rest[1] * n >= 5:
        classes.append(rest)
    observed, wanted = (torch.tensor(column).double() for column in zip(*classes, strict=True))
    assert len(classes) > 3
    assert chisquare(observed, wanted / wanted.sum() * observed.sum()).pvalue > 0.001


def test_a_sequence_is_sampled_alike_among_sequences_of_every_other_kind() -> None:
    torch.manual_seed(1)
    settings = [*SETTINGS, GREEDY] * 20
    logits, positions = torch.randn(len(settings), 300), torch.arange(len(settings)) % 7
    together = sampled(logits, settings, positions=positions)
    alone = [
        sampled(logits[i : i + 1], [params], range(i, i + 1), positions[i : i + 1])
        for i, params in enumerate(settings)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_seed_number_and_position_each_make_another_sample() -> None:
    logits = torch.zeros(64, 1000)
    params = BatchParams(
        [PLAIN] * 64, [key for seed in range(8) for key in sequence_keys(seed, range(8))], vocab_size=1000
    )
    first, second = (sample_tokens(logits, params, torch.full((64,), position)) for position in (0, 1))
    # 64 samples out of 1,000: about two pairs are alike by chance; far fewer would be different otherwise
    assert len(set(first.tolist())) > 55
    assert int((first == second).sum()) <= 2


def test_tokens_as_likely_as_the_last_of_top_k_are_kept_as_in_transformers() -> None:
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    tokens = sampled(logits, [SamplingParams(temperature=1.0, top_k=2, top_p=1.0)] * 500)
    assert set(tokens.tolist()) == {0, 1, 2, 3}


def test_the_most_likely_token_is_always_allowed() -> None:
    logits = torch.tensor([[0.0, 5.0, 0.0]])
    tokens = sampled(logits, [SamplingParams(temperature=1.0, top_k=0, top_p=1e-6)] * 50)
    assert set(tokens.tolist()) == {1}


def test_the_penalty_is_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    torch.manual_seed(2)
    logits, ids = torch.randn(3, 20), torch.randint(0, 20, (3, 8))
    seen = torch.zeros(3, 20, dtype=torch.bool).scatter_(1, ids, True)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits.clone())
    assert torch.equal(penalized(logits, seen, 1.7), expected)
