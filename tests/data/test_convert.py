import contextlib
import json
from pathlib import Path

import pytest

import mprm
from mprm.cli.main import run
from mprm.data.records import source_name
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


TREE = {
    "question": "q",
    "reasoning_steps": {
        "text": "q",
        "mc_value": 1.0,
        "children": [{"text": "a", "mc_value": 1.0}, {"text": "b", "mc_value": 0.25}],
    },
}


@pytest.mark.parametrize(("size", "name"), [key for key in SAMPLES if key[0] in PUBLIC])
def test_files_with_several_rollouts_a_record_go_straight_into_stats_score_and_select(
    size: str, name: str, tmp_path: Path
) -> None:
    path = PUBLIC[size] / name
    n_records, n_rollouts, has_mc = SAMPLES[size, name]
    assert mprm.stats(path).total.n_rollouts == n_rollouts
    assert mprm.score(path, str(tmp_path / "scores.jsonl")).n_rollouts == n_rollouts
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert {row["file"] for row in rows} == {str(path)}  # not that of a temporary file
    assert max(row["line"] for row in rows) <= n_records
    out = tmp_path / "half.jsonl"
    mprm.select(path, rho=0.5).write(str(out))
    assert mprm.check(out).n_errors == 0
    assert mprm.stats(out).total.n_rollouts == n_rollouts // 2
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    assert [entry["path"] for entry in manifest["inputs"]] == [str(path)]
    if has_mc:  # selected as it would have been from the converted file
        mprm.convert(path, str(tmp_path / f"{source_name(name)}.jsonl"), to="visualprm-raw")
        mprm.select(tmp_path / f"{source_name(name)}.jsonl", rho=0.5).write(str(tmp_path / "other.jsonl"))
        assert out.read_bytes() == (tmp_path / "other.jsonl").read_bytes()


def test_a_bad_tree_is_named_by_its_own_line_and_dropped_once(tmp_path: Path) -> None:
    bad = {"question": "q", "reasoning_steps": {"text": "q", "children": [{"text": "a", "mc_value": 7}]}}
    path = write_jsonl(tmp_path / "aps.jsonl", [TREE, bad])
    with pytest.raises(DataError, match=r"aps\.jsonl:2: node 'a' has score 7"):
        mprm.select(path)
    selection = mprm.select(path, skip_bad=True, rho=1.0)
    assert (len(selection), len(selection.dropped)) == (2, 1)
    assert [(located.file, located.line) for located in selection.corpus.located()] == [(str(path), 1)] * 2
    assert mprm.stats(selection.corpus).total.n_rollouts == 2


def test_text_only_data_are_recognised_and_a_decision_is_remembered(tmp_path: Path) -> None:
    text = [{k: v for k, v in raw_record([1.0, 0.0], number=i).items() if k != "image"} for i in range(4)]
    path = write_jsonl(tmp_path / "text.jsonl", [*text, {**text[0], "image": None}, {**text[0], "image": []}])
    assert mprm.check(path).n_errors == 0
    mprm.select(path, rho=0.5).write(str(tmp_path / "half.jsonl"))
    assert json.loads((tmp_path / "half.jsonl.manifest.json").read_text())["config"]["text_only"] is True
    # where some have an image, one without is bad, unless it is said; and once it is said it is known
    mixed = write_jsonl(tmp_path / "mixed.jsonl", [*text, raw_record([1.0], number=9)])
    assert mprm.check(mixed).counts == {"no_image": 4}
    mprm.select(mixed, rho=1.0, text_only=True).write(str(tmp_path / "kept.jsonl"))
    assert mprm.check(tmp_path / "kept.jsonl").n_errors == 0
    (tmp_path / "kept.jsonl.manifest.json").unlink()
    assert mprm.check(tmp_path / "kept.jsonl").counts == {"no_image": 4}


@pytest.mark.parametrize("to", ["visualprm-raw", "mm-prm"])
def test_convert_writes_nothing_that_check_refuses(to: str, tmp_path: Path) -> None:
    tree = write_jsonl(tmp_path / "aps.jsonl", [TREE])
    images = write_jsonl(tmp_path / "raw.jsonl", [raw_record([1.0])])
    out = tmp_path / "o.jsonl"
    mprm.convert(tree, str(out), to=to)
    assert mprm.check(out).n_errors == 0
    with pytest.raises(DataError, match=r"aps\.jsonl:1: the record names no image.*--text-only"):
        mprm.convert([tree, images], str(out), to=to, force=True)
    mprm.convert([tree, images], str(out), to=to, force=True, text_only=True)
    assert mprm.check(out).n_errors == 0


def test_fields_under_other_names_are_mapped_in_every_command(tmp_path: Path) -> None:
    records = [
        {"problem": f"q{i}", "solution_steps": ["a", "b"], "mc": [1.0, i / 8], "question": "not this"}
        for i in range(8)
    ]
    path = write_jsonl(tmp_path / "x.jsonl", records)
    with pytest.raises(
        DataError,
        match=r"nearest is scored-steps: it misses steps, scores\. .* --map steps=solution_steps,scores=KEY",
    ):
        mprm.stats(path)
    words = "question=problem,steps=solution_steps,scores=mc"
    assert mprm.stats(path, map=words.split(",")).total.n_steps == 16
    assert [rollout.question for rollout in mprm.open_corpus(path, map=[words])][3] == "q3"
    commands = [
        "check",
        "stats",
        "score --out s.csv",
        "select --rho 0.5 --out o.jsonl",
        "convert --to trl --out t.jsonl",
    ]
    with contextlib.chdir(tmp_path):
        for command in commands:
            name, *options = command.split()
            assert run([name, "x.jsonl", "--map", words, *options]) == 0, command
    kept = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert kept[0].keys() == {"question", "steps", "scores"}
    raw = [
        {
            "annotated" if key == "steps_with_score" else key: value
            for key, value in raw_record([0.5, i / 16], number=i).items()
        }
        for i in range(16)
    ]
    renamed = write_jsonl(tmp_path / "raw.jsonl", raw)
    plain = write_jsonl(tmp_path / "plain.jsonl", [raw_record([0.5, i / 16], number=i) for i in range(16)])
    assert mprm.stats(renamed, map={"steps_with_score": "annotated"}).total == mprm.stats(plain).total
    with pytest.raises(ConfigError, match="map takes FIELD=KEY"):
        mprm.stats(path, map=["steps"])
    with pytest.raises(ConfigError, match=r"unknown field 'stepz'; did you mean steps"):
        mprm.stats(path, map={"stepz": "solution_steps"})


def test_json_lists_are_found_in_folders_and_other_json_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([raw_record([1.0, 0.0])]))
    (tmp_path / "config.json").write_text('{"a": 1}')
    write_jsonl(tmp_path / "b.jsonl", [raw_record([1.0], number=2)])
    assert mprm.stats(tmp_path).total.n_rollouts == 2


@pytest.mark.parametrize("command", ["convert", "select --rho 1.0"])
def test_a_first_step_that_mm_prm_cannot_hold_is_refused_and_other_steps_come_back(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [raw_record([1.0, 0.5, 0.0], number=i) for i in range(3)]
    records[1]["steps_with_score"][1]["step"] = "We do it.\nProcess: as before."
    records[1]["question_orig"] = "What is the\nProcess: called?"
    path, out = write_jsonl(tmp_path / "x.jsonl", records), tmp_path / "o.jsonl"
    name, *options = command.split()
    words = [name, str(path), *options, "--to", "mm-prm", "--out", str(out)]
    assert run(words) == 0
    chains = [rollout.chain for rollout in mprm.open_corpus(out)]
    assert [chain.steps for chain in chains] == [rollout.chain.steps for rollout in mprm.open_corpus(path)]
    assert chains[1].question == records[1]["question_orig"]
    records[1]["steps_with_score"][0]["step"] = "We do it.\nProcess: as before."
    write_jsonl(path, records)
    assert run([*words, "--force"]) == 1
    assert r"x.jsonl:2: step 0 holds '\nProcess:'" in capsys.readouterr().err
    assert run([*words, "--force", "--skip-bad"]) == 0
    assert len(list(mprm.open_corpus(out))) == 2
