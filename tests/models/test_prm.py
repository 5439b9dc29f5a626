"""PRM: loading what was trained, refusing what was not, scoring; a common prefix of chains is computed once."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

import mprm
from mprm.data.images import as_rgb
from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm.models.checkpoint import PRM_CONFIG, PRMConfig, read_prm_config
from mprm.models.prm import PRM, score_chains
from tests.tiny_models import ALL_BACKBONES, save_tiny


def saved(kind: str, path: Path, **config: Any) -> Path:
    """A process reward model as training leaves it, untrained."""
    base = save_tiny(kind, path.with_name(path.name + "-base"))
    prm = PRM.from_pretrained(base, PRMConfig(), device="cpu")
    prm.config = PRMConfig(**config)
    prm.save_pretrained(path)
    return path


def counted(done: list[int]) -> Any:
    """Progress that lists what was advanced by."""
    return lambda *_: nullcontext(lambda n, note="": done.append(n))  # noqa: ARG005


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("text", tmp_path_factory.mktemp("prm") / "text")


@pytest.mark.parametrize("kind", ALL_BACKBONES)
def test_one_by_one_and_batched_scores_are_the_same(kind: str, tmp_path: Path) -> None:
    path = saved(kind, tmp_path / kind)
    prm = PRM.from_pretrained(path, device="cpu", tokens_per_batch=400)
    images = () if kind == "text" else (Image.new("RGB", (60, 40), "red"),)
    chains = [mprm.Chain(f"q {n}", tuple(f"step {k}" for k in range(1 + n % 4)), images) for n in range(9)]
    done: list[int] = []
    together = prm.score_many(chains, progress=counted(done))
    alone = [prm.score(chain.question, chain.images, chain.steps) for chain in chains]
    assert [len(scores) for scores in together] == [len(chain.steps) for chain in chains]
    for mine, theirs in zip(together, alone, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
        assert all(0 < score < 1 for score in mine)
    assert sum(done) == len(chains)


def test_several_ranks_score_each_chain_once(text: Path) -> None:
    prm = PRM.from_pretrained(text, device="cpu")
    chains = [mprm.Chain(f"q {n}", ("a", "b")) for n in range(7)]
    whole = prm.score_many(chains)
    shares = [
        score_chains(prm.model, prm.encoder, chains, tokens_per_batch=150, rank=rank, world_size=3)
        for rank in range(3)
    ]
    merged = {index: values for share in shares for index, values in share.items()}
    for index, values in enumerate(whole):
        assert merged[index] == pytest.approx(values, abs=1e-5)


def test_steps_beyond_the_length_have_no_score(tmp_path: Path) -> None:
    prm = PRM.from_pretrained(saved("text", tmp_path / "short", max_length=100), device="cpu")
    scores = prm.score("q", (), ["a", "b " * 100, "c"])
    assert not math.isnan(scores[0])
    assert all(map(math.isnan, scores[1:]))
    assert all(map(math.isnan, prm.score("q " * 300, (), ["a"])))
    assert prm.score("q", (), []) == []


def damaged(text: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text, tmp_path / "damaged"))


def test_missing_weights_are_named_and_never_made_up(text: Path, tmp_path: Path) -> None:
    path = damaged(text, tmp_path)
    state = load_file(path / "model.safetensors")
    del state["lm_head.weight"]
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"missing keys: lm_head\.weight"):
        PRM.from_pretrained(path, device="cpu")


def test_a_configuration_with_fewer_layers_than_the_weights_is_refused(text: Path, tmp_path: Path) -> None:
    path = damaged(text, tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(ConfigError, match=r"unexpected keys: model\.layers\.1"):
        PRM.from_pretrained(path, device="cpu")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b'{"model_type": "zork"}'),
        ("model.safetensors", b""),
        ("model.safetensors", b"garbage" * 9),
        ("tokenizer.json", b"{"),
        (PRM_CONFIG, b"{}"),
        (PRM_CONFIG, b"\xff"),
        (PRM_CONFIG, b'{"prompt_version": 99}'),
        (PRM_CONFIG, b'{"prompt_version": 1, "max_length": 0}'),
        (PRM_CONFIG, b'{"prompt_version": 1, "step_token": "<other>"}'),
    ],
)
def test_a_broken_checkpoint_gives_one_clear_error(name: str, content: bytes, text: Path, tmp_path: Path) -> None:
    path = damaged(text, tmp_path)
    (path / name).write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        PRM.from_pretrained(path, device="cpu")


def test_a_folder_that_is_no_model_says_so(tmp_path: Path, text: Path) -> None:
    with pytest.raises(InputNotFoundError, match="is not a folder"):
        PRM.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no prm_config\.json"):
        PRM.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="device 'zork' cannot be used"):
        PRM.from_pretrained(text, device="zork")
    with pytest.raises(ConfigError, match="unknown dtype"):
        PRM.from_pretrained(text, device="cpu", dtype="int3")


def test_what_is_no_chain_is_refused(text: Path, tmp_path: Path) -> None:
    prm = PRM.from_pretrained(text, device="cpu")
    with pytest.raises(ConfigError, match="steps and images are lists"):
        prm.score("q", (), "the bar")
    with pytest.raises(ConfigError, match="must be text"):
        prm.score("q", (), [1])  # type: ignore[list-item]
    with pytest.raises(DataError, match="a text model cannot see images"):
        prm.score("q", [Image.new("RGB", (5, 5))], ["a"])
    assert len(prm.score("a lone \udfff surrogate", (), ["b"])) == 1
    for odd in ({"a": 1}, None, b"ab"):
        with pytest.raises(ConfigError, match="steps and images are lists"):
            prm.score("q", (), odd)  # type: ignore[arg-type]
    for odd in (Image.new("RGB", (5, 5)), None, "a.png"):
        with pytest.raises(ConfigError, match="steps and images are lists"):
            prm.score("q", odd, ["a"])  # type: ignore[arg-type]
    odd_chains: list[Any] = [("q", ("a",)), mprm.Chain("q", "abc"), mprm.Chain("q", ("a",), "b.png")]  # type: ignore[arg-type]
    odd_chains += [mprm.Chain("q", {"a"}), mprm.Chain("q", None), mprm.Chain("q", ("a",), tmp_path)]  # type: ignore[arg-type]
    for chain in odd_chains:
        with pytest.raises(ConfigError, match=r"chain 0: (expected Chain|steps and images are lists)"):
            prm.score_many([chain])
    for some in (None, mprm.Chain("q", ("a",)), np.array("a")):
        with pytest.raises(ConfigError, match="lists"):
            prm.score_many(some)  # type: ignore[arg-type]
    assert prm.score_many(mprm.Chain("q", (step,)) for step in "ab") == [  # type: ignore[arg-type]
        prm.score("q", (), np.array(["a"])),  # type: ignore[arg-type]
        prm.score("q", (), ["b"]),
    ]
    for budget in (0, 1.5, True, "5", math.nan):
        with pytest.raises(ConfigError, match="tokens_per_batch must be a whole number"):
            PRM.from_pretrained(text, device="cpu", tokens_per_batch=budget)  # type: ignore[arg-type]
    assert PRM.from_pretrained(text, device="cpu", tokens_per_batch=np.int64(5)).tokens_per_batch == 5  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["internvl", "qwen2_5_vl"])
def test_an_image_that_is_read_only_when_it_is_needed_serves_many_batches(kind: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    prm = PRM.from_pretrained(saved(kind, tmp_path / kind), device="cpu", tokens_per_batch=50)
    steps = [[f"s {number}"] for number in range(6)]
    assert prm.score("q", [Image.open(tmp_path / "a.png")], steps) == prm.score("q", [tmp_path / "a.png"], steps)


@pytest.mark.parametrize("kind", ["internvl", "qwen2_5_vl"])
def test_an_image_that_replaced_another_is_seen(kind: str, tmp_path: Path) -> None:
    prm = PRM.from_pretrained(saved(kind, tmp_path / kind), device="cpu")
    sizes = [(60, 60), (300, 200), (60, 60)]
    for number, size in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "same.png")
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        assert prm.score("q", [tmp_path / "same.png"], ["a"]) == prm.score("q", [tmp_path / f"{number}.png"], ["a"])


def test_images_in_memory_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    prm = PRM.from_pretrained(saved("qwen2_5_vl", tmp_path / "prm"), device="cpu")
    closed = Image.open(_png(tmp_path / "closed.png"))
    closed.close()
    odd = [np.zeros((4, 4, 3)), Image.new("F", (60, 60)), Image.new("RGB", (0, 0)), closed]
    for image, words in zip(odd, ("expected a path", "floating-point", "no pixels", "cannot be read"), strict=True):
        with pytest.raises(DataError, match=words):
            prm.score("q", [image], ["a"])


def _png(path: Path) -> Path:
    Image.new("RGB", (60, 60), "red").save(path)
    return path


def test_weights_are_distinguished_whatever_their_folder_is_called(text: Path, tmp_path: Path) -> None:
    prm = PRM.from_pretrained(text, device="cpu")
    copy = PRM.from_pretrained(shutil.copytree(text, tmp_path / "copy"), device="cpu")
    assert prm.fingerprint == copy.fingerprint
    state = load_file(text / "model.safetensors")
    state["model.norm.weight"] += 1
    other = Path(shutil.copytree(text, tmp_path / "text"))
    save_file(state, other / "model.safetensors", metadata={"format": "pt"})
    assert PRM.from_pretrained(other, device="cpu").fingerprint != prm.fingerprint


def test_transparent_is_white_and_sixteen_bits_are_scaled() -> None:
    lines = np.zeros((4, 4, 4), np.uint8)
    lines[0, :, 3] = 255  # one black line, the rest transparent
    seen = np.asarray(as_rgb(Image.fromarray(lines)))
    assert (seen[0] == 0).all()
    assert (seen[1:] == 255).all()
    wide = Image.fromarray(np.array([[0, 257, 65535]], np.uint16))
    assert np.asarray(as_rgb(wide))[0, :, 0].tolist() == [0, 1, 255]
    with pytest.raises(ValueError, match="floating-point"):
        as_rgb(Image.fromarray(np.zeros((2, 2), np.float32)))
    assert np.asarray(as_rgb(Image.new("L", (1, 1), 7)))[0, 0].tolist() == [7, 7, 7]
    assert np.asarray(as_rgb(Image.new("CMYK", (1, 1), (0, 0, 0, 0))))[0, 0].tolist() == [255, 255, 255]


def test_an_image_of_impossible_shape_is_named(tmp_path: Path) -> None:
    prm = PRM.from_pretrained(saved("qwen2_5_vl", tmp_path / "qwen"), device="cpu", image_root=tmp_path)
    Image.new("RGB", (3000, 1)).save(tmp_path / "thin.png")
    with pytest.raises(DataError, match=r"thin\.png of 3000 × 1 pixels cannot be used"):
        prm.score("q", ["thin.png"], ["a"])
    with pytest.raises(DataError, match="leaves the image root"):
        prm.score("q", ["../thin.png"], ["a"])
    with pytest.raises(DataError, match=r"gone\.png does not exist"):
        prm.score("q", ["gone.png"], ["a"])


def test_settings_of_another_backbone_are_refused(tmp_path: Path) -> None:
    base = save_tiny("qwen2_5_vl", tmp_path / "qwen")
    for settings, message in (
        ({"max_patches": 3}, "max_patches: no setting of this type of model; it takes min_pixels, max_pixels"),
        ({"min_pixels": -5}, "must be at least 1"),
        ({"min_pixels": 5000, "max_pixels": 1000}, "min_pixels must be at most max_pixels"),
    ):
        with pytest.raises(ConfigError, match=message):
            PRM.from_pretrained(base, PRMConfig(image_settings=settings), device="cpu")


def test_the_config_is_written_by_its_new_name_and_read_by_its_old_one_too(text: Path, tmp_path: Path) -> None:
    assert (text / "prm_config.json").is_file()
    assert not (text / "mprm.json").exists()
    path = damaged(text, tmp_path)
    (path / "prm_config.json").rename(path / "mprm.json")
    assert read_prm_config(path) == read_prm_config(text)
    assert PRM.from_pretrained(path, device="cpu").score("q", (), ["a"]) == PRM.from_pretrained(
        text, device="cpu"
    ).score("q", (), ["a"])


@pytest.mark.parametrize("kind", ["internvl", "qwen2_5_vl"])
def test_an_image_that_changes_after_its_chain_was_tokenized_is_an_error(kind: str, tmp_path: Path) -> None:
    encoder = PRM.from_pretrained(saved(kind, tmp_path / kind), device="cpu", image_root=tmp_path).encoder
    Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    tokenized = encoder.tokenize(mprm.Chain("q", ("a",), ("a.png",)))
    Image.new("RGB", (300, 200)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png has 300 × 200 pixels, and had 60 × 40 when"):
        encoder.add_pixel_values(tokenized)


@pytest.fixture(scope="module", params=ALL_BACKBONES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, and two images beside it."""
    path = saved(request.param, tmp_path_factory.mktemp("shared") / request.param, max_length=400)
    rng = np.random.default_rng(0)
    for name, shape in (("a.png", (60, 80, 3)), ("b.png", (90, 30, 3))):
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(path / name)
    return path


def both(folder: Path, **options: Any) -> tuple[PRM, PRM]:
    """Shared and plain."""
    shared, plain = (
        PRM.from_pretrained(folder, device="cpu", image_root=folder, share_prefixes=share, **options)
        for share in (True, False)
    )
    assert (shared.shares_prefixes, plain.shares_prefixes) == (True, False)
    return shared, plain


def chains(folder: Path) -> list[mprm.Chain]:
    """Candidates of three questions in turns; one is truncated in its steps, one altogether, one has no steps."""
    made = []
    for k in range(5):
        for number, images in enumerate((("a.png",), ("a.png", "b.png"), ())):
            steps = ("the bar is 3 long", *(f"so {k} and {j}" for j in range(k)))
            made.append(mprm.Chain(f"how long is bar {number}?", steps, images if folder.name != "text" else ()))
    made[4] = mprm.Chain(made[4].question, ("a", "hm " * 500, "b"), made[4].images)
    return [*made, mprm.Chain("zqx " * 500, ("a", "b")), mprm.Chain("q", ())]


class Tokens:
    """Counts the tokens that go through the language model."""

    def __init__(self, prm: PRM) -> None:
        self.n = 0
        prm.model.get_input_embeddings().register_forward_hook(self._count)

    def _count(self, module: Any, inputs: Any, output: Any) -> None:
        self.n += output.shape[0] * output.shape[1]


def test_many_chains_score_as_padded_in_their_order_with_fewer_tokens(folder: Path) -> None:
    shared, plain = both(folder)
    counts = [Tokens(prm) for prm in (shared, plain)]
    done: list[int] = []
    together = shared.score_many(chains(folder), progress=counted(done))
    expected = plain.score_many(chains(folder))
    assert [len(scores) for scores in together] == [len(chain.steps) for chain in chains(folder)]
    for mine, theirs in zip(together, expected, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5, nan_ok=True)
    assert sum(done) == len(chains(folder))
    assert not math.isnan(together[4][0])
    assert all(map(math.isnan, [*together[4][1:], *together[-2]]))
    assert counts[0].n < counts[1].n / 2


def test_a_small_budget_changes_no_score(folder: Path) -> None:
    shared, plain = both(folder, tokens_per_batch=150)
    sizes: list[int] = []
    shared.model.get_input_embeddings().register_forward_hook(lambda _m, _i, out: sizes.append(out.shape[1]))
    some = [chain for chain in chains(folder) if chain.steps]
    for mine, theirs in zip(shared.score_many(some), plain.score_many(some), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5, nan_ok=True)
    longest = max(len(shared.encoder.tokenize(chain).input_ids) for chain in some)
    assert len(sizes) > 1
    assert max(sizes) <= max(150, longest)


def test_score_takes_one_chain_or_many(folder: Path) -> None:
    shared, plain = both(folder)
    images = [] if folder.name == "text" else ["a.png"]
    many = [["it is 7", "so 7"], ["it is 7", "no, 8", "so 8"], ["it is 7"], []]
    of_chains = shared.score("how long is it?", images, many)
    assert [len(scores) for scores in of_chains] == [2, 3, 1, 0]
    for chain, scores in zip(many, of_chains, strict=True):
        assert scores == pytest.approx(plain.score("how long is it?", images, chain), abs=1e-5)
    # the first step is one and the same
    assert of_chains[0][0] == of_chains[1][0] == of_chains[2][0]
    with pytest.raises(ConfigError, match="must be text"):
        shared.score("q", images, ["a step", ["a chain"]])  # type: ignore[call-overload]


def test_several_ranks_share_the_packs(folder: Path) -> None:
    shared, plain = both(folder)
    some = chains(folder)
    shares = [
        score_chains(
            shared.model, shared.encoder, some, tokens_per_batch=300, rank=rank, world_size=3, share_prefixes=True
        )
        for rank in range(3)
    ]
    merged = {index: values for share in shares for index, values in share.items()}
    assert sorted(merged) == list(range(len(some)))
    for index, values in enumerate(plain.score_many(some)):
        assert merged[index] == pytest.approx(values, abs=1e-5, nan_ok=True)


def test_images_in_memory_are_distinguished(folder: Path) -> None:
    shared, plain = both(folder)
    if folder.name == "text":
        return
    black, white = (Image.new("RGB", (60, 40), color) for color in ("black", "white"))
    some = [mprm.Chain("what?", (f"step {k}",), (image,)) for k in range(3) for image in (black, white)]
    for mine, theirs in zip(shared.score_many(some), plain.score_many(some), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


def test_a_model_that_cannot_says_why_and_scores_padded(folder: Path, capsys: Any) -> None:
    prm = PRM.from_pretrained(folder, device="cpu", image_root=folder, attention="eager")
    assert not prm.shares_prefixes
    assert "slower: the model attends with eager; expected sdpa" in capsys.readouterr().err
    assert len(prm.score("q", (), ["a", "b"])) == 2
