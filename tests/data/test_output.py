"""Outputs, what is dropped and manifests: one unit, that a kill, a second writer or a full disk does not tear apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mprm
import mprm.selection.selection  # here, so that not every forked command loads it again
from mprm.cli.main import run
from mprm.data.output import MANIFEST_SUFFIX, Outputs, files_of_manifest
from mprm.errors import ConfigError, DataError, OutputExistsError
from tests.annotation.full_disk import files_of_at_most
from tests.conftest import calling, raw_record, write_jsonl
from tests.kills import State, restore, run_until, state_of

BAD = b'{"image": "x.png"}'


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Two sources, one with a bad record."""
    for source in ("ai2d", "geos"):
        records = [raw_record([1.0, 0.0, 0.5][: i % 3 + 1], number=i) for i in range(12)]
        write_jsonl(tmp_path / "in" / f"{source}.jsonl", [*records, *([BAD] if source == "geos" else [])])
    return tmp_path / "in"


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "select": lambda inputs, out: ["select", str(inputs), "--skip-bad", "--out", f"{out}/x.jsonl"],
    "select --by-source": lambda inputs, out: [
        *["select", str(inputs), "--skip-bad", "--rho", "0.2", "0.6", "--by-source", "--out-dir", str(out)]
    ],
    "select --out-dir": lambda inputs, out: [
        *["select", str(inputs), "--skip-bad", "--strategy", "bis", "random", "--out-dir", str(out)]
    ],
    "convert": lambda inputs, out: ["convert", str(inputs), "--skip-bad", "--to", "trl", "--out", f"{out}/x.jsonl"],
    "convert to Parquet": lambda inputs, out: ["convert", str(inputs), "--skip-bad", "--out", f"{out}/x.parquet"],
    "score": lambda inputs, out: ["score", str(inputs), "--skip-bad", "--out", f"{out}/x.csv"],
    "score in Parquet": lambda inputs, out: ["score", str(inputs), "--skip-bad", "--out", f"{out}/x.parquet"],
    "report": lambda inputs, out: ["report", str(inputs), "--skip-bad", "--out", f"{out}/x.html"],
}


def states_before_and_after(command: list[str], inputs: Path, out: Path, *, with_old: bool) -> tuple[State, State]:
    """What lies in the output's folder before and after the command; the old state is of other options and inputs."""
    old: State = {}
    restore(out, old)
    if with_old:
        (inputs / "geos.jsonl").rename(inputs / "other.jsonl")
        assert run_until(lambda: run([*command, "--tau", "0.4"]), None) == 0
        (inputs / "other.jsonl").rename(inputs / "geos.jsonl")
        old = state_of(out)
    assert run_until(lambda: run(command), None) == 0
    new = state_of(out)
    assert all(new[name] != data for name, data in old.items() if name in new and name.endswith(".json"))
    return old, new


def check_kill(command: list[str], point: int, out: Path, old: State, new: State) -> bool:
    """Kill the command at a point; False where it ended before it."""
    restore(out, old)
    if run_until(lambda: run(command), point) is not None:
        return False
    seen = state_of(out)
    for name in seen:
        if name.endswith(MANIFEST_SUFFIX):  # it never lies beside other files than its own
            state = new if seen[name] == new.get(name) else old
            assert [seen.get(file) for file in files_of_manifest(str(out / name))] == [
                state[file] for file in files_of_manifest(str(out / name))
            ]
    if point % 2:  # any writer to the folder finishes what was begun
        with Outputs(str(out / "other.jsonl")):
            pass
        seen = state_of(out)
        assert seen in (old, new)
    code = run_until(lambda: run(command), None)
    assert code == 0 or (seen == new and "--force" not in command)
    assert state_of(out) == new
    assert list(out.rglob(".*")) == []
    return True


@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize("name", ["select", "select --by-source"])
def test_after_a_kill_the_old_state_or_the_new_is_whole(
    name: str, with_old: bool, inputs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [*COMMANDS[name](inputs, out), *(["--force"] if with_old else [])]
    old, new = states_before_and_after(command, inputs, out, with_old=with_old)
    assert [check_kill(command, point, out, old, new) for point in (7, 14, 17, 19, 20)] == [True] * 5


@pytest.mark.slow
@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_after_a_kill_at_any_rename_or_fsync_a_state_is_whole(
    name: str, with_old: bool, inputs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [*COMMANDS[name](inputs, out), *(["--force"] if with_old else [])]
    old, new = states_before_and_after(command, inputs, out, with_old=with_old)
    n_points = 0
    while check_kill(command, n_points, out, old, new):
        n_points += 1
    print(f"{name}: {n_points} kills")
    assert n_points >= 20


def test_a_second_writer_is_refused_before_it_reads_anything(inputs: Path, tmp_path: Path, capsys) -> None:
    for command in COMMANDS.values():
        command = [*command(inputs, tmp_path / "out"), "--force"]
        outs = [
            f"{tmp_path}/out/{name}"
            for name in ("bis-0.1.jsonl", "bis-0.2", "x.jsonl", "x.parquet", "x.csv", "x.html")
        ]
        with Outputs(*outs):
            assert run_until(lambda command=command: run(command), None) == 2
        assert not (tmp_path / "out").exists()
    with (
        Outputs(str(tmp_path / "x.jsonl")),
        pytest.raises(ConfigError, match=r"another process is writing .*x\.jsonl; wait"),
    ):
        mprm.convert(inputs, str(tmp_path / "x.jsonl"), to="trl", skip_bad=True)


def pair_of_writers(inputs: Path, out: Path, name: str) -> list[int]:
    command = [sys.executable, "-m", "mprm", *COMMANDS[name](inputs, out)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    writers = [subprocess.Popen(command, **quiet) for _ in range(2)]
    return sorted(writer.wait() for writer in writers)


def test_of_two_writers_one_is_done(inputs: Path, tmp_path: Path) -> None:
    assert pair_of_writers(inputs, tmp_path / "out", "convert") in ([0, 1], [0, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["select", "select --by-source", "convert", "score", "report"])
def test_of_fifty_pairs_of_writers_never_are_both_done(name: str, inputs: Path, tmp_path: Path) -> None:
    for number in range(10):
        assert pair_of_writers(inputs, tmp_path / str(number), name) in ([0, 1], [0, 2])
        assert list((tmp_path / str(number)).rglob(".*")) == []


# Files of other people


@pytest.mark.parametrize("to", ["--out", "--out-dir"])
def test_a_dropped_file_that_mprm_did_not_write_stays(to: str, inputs: Path, tmp_path: Path) -> None:
    name, notes = ("x.jsonl", "x.dropped.jsonl") if to == "--out" else ("", "dropped.jsonl")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / notes).write_text("mine")
    good = str(inputs / "ai2d.jsonl")
    assert run(["select", good, to, str(tmp_path / "out" / name)]) == 0
    assert run(["select", good, to, str(tmp_path / "out" / name), "--force"]) == 0
    assert run(["select", str(inputs), "--skip-bad", "--rho", "0.5", to, str(tmp_path / "out" / name)]) == 1
    assert (tmp_path / "out" / notes).read_text() == "mine"


def test_a_second_run_into_a_folder_leaves_the_first_ones_dropped_file(inputs: Path, tmp_path: Path) -> None:
    mprm.select(inputs, skip_bad=True, rho=0.2).write_all(tmp_path / "out")
    before = state_of(tmp_path / "out")
    mprm.select(inputs / "ai2d.jsonl", rho=0.5).write_all(tmp_path / "out", force=True)
    assert before.items() <= state_of(tmp_path / "out").items()


def test_what_a_replaced_run_wrote_beside_goes_with_it(inputs: Path, tmp_path: Path) -> None:
    for write in (
        lambda selection, out: selection.write(f"{out}/x.jsonl", force=True),
        lambda selection, out: selection.write_all(out, by_source=True, force=True),
    ):
        restore(tmp_path / "out", {})
        write(mprm.select(inputs, skip_bad=True), tmp_path / "out")
        assert any("dropped" in name for name in state_of(tmp_path / "out"))
        write(mprm.select(inputs / "ai2d.jsonl"), tmp_path / "out")
        seen = state_of(tmp_path / "out")
        assert not any("dropped" in name or "geos" in name for name in seen)
        assert len(seen) == 2


def test_an_input_named_like_a_file_beside_the_output_is_not_replaced(inputs: Path, tmp_path: Path) -> None:
    good = (inputs / "ai2d.jsonl").read_bytes()
    for name in ("x.jsonl.manifest.json", "x.dropped.jsonl"):
        path = tmp_path / name
        path.write_bytes(good)
        for write in (
            lambda path: mprm.select(path).write(f"{tmp_path}/x.jsonl", force=True),
            lambda path: mprm.convert(path, f"{tmp_path}/x.jsonl", to="trl", force=True),
            lambda path: mprm.score(path, f"{tmp_path}/x.jsonl", force=True),
        ):
            with pytest.raises(ConfigError, match="is one of the inputs"):
                write(path)
        assert path.read_bytes() == good
        path.unlink()


def test_a_manifest_goes_without_force_only_where_its_output_is_gone(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    mprm.select(inputs, skip_bad=True).write(out)
    out.unlink()
    mprm.select(inputs, skip_bad=True).write(out)
    out.unlink()
    (tmp_path / "x.jsonl.manifest.json").write_text("{}")
    with pytest.raises(OutputExistsError, match="manifest"):
        mprm.select(inputs, skip_bad=True).write(out)
    assert (tmp_path / "x.jsonl.manifest.json").read_text() == "{}"


# Disks


@pytest.mark.parametrize("name", ["select", "select --by-source", "convert", "convert to Parquet", "score", "report"])
def test_a_full_disk_is_named_by_the_output(name: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "ai2d.jsonl", [raw_record([1.0, 0.0], number=i) for i in range(400)])
    command = COMMANDS[name](tmp_path / "in", tmp_path / "out")
    for more in ([], ["--processes", "2"]) if name == "select" else ([],):
        with files_of_at_most(3000):
            done = subprocess.run([sys.executable, "-m", "mprm", *command, *more], capture_output=True, text=True)
        assert done.returncode == 1
        assert f"File too large: '{tmp_path}/out/" in done.stderr
        assert "mprm-tmp" not in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "out").exists()


def test_a_full_folder_for_temporary_files_is_named(tmp_path: Path) -> None:
    good = [raw_record([1.0, 0.0], number=i) for i in range(3)]
    write_jsonl(tmp_path / "in" / "ai2d.jsonl", [*good, *([b"{" + b"x" * 3000] * 5)])
    (tmp_path / "tmp").mkdir()
    for name in ("select", "convert", "score", "report"):
        command = [sys.executable, "-m", "mprm", *COMMANDS[name](tmp_path / "in", tmp_path / "out")]
        with files_of_at_most(9000):
            environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [f"mprm {name}: [Errno 27] File too large: '{tmp_path}/tmp'"]


@pytest.mark.parametrize("name", ["select", "select --by-source", "convert", "score", "report"])
def test_a_loop_of_symbolic_links_is_no_output(name: str, inputs: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert run(COMMANDS[name](inputs, tmp_path / "a")) == 2
    assert "symbolic link" in capsys.readouterr().err
    for file in ("x.jsonl", "x.csv", "x.html", "bis-0.2"):
        (tmp_path / file).symlink_to(tmp_path / file)
    assert run(COMMANDS[name](inputs, tmp_path)) == 2
    assert "symbolic link" in capsys.readouterr().err


# Inputs that change


@pytest.mark.parametrize("change", ["cut", "touch"])
@pytest.mark.parametrize("n_processes", [1, 2])
@pytest.mark.parametrize(
    "work",
    [
        lambda paths, out, **options: mprm.select(paths, **options).write(f"{out}/x.jsonl"),
        lambda paths, out, **options: mprm.convert(paths, f"{out}/x.jsonl", to="trl", **options),
        lambda paths, out, **options: mprm.score(paths, f"{out}/x.jsonl", **options),
        lambda paths, _, **options: mprm.stats(paths, **options),
        lambda paths, _, **options: mprm.check(paths, **options),
        lambda paths, out, **options: mprm.report(paths, out=f"{out}/x.html", **options),
    ],
    ids=["select", "convert", "score", "stats", "check", "report"],
)
def test_an_input_that_changes_is_named(work, n_processes: int, change: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("mprm.data.records.CHUNK_BYTES", 20_000)
    path = write_jsonl(tmp_path / "in" / "ai2d.jsonl", [raw_record([1.0, 0.0], number=i) for i in range(400)])
    n_calls = 0

    def alter(_n: int) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3 and change == "cut":
            os.truncate(path, 1000)
        elif n_calls == 3:
            os.utime(path, ns=(0, 0))

    with pytest.raises(DataError, match=r"ai2d\.jsonl: the file changed while it was read"):
        work(path, tmp_path / "out", processes=n_processes, progress=calling(alter))
    assert n_calls >= 3
    assert not (tmp_path / "out").exists()


def test_a_small_input_that_is_cut_while_it_is_read_does_not_kill_the_process(tmp_path: Path) -> None:
    from mprm.data.records import Chunk, mapped

    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 20_000 + b"\n")
    child = os.fork()
    if not child:
        with mapped(Chunk(str(path), "plain", "a", 0, 20_001)) as data:
            os.truncate(path, 0)
            os._exit(0 if data[:20_001] == b"x" * 20_000 + b"\n" else 1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(DataError, match="became shorter"), mapped(Chunk(str(path), "plain", "a", 0, 20_001)):
        pass


# What a killed run left is finished only where it is still what that run wrote.


def left_plan(folder: Path, rename: list[str], remove: list[str] | None = None) -> Path:
    """A temporary folder with a plan, as a run that was killed before its first rename leaves it."""
    hidden = folder / ".x.jsonl.mprm-tmp"
    hidden.mkdir(parents=True)
    for number in range(len(rename)):
        (hidden / str(number)).write_text("new")
    plan = {"rename": rename, "replaced": [None for _ in rename], "remove": remove or []}
    (hidden / "plan.json").write_text(json.dumps(plan))
    return hidden


def write_beside(folder: Path) -> None:
    with Outputs(str(folder / "other.jsonl")) as outputs:
        outputs.add(str(folder / "other.jsonl")).write_text("{}\n")


def test_a_plan_is_finished_by_the_next_writer(tmp_path: Path) -> None:
    hidden = left_plan(tmp_path, ["a.jsonl", "sub/b.jsonl"])
    write_beside(tmp_path)
    assert ((tmp_path / "a.jsonl").read_text(), (tmp_path / "sub" / "b.jsonl").read_text()) == ("new", "new")
    assert not hidden.exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_a_plan_that_came_from_elsewhere_touches_nothing_outside_its_folder(is_link: bool, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "data"
    victim.mkdir()
    for name in ("v", "w"):
        (victim / name).write_text("precious")
    if is_link:
        folder.mkdir()
        (folder / "link").symlink_to(victim)
    start = "link" if is_link else "../victim"
    left_plan(folder, [f"{start}/w"], [f"{start}/v"])
    write_beside(folder)
    assert [(victim / name).read_text() for name in ("v", "w")] == ["precious"] * 2


def test_a_file_that_was_written_since_the_kill_is_not_replaced(tmp_path: Path) -> None:
    left_plan(tmp_path, ["a.jsonl", "b.jsonl"])
    (tmp_path / "a.jsonl").write_text("mine")
    write_beside(tmp_path)
    assert (tmp_path / "a.jsonl").read_text() == "mine"
    assert not (tmp_path / "b.jsonl").exists()


@pytest.mark.parametrize("text", ['{"ren', "[]", '{"rename": ["a"], "replaced": [], "remove": []}', "\x00"])
def test_a_damaged_plan_blocks_nobody(text: str, tmp_path: Path) -> None:
    hidden = left_plan(tmp_path, ["a"])
    (hidden / "plan.json").write_text(text)
    write_beside(tmp_path)
    assert (tmp_path / "other.jsonl").exists()
    assert not hidden.exists()


def test_a_run_that_cannot_finish_leaves_no_plan_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def write() -> None:
        with Outputs(str(tmp_path / "a.jsonl")) as outputs:
            outputs.add(str(tmp_path / "a.jsonl")).write_text("new")
            temporary = outputs.add(str(tmp_path / "b.jsonl"))
            temporary.write_text("new")
            outputs._files[str(temporary)] = str(tmp_path / "file" / "b.jsonl")  # where there is no folder

    with pytest.raises(FileExistsError):
        write()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["x" * 256, "x" * 250, "a\0b", "a\udcff"])
def test_a_name_that_no_file_can_have_is_refused_before_any_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError), Outputs(str(tmp_path / "a.jsonl")) as outputs:
        outputs.add(str(tmp_path / (name if len(name) != 250 else name + "ääää")))
    with pytest.raises(ConfigError), Outputs(str(tmp_path / f"{name}.jsonl")) as outputs:
        outputs.add(str(tmp_path / f"{name}.jsonl"))


def test_files_beside_a_manifest_whose_first_file_is_gone_are_neither_replaced_nor_removed(tmp_path: Path) -> None:
    manifest = tmp_path / "z.jsonl.manifest.json"
    manifest.write_text(json.dumps({"mprm": "0.1.0", "files": ["z.jsonl", "thesis.txt"]}))
    (tmp_path / "thesis.txt").write_text("precious")
    with Outputs(str(tmp_path / "z.jsonl")) as outputs:
        outputs.add(str(tmp_path / "z.jsonl")).write_text("{}\n")
        outputs.add_manifest(
            str(tmp_path / "z.jsonl"), command="select", config={}, inputs=[], sources={}, output={"path": "z.jsonl"}
        )
    assert (tmp_path / "thesis.txt").read_text() == "precious"
    assert json.loads(manifest.read_text())["files"] == ["z.jsonl"]
    (tmp_path / "z.jsonl").unlink()
    with pytest.raises(OutputExistsError), Outputs(str(tmp_path / "z.jsonl")) as outputs:
        outputs.add(str(tmp_path / "thesis.txt"))


def test_an_empty_name_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0, 0.0])])
    assert run(["select", str(path), "--out-dir", ""]) == 2
    assert "the output has no name" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no name"):
        mprm.select(path).write_all("")
