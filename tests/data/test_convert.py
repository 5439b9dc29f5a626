import json
from pathlib import Path

import pytest

import mprm
from mprm.cli.main import run
from mprm.errors import ConfigError, DataError
from tests.conftest import PUBLIC, raw_record, write_jsonl


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_trl_labels_are_cut_at_tau(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0, 0.0625, 0.0])])
    for tau, expected in ((0.0, [True, True, False]), (0.0625, [True, False, False])):
        mprm.convert(path, str(tmp_path / "o.jsonl"), to="trl", tau=tau, force=True)
        assert read(tmp_path / "o.jsonl")[0]["labels"] == expected


def test_a_round_trip_through_parquet_keeps_everything(random_corpus: Path, tmp_path: Path) -> None:
    mprm.convert(random_corpus, str(tmp_path / "c.parquet"))
    mprm.convert(tmp_path / "c.parquet", str(tmp_path / "again.jsonl"), to="visualprm-raw")
    before = list(mprm.open_corpus(random_corpus).located())
    after = list(mprm.open_corpus(tmp_path / "again.jsonl").located())
    assert [p.source for p in before] == [p.source for p in after]
    assert [(p.rollout.question, p.rollout.images, p.rollout.steps, p.rollout.prompt) for p in before] == [
        (p.rollout.question, p.rollout.images, p.rollout.steps, p.rollout.prompt) for p in after
    ]


def test_binary_labels_do_not_become_scores(tmp_path: Path) -> None:
    hard = write_jsonl(tmp_path / "hard.jsonl", [{"prompt": "q", "completions": ["a"], "labels": [True]}])
    with pytest.raises(ConfigError, match="binary labels and no MC scores"):
        mprm.convert(hard, str(tmp_path / "o.jsonl"), to="visualprm-raw")
    mprm.convert(write_jsonl(tmp_path / "r.jsonl", [raw_record([1.0, 0.0])]), str(tmp_path / "mm.jsonl"), to="mm-prm")
    for make in (
        lambda out: mprm.convert(tmp_path / "mm.jsonl", out, to="mm-prm-soft"),
        lambda out: mprm.select(tmp_path / "mm.jsonl", rho=1.0, to="mm-prm-soft").write(out),
    ):
        with pytest.raises(ConfigError, match="--format mm-prm-soft"):
            make(str(tmp_path / "o.jsonl"))
    assert not (tmp_path / "o.jsonl").exists()
    mprm.convert(tmp_path / "mm.jsonl", str(tmp_path / "o.jsonl"), to="mm-prm-soft", format="mm-prm-soft")


@pytest.mark.parametrize(("to", "mark"), [("mm-prm", "<prm>"), ("visualprm", "\n\n### Solution Process:\n")])
@pytest.mark.parametrize("escape", [True, False])
def test_the_mark_that_ends_a_step_cannot_hide_in_text(to: str, mark: str, escape: bool, tmp_path: Path) -> None:
    bad = raw_record([1.0, 0.0], question_orig=f"What is {mark} here?")
    line = json.dumps(bad).encode()
    if escape:
        line = line.replace(b"<prm>", b"\\u003cprm\\u003E")
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0, 0.0], number=1), line])
    with pytest.raises(DataError, match=r"a\.jsonl:2: the question holds"):
        mprm.convert(path, str(tmp_path / "o.jsonl"), to=to)
    with pytest.raises(DataError, match=r"a\.jsonl:2: the question holds"):
        mprm.select(mprm.open_corpus(path), rho=1.0, to=to)
    selection = mprm.select(path, rho=1.0, to=to, skip_bad=True)
    selection.write(str(tmp_path / "o.jsonl"))
    assert len(read(tmp_path / "o.jsonl")) == 1
    assert selection.dropped.counts == {"a": {"separator_in_text": 1}}
    mprm.select(path, rho=1.0).write(str(tmp_path / "same.jsonl"))  # copied lines hold anything


def test_dropped_records_are_kept_with_their_reason(tmp_path: Path, capsys) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0]), b"{", raw_record([2.0])])
    with pytest.raises(DataError, match=r"a\.jsonl:2"):
        mprm.convert(path, str(tmp_path / "o.jsonl"), to="trl")
    assert run(["convert", str(path), "--to", "trl", "--out", str(tmp_path / "o.jsonl"), "--skip-bad", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["n_records"], summary["n_rollouts"], summary["n_dropped"]) == (3, 1, 2)
    assert [entry["line"] for entry in read(Path(summary["dropped_to"]))] == [2, 3]


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0])])
    for make in (
        lambda: mprm.convert(path, str(path), to="trl", force=True),
        lambda: mprm.select(path).write(str(path), force=True),
    ):
        with pytest.raises(ConfigError, match="is one of the inputs"):
            make()


def test_parquet_goes_into_a_file_of_that_name(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0])])
    assert run(["convert", str(path), "--to", "parquet", "--out", str(tmp_path / "o.jsonl")]) == 2
    assert run(["convert", str(path), "--to", "trl", "--out", str(tmp_path / "o.parquet")]) == 2


CRITIC_ROWS = "prm800k_phase1_parquet/phase1_test.stepwise-critic.parquet"
SAMPLES = {
    # (excerpt or whole, file): (records, rollouts, has MC scores); a rollout is a path of distinct texts to a leaf
    ("excerpt", "openr_mc_samples/samples_math-aps.jsonl.gz"): (1, 7, True),
    ("excerpt", "openr_mc_samples/samples_math-aps-tree.jsonl.gz"): (1, 18, True),
    ("excerpt", "openr_mc_samples/samples_math-shepherd.jsonl"): (7, 7, False),
    ("excerpt", "openr_mc_samples/samples_prm800k.jsonl"): (6, 34, False),
    ("excerpt", "prm800k_val_decoded/prm800k_val.jsonl"): (10, 10, False),
    ("excerpt", CRITIC_ROWS): (319, 227, False),
    ("whole", "openr_mc_samples/samples_math-aps.jsonl"): (3, 124, True),
    ("whole", "openr_mc_samples/samples_math-aps-tree.jsonl"): (3, 158, True),
    ("whole", "prm800k_val_decoded/prm800k_val.jsonl"): (1818, 1818, False),
    ("whole", CRITIC_ROWS): (5449, 3203, False),
}


@pytest.mark.parametrize(("size", "name"), [key for key in SAMPLES if key[0] in PUBLIC])
def test_real_files_of_public_projects_read_check_and_convert(size: str, name: str, tmp_path: Path) -> None:
    path = PUBLIC[size] / name
    n_records, n_rollouts, has_mc = SAMPLES[size, name]
    report = mprm.check(path)
    assert (report.n_records, report.n_errors) == (n_records, 0)
    summary = mprm.convert(path, str(tmp_path / "trl.jsonl"), to="trl")
    assert (summary.n_records, summary.n_rollouts) == (n_records, n_rollouts)
    assert len(mprm.select(tmp_path / "trl.jsonl", rho=0.5)) == n_rollouts // 2
    if has_mc:
        mprm.convert(path, str(tmp_path / "raw.jsonl"), to="visualprm-raw")
        assert mprm.stats(tmp_path / "raw.jsonl", text_only=True).total.n_rollouts == n_rollouts
    else:
        with pytest.raises(ConfigError, match="binary labels and no MC scores"):
            mprm.convert(path, str(tmp_path / "raw.jsonl"), to="visualprm-raw")


@pytest.mark.parametrize("size", PUBLIC)
def test_the_ratings_of_the_parquet_rows_are_all_there(size: str) -> None:
    path = PUBLIC[size] / CRITIC_ROWS
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist()
    expected: dict[tuple, float] = {}
    for row in rows:
        if row["rating"] is not None or row["is_human_response"]:
            key = (row["instruction"], *row["responses"], row["next_response"])
            expected.setdefault(key, 0.0 if row["rating"] == -1 else 1.0)
    scores: dict[tuple, float] = {}
    for rollout in mprm.open_corpus(path):
        for j in range(len(rollout.steps)):
            scores[(rollout.question, *(s.text for s in rollout.steps[: j + 1]))] = rollout.steps[j].score
    assert scores == expected


def test_formats_with_many_rollouts_a_record_are_refused_with_the_remedy(tmp_path: Path) -> None:
    record = {
        "question": "q",
        "reasoning_steps": {
            "text": "q",
            "mc_value": 1.0,
            "children": [{"text": "a", "mc_value": 1.0, "children": []}],
        },
    }
    path = write_jsonl(tmp_path / "aps.jsonl", [record])
    with pytest.raises(ConfigError, match=r"mprm convert .*aps\.jsonl --to visualprm-raw"):
        mprm.select(path)
