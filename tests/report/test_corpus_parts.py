"""Histograms, step scores, case studies and levels of a corpus."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

import mprm
from mprm.data.corpus import open_corpus
from mprm.data.engine import InlineEngine
from mprm.report.corpus_view import (
    N_BINS,
    Case,
    cells_of,
    choose_cases,
    histograms,
    level_of,
    read_cases,
    step_score_counts,
)
from mprm.selection.scan import count_corpus
from tests.conftest import write_jsonl


def counted(path: Path):
    return count_corpus(open_corpus(path), InlineEngine())


def test_histograms_count_every_rollout_once_and_put_it_in_its_bin(corpus) -> None:
    # alpha 0.05, 30 bins up to 0.30: [1, 0] has 0.25 + 0.05 = 0.30, the last bin; [1] has 0.05, bin 5;
    # [0.5, 0] has 0.30 * 0.5 = 0.15, bin 15; R is 1, 1 and 0.5: bins 29, 29, 15; mixture 0.25, 0, 0.25: bins 29, 0, 29
    counts = counted(corpus(a=[[1.0, 0.0], [1.0]], b=[[0.5, 0.0]]))
    cells = [cells_of(counts, number, seed=0) for number in range(2)]
    kept = [one.n_kept("bis", alpha=0.05, n_keep=1) for one in cells]
    found = {(h.quantity, h.source): h for h in histograms(cells, kept, alpha=0.05)}
    assert {b: n for b, n in enumerate(found["bis", None].n_all) if n} == {5: 1, 15: 1, 29: 1}
    assert {b: n for b, n in enumerate(found["bis", None].n_kept) if n} == {15: 1, 29: 1}
    assert {b: n for b, n in enumerate(found["R", None].n_all) if n} == {15: 1, 29: 2}
    assert {b: n for b, n in enumerate(found["mixture", "a"].n_all) if n} == {0: 1, 29: 1}
    assert found["bis", "a"].coverage[29] == 1.0
    assert found["bis", "a"].coverage[5] == 0.0
    assert found["bis", "a"].coverage[0] is None
    assert all(len(h.n_all) == N_BINS for h in found.values())


def test_step_scores_are_counted_by_sixteenths(corpus) -> None:
    # 0 stands alone; 1/16 ends bin 1; 0.1 lies in (1/16, 2/16]; 1 ends bin 16
    counts = counted(corpus(a=[[0.0, 0.0625, 1.0]], b=[[0.125, 1.0], [1.0]]))
    found = step_score_counts(counts, InlineEngine())
    assert {b: n for b, n in enumerate(found[0]) if n} == {0: 1, 1: 1, 16: 1}
    assert {b: n for b, n in enumerate(found[1]) if n} == {2: 1, 16: 2}


@pytest.mark.parametrize("third", range(13))
def test_a_twelfth_lies_in_the_sixteenth_that_ends_at_or_above_it(third: int, corpus) -> None:
    found = step_score_counts(counted(corpus(12, a=[[third / 12]])), InlineEngine())
    assert found[0].tolist().index(1) == -(-16 * third // 12)  # the ceiling of 16 * k / 12


def test_step_scores_of_other_formats_are_counted_too(tmp_path: Path) -> None:
    record = {"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]}
    path = write_jsonl(tmp_path / "a.jsonl", [record])
    found = step_score_counts(counted(path), InlineEngine())
    assert (found[0][0], found[0][16]) == (1, 1)


ROLLOUTS = [[1.0], [1.0, 0.0], [0.0625, 0.0, 0.0], [0.5, 0.0], [0.0]]
"""BIS at 0.05: 0.05, 0.30, (2/9 + 0.05) / 16 = 0.017, 0.15, 0.05."""


def cases(folder: Path, n_keep: int, n_each: int = 1) -> list[Case]:
    counts = counted(folder)
    chosen = choose_cases(cells_of(counts, 0, seed=0), alpha=0.05, n_keep=n_keep, n_each=n_each)
    return read_cases(counts, chosen)


def test_cases_are_the_best_those_at_the_cut_the_worst_and_the_least_reliable(corpus) -> None:
    found = cases(corpus(a=ROLLOUTS), n_keep=2)
    assert [(case.kinds, case.line, case.place, case.is_kept) for case in found][:2] == [
        (("top",), 2, 1, True),
        (("last kept",), 4, 2, True),
    ]
    assert found[2].kinds == ("first left out",)
    assert found[2].line in (1, 5)  # tied at alpha
    # the worst has the lowest R as well, 1/16, and is shown once
    assert (found[3].kinds, found[3].line, found[3].place) == (("bottom", "pseudo-positive"), 3, 5)
    assert len(found) == 4
    assert [case.rollout.scores for case in found][:2] == [(1.0, 0.0), (0.5, 0.0)]


def test_a_source_of_one_rollout_has_one_case(corpus) -> None:
    (case,) = cases(corpus(a=[[1.0]]), n_keep=1, n_each=3)
    assert (case.kinds, case.is_kept) == (("top", "last kept", "bottom", "pseudo-positive"), True)


def test_no_cases_can_be_asked_for(corpus) -> None:
    assert cases(corpus(a=ROLLOUTS), n_keep=2, n_each=0) == []


def test_cases_are_read_from_packed_files_too(corpus, tmp_path: Path) -> None:
    folder = corpus(a=ROLLOUTS)
    plain = [case.rollout for case in cases(folder, n_keep=2)]
    with (folder / "a.jsonl").open("rb") as read, gzip.open(folder / "a.jsonl.gz", "wb") as out:
        shutil.copyfileobj(read, out)
    (folder / "a.jsonl").unlink()
    assert [case.rollout for case in cases(folder, n_keep=2)] == plain


def test_the_paper_s_sources_are_told_apart_as_in_its_appendix() -> None:
    high = {"ScienceQA": 0.9723, "NLVR2": 0.9672, "DVQA": 0.9453}
    medium = {"FigureQA": 0.7615, "VQAv2": 0.8253}
    low = {"GeoQA+ (Open)": 0.5720, "GeomVerse": 0.6819}
    assert {level_of(mean) for mean in high.values()} == {"high"}
    assert {level_of(mean) for mean in medium.values()} == {"medium"}
    assert {level_of(mean) for mean in low.values()} == {"low"}


def test_the_bis_on_a_card_is_the_score(corpus) -> None:
    from mprm.data.types import Rollout, Step
    from mprm.report.page import bis_markup

    scores = [0.875, 0.875, 0.9375, 0.875, 0, 0, 0, 0, 0, 0]  # the paper's first case study
    rollout = Rollout(question="q", steps=tuple(Step(text="s", score=score) for score in scores))
    words = bis_markup(rollout, alpha=0.05, tau=0.0)
    assert "4 / 10 = 0.4" in words
    assert "(0.875 + 0.875 + 0.9375 + 0.875) / 4 = 0.890625" in words
    assert f"(0.24 + 0.05) × 0.890625 = {mprm.bis(np.array(scores), alpha=0.05):.6g}" in words
    none = Rollout(question="q", steps=(Step(text="s", score=0.0),))
    assert "1, as no step is positive" in bis_markup(none, alpha=0.05, tau=0.0)
