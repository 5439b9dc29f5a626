import gzip
import json
import os
import signal
import subprocess
import sys
import time
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import mprm
from mprm.cli.main import run
from mprm.data.output import dropped_path
from mprm.data.records import Chunk
from mprm.errors import ConfigError, DataError, InputNotFoundError, OutputExistsError
from mprm.selection.selection import kept_pieces
from mprm.selection.stats import ROW_TYPE, LabelCounts, Part, total
from tests.conftest import WHOLE, raw_record, write_jsonl


def lines(path: str | Path) -> list[bytes]:
    return Path(path).read_bytes().splitlines(keepends=True)


def test_kept_lines_are_copied_byte_for_byte(corpus, tmp_path: Path) -> None:
    folder = corpus(ai2d=[[1.0, 0.0], [1.0], [0.5, 0.0, 0.0]])
    file = folder / "ai2d.jsonl"
    odd_spacing = file.read_bytes().replace(b'{"image"', b'{  "image"', 1)
    file.write_bytes(odd_spacing)
    mprm.select(file, rho=0.4).write(str(tmp_path / "out.jsonl"))
    assert lines(tmp_path / "out.jsonl") == odd_spacing.splitlines(keepends=True)[:1]


def test_a_last_line_without_line_end_gets_one(corpus, tmp_path: Path) -> None:
    folder = corpus(a=[[1.0], [1.0, 0.0]], b=[[1.0, 0.0]])
    file = folder / "a.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    mprm.select(folder, rho=0.5).write(str(tmp_path / "out.jsonl"))
    kept = lines(tmp_path / "out.jsonl")
    assert len(kept) == 2
    assert all(line.endswith(b"}\n") for line in kept)
    assert [json.loads(line)["image"] for line in kept] == ["images/1.png", "images/0.png"]


def test_read_is_kept_and_left_and_dropped(corpus, tmp_path: Path) -> None:
    folder = corpus(ai2d=[[1.0, 0.0]] * 10, geos=[[1.0]] * 5)
    bad = [b"{", json.dumps(raw_record([1.5])).encode(), json.dumps(raw_record([])).encode(), b"\xff\xfe"]
    file = folder / "ai2d.jsonl"
    file.write_bytes(file.read_bytes() + b"\n\n" + b"\n".join(bad) + b"\n")
    selection = mprm.select(folder, rho=0.3, skip_bad=True)
    written = selection.write(str(tmp_path / "out.jsonl"))
    by_source = selection.by_source(selection.subsets[0])
    assert by_source["ai2d"] == {
        "read": 14,
        "kept": 3,
        "left": 7,
        "dropped": 4,
        "reasons": {"not_json": 1, "score_out_of_range": 1, "no_steps": 1, "not_utf8": 1},
    }
    assert selection.n_read == 19
    dropped = [json.loads(line) for line in lines(dropped_path(written.paths[0]))]
    assert [entry["line"] for entry in dropped] == [13, 14, 15, 16]
    assert dropped[0]["record"] == "{"
    assert dropped[3]["record_base64"] == "//4K"
    assert "expected 0 to 1" in dropped[1]["reason"]


def test_a_bad_record_stops_the_run_with_its_place(corpus, tmp_path: Path) -> None:
    folder = corpus(ai2d=[[1.0]] * 3)
    file = folder / "ai2d.jsonl"
    file.write_bytes(file.read_bytes() + json.dumps(raw_record([1.0, 1.25])).encode() + b"\n")
    with pytest.raises(DataError, match=r"ai2d\.jsonl:4: step 1 has score 1\.25; expected 0 to 1"):
        mprm.select(folder)
    assert run(["select", str(folder), "--out", str(tmp_path / "out.jsonl")]) == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_bad_records_are_judged_before_selection(corpus, tmp_path: Path) -> None:
    # the best record of all has an empty step: it must not use up a place
    best = raw_record([1.0, 0.0])
    best["steps_with_score"][1]["step"] = "  "
    folder = corpus(ai2d=[[1.0, 0.0], [1.0], [1.0], [1.0]])
    file = folder / "ai2d.jsonl"
    file.write_bytes(json.dumps(best).encode() + b"\n" + file.read_bytes())
    selection = mprm.select(folder, rho=0.25, skip_bad=True)
    selection.write(str(tmp_path / "out.jsonl"))
    assert lines(tmp_path / "out.jsonl") == lines(file)[1:2]


def test_several_strategies_and_ratios_come_from_one_scan(random_corpus: Path, tmp_path: Path) -> None:
    code = run(
        [
            "select",
            str(random_corpus),
            "--strategy",
            "bis",
            "random",
            "--rho",
            "0.05",
            "0.25",
            "--out-dir",
            str(tmp_path / "s"),
        ]
    )
    assert code == 0
    names = {f"{strategy}-{rho}.jsonl" for strategy in ("bis", "random") for rho in (0.05, 0.25)}
    assert names <= {path.name for path in (tmp_path / "s").iterdir()}
    for name in names:
        strategy, rho = name.removesuffix(".jsonl").split("-")
        mprm.select(random_corpus, strategy=strategy, rho=float(rho)).write(str(tmp_path / "one.jsonl"), force=True)
        assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "s" / name).read_bytes()


def test_one_file_a_source(random_corpus: Path, tmp_path: Path) -> None:
    selection = mprm.select(random_corpus, rho=0.3)
    (written,) = selection.write_all(str(tmp_path / "s"), by_source=True)
    whole = selection.write(str(tmp_path / "whole.jsonl"))
    assert [Path(path).name for path in written.paths] == ["ai2d.jsonl", "geos.jsonl", "vqav2.jsonl"]
    assert b"".join(Path(path).read_bytes() for path in written.paths) == Path(whole.paths[0]).read_bytes()


def test_sources_survive_in_one_file(random_corpus: Path, tmp_path: Path) -> None:
    selection = mprm.select(random_corpus, rho=0.5)
    selection.write(str(tmp_path / "half.jsonl"))
    assert mprm.stats(tmp_path / "half.jsonl").sources == selection.subsets[0].statistics
    with (tmp_path / "half.jsonl").open("ab") as out:
        out.write(lines(random_corpus / "geos.jsonl")[0])
    assert set(mprm.stats(tmp_path / "half.jsonl").sources) == {"half"}  # the manifest fits no more


def test_sources_survive_a_copy_that_is_newer_than_its_manifest_and_no_change(
    random_corpus: Path, tmp_path: Path
) -> None:
    selection, half = mprm.select(random_corpus, rho=0.5), tmp_path / "half.jsonl"
    selection.write(str(half))
    later = (tmp_path / "half.jsonl.manifest.json").stat().st_mtime_ns + 10**9
    os.utime(half, ns=(later, later))
    assert mprm.stats(half).sources == selection.subsets[0].statistics
    half.write_bytes(half.read_bytes().replace(b"Step 1", b"Step 9"))  # of the same size
    os.utime(half, ns=(later, later))
    assert set(mprm.stats(half).sources) == {"half"}


def test_keep_and_overrides_and_pool(random_corpus: Path) -> None:
    def kept(**options) -> dict[str, int]:
        selection = mprm.select(random_corpus, **options)
        return {name: entry.n_rollouts for name, entry in selection.subsets[0].statistics.items()}

    assert kept(keep=5) == {"ai2d": 5, "geos": 1, "vqav2": 5}
    assert kept(rho=0.1, source_rho={"vqav2": 1.0}) == {"ai2d": 9, "geos": 1, "vqav2": 40}
    assert sum(kept(rho=0.1, pool=True).values()) == 13


@pytest.mark.parametrize(
    "options",
    [
        {"rho": 0},
        {"rho": 1.5},
        {"rho": float("nan")},
        {"alpha": -1},
        {"alpha": float("nan")},
        {"tau": 1},
        {"keep": 0},
        {"strategy": "best"},
        {"rho": [0.1, 0.1]},
        {"source_rho": {"x": 0.1}},
        {"to": "word"},
    ],
)
def test_senseless_options_are_refused(random_corpus: Path, options) -> None:
    with pytest.raises(ConfigError):
        mprm.select(random_corpus, **options)


def test_existing_output_is_not_replaced_unless_forced(random_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(OutputExistsError):
        mprm.select(random_corpus).write(str(out))
    assert out.read_text() == "mine"
    mprm.select(random_corpus).write(str(out), force=True)
    assert out.read_text() != "mine"


def test_no_input_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match=r"nothing/\*\.jsonl"):
        mprm.select(str(tmp_path / "nothing/*.jsonl"))
    with pytest.raises(InputNotFoundError, match="the folder holds no"):
        mprm.select(tmp_path)


def test_the_manifest_tells_the_whole_story(random_corpus: Path, tmp_path: Path) -> None:
    import xxhash

    out = tmp_path / "out.jsonl"
    written = mprm.select(random_corpus, rho=0.25, seed=3).write(str(out))
    manifest = json.loads(Path(written.manifest).read_text())
    assert manifest["config"]["rho"] == 0.25
    assert manifest["config"]["seed"] == 3
    assert manifest["output"]["xxh3_128"] == xxhash.xxh3_128_hexdigest(out.read_bytes())
    assert manifest["output"]["n_bytes"] == out.stat().st_size
    for entry in manifest["inputs"]:
        assert entry["xxh3_128"] == xxhash.xxh3_128_hexdigest(Path(entry["path"]).read_bytes())
    for counts in manifest["sources"].values():
        assert counts["read"] == counts["kept"] + counts["left"] + counts["dropped"]
    first = Path(written.manifest).read_bytes()
    mprm.select(random_corpus, rho=0.25, seed=3).write(str(out), force=True)
    assert Path(written.manifest).read_bytes() == first


def test_a_dry_run_writes_nothing_and_tells_the_same_counts(
    random_corpus: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(["select", str(random_corpus), "--rho", "0.25", "--dry-run", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert sorted(tmp_path.rglob("*")) == before
    assert run(["select", str(random_corpus), "--rho", "0.25", "--out", "out.jsonl", "--json"]) == 0
    wet = json.loads(capsys.readouterr().out)
    assert dry["subsets"][0]["sources"] == wet["subsets"][0]["sources"]
    assert wet["subsets"][0]["kept"] == len(lines("out.jsonl"))


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_packed_files_give_the_same_subset(random_corpus: Path, tmp_path: Path, suffix: str) -> None:
    import zstandard

    packed = tmp_path / "packed"
    packed.mkdir()
    for file in random_corpus.glob("*.jsonl"):
        pack = gzip.compress if suffix.endswith("gz") else zstandard.ZstdCompressor().compress
        (packed / (file.stem + suffix)).write_bytes(pack(file.read_bytes()))
    mprm.select(random_corpus, rho=0.3).write(str(tmp_path / "plain.jsonl"))
    mprm.select(packed, rho=0.3).write(str(tmp_path / "unpacked.jsonl"))
    assert (tmp_path / "plain.jsonl").read_bytes() == (tmp_path / "unpacked.jsonl").read_bytes()
    written = mprm.select(packed, rho=0.3).write(str(tmp_path / f"out{suffix}"))
    statistics = mprm.stats(written.paths[0]).total
    assert statistics.n_rollouts == len(lines(tmp_path / "plain.jsonl"))


def test_parquet_gives_the_same_subset(random_corpus: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    for file in random_corpus.glob("*.jsonl"):
        mprm.convert(file, str(packed / f"{file.stem}.parquet"))
    plain = mprm.select(random_corpus, rho=0.3)
    parquet = mprm.select(packed, rho=0.3)
    assert plain.by_source(plain.subsets[0]) == parquet.by_source(parquet.subsets[0])
    plain.write(str(tmp_path / "plain.jsonl"))
    parquet.write(str(tmp_path / "parquet.jsonl"))
    images = [
        [json.loads(line)["image"] for line in lines(tmp_path / f"{name}.jsonl")] for name in ("plain", "parquet")
    ]
    assert [[image] for image in images[0]] == images[1]


def test_urls_are_read_and_written(random_corpus: Path, tmp_path: Path) -> None:
    mprm.select(random_corpus, rho=0.3).write(str(tmp_path / "local.jsonl"))
    selection = mprm.select(f"file://{random_corpus}/*.jsonl", rho=0.3)
    selection.write(f"file://{tmp_path}/far/url.jsonl")
    assert (tmp_path / "far" / "url.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    import fsspec

    memory = fsspec.filesystem("memory")
    for file in random_corpus.glob("*.jsonl"):
        memory.pipe_file(f"/corpus/{file.name}", file.read_bytes())
    mprm.select("memory://corpus/*.jsonl", rho=0.3, processes=1).write(str(tmp_path / "memory.jsonl"))
    assert (tmp_path / "memory.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


def test_the_source_field_groups_where_the_record_has_one(tmp_path: Path) -> None:
    records = [raw_record([1.0, 0.0], number=i, source=f"s{i % 2}") for i in range(10)]
    file = write_jsonl(tmp_path / "vl.jsonl", records)
    selection = mprm.select(file, rho=0.2)
    assert {name: entry.n_rollouts for name, entry in selection.statistics.items()} == {"s0": 5, "s1": 5}
    selection.write(str(tmp_path / "out.jsonl"))
    assert {json.loads(line)["source"] for line in lines(tmp_path / "out.jsonl")} == {"s0", "s1"}


def test_the_subset_is_what_the_printed_table_says(random_corpus: Path, tmp_path: Path, capsys) -> None:
    assert run(["select", str(random_corpus), "--rho", "0.25", "--out", str(tmp_path / "out.jsonl")]) == 0
    printed = capsys.readouterr().out
    statistics = mprm.stats(tmp_path / "out.jsonl")
    assert f"{statistics.total.n_rollouts} rollouts in" in printed
    assert f"{statistics.sources['ai2d'].error_step_ratio:.2%}" in printed
    full = mprm.stats(random_corpus).sources["ai2d"]
    assert f"({full.words_per_step:.1f})" in printed


def test_a_killed_run_leaves_nothing_under_the_final_name(corpus, tmp_path: Path) -> None:
    folder = corpus(**{f"s{i}": [[1.0, 0.0]] * 3000 for i in range(4)})
    out = tmp_path / "out.jsonl"
    command = [
        sys.executable,
        "-m",
        "mprm.cli.main",
        "select",
        str(folder),
        "--rho",
        "0.9",
        "--out",
        str(out),
        "--to",
        "mm-prm",
        "--force",
    ]
    expected = None
    for delay in (0.2, 0.4, 0.6, 0.8, 1.0, None):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        if delay is None:
            assert process.wait() == 0
            expected = total(mprm.select(folder, rho=0.9).subsets[0].statistics).n_rollouts
        else:
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if out.exists():
            assert len(lines(out)) == 10800
    assert expected == 10800


def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(corpus, tmp_path: Path) -> None:
    folder = corpus(ai2d=[[1.0, 0.0]] * 400)
    out = tmp_path / "out.jsonl"
    for more in ([], ["--to", "mm-prm"], ["--processes", "2"]):
        code = (
            "import resource, signal, sys\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
            "from mprm.cli.main import run\n"
            "sys.exit(run(sys.argv[1:]))\n"
        )
        arguments = ["select", str(folder), "--rho", "0.9", "--out", str(out), *more]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "File too large" in done.stderr
        assert list(tmp_path.glob("out*")) + list(tmp_path.glob(".out*")) == []


def test_indices_are_the_rows_of_a_frame_that_are_kept(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    # BIS: 0.05, (1/4 + 0.05) 1 = 0.3, 0.05 1 of no positive step, (1/4 + 0.05) 1/2 = 0.15
    frame = pd.DataFrame([raw_record(scores) for scores in ([1.0, 1.0], [1.0, 0.0], [0.0], [0.5, 0.0])])
    selection = mprm.select(frame, rho=0.5)
    assert selection.indices.tolist() == [1, 3]
    kept = selection.to_pandas()
    assert kept["image"].map(list).tolist() == [[image] for image in frame.iloc[selection.indices]["image"]]
    assert [[step["score"] for step in steps] for steps in kept["steps_with_score"]] == [[1.0, 0.0], [0.5, 0.0]]


def test_the_frame_of_what_is_kept_is_that_of_the_written_file(corpus, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    folder = corpus(ai2d=[[1.0], [1.0, 0.0], [0.5, 0.0]], geos=[[1.0, 1.0], [0.25, 0.0]])
    file = folder / "ai2d.jsonl"
    good = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(good[0] + b"\n{}\n" + b"".join(good[1:]))  # a blank line, and a bad record
    selection = mprm.select(folder, keep=1, skip_bad=True)
    # records: ai2d's first, the bad one, the best of ai2d, another; then geos's first and its best
    assert selection.indices.tolist() == [2, 5]
    selection.write(str(tmp_path / "out.jsonl"))
    pd.testing.assert_frame_equal(selection.to_pandas(), mprm.open_corpus(tmp_path / "out.jsonl").to_pandas())


@pytest.mark.parametrize("view", [lambda selection: selection.indices, lambda selection: selection.to_pandas()])
def test_several_subsets_have_no_indices_and_no_frame_of_their_own(view, corpus) -> None:
    selection = mprm.select(corpus(a=[[1.0, 0.0], [1.0]]), rho=(0.5, 1.0))
    with pytest.raises(ConfigError, match=r"is of one subset, and there are 2: bis-0\.5, bis-1\.0; select with one"):
        view(selection)


def test_interleaved_sources_cost_rows_not_sources_times_rows() -> None:
    n_sources, n_rows = 5_000, 1_000_000
    rows = np.zeros(n_rows, ROW_TYPE)
    rows["source"], rows["n_bytes"], rows["n_steps"] = np.arange(n_rows) % n_sources, 10, 1
    # a gzip file, whose end nobody has to look at
    part = Part(Chunk("a.jsonl.gz", "gz", "a", 0, 1, format="vl-prm"), 0, n_rows, 1)
    counts = LabelCounts(rows, [part], [f"s{number}" for number in range(n_sources)])
    kept = np.arange(n_rows) % 7 == 0
    started = time.monotonic()
    n_kept = [len(piece.rows) for number in range(n_sources) for piece in kept_pieces(counts, kept, number)]
    assert time.monotonic() - started < 3  # each source looking at every row: 5,000 times 3 ms
    assert sum(n_kept) == kept.sum()


@pytest.fixture
def cut_at_the_first_error(tmp_path: Path) -> Path:
    """Hard labels as PRM800K has them: 40 rollouts of each length from 2 to 31, half of which end in an error."""
    labels = [[True] * (length - 1) + [n % 2 == 0] for length in range(2, 32) for n in range(40)]
    records = [{"prompt": f"{n}?", "completions": ["s"] * len(row), "labels": row} for n, row in enumerate(labels)]
    return write_jsonl(tmp_path / "hard.jsonl", records)


def test_a_degenerate_subset_of_hard_labels_is_warned_of_everywhere(
    cut_at_the_first_error: Path, tmp_path: Path, capsys
) -> None:
    path, out = str(cut_at_the_first_error), str(tmp_path / "bis5.jsonl")
    assert run(["select", path, "--rho", "0.05", "--out", out]) == 0
    shown = capsys.readouterr().err
    # 60 of 1,200 are kept: 20 rollouts with an error of each length from 2 to 4; all have 16.5 steps on average.
    # by index, of 120 positive and 60 negative steps: 60+, 40+ 20-, 20+ 20-, 20-; so that of 7,200 pairs
    # 60 * 60 + 40 * (20 / 2 + 40) + 20 * (20 / 2 + 20) = 6,200 are in order
    expected = [
        "Every score is 0 or 1 (19,800 steps): these are hard labels",
        "Kept rollouts are short: 3.0 steps on average, where those of their sources have 16.5. --stratify length",
        "In 60 of 60 kept rollouts of several steps with a negative one (100.0%) it is the last step and the only one",
        "The index of a step alone predicts its label in the kept rollouts with AUC 0.86",
    ]
    manifest = json.loads(Path(out + ".manifest.json").read_text())
    assert len(manifest["warnings"]) == len(expected) == shown.count("mprm select: warning: ")
    for start, warning in zip(expected, manifest["warnings"], strict=True):
        assert warning.startswith(start)
        assert warning in shown
    assert mprm.select(path, rho=0.05).subsets[0].warnings == manifest["warnings"]

    page = tmp_path / "report.html"
    mprm.report(path, out=page, rho=0.05)
    assert all(warning in unescape(page.read_text()) for warning in manifest["warnings"])
    capsys.readouterr()
    assert run(["select", path, "--rho", "0.05", "--dry-run", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["subsets"][0]["warnings"] == manifest["warnings"]
    assert "warning" not in printed.err  # once

    assert run(["stats", path]) == 0
    shown = capsys.readouterr().err
    assert shown.count("mprm stats: warning: ") == 2
    assert "In 600 of 600 rollouts of several steps with a negative one" in shown


def test_stratified_by_length_kept_rollouts_are_as_long_as_the_corpus(cut_at_the_first_error: Path) -> None:
    for ties in ("hash", "file-order"):
        (subset,) = mprm.select(cut_at_the_first_error, rho=0.05, stratify="length", ties=ties).subsets
        assert total(subset.statistics).steps_per_rollout == 16.5
        assert total(subset.statistics).mixed_share == 1
        assert not [warning for warning in subset.warnings if "are short" in warning]
        assert not [warning for warning in subset.warnings if "index of a step" in warning]


@pytest.mark.skipif(not WHOLE.is_dir(), reason="PRM800K is not beside the checkout")
def test_prm800k_at_a_tenth_is_warned_of_and_stratified_keeps_its_length(tmp_path: Path) -> None:
    path = tmp_path / "phase1.jsonl"
    mprm.convert(WHOLE / "prm800k_phase1_parquet", path, to="trl")
    text = " ".join(mprm.select(path).subsets[0].warnings)
    assert "Kept rollouts are short: 4.1 steps on average, where those of their sources have 16.1" in text
    assert "In 3,486 of 3,486 kept rollouts of several steps with a negative one (100.0%) it is the last step" in text
    stratified = mprm.select(path, stratify="length")
    length = total(stratified.statistics).steps_per_rollout
    assert abs(total(stratified.subsets[0].statistics).steps_per_rollout / length - 1) < 0.15


def test_sources_of_one_label_and_ties_that_decide_are_warned_of(corpus) -> None:
    easy = [[1.0, 1.0], [1.0]] * 40
    mixed = [[0.0, 0.5], [0.25, 0.0]] * 2
    (subset,) = mprm.select(corpus(easy=easy, mixed=mixed), rho=0.7).subsets
    one_label, ties = subset.warnings
    assert one_label.startswith("In 1 of 2 sources all kept steps have one label: easy (all positive). ")
    assert ties.startswith("Ties decide 97% of what is kept: 56 of 58 rollouts")  # 2 of mixed are the best of 4
    (subset,) = mprm.select(corpus(easy=easy, mixed=mixed), rho=0.7, strategy="random").subsets
    assert [warning for warning in subset.warnings if "Ties" in warning] == []
    (subset,) = mprm.select(corpus(easy=easy, mixed=[[1.0]]), rho=0.7).subsets
    n_steps = total(subset.statistics).n_steps
    assert subset.warnings[0].startswith(f"All {n_steps} kept steps are positive: a model learns one answer")


def test_sources_with_frequent_errors_of_which_bis_keeps_mixed_rollouts_alone_are_warned_of(corpus) -> None:
    # 100 mixed of 400 rollouts, and 100 negative of 800 steps: 12.5%; in the other source 6.25%
    frequent = [[0.5, 0.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]] * 100
    rare = [[0.5, 0.0, 1.0, 1.0], *[[1.0, 1.0, 1.0, 1.0]] * 3] * 100
    folder = corpus(frequent=frequent, rare=rare)

    def crowded(**options) -> list[str]:
        return [w for w in mprm.select(folder, rho=0.25, **options).subsets[0].warnings if "nearly all" in w]

    (warning,) = crowded()
    assert warning.startswith(
        "In 1 of 2 sources nearly all kept rollouts are mixed, though over 10% of the steps are"
    )
    assert "errors: frequent. --strategy bis-adaptive" in warning
    for options in ({"strategy": "bis-adaptive"}, {"strategy": "random"}, {"strategy": "mixed"}):
        assert crowded(**options) == []


def test_data_in_good_order_are_not_warned_of(random_corpus: Path, capsys) -> None:
    assert run(["stats", str(random_corpus)]) == 0
    assert run(["select", str(random_corpus), "--dry-run"]) == 0
    assert capsys.readouterr().err == ""


def test_a_selection_is_iterable_and_becomes_any_table(corpus) -> None:
    datasets, polars = pytest.importorskip("datasets"), pytest.importorskip("polars")
    selection = mprm.select(corpus(a=[[1.0], [1.0, 0.0], [0.5, 0.0]]), rho=0.7)
    assert [rollout.scores for rollout in selection] == [(1.0, 0.0), (0.5, 0.0)]
    assert len(selection) == len(list(selection)) == 2
    assert isinstance(selection.to_dataset(), datasets.Dataset)
    assert isinstance(selection.to_polars(), polars.DataFrame)
    tables = [selection.to_arrow(), selection.to_dataset().data.table, selection.to_polars().to_arrow()]
    assert [table["source"].to_pylist() for table in tables] == [["a", "a"]] * 3
    with pytest.raises(ConfigError, match=r"is of one subset, and there are 2"):
        iter(mprm.select(corpus(a=[[1.0, 0.0], [1.0]]), rho=(0.5, 1.0)))


def test_rates_that_are_all_one_are_not_called_hard_labels(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0, 1.0], number=n) for n in range(9)])  # 16 of 16 each
    warnings = mprm.stats(path).warnings
    assert [warning.split(":")[0] for warning in warnings] == ["All 18 steps are positive"]
