"""Every strategy against its ten-line definition, on corpora full of ties."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mprm
from mprm.config import StrategyName
from mprm.data import records
from mprm.data.corpus import open_corpus
from mprm.data.engine import InlineEngine, ProcessEngine
from mprm.selection.strategies import STRATEGIES, best, keep_top
from tests import oracle
from tests.conftest import count_corpus, raw_record, write_jsonl

n_mc = st.sampled_from([16, 12, 8, 5])
rollouts = n_mc.flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, n).map(lambda k: k / n), min_size=1, max_size=6), min_size=1, max_size=30
    )
)
sources = st.dictionaries(st.sampled_from(["ai2d", "geos", "vqav2", "a b"]), rollouts, min_size=1, max_size=3)
quiet = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(folder: Path, rollouts: dict[str, list[list[float]]]) -> Path:
    for old in folder.glob("*.jsonl"):
        old.unlink()
    for source, scores in rollouts.items():
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
    kept, lines = selection.subsets[number].kept, {}
    for part in selection.counts.parts:
        mask = kept[part.first_row : part.first_row + part.n_rows]
        lines.setdefault(part.chunk.source, []).extend((np.flatnonzero(mask) + part.first_line - 1).tolist())
    return lines


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ties", ["hash", "file-order"])
@quiet
@given(
    stratify=st.sampled_from([None, "length"]),
    rollouts=sources,
    rho=st.floats(0.01, 1),
    alpha=st.sampled_from([0.0, 0.05, 0.2]),
    tau=st.sampled_from([0.0, 1 / 16, 0.5]),
    seed=st.integers(0, 99),
)
def test_every_strategy_keeps_what_its_definition_says(
    tmp_path: Path, strategy, ties, stratify, rollouts, rho, alpha, tau, seed
) -> None:
    folder = written(tmp_path, rollouts)
    options = {"strategy": strategy, "rho": rho, "ties": ties, "stratify": stratify}
    selection = mprm.select(folder, alpha=alpha, tau=tau, seed=seed, **options)
    for source, lines in kept_lines(selection).items():
        scores = rollouts[source]
        k = max(1, int(len(scores) * rho))
        assert len(lines) == k
        how = {"by_file": ties == "file-order", "by_length": stratify is not None}
        expected = oracle.chosen(strategy, source, scores, k, alpha=alpha, tau=tau, seed=seed, **how)
        assert lines == expected


@quiet
@given(rollouts=sources, rho=st.floats(0.01, 1), seed=st.integers(0, 9))
def test_small_chunks_change_nothing(tmp_path: Path, rollouts, rho, seed) -> None:
    folder = written(tmp_path, rollouts)
    whole = count_corpus(open_corpus(folder), InlineEngine())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "CHUNK_BYTES", 300)
        cut = count_corpus(open_corpus(folder), InlineEngine())
    assert whole.rows.tobytes() == cut.rows.tobytes()

    def n_keep(_source, n: int) -> int:
        return max(1, int(n * rho))

    for pool in (False, True):
        expected = keep_top(whole, "bis", n_keep, alpha=0.05, seed=seed, pool=pool)
        kept = keep_top(cut, "bis", n_keep, alpha=0.05, seed=seed, pool=pool)
        assert kept.mask.tolist() == expected.mask.tolist()
        assert kept.n_by_ties == expected.n_by_ties


@given(
    st.lists(st.tuples(st.sampled_from([-0.0, 0.0, 0.1, 0.25, 1.0]), st.integers(0, 2**64 - 1)), min_size=1),
    st.data(),
)
def test_the_best_are_those_of_a_sort(entries: list[tuple[float, int]], data) -> None:
    n = data.draw(st.integers(1, len(entries)))
    rank, order = np.array([r for r, _ in entries]), np.array([o for _, o in entries], np.uint64)
    chosen = best(rank, order, n)
    assert len(set(chosen.tolist())) == n
    expected = sorted(entries, key=lambda entry: (-entry[0], entry[1]))[:n]
    assert sorted(entries[i] for i in chosen) == sorted(expected)


def test_every_strategy_has_a_name_in_the_options() -> None:
    assert tuple(STRATEGIES) == get_args(StrategyName)


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
