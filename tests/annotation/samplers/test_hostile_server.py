"""A server that sends whatever it likes: a limit of size and of time for each reply, and one clear line."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mprm.annotation.samplers import sampler as protocol
from mprm.annotation.samplers.sampler import Completion, Request
from mprm.errors import MprmError
from tests.annotation.samplers.chat_server import chat_server
from tests.annotation.samplers.hostile import ANSWERING, FAILING
from tests.conftest import write_jsonl

pytest.importorskip("openai")

from mprm.annotation.samplers import server as server_module
from mprm.annotation.samplers.server import HTTPSampler

MODES = {**FAILING, **ANSWERING}
MAX_RSS = 500 << 20
MEASURE = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]);"
    " print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, flush=True); sys.exit(code)"
)
"""Runs a command, and prints the peak memory of its largest process last."""
HUGE = ("an endless body", "a gzip bomb", "a failure page of 50 MB", "a dripping body")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEALTH_CHECK_S", 0.01)


def answer_of(mode: str) -> Completion:
    with chat_server(fault=lambda _number, _body: MODES[mode]) as server:
        policy = HTTPSampler(server.url, "policy", timeout_s=0.25 if mode in FAILING else 10, retries=0)
        [(_, [completion])] = protocol.answers(policy, [Request(prompt="q")])
    return completion


@pytest.mark.parametrize("mode", FAILING)
def test_a_reply_that_is_no_answer_fails_in_time_with_a_line(mode: str) -> None:
    started = time.monotonic()
    try:
        completion = answer_of(mode)
    except MprmError as error:
        completion = protocol.failed(error)
    assert time.monotonic() - started < 5
    assert completion.finish_reason == "error"
    assert completion.error
    assert completion.error.isprintable()
    assert len(completion.error) < 600


@pytest.mark.parametrize("mode", ANSWERING)
def test_an_odd_answer_can_be_written(mode: str) -> None:
    completion = answer_of(mode)
    assert completion.finish_reason == "stop", completion.error
    assert "boxed{4}" in completion.text
    assert completion.text.encode()  # UTF-8 takes no half of a surrogate pair
    assert completion.n_tokens is None or 0 <= completion.n_tokens < 2**31


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("an endless body", "the reply is over 0.3 MiB, more than such a reply can need"),
        ("a gzip bomb", "the reply is over 0.3 MiB"),
        ("a dripping body", "no whole reply within 0.25 s"),
        ("dripping headers", "no whole reply within 0.25 s"),
        ("an error page of 50 MB", "HTTP 400: \\x1b"),
        ("nested deeply", "no chat completion: RecursionError"),
        ("a redirect to itself", "HTTP 307"),
    ],
)
def test_the_line_says_what_was_wrong(mode: str, words: str) -> None:
    assert words in str(answer_of(mode).error)


def ran(command: str, mode: str, folder: Path, n_questions: int = 70) -> tuple[int, str, float, int]:
    """Exit code, output, seconds and peak memory in bytes of a command against the server."""

    def fault(_number: int, body: dict[str, Any]) -> Any:
        said = body["messages"]
        is_probe = said[0]["content"] == "How long is the bar?"
        # annotate gets its rollouts, and meets the fault in what continues them
        return None if is_probe or (command == "annotate" and len(said) == 1) else MODES[mode]

    questions = [{"id": str(i), "question": f"What is 2 + 2, {i}?", "answer": "4"} for i in range(n_questions)]
    path = write_jsonl(folder / "questions.jsonl", questions)
    with chat_server(fault=fault) as server:
        words = [
            command,
            str(path),
            "--server",
            server.url,
            "--served-model",
            "m",
            "--out",
            str(folder / "out.jsonl"),
        ]
        # an answer has time enough on a busy machine too
        limits = [
            "--timeout-s",
            "1" if mode in FAILING else "20",
            "--retries",
            "1",
            "--patience-s",
            "2",
            "--max-new-tokens",
            "64",
        ]
        rest = ["--n", "2"] if command == "sample" else ["--rollouts", "1", "--continuations", "2"]
        started = time.monotonic()
        # from a small process: the peak of a child begins with that of its parent
        command_line = [sys.executable, "-c", MEASURE, sys.executable, "-m", "mprm", *words, *limits, *rest]
        done = subprocess.run(command_line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    *lines, n_kilobytes = done.stdout.splitlines()
    return done.returncode, "\n".join(lines), time.monotonic() - started, int(n_kilobytes) * 1024


def check_ran(command: str, mode: str, folder: Path) -> None:
    code, text, seconds, n_bytes = ran(command, mode, folder)
    assert "Traceback" not in text
    assert n_bytes < MAX_RSS, f"{n_bytes >> 20} MiB"
    assert seconds < 30
    assert max(map(len, text.splitlines())) < 1000
    if mode in FAILING:
        assert code in (1, 2)
        assert text.splitlines()[-1].startswith(f"mprm {command}: ")
    else:
        assert code == 0, text
        assert len((folder / "out.jsonl").read_text().splitlines()) == 70


@pytest.mark.parametrize(("command", "mode"), [("sample", "an endless body"), ("annotate", "half a surrogate pair")])
def test_a_command_survives(command: str, mode: str, tmp_path: Path) -> None:
    check_ran(command, mode, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "mode"),
    [*(("sample", mode) for mode in MODES), *(("annotate", mode) for mode in (*HUGE, *ANSWERING))],
)
def test_a_command_survives_every_mode(command: str, mode: str, tmp_path: Path) -> None:
    check_ran(command, mode, tmp_path)
