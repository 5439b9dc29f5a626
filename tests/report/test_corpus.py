"""Distinct label counts, histograms, step scores, case studies and levels of a corpus."""

import base64
import gzip
import random
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import mprm
from mprm.data.corpus import open_corpus
from mprm.data.engine import InlineEngine
from mprm.report import corpus as report_corpus
from mprm.report.corpus import (
    N_BINS,
    Case,
    UniqueCounts,
    bins_of,
    choose_cases,
    histograms,
    mc_level,
    packed_counts,
    read_scores_and_cases,
    unique_counts,
)
from mprm.report.page import bis_computation
from mprm.selection.select import SelectConfig
from mprm.selection.stats import LabelCounts
from tests.conftest import count_corpus, random_scores, raw_record, write_jsonl


def counted(path: Path, *, tau: float = 0.0, on_bad: object = None) -> LabelCounts:
    return count_corpus(open_corpus(path), InlineEngine(), tau=tau, on_bad=on_bad)


def by_source(counts: LabelCounts, seed: int = 0) -> list[UniqueCounts]:
    return [unique_counts(counts, number, seed=seed) for number in range(len(counts.sources))]


def test_rollouts_of_equal_label_counts_are_counted_together(corpus) -> None:
    # steps, positive, leading, sum: (2, 1, 1, 1) twice, (2, 1, 0, 1), (2, 2, 2, 2), (1, 0, 0, 0)
    folder = corpus(a=[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0], [1.0, 0.0]])
    (source,) = by_source(counted(folder))
    n_rollouts = {
        (*(int(row[name]) for name in ("n_steps", "n_pos", "n_leading")), float(row["sum_pos"])): int(n)
        for row, n in zip(source.unique, source.n_rollouts, strict=True)
    }
    assert n_rollouts == {(2, 1, 1, 1.0): 2, (2, 1, 0, 1.0): 1, (2, 2, 2, 2.0): 1, (1, 0, 0, 0.0): 1}
    assert sorted(source.rows.tolist()) == [0, 1, 2, 3, 4]
    assert source.n_rollouts[source.inverse].tolist() == [{0: 2, 4: 2}.get(n, 1) for n in source.rows.tolist()]


def test_label_counts_whose_sums_differ_below_tau_are_distinct(corpus) -> None:
    # above tau = 0.5 both have one positive step of 1.0; their mean scores differ
    (source,) = by_source(counted(corpus(a=[[1.0, 0.5], [1.0, 0.25]]), tau=0.5))
    assert len(source.unique) == 2


@pytest.mark.parametrize("n_mc", [16, 12])
@pytest.mark.parametrize("strategy", ["bis", "random", "low-mc", "mixed", "reliable"])
def test_label_counts_keep_what_select_keeps(strategy, n_mc: int, corpus) -> None:
    rng = random.Random(n_mc)
    folder = corpus(n_mc, **{name: [random_scores(rng, n_mc) for _ in range(n)] for name, n in (("a", 90), ("b", 7))})
    counts = counted(folder)
    for alpha, rho, seed in ((0.05, 0.1, 0), (0.0, 0.33, 3), (0.25, 1.0, 1)):
        subset = mprm.select(folder, strategy=strategy, rho=rho, alpha=alpha, seed=seed).subsets[0]
        for source in by_source(counts, seed):
            n_keep = SelectConfig().n_keep(rho, source.source, len(source.inverse))
            kept = subset.kept[source.rows]
            expected = np.bincount(source.inverse[kept], minlength=len(source.unique))
            assert source.n_kept(strategy, alpha=alpha, n_keep=n_keep).tolist() == expected.tolist()


def test_bad_records_have_an_index_in_the_random_order_as_in_select(tmp_path: Path) -> None:
    records = [b"no json", *(raw_record([1.0, 0.0], number=n) for n in range(9)), b"neither"]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    counts = counted(path, on_bad=lambda _: None)
    (source,) = by_source(counts)
    kept = mprm.select(path, strategy="random", rho=0.4, skip_bad=True).subsets[0].kept
    assert sorted(source.rows[:3].tolist()) == np.flatnonzero(kept).tolist()  # int(9 * 0.4) = 3


def test_packed_columns_unpack_to_the_same_numbers(random_corpus: Path) -> None:
    sources = by_source(counted(random_corpus))
    packed = packed_counts(sources)
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["columns"]["sum_pos"])), np.uint8)
    sums = np.ascontiguousarray(planes.reshape(8, -1).T).view("<f8").reshape(-1)
    assert sums.tolist() == [float(value) for source in sources for value in source.unique["sum_pos"]]
    assert packed["n_unique"] == [len(source.unique) for source in sources]


def test_a_corpus_too_large_for_an_order_has_none(random_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = by_source(counted(random_corpus))
    assert packed_counts(sources)["order"] is not None
    monkeypatch.setattr(report_corpus, "MAX_ORDERED", 137)  # it has 97 + 1 + 40 rollouts
    assert packed_counts(sources)["order"] is None


def test_too_many_distinct_label_counts_turn_the_live_part_off(
    random_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = by_source(counted(random_corpus))
    n_unique = sum(len(source.unique) for source in sources)
    monkeypatch.setattr(report_corpus, "MAX_UNIQUE", n_unique)
    assert packed_counts(sources) is not None
    monkeypatch.setattr(report_corpus, "MAX_UNIQUE", n_unique - 1)
    assert packed_counts(sources) is None


def test_histograms_count_every_rollout_once_and_put_it_in_its_bin(corpus) -> None:
    # alpha 0.05, 30 bins up to 0.30: [1, 0] has 0.25 + 0.05 = 0.30, the last bin; [1] has 0.05, bin 5;
    # [0.5, 0] has 0.30 * 0.5 = 0.15, bin 15; R is 1, 1 and 0.5: bins 29, 29, 15; mixture 0.25, 0, 0.25: bins 29, 0, 29
    sources = by_source(counted(corpus(a=[[1.0, 0.0], [1.0]], b=[[0.5, 0.0]])))
    kept = [source.n_kept("bis", alpha=0.05, n_keep=1) for source in sources]
    by_key = {(h.quantity, h.source): h for h in histograms(sources, kept, alpha=0.05)}
    assert {b: n for b, n in enumerate(by_key["bis", None].n_all) if n} == {5: 1, 15: 1, 29: 1}
    assert {b: n for b, n in enumerate(by_key["bis", None].n_kept) if n} == {15: 1, 29: 1}
    assert {b: n for b, n in enumerate(by_key["R", None].n_all) if n} == {15: 1, 29: 2}
    assert {b: n for b, n in enumerate(by_key["mixture", "a"].n_all) if n} == {0: 1, 29: 1}
    assert (by_key["bis", "a"].n_kept[29], by_key["bis", "a"].n_all[29]) == (1, 1)
    assert (by_key["bis", "a"].n_kept[5], by_key["bis", "a"].n_all[5]) == (0, 1)
    assert all(len(h.n_all) == N_BINS for (quantity, _), h in by_key.items() if quantity in ("bis", "R", "mixture"))


def first_errors(counts: LabelCounts) -> list[int]:
    found = {}
    for source in by_source(counts):
        found |= dict(zip(source.rows.tolist(), source.first_error[source.inverse].tolist(), strict=True))
    return [found[row] for row in sorted(found)]


def test_the_first_error_is_the_first_step_that_is_not_above_tau(corpus) -> None:
    folder = corpus(a=[[1.0, 0.5, 0.0, 1.0, 0.0], [0.0], [1.0, 1.0], [0.5, 0.0]], b=[[1.0, 0.0]])
    assert first_errors(counted(folder)) == [3, 1, 0, 2, 2]
    assert first_errors(counted(folder, tau=0.5)) == [2, 1, 0, 1, 2]


def test_first_errors_of_lines_with_blank_and_bad_ones_between(tmp_path: Path) -> None:
    lines = [raw_record([1.0, 0.0]), b"", raw_record([2.0]), raw_record([0.0]), raw_record([1.0])]
    counts = counted(write_jsonl(tmp_path / "a.jsonl", lines), on_bad=lambda _bad: None)
    assert first_errors(counts) == [2, 1, 0]
    n_steps, _ = read_scores_and_cases(counts, InlineEngine(), [])
    assert n_steps[0].tolist() == [2, *[0] * 15, 2]


def test_steps_and_first_errors_are_counted_in_bins_of_whole_steps(corpus) -> None:
    # one (2 steps, first error 2), two (3 steps, first error 1), one (1 step, no error); the two tied at the top of BIS
    # by [1, 0] = 0.25 + 0.05 and [0, 1, 1] = 2/9 + 0.05: with one to keep, [1, 0] is kept
    counts = counted(corpus(a=[[1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [1.0]]))
    sources = by_source(counts)
    kept = [source.n_kept("bis", alpha=0.05, n_keep=1) for source in sources]
    by_key = {(h.quantity, h.source): h for h in histograms(sources, kept, alpha=0.05)}
    steps, first = by_key["n_steps", None], by_key["first_error", "a"]
    assert (steps.start, steps.end, steps.n_all, steps.n_kept) == (0.5, 3.5, (1, 1, 2), (0, 1, 0))
    assert (first.start, first.end, first.n_all, first.n_kept) == (-0.5, 3.5, (1, 2, 1, 0), (0, 0, 1, 0))


def test_the_few_longest_rollouts_share_the_last_bin_of_steps(corpus) -> None:
    # the 99th percentile of 100 rollouts of 40 steps and one of 300 is 40: bins of two steps, and 300 is in the last
    folder = corpus(a=[[1.0] * 39 + [0.0]] * 100 + [[1.0] * 299 + [0.0]])
    counts = counted(folder)
    sources = by_source(counts)
    bins = bins_of(sources, alpha=0.05)
    assert (bins["n_steps"], bins["first_error"]) == ((0.5, 40.5, 20), (-1.5, 40.5, 21))
    by_quantity = {
        h.quantity: h for h in histograms(sources, [s.n_rollouts for s in sources], alpha=0.05) if h.source
    }
    assert by_quantity["n_steps"].n_all == (*[0] * 19, 101)
    assert by_quantity["first_error"].n_all == (*[0] * 20, 101)


def test_labels_without_monte_carlo_are_binary_and_have_no_level(corpus, tmp_path: Path) -> None:
    labels = [[True, False], [True, True], [False]]
    records = [{"prompt": "1+1?", "completions": ["2"] * len(ls), "labels": ls} for ls in labels]
    (people,) = by_source(counted(write_jsonl(tmp_path / "people.jsonl", records)))
    assert people.is_binary
    assert not any(
        "pseudo" in kind for case in choose_cases(people, alpha=0.05, n_keep=1, n_each=1) for kind in case.kinds
    )
    # one continuation a step gives 0 and 1 too, but says that it is one
    (sampled,) = by_source(counted(corpus(1, a=[[1.0, 0.0]])))
    assert not sampled.is_binary
    soft = {"prompt": "1+1?", "completions": ["2", "3"], "labels": [0.5, 0]}
    (scored,) = by_source(counted(write_jsonl(tmp_path / "soft.jsonl", [*records, soft])))
    assert not scored.is_binary
    assert mc_level(0.5, is_binary=True) == "binary"


def test_step_scores_are_counted_by_sixteenths(corpus) -> None:
    # 0 stands alone; 1/16 ends bin 1; 0.1 lies in (1/16, 2/16]; 1 ends bin 16
    counts = counted(corpus(a=[[0.0, 0.0625, 1.0]], b=[[0.125, 1.0], [1.0]]))
    n_steps, _ = read_scores_and_cases(counts, InlineEngine(), [])
    assert {b: n for b, n in enumerate(n_steps[0]) if n} == {0: 1, 1: 1, 16: 1}
    assert {b: n for b, n in enumerate(n_steps[1]) if n} == {2: 1, 16: 2}


@pytest.mark.parametrize("k", range(13))
def test_a_twelfth_lies_in_the_sixteenth_that_ends_at_or_above_it(k: int, corpus) -> None:
    n_steps, _ = read_scores_and_cases(counted(corpus(12, a=[[k / 12]])), InlineEngine(), [])
    assert n_steps[0].tolist().index(1) == -(-16 * k // 12)  # the ceiling of 16 * k / 12


def test_step_scores_of_other_formats_are_counted_too(tmp_path: Path) -> None:
    record = {"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]}
    path = write_jsonl(tmp_path / "a.jsonl", [record])
    n_steps, _ = read_scores_and_cases(counted(path), InlineEngine(), [])
    assert (n_steps[0][0], n_steps[0][16]) == (1, 1)


ROLLOUTS = [[1.0], [1.0, 0.0], [0.0625, 0.0, 0.0], [0.5, 0.0], [0.0]]
"""BIS at 0.05: 0.05, 0.30, (2/9 + 0.05) / 16 = 0.017, 0.15, 0.05."""


def cases(folder: Path, n_keep: int, n_each: int = 1) -> list[Case]:
    counts = counted(folder)
    chosen = choose_cases(unique_counts(counts, 0, seed=0), alpha=0.05, n_keep=n_keep, n_each=n_each)
    return list(read_scores_and_cases(counts, InlineEngine(), chosen)[1])


def test_cases_are_the_best_those_at_the_cut_the_worst_and_the_least_reliable(corpus) -> None:
    read = cases(corpus(a=ROLLOUTS), n_keep=2)
    assert [(case.kinds, case.line, case.rank, case.is_kept) for case in read][:2] == [
        (("Highest BIS",), 2, 1, True),
        (("Last kept",), 4, 2, True),
    ]
    assert read[2].kinds == ("First left out",)
    assert read[2].line in (1, 5)  # tied at alpha
    # the worst has the lowest R as well, 1/16, and is shown once
    assert (read[3].kinds, read[3].line, read[3].rank) == (("Lowest BIS", "Likely pseudo-positives"), 3, 5)
    assert len(read) == 4
    assert [case.rollout.scores for case in read][:2] == [(1.0, 0.0), (0.5, 0.0)]


def test_a_source_of_one_rollout_has_one_case(corpus) -> None:
    (case,) = cases(corpus(a=[[1.0]]), n_keep=1, n_each=3)
    assert (case.kinds, case.is_kept) == (("Highest BIS", "Last kept", "Lowest BIS", "Likely pseudo-positives"), True)


def test_there_may_be_no_cases(corpus) -> None:
    assert cases(corpus(a=ROLLOUTS), n_keep=2, n_each=0) == []


def test_cases_are_read_from_compressed_files_too(corpus) -> None:
    folder = corpus(a=ROLLOUTS)
    plain = [case.rollout for case in cases(folder, n_keep=2)]
    with (folder / "a.jsonl").open("rb") as read, gzip.open(folder / "a.jsonl.gz", "wb") as out:
        shutil.copyfileobj(read, out)
    (folder / "a.jsonl").unlink()
    assert [case.rollout for case in cases(folder, n_keep=2)] == plain


def test_the_paper_s_sources_have_the_levels_of_its_appendix() -> None:
    high = {"ScienceQA": 0.9723, "NLVR2": 0.9672, "DVQA": 0.9453}
    medium = {"FigureQA": 0.7615, "VQAv2": 0.8253}
    low = {"GeoQA+ (Open)": 0.5720, "GeomVerse": 0.6819}
    assert {mc_level(mean) for mean in high.values()} == {"high"}
    assert {mc_level(mean) for mean in medium.values()} == {"medium"}
    assert {mc_level(mean) for mean in low.values()} == {"low"}


def test_the_computation_of_a_case_s_bis_ends_in_its_bis() -> None:
    scores = [0.875, 0.875, 0.9375, 0.875, 0, 0, 0, 0, 0, 0]  # the paper's first case study
    assert bis_computation(scores, alpha=0.05, tau=0.0) == {
        "p_pos": "4 / 10 = 0.4",
        "p_pos (1 − p_pos)": "0.24",
        "R": "(0.875 + 0.875 + 0.9375 + 0.875) / 4 = 0.890625",
        "BIS": f"(0.24 + 0.05) × 0.890625 = {mprm.bis(scores, alpha=0.05):.6g}",
    }
    assert bis_computation([0.0], alpha=0.05, tau=0.0)["R"] == "1, as no step is positive"
