import json
import sys
from pathlib import Path

import numpy as np
import pytest

import mprm
from mprm.cli.main import run
from mprm.errors import ConfigError, DataError
from mprm.progress import silent
from mprm.selection import Rollouts
from tests.conftest import raw_record, write_jsonl
from tests.evaluation.scorers import LengthScorer


@pytest.fixture
def small(tmp_path: Path) -> Path:
    # a: [1, .5, 0] mixed; [1, 1] tied.  b: [0] tied, never sampled
    write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0, 0.5, 0.0]), raw_record([1.0, 1.0], number=1)])
    negative = raw_record([0.0])
    negative["steps_with_score"][0].update(num_mc_total=0, step="one two  three")
    write_jsonl(tmp_path / "b.jsonl", [negative])
    return tmp_path


def test_the_numbers_are_those_worked_out_by_hand(small: Path) -> None:
    statistics = mprm.stats(small)
    a, b, total = statistics.sources["a"], statistics.sources["b"], statistics.total
    assert (a.n_rollouts, a.n_steps, a.n_pos, a.n_mixed, a.n_tied, a.n_unsampled, a.n_mc) == (
        2,
        5,
        4,
        1,
        1,
        0,
        16,
    )
    assert a.mean_mc == 3.5 / 5
    assert a.mean_out_of_n == 16 * 3.5 / 5
    assert a.words_per_step == 4  # "Step 0 of 0."
    assert (b.n_words, b.n_unsampled, b.n_tied, b.mean_out_of_n) == (3, 1, 1, None)
    assert (total.n_rollouts, total.n_steps, total.steps_per_rollout) == (3, 6, 2)
    assert total.error_step_ratio == 2 / 6
    assert total.mixed_share == 1 / 3
    assert total.tied_share == 2 / 3


def test_tau_moves_the_labels(small: Path) -> None:
    assert mprm.stats(small, tau=0.5).sources["a"].n_pos == 3


def test_every_way_of_printing(small: Path, capsys) -> None:
    for form, sign in (
        ("table", "rollouts"),
        ("markdown", "| a | 2 | 5 | 2.50 | 4.0 | 20.00% | 0.7000 |"),
        ("latex", r"\begin{tabular}"),
    ):
        assert run(["stats", str(small), "--style", form]) == 0
        assert sign in capsys.readouterr().out
    assert run(["stats", str(small), "--json", "--by", "all"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["sources"] == {}
    assert printed["all"]["n_steps"] == 6


def test_left_out_records_are_said(small: Path, capsys) -> None:
    write_jsonl(small / "c.jsonl", [raw_record([3.0])])
    assert run(["stats", str(small)]) == 1
    capsys.readouterr()
    assert run(["stats", str(small), "--skip-bad"]) == 0
    assert "left out 1 bad record;" in capsys.readouterr().err


def test_a_source_named_all_keeps_its_row(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all.jsonl", [raw_record([1.0])])
    write_jsonl(tmp_path / "b.jsonl", [raw_record([1.0])])
    statistics = mprm.stats(tmp_path)
    assert (statistics.sources["all"].n_rollouts, statistics.total.n_rollouts) == (1, 2)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_scores_go_to_every_kind_of_table(small: Path, suffix: str) -> None:
    import pandas as pd

    out = small / f"scores{suffix}"
    assert mprm.score([small / "a.jsonl", small / "b.jsonl"], str(out)).n_rollouts == 3
    read = {
        ".parquet": pd.read_parquet,
        ".csv": pd.read_csv,
        ".jsonl": lambda p: pd.read_json(p, lines=True),
    }[suffix]
    table = read(out)
    assert list(table.columns) == [
        "source",
        "file",
        "line",
        "n",
        "n_pos",
        "p_pos",
        "mixture",
        "R",
        "mean_mc",
        "bis",
    ]
    assert table["source"].tolist() == ["a", "a", "b"]
    assert table["R"].tolist() == [0.75, 1.0, 1.0]
    assert table["bis"].tolist() == [pytest.approx((2 / 9 + 0.05) * 0.75), 0.05, 0.05]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_the_scores_of_the_steps_go_to_lists(small: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, model = small / f"scores{suffix}", LengthScorer(longest=2)
    monkeypatch.setattr(sys.modules["mprm.selection.score_table"], "CHAINS_AT_ONCE", 2)
    with (small / "a.jsonl").open("a") as lines:
        lines.write("\n{broken\n" + json.dumps(raw_record([0.25], number=7)) + "\n")
    files = [small / "a.jsonl", small / "b.jsonl"]
    summary = mprm.score(files, str(out), steps=True, model=model, skip_bad=True)
    expected = [[1.0, 0.5, 0.0], [1.0, 1.0], [0.25], [0.0]]
    table = summary.to_arrow()
    assert table["scores"].to_pylist() == expected
    given = [1 / 1.12] * 2  # "Step 0 of 0." has 12 characters
    assert table["prm_scores"].to_pylist()[0] == pytest.approx([*given, None])
    assert table["prm_scores"].to_pylist()[3] == pytest.approx([1 / 1.14])  # "one two  three"
    # the table is in the corpus's order: each value comes back to its rollout
    seen: list[Rollouts] = []

    def watched(rollouts: Rollouts) -> np.ndarray:
        seen.append(rollouts)
        return rollouts["n_steps"]

    mprm.select(files, strategy=watched, columns=str(out), skip_bad=True)
    assert np.concatenate([rollouts["scores"] for rollouts in seen]).tolist() == [s for row in expected for s in row]
    assert np.isnan(seen[0]["prm_scores"]).tolist() == [False, False, True, False, False, False]
    assert seen[0]["bis"] == pytest.approx(mprm.score(files, skip_bad=True).to_arrow()["bis"].to_numpy()[:3])


def test_a_table_of_step_scores_is_no_csv(small: Path) -> None:
    with pytest.raises(ConfigError, match=r"lists of step scores go to a \.parquet or \.jsonl file"):
        mprm.score(small, str(small / "x.csv"), steps=True)
    assert not (small / "x.csv").exists()

    class Short(LengthScorer):
        def score_many(self, chains, *, progress=silent):
            return [row[1:] for row in super().score_many(chains)]

    with pytest.raises(DataError, match=r"Short\.score_many does not give one score for each step"):
        mprm.score(small, str(small / "x.parquet"), model=Short())
    assert not (small / "x.parquet").exists()


def test_a_real_model_scores_the_corpus_on_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from mprm.models.checkpoint import PRMConfig
    from mprm.models.prm import PRM
    from tests.tiny_models import save_tiny

    prm = PRM.from_pretrained(save_tiny("text", tmp_path / "tiny"), PRMConfig(), device="cpu")
    prm.save_pretrained(tmp_path / "prm")
    records = [
        {"prompt": f"{i} + 2?", "completions": ["so it is", f"{i}"], "labels": [True, i > 2]} for i in range(5)
    ]
    path, out = write_jsonl(tmp_path / "trl.jsonl", records), tmp_path / "s.parquet"
    words = ["score", str(path), "--model", str(tmp_path / "prm"), "--device", "cpu", "--out", str(out)]
    assert run(words) == 0
    from pyarrow import parquet

    found = parquet.read_table(out)["prm_scores"].to_pylist()
    chains = [mprm.Chain(record["prompt"], tuple(record["completions"])) for record in records]
    assert found == [pytest.approx(row, abs=1e-6) for row in prm.score_many(chains)]
    kept = tmp_path / "kept.jsonl"
    assert run(["select", str(path), "--strategy", "uncertainty", "--columns", str(out), "--out", str(kept)]) == 0
    assert len(kept.read_text().splitlines()) == 1
