import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from mprm.annotation.annotate import SampleConfig, sample
from mprm.annotation.samplers.sampler import Answered, Completion, Request, numbered
from mprm.cli.annotate import run_remarks, run_sample as run
from mprm.cli.main import run as main
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, MprmError, OutputExistsError
from tests.annotation.full_disk import files_of_at_most
from tests.annotation.samplers.chat_server import chat_server
from tests.conftest import EXCERPTS, write_jsonl


class Echo:
    """Answers with the question and the seed, the last request first; fails on some."""

    name = "echo"

    def __init__(self, *, fails: Sequence[str] = (), stops_after: int | None = None, voice: str = "low") -> None:
        self.fails, self.stops_after = fails, stops_after
        self.settings = {"voice": voice}
        self.names: list[str] = []

    def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
        waiting: list[tuple[int, Request]] = []
        for request in numbered(requests):
            if request is not None:
                waiting.append(request)
            else:
                index, last = waiting.pop()
                yield [(index, self.answer(last))]

    def answer(self, request: Request) -> list[Completion]:
        name = request.prompt.split("?")[0]
        self.names.append(name)
        if self.stops_after is not None and len(self.names) > self.stops_after:
            raise KeyboardInterrupt
        completions = [
            Completion(text=f"{name}\n\nseed {request.seed}\n\n{index}", finish_reason="stop" if index else "length")
            for index in range(request.n)
        ]
        if name in self.fails:
            completions[1] = Completion(text="", finish_reason="error", error="HTTP 500")
        return completions


QUESTIONS = [Question(id=str(i), source="s", question=f"q{i}?", answer="4") for i in range(5)]
CONFIG = SampleConfig(n=2)


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def test_each_question_is_written_with_its_candidates_in_order(tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    summary = sample(QUESTIONS, Echo(), str(out), config=SampleConfig(n=2, max_steps=2))
    assert ids(out) == ["0", "1", "2", "3", "4"]
    record = json.loads(out.read_text().splitlines()[1])
    candidates = record.pop("candidates")
    assert record == {"id": "1", "source": "s", "question": "q1?", "answer": "4", "images": [], "options": []}
    assert [c["finish_reason"] for c in candidates] == ["length", "stop"]
    assert candidates[0]["text"].startswith("q1\n\nseed ")
    # three pieces in two steps: the first, then the other two
    assert candidates[0]["steps"] == [
        candidates[0]["text"].split("\n\n")[0],
        "\n\n".join(candidates[0]["text"].split("\n\n")[1:]),
    ]
    assert (summary.n_done, summary.n_failed, summary.stats) == (5, 0, {"n_candidates": 10, "n_truncated": 5})
    assert not list(tmp_path.glob("c.jsonl.partial*"))
    manifest = json.loads((tmp_path / "c.jsonl.manifest.json").read_text())
    assert manifest["config"]["policy"] == "echo"
    assert manifest["config"]["temperature"] == 0.7
    assert manifest["config"]["top_k"] == 30
    counts = {"read": 5, "done": 5, "failed": 0, "n_candidates": 10, "n_truncated": 5}
    assert manifest["sources"] == {"s": counts}


def test_every_question_has_a_seed_of_its_own_that_the_run_seed_changes(tmp_path: Path) -> None:
    def seeds(seed: int) -> list[str]:
        out = tmp_path / f"{seed}.jsonl"
        sample(QUESTIONS, Echo(), str(out), config=SampleConfig(n=1, seed=seed))
        return [json.loads(line)["candidates"][0]["steps"][1] for line in out.read_text().splitlines()]

    assert len({*seeds(0), *seeds(1)}) == 10


def test_a_run_that_was_stopped_continues_and_gives_the_same_file(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "c.jsonl"
    sample(QUESTIONS, Echo(), str(whole), config=CONFIG)
    with pytest.raises(KeyboardInterrupt):
        sample(QUESTIONS, Echo(stops_after=2), str(out), config=CONFIG)
    assert not out.exists()
    echo = Echo()
    summary = sample(QUESTIONS, echo, str(out), config=CONFIG)
    assert echo.names == ["q2", "q1", "q0"]
    assert summary.n_resumed == 2
    assert out.read_bytes() == whole.read_bytes()


def test_other_settings_do_not_continue_a_run(tmp_path: Path) -> None:
    out = str(tmp_path / "c.jsonl")
    with pytest.raises(KeyboardInterrupt):
        sample(QUESTIONS, Echo(stops_after=2), out, config=CONFIG)
    with pytest.raises(ConfigError, match=r"temperature was 0\.7, now 1\.0"):
        sample(QUESTIONS, Echo(), out, config=SampleConfig(n=2, temperature=1.0))
    with pytest.raises(ConfigError, match="voice was 'low', now 'high'"):
        sample(QUESTIONS, Echo(voice="high"), out, config=CONFIG)
    with pytest.raises(ConfigError, match="questions was"):
        sample(QUESTIONS[:3], Echo(), out, config=CONFIG)
    echo = Echo()
    sample(QUESTIONS[:3], echo, out, config=CONFIG, force=True)
    assert len(echo.names) == 3


def test_failures_are_recorded_and_sampled_again(tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    with pytest.raises(MprmError, match=r"2 of 5 questions failed, .* reason in .*c\.jsonl\.failed"):
        sample(QUESTIONS, Echo(fails=["q1", "q3"]), str(out), config=CONFIG)
    assert not out.exists()
    failed = [json.loads(line) for line in (tmp_path / "c.jsonl.failed").read_text().splitlines()]
    assert sorted(entry["id"] for entry in failed) == ["1", "3"]
    assert failed[0]["errors"] == ["HTTP 500"]
    echo = Echo()
    summary = sample(QUESTIONS, echo, str(out), config=CONFIG)
    assert echo.names == ["q3", "q1"]
    assert ids(out) == ["0", "1", "2", "3", "4"]
    assert summary.n_resumed == 3
    assert not (tmp_path / "c.jsonl.failed").exists()


def test_failures_can_be_allowed_and_stay_accounted_for(tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    summary = sample(QUESTIONS, Echo(fails=["q1"]), str(out), config=CONFIG, allow_failures=True)
    assert ids(out) == ["0", "2", "3", "4"]
    assert (summary.n_done, summary.n_failed) == (4, 1)
    assert summary.failed_to == str(tmp_path / "c.jsonl.failed")
    manifest = json.loads(Path(summary.manifest).read_text())
    assert manifest["sources"]["s"] == {"read": 5, "done": 4, "failed": 1, "n_candidates": 8, "n_truncated": 4}


def test_an_output_of_nothing_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(MprmError, match="5 of 5 questions failed"):
        sample(
            QUESTIONS,
            Echo(fails=[f"q{i}" for i in range(5)]),
            str(tmp_path / "c.jsonl"),
            config=CONFIG,
            allow_failures=True,
        )


def test_existing_output_is_kept_without_force(tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    out.write_text("mine")
    with pytest.raises(OutputExistsError):
        sample(QUESTIONS, Echo(), str(out), config=CONFIG)
    assert out.read_text() == "mine"
    sample(QUESTIONS, Echo(), str(out), config=CONFIG, force=True)
    assert len(ids(out)) == 5


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.partial", "c.jsonl.failed", "c.jsonl.manifest.json"])
def test_the_questions_are_never_replaced(tmp_path: Path, name: str, force: bool) -> None:
    questions = write_jsonl(tmp_path / name, [{"id": "1", "question": "q1?", "answer": "4"}])
    before = questions.read_bytes()
    out = str(tmp_path / "folder" / ".." / "c.jsonl")  # another name of the same file
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="is one of the inputs; choose another output"):
        sample(questions, Echo(), out, config=CONFIG, format="plain", force=force)
    arguments = [
        "--server",
        "http://localhost:1",
        "--served-model",
        "m",
        "--out",
        out,
        *(["--force"] if force else []),
    ]
    with pytest.raises(ConfigError, match="is one of the inputs"):
        run([str(questions), *arguments])
    assert questions.read_bytes() == before
    assert [path for path in tmp_path.iterdir() if path.is_file()] == [questions]


@pytest.mark.parametrize("force", [False, True])
def test_a_file_of_others_where_the_work_would_be_saved_is_kept(tmp_path: Path, force: bool) -> None:
    mine = tmp_path / "c.jsonl.partial"
    mine.write_text('{"run": 5}')
    with pytest.raises(ConfigError, match=r"c\.jsonl\.partial was not made by mprm"):
        sample(QUESTIONS, Echo(), str(tmp_path / "c.jsonl"), config=CONFIG, force=force)
    assert mine.read_text() == '{"run": 5}'


def test_a_full_disk_is_reported_with_the_file_that_was_written(tmp_path: Path) -> None:
    out = tmp_path / "c.jsonl"
    # the journal is larger than the output: it fails first, unless it is whole already
    with pytest.raises(OSError, match=r"c\.jsonl\.partial'"), files_of_at_most(20_000):
        sample(QUESTIONS, Echo(), str(out), config=CONFIG)
    with pytest.raises(MprmError, match="questions failed"):
        sample(QUESTIONS, Echo(fails=["q0"]), str(out), config=CONFIG)
    n_journal = (tmp_path / "c.jsonl.partial").stat().st_size
    with pytest.raises(OSError, match=r"File too large: .*c\.jsonl'"), files_of_at_most(100):
        sample(QUESTIONS, Echo(fails=["q0"]), str(out), config=CONFIG, allow_failures=True)
    assert not out.exists()
    assert (tmp_path / "c.jsonl.partial").stat().st_size == n_journal


def test_a_sampler_that_leaves_requests_unanswered_is_caught(tmp_path: Path) -> None:
    class Confused(Echo):
        def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
            for [(index, completions)] in super().sample(requests):
                yield [(3 if index == 2 else index, completions)]

    class Lazy(Echo):
        def sample(self, requests: Iterable[Request | None]) -> Generator[list[Answered], None, None]:
            yield from itertools.islice(super().sample(requests), 3)

    with pytest.raises(MprmError, match="echo gave 2 answers to request 3, of which 0 were requested"):
        sample(QUESTIONS, Confused(), tmp_path / "c.jsonl", CONFIG)
    with pytest.raises(
        MprmError, match=r"echo left 2 requests unanswered; what is done is kept in .*d\.jsonl\.partial"
    ):
        sample(QUESTIONS, Lazy(), tmp_path / "d.jsonl", CONFIG)


def test_ids_that_come_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 questions of source 's' have the id '0'"):
        sample([*QUESTIONS, QUESTIONS[0]], Echo(), str(tmp_path / "c.jsonl"), config=CONFIG)


def test_raw_files_are_sampled_and_the_share_of_extracted_golds_is_in_the_manifest(tmp_path: Path) -> None:
    summary = sample(
        [EXCERPTS / "gsm8k/test.jsonl", EXCERPTS / "math500/test500.jsonl"], Echo(), tmp_path / "c.jsonl"
    )
    assert (summary.n_done, summary.n_extracted) == (220, 100)
    assert json.loads((tmp_path / "c.jsonl.manifest.json").read_text())["config"]["n_extracted_golds"] == 100
    assert run_remarks(summary)[0].startswith("The gold answers of 100 of 220 questions (45.5%) were read out of")


@pytest.mark.parametrize("command", ["sample", "annotate", "annotate --dry-run"])
def test_bad_questions_are_reported_before_a_policy_is_loaded(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "q.jsonl", [{"question": "?", "answer": "One.\nTwo."}])
    # a folder without a policy: an error on it would say that loading came first
    policy = ["--policy", str(tmp_path), "--out", str(tmp_path / "out" / "c.jsonl")]
    assert main([*command.split(), str(path), *policy]) == 1
    assert "q.jsonl:1: the gold answer 'One." in capsys.readouterr().err


def test_images_are_looked_up_under_the_root_and_must_be_there(tmp_path: Path) -> None:
    question = Question(id="1", source="s", question="q?", answer="4", images=("a.png",))
    with pytest.raises(DataError, match=r"question '1' of 's': image .*a\.png .*--image-root"):
        sample([question], Echo(), str(tmp_path / "c.jsonl"), config=CONFIG, image_root=tmp_path)
    climbing = Question(id="1", source="s", question="q?", answer="4", images=("../a.png",))
    with pytest.raises(DataError, match="leaves the image root"):
        sample([climbing], Echo(), str(tmp_path / "c.jsonl"), config=CONFIG, image_root=tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--out", "c.jsonl"],
        ["--out", "c.jsonl", "--policy", "p", "--server", "http://h", "--served-model", "m"],
        ["--out", "c.jsonl", "--server", "http://h"],
        ["--out", "c.jsonl", "--server", "http://h", "--served-model", "m", "--extra-body", "[1]"],
        ["--out", "c.jsonl", "--server", "http://h", "--served-model", "m", "--api-key-env", "NO_SUCH_KEY"],
        ["--out", "c.jsonl", "--server", "http://h", "--served-model", "m", "--n", "0"],
        ["--out", "c.jsonl", "--policy", "p", "--concurrency", "0"],
        ["--out", "c.jsonl", "--policy", "p", "--timeout-s", "-1"],
        ["--out", "c.jsonl", "--policy", "p", "--timeout-s", "nan"],
        ["--out", "c.jsonl", "--policy", "p", "--retries", "-1"],
        ["--out", "c.jsonl", "--server", "http://h", "--served-model", "m", "--rows-per-batch", "0"],
        ["--out", "s3://bucket/c.jsonl", "--server", "http://h", "--served-model", "m", "--force"],
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    questions = write_jsonl(tmp_path / "q.jsonl", [{"id": "1", "question": "q?", "answer": "4"}])
    with pytest.raises(ConfigError):
        run([str(questions), *arguments])
    assert not list(tmp_path.glob("c.jsonl*"))


def test_the_command_samples_from_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    questions = write_jsonl(
        tmp_path / "q.jsonl", [{"id": str(i), "question": f"q{i}?", "answer": "4"} for i in range(3)]
    )
    out = tmp_path / "c.jsonl"
    with chat_server() as server:
        code = run(
            [
                str(questions),
                "--server",
                server.url,
                "--served-model",
                "policy",
                "--out",
                str(out),
                "--api-key-env",
                "MY_KEY",
            ]
        )
    assert code == 0
    assert "3 questions with 16 candidates each" in capsys.readouterr().out
    assert ids(out) == ["0", "1", "2"]
    assert {header["Authorization"] for header in server.headers} == {"Bearer secret"}
    body = server.bodies[0]
    # the paper's sampling
    assert (body["n"], body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (
        16,
        0.7,
        0.9,
        30,
        2048,
    )
    assert "secret" not in out.read_text() + (tmp_path / "c.jsonl.manifest.json").read_text()


def test_a_run_that_was_killed_continues_with_every_question_once(tmp_path: Path) -> None:
    questions = write_jsonl(
        tmp_path / "q.jsonl", [{"id": str(i), "question": f"q{i}?", "answer": "4"} for i in range(60)]
    )
    out, partial = tmp_path / "c.jsonl", tmp_path / "c.jsonl.partial"
    with chat_server(delay_s=0.1) as server:
        command = [
            *(
                sys.executable,
                "-c",
                "import sys; from mprm.cli.annotate import run_sample; sys.exit(run_sample(sys.argv[1:]))",
            ),
            *(str(questions), "--server", server.url, "--served-model", "policy", "--out", str(out)),
            *("--n", "2", "--concurrency", "4"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and len(server.bodies) < 16:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()  # type: ignore[union-attr]
        assert not out.exists()
        n_saved = n_records(partial, tmp_path / "copy")
        assert 4 <= n_saved < 60
        with (tmp_path / "c.jsonl.partial-wal").open("ab") as torn:
            torn.write(b"\x00\x00\x00\x05" * 300)  # as a kill in the middle of a write leaves it
        server.delay_s = 0.0
        n_before = len(server.bodies)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{n_saved} of the questions were done by an earlier run" in done.stdout
    assert len(server.bodies) - n_before == 60 - n_saved
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["id"] for record in records] == [str(i) for i in range(60)]
    assert all(len(record["candidates"]) == 2 for record in records)
    assert all(record["candidates"][0]["text"].startswith(f"q{i}?") for i, record in enumerate(records))
    assert not list(tmp_path.glob("c.jsonl.partial*"))


def n_records(journal: Path, folder: Path) -> int:
    """Questions that a copy of the journal holds."""
    folder.mkdir()
    for path in journal.parent.glob(journal.name + "*"):
        shutil.copy(path, folder)
    with closing(sqlite3.connect(folder / journal.name)) as database:
        return int(database.execute("SELECT count(*) FROM records WHERE part = ''").fetchone()[0])
