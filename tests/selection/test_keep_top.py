"""Every strategy against its ten-line definition, on corpora full of ties."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mprm
from mprm.data.corpus import open_corpus
from mprm.data.engine import InlineEngine, ProcessEngine
from mprm.selection import scan as label_counts
from mprm.selection import strategies as keep_top_module
from mprm.selection.scan import count_corpus
from mprm.selection.strategies import STRATEGIES, Ranking, keep_top
from tests import oracle
from tests.conftest import raw_record, write_jsonl

n_mc = st.sampled_from([16, 12, 8, 5])
rollouts = n_mc.flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, n).map(lambda k: k / n), min_size=1, max_size=6), min_size=1, max_size=30
    )
)
sources = st.dictionaries(st.sampled_from(["ai2d", "geos", "vqav2", "a b"]), rollouts, min_size=1, max_size=3)
quiet = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder: Path, found: dict[str, list[list[float]]]) -> Path:
    for old in folder.glob("*.jsonl"):
        old.unlink()
    for source, scores in found.items():
        write_jsonl(folder / f"{source}.jsonl", [_bare(s, i) for i, s in enumerate(scores)])
    return folder


def _bare(scores: list[float], number: int) -> dict:
    """A record without counts, so that any N will do."""
    record = raw_record(scores, number=number)
    for step in record["steps_with_score"]:
        del step["num_mc_correct"], step["num_mc_total"]
    return record


def kept_lines(selection: mprm.Selection, number: int = 0) -> dict[str, list[int]]:
    """Numbers of the kept rollouts in each source."""
    kept, found = selection.subsets[number].kept, {}
    for part in selection.counts.parts:
        mask = kept.between(part.first_row, part.first_row + part.n_rows)
        found.setdefault(part.chunk.source, []).extend((np.flatnonzero(mask) + part.first_line - 1).tolist())
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ties", ["hash", "file-order"])
@quiet
@given(
    found=sources,
    rho=st.floats(0.01, 1),
    alpha=st.sampled_from([0.0, 0.05, 0.2]),
    tau=st.sampled_from([0.0, 1 / 16, 0.5]),
    seed=st.integers(0, 99),
)
def test_every_strategy_keeps_what_its_definition_says(
    tmp_path: Path, strategy, ties, found, rho, alpha, tau, seed
) -> None:
    folder = written(tmp_path, found)
    selection = mprm.select(folder, strategy=strategy, rho=rho, alpha=alpha, tau=tau, seed=seed, ties=ties)
    for source, lines in kept_lines(selection).items():
        scores = found[source]
        k = max(1, int(len(scores) * rho))
        assert len(lines) == k
        expected = oracle.chosen(
            strategy, source, scores, k, alpha=alpha, tau=tau, seed=seed, by_file=ties == "file-order"
        )
        assert lines == expected


@quiet
@given(found=sources, rho=st.floats(0.01, 1), seed=st.integers(0, 9))
def test_small_blocks_and_chunks_and_processes_change_nothing(tmp_path: Path, found, rho, seed) -> None:
    folder = written(tmp_path, found)
    corpus = open_corpus(folder)
    whole = count_corpus(corpus, InlineEngine())
    pieces = [
        c for f in corpus.files for c in mprm.data.records.chunks_of(f, format_name="visualprm-raw", chunk_bytes=300)
    ]
    cut = count_corpus(type(corpus)(corpus.files, corpus.formats, tuple(pieces)), InlineEngine())
    assert bytes(whole.rows.tobytes()) == cut.rows.tobytes()
    ranking = Ranking(strategy="bis", alpha=0.05, seed=seed, ties="hash")

    def n_keep(_source, n: int) -> int:
        return max(1, int(n * rho))

    expected = keep_top(whole, ranking, n_keep).between(0, len(whole.rows)).tolist()
    pooled = keep_top(whole, ranking, n_keep, pool=True).between(0, len(whole.rows)).tolist()
    before = label_counts.BLOCK_ROWS
    try:
        label_counts.BLOCK_ROWS = keep_top_module.BLOCK_ROWS = 4
        assert keep_top(cut, ranking, n_keep).between(0, len(cut.rows)).tolist() == expected
        assert keep_top(cut, ranking, n_keep, pool=True).between(0, len(cut.rows)).tolist() == pooled
    finally:
        label_counts.BLOCK_ROWS = keep_top_module.BLOCK_ROWS = before


def test_processes_count_as_one_does(random_corpus: Path) -> None:
    corpus = open_corpus(random_corpus)
    assert (
        count_corpus(corpus, ProcessEngine(3)).rows.tobytes() == count_corpus(corpus, InlineEngine()).rows.tobytes()
    )


def test_the_order_of_the_files_changes_nothing(random_corpus: Path, tmp_path: Path) -> None:
    files = sorted(map(str, random_corpus.glob("*.jsonl")))
    for name, order in (("a", files), ("b", files[::-1]), ("c", files[1:] + files[:1])):
        mprm.select(order, rho=0.3).write(str(tmp_path / f"{name}.jsonl"))
    outputs = {(tmp_path / f"{name}.jsonl").read_bytes() for name in "abc"}
    assert len(outputs) == 1


def test_a_source_cut_into_shards_is_selected_from_as_one_file(random_corpus: Path, tmp_path: Path) -> None:
    lines = (random_corpus / "ai2d.jsonl").read_bytes().splitlines(keepends=True)
    shards = tmp_path / "shards"
    shards.mkdir()
    for number, start in enumerate(range(0, len(lines), 20)):
        (shards / f"ai2d-{number:05d}-of-00005.jsonl").write_bytes(b"".join(lines[start : start + 20]))
    whole = mprm.select(random_corpus / "ai2d.jsonl", rho=0.3).write(str(tmp_path / "whole.jsonl"))
    cut = mprm.select(shards, rho=0.3).write(str(tmp_path / "cut.jsonl"))
    assert Path(whole.paths[0]).read_bytes() == Path(cut.paths[0]).read_bytes()


def test_random_subsets_grow_into_each_other(random_corpus: Path) -> None:
    selection = mprm.select(random_corpus, strategy="random", rho=[0.1, 0.3, 0.8])
    small, middle, large = (kept_lines(selection, i) for i in range(3))
    for source in small:
        assert set(small[source]) <= set(middle[source]) <= set(large[source])


def test_seeds_give_different_random_subsets_of_even_spread(corpus) -> None:
    folder = corpus(ai2d=[[1.0]] * 400)
    chosen = [
        set(kept_lines(mprm.select(folder, strategy="random", rho=0.25, seed=seed))["ai2d"]) for seed in range(40)
    ]
    assert len({frozenset(c) for c in chosen}) == 40
    times = np.array([sum(i in c for c in chosen) for i in range(400)])
    # each rollout is kept Binomial(40, 1/4) times: mean 10, variance 7.5; over 400 the mean of squares has s.e. 0.53
    assert abs(times.var() - 7.5) < 2.5
