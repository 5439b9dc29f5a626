"""The lab that the package ships is what it is said to be, and of this version's world."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mprm
from mprm.models.checkpoint import load_backbone
from mprm_lab.plan import LabPlan
from mprm_lab.shipped import HASHES, MOST_BYTES, POLICIES, RECORDS, SCORES, _unpacked, shipped_files
from mprm_lab.world import judge_chain, problem_named

ROOT = Path(__file__).parents[2]
LABELS = {"correct": 1, "neutral": 0, "incorrect": -1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lab") / "corpus.jsonl"
    path.write_bytes(_unpacked(shipped_files(), "corpus.jsonl.zst"))
    return path


def records(name: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in _unpacked(shipped_files(), f"{name}.jsonl.zst").splitlines()]


def test_the_corpus_has_the_statistics_that_it_promises(corpus: Path) -> None:
    total = mprm.stats(str(corpus)).total
    assert total.n_rollouts == LabPlan().corpus_questions * LabPlan().rollouts >= 40_000
    assert 0.03 < total.error_step_ratio < 0.06
    assert 0.06 < total.mixed_share < 0.12
    assert 0.80 < total.mean_mc < 0.90
    assert 5.4 < total.steps_per_rollout < 5.8
    results = ROOT / "docs" / "results" / "lab.json"
    measured_on = msgspec.json.decode(results.read_bytes())["corpus"]
    assert (measured_on["steps"], measured_on["mean_mc"]) == (total.n_steps, pytest.approx(total.mean_mc, abs=1e-6))
    told = (ROOT / "docs" / "lab.md").read_text()
    for number in (f"{total.n_steps:,} steps", f"{100 * total.error_step_ratio:.2f}%", f"{total.mean_mc:.3f}"):
        assert number in told


def test_nothing_is_wrong_with_the_corpus(corpus: Path) -> None:
    found = mprm.check(str(corpus))
    assert (found.n_records, found.n_errors, found.n_warnings) == (40_000, 0, 0)


def test_every_question_is_this_versions_own() -> None:
    for name in ("corpus", "benchmark", "validation", "candidates"):
        images = {}
        for record in records(name):
            image = record.get("image") or record["images"]
            images[image if isinstance(image, str) else image[0]] = record
        assert len(images) >= 600
        for image, record in images.items():
            one = problem_named(image)
            asked = record.get("question_orig", record["question"])
            assert (asked, record["answer"]) == (one.question, one.answer)


def test_the_benchmarks_labels_are_the_worlds() -> None:
    found = records("benchmark")
    assert len(found) >= 2_000
    assert {record["policy_model"] for record in found} == set(LabPlan().benchmark_policies)
    counts = Counter[int]()
    for record in found:
        told = record["response"]["process_correctness"]
        judged = judge_chain(problem_named(record["image"][0]), record["response"]["steps"])
        assert told == [LABELS[one] for one in judged]
        counts.update(told)
    assert counts[-1] / counts.total() == pytest.approx(0.30, abs=0.02)
    assert counts[0] / counts.total() == pytest.approx(0.10, abs=0.02)


def test_no_problem_serves_two_ends() -> None:
    splits = [{str(record.get("image") or record["images"]) for record in records(name)} for name in RECORDS]
    splits = [{image.strip("[]'") for image in images} for images in splits]
    assert sum(map(len, splits)) == len(set().union(*splits))
    assert len(splits[3]) >= 500
    assert all(len(record["candidates"]) == 16 for record in records("candidates"))


def test_the_policies_load_as_the_published_ones_do(tmp_path: Path) -> None:
    for name in POLICIES:
        with tarfile.open(fileobj=io.BytesIO(_unpacked(shipped_files(), f"{name}.tar.zst"))) as bundle:
            bundle.extractall(tmp_path, filter="data")
        model = load_backbone(tmp_path / name, device="cpu").model
        assert 1e6 < sum(weight.numel() for weight in model.parameters()) < 1e7


def test_all_of_it_is_small() -> None:
    files = list(shipped_files().iterdir())
    assert {path.name for path in files} == {
        *(f"{name}.jsonl.zst" for name in RECORDS),
        *(f"{name}.tar.zst" for name in POLICIES),
        f"{Path(SCORES).name}.zst",
        HASHES,
    }
    assert sum(len(path.read_bytes()) for path in files) < MOST_BYTES
