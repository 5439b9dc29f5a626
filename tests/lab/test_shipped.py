"""A lab packed and opened again is the lab; the one that the package ships is what it is said to be."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from PIL import Image

import mprm
from mprm.data import read_benchmark, read_candidates
from mprm.errors import ConfigError, DataError, InputNotFoundError, OutputExistsError
from mprm.evaluation.rerank import read_candidate_scores
from mprm.evaluation.scores import check_same_steps, read_scores, without_scores
from mprm.models import load_backbone
from mprm_lab import shipped
from mprm_lab.folder import CANDIDATE_SCORES, RECORDS, SCORES
from mprm_lab.make import LabPlan
from mprm_lab.shipped import (
    HASHES,
    MAX_BYTES,
    POLICIES,
    open_lab,
    pack_lab,
    quickstart_excerpt,
    shipped_files,
    unpack,
)
from mprm_lab.world import draw, judge_chain, problem, problem_named


def made(folder: Path) -> Path:
    """A lab of one record a file; the weights are any bytes."""
    image = {name: f"bars-total/{number}.png" for number, name in enumerate(RECORDS)}
    for name in ("corpus", "validation", "benchmark"):
        (folder / f"{name}.jsonl").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jsonl").write_text(json.dumps({"image": image[name], "question": "?"}) + "\n")
    (folder / "candidates.jsonl").write_text(json.dumps({"images": [image["candidates"]]}) + "\n")
    (folder / "scores").mkdir()
    for path in (SCORES, CANDIDATE_SCORES):
        (folder / path).write_text("{}\n")
    for name in shipped.POLICIES:
        (folder / "policies" / name).mkdir(parents=True)
        (folder / "policies" / name / "config.json").write_text("{}")
        (folder / "policies" / name / "model.safetensors").write_bytes(name.encode() * 100)
    return folder


def test_a_lab_that_is_packed_and_opened_is_the_same_with_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = made(tmp_path / "lab")
    written = pack_lab(lab, tmp_path / "packed")
    assert written.keys() == {path.name for path in (tmp_path / "packed").iterdir()}
    again = pack_lab(lab, tmp_path / "again")
    assert again == written
    for name in written:
        assert (tmp_path / "packed" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    monkeypatch.setattr(shipped, "shipped_files", lambda: tmp_path / "packed")
    opened = tmp_path / "opened"
    open_lab(opened)
    for path in lab.rglob("*"):
        if path.is_file():
            assert (opened / path.relative_to(lab)).read_bytes() == path.read_bytes()
    pictures = sorted((opened / "images" / "bars-total").iterdir())
    assert [path.name for path in pictures] == ["0.png", "1.png", "2.png", "3.png"]
    with Image.open(pictures[2]) as image:
        assert image.convert("RGB").tobytes() == draw(problem("bars-total", 2)).convert("RGB").tobytes()
    with pytest.raises(OutputExistsError, match=r"corpus\.jsonl"):
        open_lab(opened)
    open_lab(opened, force=True)


def test_a_lab_that_is_not_whole_or_too_large_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = made(tmp_path / "lab")
    monkeypatch.setattr(shipped, "MAX_BYTES", 100)
    with pytest.raises(ConfigError, match="100 may be shipped"):
        pack_lab(lab, tmp_path / "packed")
    (lab / "benchmark.jsonl").unlink()
    with pytest.raises(InputNotFoundError, match=r"benchmark\.jsonl not there; make the lab first"):
        pack_lab(lab, tmp_path / "other")


def test_an_installation_without_a_lab_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "shipped_files", lambda: tmp_path)
    with pytest.raises(InputNotFoundError, match="mprm-lab make DIR"):
        open_lab(tmp_path / "lab")


def test_nothing_that_is_there_is_replaced_unasked_and_nothing_stale_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_lab(made(tmp_path / "lab"), tmp_path / "packed")
    monkeypatch.setattr(shipped, "shipped_files", lambda: tmp_path / "packed")
    for path in ("policies/small/config.json", SCORES):
        other = tmp_path / path.replace("/", "-")
        (other / path).parent.mkdir(parents=True)
        (other / path).write_text("mine")
        with pytest.raises(OutputExistsError, match=Path(path).name):
            open_lab(other)
        assert [entry for entry in other.rglob("*") if entry.is_file()] == [other / path]
    stale = other / "images" / "bars-total" / "0.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another version")
    (other / "policies" / "small").mkdir(parents=True)
    (other / "policies" / "small" / "extra.bin").write_bytes(b"")
    open_lab(other, force=True)
    with Image.open(stale) as image:
        assert image.convert("RGB").tobytes() == draw(problem("bars-total", 0)).convert("RGB").tobytes()
    assert not (other / "policies" / "small" / "extra.bin").exists()


@pytest.mark.parametrize("name", ["corpus.jsonl.zst", "small.tar.zst", "full.jsonl.zst", "full-candidates.jsonl.zst"])
def test_a_damaged_or_missing_file_is_named_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed"
    pack_lab(made(tmp_path / "lab"), packed)
    monkeypatch.setattr(shipped, "shipped_files", lambda: packed)
    whole = (packed / name).read_bytes()
    for damaged in (b"version https://git-lfs", b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        (packed / name).write_bytes(damaged)
        with pytest.raises(DataError, match=f"{name} is damaged .*install mprm-lab anew"):
            open_lab(tmp_path / "opened")
    hashes = (packed / shipped.HASHES).read_bytes()
    for damaged in (b"", b"[]", b"{}"):
        (packed / shipped.HASHES).write_bytes(damaged)
        with pytest.raises(DataError, match=f"{shipped.HASHES} is damaged"):
            open_lab(tmp_path / "opened")
    (packed / shipped.HASHES).write_bytes(hashes)
    (packed / name).unlink()
    with pytest.raises(InputNotFoundError, match="ships no lab"):
        open_lab(tmp_path / "opened")
    assert not (tmp_path / "opened").exists()


ROOT = Path(__file__).parents[2]
LABELS = {"correct": 1, "neutral": 0, "incorrect": -1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lab") / "corpus.jsonl"
    path.write_bytes(unpack(shipped_files(), "corpus.jsonl.zst"))
    return path


def records(name: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in unpack(shipped_files(), f"{name}.jsonl.zst").splitlines()]


def test_the_corpus_has_the_statistics_that_it_promises(corpus: Path) -> None:
    total = mprm.stats(str(corpus)).total
    assert total.n_rollouts == LabPlan().corpus_questions * LabPlan().rollouts >= 40_000
    assert 0.04 < total.error_step_ratio < 0.08  # what the lab aims at
    assert 0.08 < total.mixed_share < 0.15
    assert 0.80 < total.mean_mc < 0.90
    assert 5.4 < total.steps_per_rollout < 5.8
    results = ROOT / "docs" / "results" / "lab.json"
    measured_on = msgspec.json.decode(results.read_bytes())["corpus"]
    assert (measured_on["steps"], measured_on["mean_mc"]) == (total.n_steps, pytest.approx(total.mean_mc, abs=1e-6))
    page = (ROOT / "docs" / "lab.md").read_text()
    for number in (f"{total.n_steps:,} steps", f"{100 * total.error_step_ratio:.2f}%", f"{total.mean_mc:.3f}"):
        assert number in page


def test_nothing_is_wrong_with_the_corpus(corpus: Path) -> None:
    report = mprm.check(str(corpus))
    assert (report.n_records, report.n_errors, report.n_warnings) == (40_000, 0, 0)


def test_every_question_is_this_versions_own() -> None:
    for name in ("corpus", "benchmark", "validation", "candidates"):
        images = {}
        for record in records(name):
            image = record.get("image") or record["images"]
            images[image if isinstance(image, str) else image[0]] = record
        assert len(images) >= 600
        for image, record in images.items():
            example = problem_named(image)
            question = record.get("question_orig", record["question"])
            assert (question, record["answer"]) == (example.question, example.answer)


def test_the_benchmarks_labels_are_the_worlds() -> None:
    solutions = records("benchmark")
    assert len(solutions) >= 2_000
    assert {record["policy_model"] for record in solutions} == set(LabPlan().benchmark_policies)
    counts = Counter[int]()
    for record in solutions:
        labels = record["response"]["process_correctness"]
        judged = judge_chain(problem_named(record["image"][0]), record["response"]["steps"])
        assert labels == [LABELS[verdict] for verdict in judged]
        counts.update(labels)
    assert counts[-1] / counts.total() == pytest.approx(0.26, abs=0.01)
    assert counts[0] / counts.total() == pytest.approx(0.09, abs=0.01)


def test_no_problem_serves_two_ends() -> None:
    splits = [{str(record.get("image") or record["images"]) for record in records(name)} for name in RECORDS]
    splits = [{image.strip("[]'") for image in images} for images in splits]
    assert sum(map(len, splits)) == len(set().union(*splits))
    assert len(splits[3]) >= 500
    assert all(len(record["candidates"]) == 16 for record in records("candidates"))


def test_the_scores_are_those_of_one_model_on_the_benchmark_and_on_every_candidate(tmp_path: Path) -> None:
    names = ("benchmark.jsonl", "candidates.jsonl", Path(SCORES).name, Path(CANDIDATE_SCORES).name)
    for name in names:
        (tmp_path / name).write_bytes(unpack(shipped_files(), f"{name}.zst"))
    benchmark, candidates, of_steps, of_candidates = (tmp_path / name for name in names)
    scored = read_scores(of_steps)
    check_same_steps(without_scores(read_benchmark(str(benchmark))), scored)
    reranked = read_candidate_scores(of_candidates, read_candidates(str(candidates)))  # stops where one is missing
    assert len(reranked.solutions) == 600 * 16
    assert scored.model == reranked.model == "full"


def test_the_policies_load_as_the_published_ones_do(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for name in POLICIES:
        with tarfile.open(fileobj=io.BytesIO(unpack(shipped_files(), f"{name}.tar.zst"))) as bundle:
            bundle.extractall(tmp_path, filter="data")
        model = load_backbone(tmp_path / name, device="cpu").model
        assert 1e6 < sum(weight.numel() for weight in model.parameters()) < 1e7


def test_all_of_it_is_small() -> None:
    files = list(shipped_files().iterdir())
    assert {path.name for path in files} == {
        *(f"{name}.jsonl.zst" for name in RECORDS),
        *(f"{name}.tar.zst" for name in POLICIES),
        *(f"{Path(path).name}.zst" for path in (SCORES, CANDIDATE_SCORES)),
        HASHES,
    }
    assert sum(len(path.read_bytes()) for path in files) < MAX_BYTES


def test_the_quick_start_corpus_of_mprm_is_an_excerpt_of_the_corpus(tmp_path: Path) -> None:
    lines = unpack(shipped_files(), "corpus.jsonl.zst").splitlines()
    packed = quickstart_excerpt(lines)
    assert len(packed) <= 500_000
    data = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(packed)
    with tarfile.open(fileobj=io.BytesIO(data)) as bundle:
        bundle.extractall(tmp_path / "excerpt", filter="data")
    mprm.quickstart(tmp_path / "shipped")
    excerpt, there = tmp_path / "excerpt", tmp_path / "shipped"
    assert {path.relative_to(excerpt) for path in excerpt.rglob("*")} == {
        p.relative_to(there) for p in there.rglob("*")
    }
    corpus = {msgspec.json.decode(line)["response"] for line in lines}
    for path in excerpt.rglob("*.jsonl"):
        assert {msgspec.json.decode(line)["response"] for line in path.read_bytes().splitlines()} <= corpus
    for path in (tmp_path / "excerpt").rglob("*"):
        if path.suffix == ".jsonl":
            assert path.read_bytes() == (tmp_path / "shipped" / path.relative_to(tmp_path / "excerpt")).read_bytes()
        elif path.suffix == ".png":
            other = tmp_path / "shipped" / path.relative_to(tmp_path / "excerpt")
            with Image.open(path) as made, Image.open(other) as there:
                assert made.convert("RGB").tobytes() == there.convert("RGB").tobytes()
