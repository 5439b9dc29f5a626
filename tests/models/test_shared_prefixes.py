"""PRM computes what chains have in common once, and scores as if it had not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mprm.data.types import Chain
from mprm.errors import ConfigError
from mprm.models.prm import PRM, score_chains
from tests.models.test_prm import saved
from tests.tiny_models import BACKBONES


@pytest.fixture(scope="module", params=BACKBONES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, and two images beside it."""
    path = saved(request.param, tmp_path_factory.mktemp("shared") / request.param, max_length=400)
    rng = np.random.default_rng(0)
    for name, shape in (("a.png", (60, 80, 3)), ("b.png", (90, 30, 3))):
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(path / name)
    return path


def both(place: Path, **options: Any) -> tuple[PRM, PRM]:
    """Shared and plain."""
    shared, plain = (
        PRM.from_pretrained(place, device="cpu", image_root=place, share_prefixes=share, **options)
        for share in (True, False)
    )
    assert (shared.shares_prefixes, plain.shares_prefixes) == (True, False)
    return shared, plain


def chains(place: Path) -> list[Chain]:
    """Candidates of three questions in turns; one is cut off in its steps, one altogether, one has no steps."""
    found = []
    for k in range(5):
        for number, images in enumerate((("a.png",), ("a.png", "b.png"), ())):
            steps = ("the bar is 3 long", *(f"so {k} and {j}" for j in range(k)))
            found.append(Chain(f"how long is bar {number}?", steps, images if place.name != "text" else ()))
    found[4] = Chain(found[4].question, ("a", "hm " * 500, "b"), found[4].images)
    return [*found, Chain("zqx " * 500, ("a", "b")), Chain("q", ())]


class Tokens:
    """Counts the tokens that go through the language model."""

    def __init__(self, prm: PRM) -> None:
        self.n = 0
        prm.model.get_input_embeddings().register_forward_hook(self._count)

    def _count(self, module: Any, inputs: Any, output: Any) -> None:
        self.n += output.shape[0] * output.shape[1]


def test_many_chains_score_as_the_plain_way_in_their_order_with_fewer_tokens(place: Path) -> None:
    shared, plain = both(place)
    counts = [Tokens(prm) for prm in (shared, plain)]
    done: list[int] = []
    found = shared.score_many(chains(place), on_scored=done.append)
    expected = plain.score_many(chains(place))
    assert [len(scores) for scores in found] == [len(chain.steps) for chain in chains(place)]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5, nan_ok=True)
    assert sum(done) == len(chains(place))
    assert not math.isnan(found[4][0])
    assert all(map(math.isnan, [*found[4][1:], *found[-2]]))
    assert counts[0].n < counts[1].n / 2


def test_a_small_budget_changes_no_score(place: Path) -> None:
    shared, plain = both(place, tokens_per_batch=150)
    sizes: list[int] = []
    shared.model.get_input_embeddings().register_forward_hook(lambda _m, _i, out: sizes.append(out.shape[1]))
    some = [chain for chain in chains(place) if chain.steps]
    for mine, theirs in zip(shared.score_many(some), plain.score_many(some), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5, nan_ok=True)
    longest = max(len(shared.encoder.measure(chain).ids) for chain in some)
    assert len(sizes) > 1
    assert max(sizes) <= max(150, longest)


def test_score_takes_one_chain_or_many(place: Path) -> None:
    shared, plain = both(place)
    images = [] if place.name == "text" else ["a.png"]
    many = [["it is 7", "so 7"], ["it is 7", "no, 8", "so 8"], ["it is 7"], []]
    found = shared.score("how long is it?", images, many)
    assert [len(scores) for scores in found] == [2, 3, 1, 0]
    for chain, scores in zip(many, found, strict=True):
        assert scores == pytest.approx(plain.score("how long is it?", images, chain), abs=1e-5)
    # the first step is one and the same
    assert found[0][0] == found[1][0] == found[2][0]
    with pytest.raises(ConfigError, match="must be text"):
        shared.score("q", images, ["a step", ["a chain"]])  # type: ignore[call-overload]


def test_several_ranks_share_the_packs(place: Path) -> None:
    shared, plain = both(place)
    some = chains(place)
    shares = [
        score_chains(
            shared.model, shared.encoder, some, tokens_per_batch=300, rank=rank, world=3, share_prefixes=True
        )
        for rank in range(3)
    ]
    merged = {index: values for share in shares for index, values in share.items()}
    assert sorted(merged) == list(range(len(some)))
    for index, values in enumerate(plain.score_many(some)):
        assert merged[index] == pytest.approx(values, abs=1e-5, nan_ok=True)


def test_images_in_memory_are_told_apart(place: Path) -> None:
    shared, plain = both(place)
    if place.name == "text":
        return
    black, white = (Image.new("RGB", (60, 40), color) for color in ("black", "white"))
    some = [Chain("what?", (f"step {k}",), (image,)) for k in range(3) for image in (black, white)]
    for mine, theirs in zip(shared.score_many(some), plain.score_many(some), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


def test_a_model_that_cannot_says_why_and_scores_the_plain_way(place: Path, capsys: Any) -> None:
    prm = PRM.from_pretrained(place, device="cpu", image_root=place, attention="eager")
    assert not prm.shares_prefixes
    assert "slower: the model attends with eager; expected sdpa" in capsys.readouterr().err
    assert len(prm.score("q", (), ["a", "b"])) == 2
