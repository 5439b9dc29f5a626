"""The cells of a corpus: few, exact, and enough to select by."""

import base64
import random
import zlib
from pathlib import Path

import numpy as np
import pytest

import mprm
from mprm.data.corpus import open_corpus
from mprm.data.engine import InlineEngine
from mprm.report import corpus_view as label_cells
from mprm.report.corpus_view import SourceCells, cells_of, packed_cells, why_not_live
from mprm.selection.scan import LabelCounts, count_corpus
from mprm.selection.strategies import SelectConfig
from tests.conftest import random_scores, raw_record, write_jsonl


def counted(path: Path, *, tau: float = 0.0, on_bad: object = None) -> LabelCounts:
    return count_corpus(open_corpus(path), InlineEngine(), tau=tau, on_bad=on_bad)  # type: ignore[arg-type]


def all_cells(counts: LabelCounts, seed: int = 0) -> list[SourceCells]:
    return [cells_of(counts, number, seed=seed) for number in range(len(counts.sources))]


def test_rollouts_of_equal_counts_share_a_cell(corpus) -> None:
    # steps, positive, sum: (2, 1, 1) three times in whatever order, (2, 2, 2), (1, 0, 0)
    folder = corpus(a=[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0], [1.0, 0.0]])
    (cells,) = all_cells(counted(folder))
    found = {
        (int(row["n_steps"]), int(row["n_pos"]), float(row["sum_pos"])): int(n)
        for row, n in zip(cells.rows, cells.n_rollouts, strict=True)
    }
    assert found == {(2, 1, 1.0): 3, (2, 2, 2.0): 1, (1, 0, 0.0): 1}
    assert sorted(cells.numbers.tolist()) == [0, 1, 2, 3, 4]
    assert cells.n_rollouts[cells.order].tolist() == [{0: 3, 1: 3, 4: 3}.get(n, 1) for n in cells.numbers.tolist()]


def test_sums_that_tau_tells_apart_are_apart(corpus) -> None:
    # above tau = 0.5 both have one positive step of 1.0; their mean scores differ
    (cells,) = all_cells(counted(corpus(a=[[1.0, 0.5], [1.0, 0.25]]), tau=0.5))
    assert len(cells.rows) == 2


@pytest.mark.parametrize("n_mc", [16, 12])
@pytest.mark.parametrize("strategy", ["bis", "random", "low-mc", "mixed", "reliable"])
def test_cells_keep_what_select_keeps(strategy, n_mc: int, corpus) -> None:
    rng = random.Random(n_mc)
    folder = corpus(n_mc, **{name: [random_scores(rng, n_mc) for _ in range(n)] for name, n in (("a", 90), ("b", 7))})
    counts = counted(folder)
    for alpha, rho, seed in ((0.05, 0.1, 0), (0.0, 0.33, 3), (0.25, 1.0, 1)):
        subset = mprm.select(folder, strategy=strategy, rho=rho, alpha=alpha, seed=seed).subsets[0]
        for cells in all_cells(counts, seed):
            n_keep = SelectConfig().n_keep(rho, cells.name, len(cells.order))
            kept = subset.kept.between(0, len(counts.rows))[cells.numbers]
            expected = np.bincount(cells.order[kept], minlength=len(cells.rows))
            assert cells.n_kept(strategy, alpha=alpha, n_keep=n_keep).tolist() == expected.tolist()


def test_bad_records_take_a_place_in_the_random_order_as_in_select(tmp_path: Path) -> None:
    records = [b"no json", *(raw_record([1.0, 0.0], number=n) for n in range(9)), b"neither"]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    counts = counted(path, on_bad=lambda _: None)
    (cells,) = all_cells(counts)
    kept = mprm.select(path, strategy="random", rho=0.4, skip_bad=True).subsets[0].kept.between(0, len(counts.rows))
    assert sorted(cells.numbers[:3].tolist()) == np.flatnonzero(kept).tolist()  # int(9 * 0.4) = 3


def test_packed_columns_unpack_to_the_same_numbers(random_corpus: Path) -> None:
    cells = all_cells(counted(random_corpus))
    packed = packed_cells(cells)
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["columns"]["sum_pos"])), np.uint8)
    sums = np.ascontiguousarray(planes.reshape(8, -1).T).view("<f8").reshape(-1)
    assert sums.tolist() == [float(value) for one in cells for value in one.rows["sum_pos"]]
    assert packed["n_cells"] == [len(one.rows) for one in cells]


def test_a_corpus_too_large_for_an_order_has_none(random_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = all_cells(counted(random_corpus))
    assert packed_cells(cells)["order"] is not None
    monkeypatch.setattr(label_cells, "MOST_ORDERED", 137)  # it has 97 + 1 + 40 rollouts
    assert packed_cells(cells)["order"] is None


def test_too_many_cells_are_refused_with_a_word(random_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = all_cells(counted(random_corpus))
    assert why_not_live(cells) is None
    monkeypatch.setattr(label_cells, "MOST_CELLS", 3)
    assert "nothing can be moved" in str(why_not_live(cells))
