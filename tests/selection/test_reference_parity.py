"""``--ties file-order`` keeps what the paper's released code keeps, as its behaviour is described."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import mprm
from tests.conftest import random_scores, raw_record, write_jsonl

PLAIN = Path(__file__).parents[2] / "benchmarks" / "plain_select.py"
"""The plain json implementation that the benchmark runs against."""


def reference(folder: Path, out: Path, rho: float, form: str = "verbatim") -> bytes:
    subprocess.run(
        [sys.executable, str(PLAIN), str(out), str(rho), form, *sorted(map(str, folder.glob("*.jsonl")))],
        check=True,
    )
    return out.read_bytes()


def assert_same(folder: Path, tmp_path: Path, rho: float) -> None:
    expected = reference(folder, tmp_path / "reference.jsonl", rho)
    selection = mprm.select(folder, rho=rho, ties="file-order")
    written = selection.write(str(tmp_path / "ours.jsonl"), force=True)
    assert Path(written.paths[0]).read_bytes() == expected
    for source, counts in selection.by_source(selection.subsets[0]).items():
        m = (folder / f"{source}.jsonl").read_bytes().count(b"\n")
        assert (counts["read"], counts["kept"]) == (m, max(1, int(m * rho)))


@pytest.fixture(scope="module")
def papers_shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """38 sources with the rollouts, steps and mean scores of the paper's table, at a hundredth of their size.

    paper_scores.json has a word a rollout and a letter a step, the number of its 16 continuations that are right in
    base 17: "gf0" is [1, 15/16, 0].
    """
    folder = tmp_path_factory.mktemp("papers") / "corpus"
    sources = json.loads((Path(__file__).parent / "paper_scores.json").read_text())
    for source, rollouts in sources.items():
        scores = [[int(letter, 17) / 16 for letter in word] for word in rollouts.split()]
        records = [raw_record(s, number=i, question_orig=QUESTIONS[i % 3]) for i, s in enumerate(scores)]
        write_jsonl(folder / f"{source}.jsonl", records)
    return folder


QUESTIONS = ("What is ∠ABC, 90° or \\(\\frac{1}{2}π\\)?", 'Which is "A"?\n- 12\n- 3.14', "Is 5 ≈ 3 × 1.7?")


def test_the_corpus_has_the_papers_shape(papers_shape: Path) -> None:
    stats = mprm.stats(papers_shape)
    # the paper's table, whose rows sum to 565,149 rollouts and 3,174,492 steps of mean score 0.8599
    assert (len(stats.sources), stats.total.n_rollouts, stats.total.n_steps) == (38, 5651, 31_752)
    assert stats.total.mean_mc == pytest.approx(0.8599, abs=0.005)


@pytest.mark.parametrize("rho", [0.05, 0.1, 0.25, 0.33])
def test_on_a_corpus_of_the_papers_shape(papers_shape: Path, tmp_path: Path, rho: float) -> None:
    assert_same(papers_shape, tmp_path, rho)


@pytest.mark.parametrize("n_mc", [16, 12, 10, 7])
@pytest.mark.parametrize("rho", [0.1, 0.5])
def test_with_other_numbers_of_continuations(tmp_path: Path, n_mc: int, rho: float) -> None:
    rng = random.Random(n_mc)
    for source in ("a", "b"):
        scores = [random_scores(rng, n_mc) for _ in range(400)]
        write_jsonl(
            tmp_path / "c" / f"{source}.jsonl",
            [raw_record(s, n_mc=n_mc, number=i) for i, s in enumerate(scores)],
        )
    assert_same(tmp_path / "c", tmp_path, rho)


def test_on_sources_of_one_rollout_and_of_one_label(corpus, tmp_path: Path) -> None:
    folder = corpus(
        one=[[0.5]], positive=[[1.0, 1.0]] * 50, negative=[[0.0]] * 50, ties=[[1.0, 0.0], [0.0, 1.0]] * 25
    )
    for rho in (0.01, 0.1, 0.99, 1.0):
        assert_same(folder, tmp_path, rho)


def test_the_training_text_is_the_references(random_corpus: Path, tmp_path: Path) -> None:
    expected = reference(random_corpus, tmp_path / "reference.jsonl", 0.25, "mm-prm")
    mprm.select(random_corpus, rho=0.25, ties="file-order", to="mm-prm").write(str(tmp_path / "ours.jsonl"))
    ours = (tmp_path / "ours.jsonl").read_bytes()
    assert [json.loads(line) for line in ours.splitlines()] == [json.loads(line) for line in expected.splitlines()]
