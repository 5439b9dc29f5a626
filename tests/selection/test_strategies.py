"""Every strategy against its ten-line definition, on corpora full of ties."""

import json
import math
import sys
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mprm
from mprm.cli import run
from mprm.config import OTHER_STRATEGIES, PAPER_STRATEGIES, strategy_names
from mprm.data import records
from mprm.data.corpus import open_corpus
from mprm.data.engine import InlineEngine, ProcessEngine
from mprm.errors import ConfigError, DataError, InputNotFoundError
from mprm.selection.select import SUMS_ALONE
from mprm.selection.strategies import STRATEGIES, Rollouts, best, keep_top
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


@pytest.mark.parametrize("strategy", PAPER_STRATEGIES)
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
    assert tuple(STRATEGIES) == (*PAPER_STRATEGIES, *OTHER_STRATEGIES)
    assert {name for name, entry in STRATEGIES.items() if not entry.needs_details} == {*SUMS_ALONE}


# Strategies that look at single steps, at problems or at a model's scores: each against its definition in plain Python.

N_MC, MODEL = 8, np.random.default_rng(0).integers(0, 11, 10_000) / 10
counts_of_problems = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, N_MC), min_size=1, max_size=5)), min_size=1, max_size=24
)


class Plain:
    """The same rollouts as lists: the problem of each, its scores, a model's scores, and its place in the order."""

    def __init__(self, rollouts: list[tuple[int, list[int]]], seed: int) -> None:
        self.problems = [problem for problem, _ in rollouts]
        self.scores = [[k / N_MC for k in ks] for _, ks in rollouts]
        starts = np.cumsum([0, *map(len, self.scores)])
        self.model = [MODEL[start:][: len(row)].tolist() for start, row in zip(starts, self.scores, strict=False)]
        self.order = oracle.random_order(seed, "ai2d", np.arange(len(rollouts), dtype=np.uint64)).tolist()

    def accuracy(self, i: int) -> float:
        first = [
            row[0] for row, problem in zip(self.scores, self.problems, strict=True) if problem == self.problems[i]
        ]
        return sum(first) / len(first)

    def rank(self, strategy: str, i: int, *, alpha: float, tau: float) -> float:
        scores, model = self.scores[i], self.model[i]
        match strategy:
            case "bis-adaptive":
                n_steps, n_errors = sum(map(len, self.scores)), sum(s <= tau for row in self.scores for s in row)
                return oracle.bis(scores, 0.5 if 10 * n_errors > n_steps else alpha, tau)
            case "bis-sampled":
                bis = oracle.bis(scores, alpha, tau)
                u = (self.order[i] + 0.5) / 2**64
                return math.log(u) / bis if bis else -math.inf
            case "drop":
                return max([0.0, *(a - b for a, b in pairwise(scores))])
            case "difficulty":
                return -abs(self.accuracy(i) - 0.5)
            case "scan":
                if self.accuracy(i) < 0.75:
                    return -math.inf
                alike = [j for j, row in enumerate(self.scores) if (row[-1] > tau) == (scores[-1] > tau)]
                return -sum(self.accuracy(j) >= 0.75 and self.order[j] < self.order[i] for j in alike)
            case "agreement":  # all ways of taking half of the continuations

                def agrees(k: int) -> float:
                    h = N_MC // 2
                    halves = [*combinations([1] * k + [0] * (N_MC - k), h)]
                    return sum((sum(half) / h > tau) == ((k - sum(half)) / h > tau) for half in halves) / len(halves)

                return sum(agrees(round(score * N_MC)) for score in scores) / len(scores)
            case "disagreement":
                return sum(abs(a - b) for a, b in zip(scores, model, strict=True)) / len(scores)
            case "uncertainty":
                return sum(s * (1 - s) for s in model) / len(scores)
            case "bis-filtered":
                kept = [r if s >= 0.5 else 0.0 for r, s in zip(scores, model, strict=True)]
                return oracle.bis(kept, alpha, tau)
        raise AssertionError(strategy)


@pytest.mark.parametrize("strategy", OTHER_STRATEGIES)
@quiet
@given(
    rollouts=counts_of_problems,
    rho=st.floats(0.01, 1),
    alpha=st.sampled_from([0.0, 0.05]),
    tau=st.sampled_from([0.0, 0.25]),
    seed=st.integers(0, 9),
)
def test_every_other_strategy_keeps_what_its_definition_says(
    tmp_path: Path, strategy, rollouts, rho, alpha, tau, seed
) -> None:
    plain = Plain(rollouts, seed)
    records = [
        raw_record(scores, n_mc=N_MC, number=problem)
        for problem, scores in zip(plain.problems, plain.scores, strict=True)
    ]
    folder = tmp_path / "rollouts"
    write_jsonl(folder / "ai2d.jsonl", records)
    columns = write_jsonl(tmp_path / "columns.jsonl", [{"prm_scores": row} for row in plain.model])
    options = {"rho": rho, "alpha": alpha, "tau": tau, "seed": seed}
    if strategy in ("disagreement", "uncertainty", "bis-filtered"):
        options["columns"] = columns
    selection = mprm.select(folder, strategy=strategy, **options)
    rank = [plain.rank(strategy, i, alpha=alpha, tau=tau) for i in range(len(rollouts))]
    by_rank = sorted(range(len(rollouts)), key=lambda i: (-round(rank[i], 9), plain.order[i]))
    n = max(1, int(len(rollouts) * rho))
    kept = selection.indices.tolist()
    assert len(kept) == n
    # ranks that differ by rounding alone are equal here, and the fast code may see a difference
    cut = rank[by_rank[n - 1]]
    above = {i for i in by_rank if rank[i] > cut + 1e-9}
    assert above <= {*kept} <= {i for i in by_rank if rank[i] >= cut - 1e-9}
    if strategy in ("scan", "bis-sampled", "difficulty"):
        assert sorted(kept) == sorted(by_rank[:n])


def test_the_adaptive_smoothing_goes_by_the_error_steps_of_each_source(corpus) -> None:
    # one of ten steps is negative in the first source, and two in the second; all mixed rollouts have R = 0.5
    first, second = [[0.5, 0.0], [1.0] * 8], [[0.5, 0.0, 0.0], [1.0] * 7]
    folder = corpus(rare=first, frequent=second)
    kept = {
        name: {source: lines[0] for source, lines in kept_lines(mprm.select(folder, strategy=name, keep=1)).items()}
        for name in ("bis", "bis-adaptive")
    }
    # (1/4 + 0.05) / 2 = 0.15 and (2/9 + 0.05) / 2 = 0.136 against 0.05; (2/9 + 0.5) / 2 = 0.36 against 0.5
    assert kept == {"bis": {"rare": 0, "frequent": 0}, "bis-adaptive": {"rare": 0, "frequent": 1}}
    pooled = mprm.select(folder, strategy="bis-adaptive", keep=1, pool=True)  # three of twenty
    assert pooled.indices.tolist() != mprm.select(folder, strategy="bis", keep=1, pool=True).indices.tolist()


def test_agreement_takes_the_scores_of_a_second_annotator(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "a.jsonl", [_bare(scores, i) for i, scores in enumerate(([0.5, 0.0], [1.0, 0.5], [0.0, 0.0]))]
    )
    write_jsonl(
        tmp_path / "b.jsonl", [_bare(scores, i) for i, scores in enumerate(([0.0, 0.0], [0.5, 1.0], [0.5, 0.5]))]
    )
    second = str(tmp_path / "b.parquet")
    mprm.score(tmp_path / "b.jsonl", second, steps=True)
    # labels: + − against − −, + + against + +, − − against + +
    kept = mprm.select(tmp_path / "a.jsonl", strategy="agreement", columns=second, keep=2).indices.tolist()
    assert kept == [0, 1]
    with pytest.raises(ConfigError, match="agreement: 3 of 3 rollouts say of no step that it has two continuations"):
        mprm.select(tmp_path / "a.jsonl", strategy="agreement")
    mprm.score(tmp_path / "b.jsonl", second, force=True)
    with pytest.raises(ConfigError, match="agreement needs the column 'scores' of a second annotator"):
        mprm.select(tmp_path / "a.jsonl", strategy="agreement", columns=second)
    # many continuations take no longer; the step with one success of them agrees least
    many = [_bare([0.5], 0), _bare([1 / 16_000], 1), _bare([1.0], 2)]
    for record in many:
        step = record["steps_with_score"][0]
        step |= {"num_mc_total": 16_000, "num_mc_correct": round(step["score"] * 16_000)}
    kept = mprm.select(write_jsonl(tmp_path / "c.jsonl", many), strategy="agreement", keep=2).indices.tolist()
    assert kept == [0, 2]


def test_scan_keeps_as_many_right_as_wrong(tmp_path: Path) -> None:
    records = [raw_record([1.0, 1.0 if i % 5 else 0.0], number=i // 4) for i in range(100)]
    write_jsonl(tmp_path / "a.jsonl", records)
    selection = mprm.select(tmp_path / "a.jsonl", strategy="scan", rho=0.2)
    assert [selection.indices[i] % 5 == 0 for i in range(20)].count(True) == 10
    # 20 of 100 are wrong: of 60 all of them are kept
    assert sum(index % 5 == 0 for index in mprm.select(tmp_path / "a.jsonl", strategy="scan", rho=0.6).indices) == 20


# Strategies of others


def by_length(rollouts: Rollouts) -> np.ndarray:
    return rollouts["n_steps"]


def test_a_function_is_a_strategy(random_corpus: Path, tmp_path: Path) -> None:
    selection = mprm.select(random_corpus, strategy=[by_length, "bis"], rho=0.3)
    assert [subset.name for subset in selection.subsets] == ["by_length-0.3", "bis-0.3"]
    for part in selection.counts.parts:
        mask = selection.subsets[0].kept[part.first_row : part.first_row + part.n_rows]
        lengths = selection.counts.rows["n_steps"][part.first_row : part.first_row + part.n_rows]
        assert lengths[mask].min() >= lengths[~mask].max(initial=0)
    [first, _] = selection.write_all(str(tmp_path / "out"))
    assert first.paths == (str(tmp_path / "out" / "by_length-0.3.jsonl"),)
    assert json.loads(Path(first.manifest).read_text())["config"]["strategy"] == "by_length"


def test_a_function_sees_scores_problems_and_columns(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "a.jsonl", [raw_record(row, number=i // 2) for i, row in enumerate(([1.0, 0.5], [0.25], [0.0]))]
    )
    table = write_jsonl(
        tmp_path / "t.jsonl", [{"n": n, "x": n * 1.5, "y": [0.5] * n, "z": "text"} for n in (2, 1, 1)]
    )
    seen: list[Rollouts] = []
    mprm.select(tmp_path / "a.jsonl", strategy=lambda rollouts: seen.append(rollouts) or rollouts["x"], columns=table)
    [rollouts] = seen
    assert rollouts.scores.tolist() == [1.0, 0.5, 0.25, 0.0]
    assert rollouts.starts.tolist() == [0, 2, 3]
    assert rollouts.mean_of(rollouts.scores).tolist() == [0.75, 0.25, 0.0]
    assert rollouts.accuracy.tolist() == [0.625, 0.625, 0.0]
    assert (rollouts["x"].tolist(), rollouts["y"].tolist()) == ([3.0, 1.5, 1.5], [0.5] * 4)
    assert rollouts["n_mc"].tolist() == [16] * 3
    with pytest.raises(ConfigError, match="the table's column 'z' holds string; expected numbers"):
        rollouts["z"]
    with pytest.raises(ConfigError, match=r"there is no column 'w': .*--columns FILE adds those of a table"):
        rollouts["w"]
    with pytest.raises(ConfigError, match="the column 'x' has one number a rollout; expected a list"):
        rollouts.of_steps("x")


def test_counts_are_signed_and_nothing_that_a_function_sees_can_be_changed(corpus, tmp_path: Path) -> None:
    folder = corpus(ai2d=[[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    for rank, kept in (
        (lambda rollouts: -rollouts["n_pos"], 2),
        (lambda rollouts: rollouts["n_pos"] - 2, 0),
        (lambda rollouts: -abs(rollouts["n_pos"] - 1), 3),
    ):
        assert mprm.select(folder, strategy=rank, keep=1).indices.tolist() == [kept]

    def careless(rollouts: Rollouts) -> np.ndarray:
        rollouts["n_pos"].sort()
        rollouts.scores -= rollouts.scores.mean()
        return rollouts.scores

    def sorts_the_ties(rollouts: Rollouts) -> np.ndarray:
        rollouts.order.sort()
        return np.zeros(len(rollouts))

    for strategy in (careless, sorts_the_ties):
        with pytest.raises(ConfigError, match=f"strategy {strategy.__name__} failed: .*read-only"):
            mprm.select(folder, strategy=strategy)
    # a table that was made with another tau does not replace the corpus's own labels
    seen: list[Rollouts] = []
    table = str(tmp_path / "t.parquet")
    path = write_jsonl(tmp_path / "low.jsonl", [raw_record([0.25, 1.0])])
    mprm.score(path, table)
    mprm.select(path, strategy=lambda rollouts: seen.append(rollouts) or rollouts["n_pos"], tau=0.5, columns=table)
    assert (seen[0]["n_pos"].tolist(), seen[0]["p_pos"].tolist()) == ([1], [1.0])


def test_what_does_not_qualify_fills_up_and_is_told(tmp_path: Path) -> None:
    records = [raw_record([0.25 if i else 1.0, 0.0], number=i) for i in range(100)]
    selection = mprm.select(write_jsonl(tmp_path / "a.jsonl", records), strategy="scan", rho=0.6)
    assert any("59 of 60 kept rollouts do not qualify by this strategy" in w for w in selection.subsets[0].warnings)
    assert 0 in selection.indices
    other = mprm.select(tmp_path / "a.jsonl", strategy="scan", keep=1)
    assert not any("qualify" in warning for warning in other.subsets[0].warnings)


def test_steps_that_a_model_gave_no_score_are_left_out(tmp_path: Path) -> None:
    records = [raw_record(row, number=i) for i, row in enumerate(([1.0, 0.0], [1.0, 1.0], [0.5, 0.5]))]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    table = write_jsonl(
        tmp_path / "t.jsonl", [{"prm_scores": row} for row in ([0.5, None], [0.9, 0.9], [None, None])]
    )
    kept = {name: mprm.select(path, strategy=name, columns=table, keep=2).indices.tolist() for name in MODEL_BASED}
    assert kept["uncertainty"] == kept["disagreement"] == [0, 1]
    # as in BIS, 1/2 of 2 steps and 1 of 2: 0.3 R, 0.05 R and 0.05 R
    assert kept["bis-filtered"][0] == 0


MODEL_BASED = ("disagreement", "uncertainty", "bis-filtered")


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (
            lambda rollouts: rollouts["n_steps"][1:],
            r"strategy lambda gives an array of shape \(1,\); expected \(2,\)",
        ),
        (lambda rollouts: rollouts["n_steps"] * np.nan, "strategy lambda gives nan for 2 of 2 rollouts"),
        (lambda _: "high", "strategy lambda gives 'high'; expected a number for each rollout"),
        (lambda rollouts: [10**400] * len(rollouts), "expected a number for each rollout"),
        (lambda rollouts: rollouts["n_steps"] * 1j, "expected a number for each rollout"),
        (lambda _: 1 / 0, "strategy lambda failed: ZeroDivisionError: division by zero"),
        (lambda _: sys.exit(5), "strategy lambda failed: SystemExit: 5"),
    ],
)
def test_a_function_that_is_no_rank_is_refused(corpus, rank, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mprm.select(corpus(ai2d=[[1.0], [0.5]]), strategy=rank)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"x": 1}], "1 rows for 2 rollouts|has 1 rows, and the corpus 2 rollouts"),
        ([{"n": 2}, {"n": 9}], "is of other rollouts: row 1 has n 9, its rollout 1"),
        ([{"line": 1}, {"line": 3}], "is of other rollouts: row 1 has line 3, its rollout 2"),
        ([{"y": [1.0, 2.0]}, {"y": None}], "row 1 of 'y' has no list for 1 steps"),
        ([{"y": [1.0, 2.0]}, {"y": []}], "row 1 of 'y' has 0 numbers for 1 steps; expected one number a step"),
        ([{"prm_scores": [1.0, 0.0]}, {"prm_scores": [5.0]}], "row 1 of 'prm_scores' has 5; expected 0 to 1"),
        ([{"prm_scores": [1.0, -0.1]}, {"prm_scores": [0.5]}], "row 0 of 'prm_scores' has -0.1; expected 0 to 1"),
    ],
)
def test_columns_of_other_rollouts_are_refused(corpus, tmp_path: Path, rows: list, words: str) -> None:
    table = write_jsonl(tmp_path / "t.jsonl", rows)
    with pytest.raises(DataError, match=words):
        mprm.select(corpus(ai2d=[[1.0, 0.5], [0.5]]), strategy="drop", columns=table)


def test_files_that_are_no_tables_are_refused(corpus, tmp_path: Path) -> None:
    folder = corpus(ai2d=[[1.0]])
    (tmp_path / "t.parquet").write_text("no")
    for name, error in (("t.txt", ConfigError), ("none.csv", InputNotFoundError), ("t.parquet", DataError)):
        with pytest.raises(error, match=name):
            mprm.select(folder, strategy="drop", columns=str(tmp_path / name))
    with pytest.raises(
        ConfigError, match=r"there is no column .prm_scores.*mprm score --model DIR --out FILE writes it"
    ):
        mprm.select(folder, strategy="uncertainty")


def test_a_strategy_of_another_package_is_named_on_the_command_line(
    corpus, tmp_path: Path, monkeypatch, capsys
) -> None:
    package = tmp_path / "site"
    (package / "theirs-1.0.dist-info").mkdir(parents=True)
    (package / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "theirs-1.0.dist-info" / "entry_points.txt").write_text(
        "[mprm.strategies]\nshortest = theirs:shortest\nbroken = theirs:nothing\n"
    )
    (package / "theirs.py").write_text("def shortest(rollouts):\n    return -1.0 * rollouts['n_steps']\n")
    monkeypatch.syspath_prepend(package)
    strategy_names.cache_clear()
    try:
        folder, out = corpus(ai2d=[[1.0, 0.5], [0.5], [1.0, 1.0]]), str(tmp_path / "out.jsonl")
        assert run(["select", str(folder), "--strategy", "shortest", "--rho", "0.4", "--out", out]) == 0
        assert len(json.loads(Path(out).read_text())["steps_with_score"]) == 1
        assert "shortest" in strategy_names()
        assert run(["select", str(folder), "--strategy", "broken", "--dry-run"]) == 2
        assert "strategy 'broken' cannot be loaded from theirs:nothing" in capsys.readouterr().err
        assert run(["select", str(folder), "--strategy", "shortes", "--dry-run"]) == 2
        assert "--strategy 'shortes'; did you mean shortest?" in capsys.readouterr().err
    finally:
        strategy_names.cache_clear()


def test_interleaved_sources_are_pooled_in_their_own_order(tmp_path: Path) -> None:
    scores = [[1.0], [0.5, 0.0], [1.0], [1.0, 0.0], [0.25]]
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record(row, source=f"s{i % 2}") for i, row in enumerate(scores)])
    kept = mprm.select(path, format="vl-prm", strategy="bis", pool=True, rho=0.4).indices.tolist()
    assert kept == [1, 3]
    assert mprm.select(path, format="vl-prm", strategy="drop", pool=True, rho=0.2).indices.tolist() == [3]


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


@dataclass
class Unhashable:
    """A function that is an object."""

    weight: float = 1.0
    __name__ = "weighed"

    def __call__(self, rollouts: Rollouts) -> np.ndarray:
        return self.weight * rollouts["n_steps"]


def test_functions_are_told_apart_by_their_names(corpus) -> None:
    folder = corpus(ai2d=[[1.0], [0.5, 0.5]])
    assert mprm.select(folder, strategy=Unhashable(), keep=1).indices.tolist() == [1]
    with pytest.raises(ConfigError, match="named twice; give functions names of their own"):
        mprm.select(folder, strategy=[lambda r: r["n_pos"], lambda r: r["n_steps"]])

    def bis(rollouts: Rollouts) -> np.ndarray:
        return rollouts["n_pos"]

    with pytest.raises(ConfigError, match="a function is called like the strategy bis; give it another name"):
        mprm.select(folder, strategy=bis)


def test_a_table_is_an_input_and_its_hash_is_kept(corpus, tmp_path: Path) -> None:
    table, own = str(tmp_path / "t.jsonl"), str(tmp_path / "own.jsonl")
    mprm.score(corpus(ai2d=[[1.0], [0.5, 0.0]]), table, steps=True)
    folder = corpus(ai2d=[[1.0], [0.5, 0.5]])
    mprm.score(folder, own, steps=True)
    with pytest.raises(ConfigError, match="the table's scores are the corpus's own; expected a second annotator's"):
        mprm.select(folder, strategy="agreement", columns=own)
    selection = mprm.select(folder, strategy="agreement", columns=table, keep=1)
    with pytest.raises(ConfigError, match=r"t\.jsonl"):
        selection.write(table, force=True)
    written = selection.write(str(tmp_path / "kept.jsonl"))
    columns = json.loads(Path(written.manifest).read_text())["config"]["columns"]
    assert columns["path"] == table
    assert len(columns["xxh3_128"]) == 32
    doubled = tmp_path / "doubled.csv"
    doubled.write_text("x,x\n1,2\n3,4\n")
    with pytest.raises(DataError, match="has the column 'x' twice"):
        mprm.select(folder, strategy="agreement", columns=str(doubled))
    large = write_jsonl(tmp_path / "large.jsonl", [{"id": 2**60 + 1, "ok": True}, {"id": 1, "ok": False}])
    assert len(mprm.select(folder, strategy=lambda r: r["ok"] - r["id"] * 0, columns=str(large), keep=1)) == 1


def test_agreement_refuses_more_continuations_than_it_can_count(tmp_path: Path) -> None:
    record = _bare([0.5], 0)
    record["steps_with_score"][0] |= {"num_mc_total": 2**31 - 1, "num_mc_correct": 2**30}
    record["steps_with_score"][0]["score"] = 2**30 / (2**31 - 1)
    path = write_jsonl(tmp_path / "x.jsonl", [record])
    with pytest.raises(DataError, match=r"num_mc_total 2,147,483,647; expected at most 100,000"):
        mprm.select(path, strategy="agreement", rho=1.0)
