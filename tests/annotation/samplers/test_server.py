import base64
import json
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mprm.annotation.samplers import sampler as protocol
from mprm.annotation.samplers.sampler import Answered, Completion, Request, SamplingParams, derived_seed
from mprm.errors import ConfigError, MprmError
from tests.annotation.samplers.chat_server import ChatServer, chat_server

openai = pytest.importorskip("openai")

from mprm.annotation.samplers import server as server_module
from mprm.annotation.samplers.server import HTTPSampler

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the openai client's back-off, and of ours."""
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    for name in ("HEALTH_CHECK_S", "UNREACHABLE_AFTER_S"):
        monkeypatch.setattr(server_module, name, 0.01)


def sampler(server: ChatServer, **settings: Any) -> HTTPSampler:
    return HTTPSampler(server.url, "policy", **settings)


def answers(policy: HTTPSampler, requests: list[Request]) -> dict[int, list[Completion]]:
    return dict(protocol.answers(policy, requests))


def collect(policy: HTTPSampler, requests: Iterable[Request | None], into: list[Answered]) -> threading.Thread:
    def extend() -> None:
        for batch in policy.sample(requests):
            into.extend(batch)

    thread = threading.Thread(target=extend)
    thread.start()
    return thread


def until(fact: Any) -> None:
    deadline = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_all_answers_of_a_question_are_asked_for_at_once() -> None:
    with chat_server() as server:
        results = answers(sampler(server), [Request(prompt="2+2?", n=3, seed=5)])
    assert [c.text for c in results[0]] == [f"2+2?\n\nseed 5, answer {i}" for i in range(3)]
    assert {c.finish_reason for c in results[0]} == {"stop"}
    assert len(server.bodies) == 1


def test_the_body_says_how_to_decode() -> None:
    sampling = SamplingParams(temperature=0.5, top_p=0.8, top_k=20, max_new_tokens=64)
    with chat_server() as server:
        answers(sampler(server, extra_body={"min_p": 0.1}), [Request(prompt="q", seed=9, sampling=sampling)])
        answers(sampler(server), [Request(prompt="q", sampling=SamplingParams(top_k=0))])
    first, second = server.bodies
    assert first == {
        "model": "policy",
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.8,
        "top_k": 20,
        "seed": 9,
        "min_p": 0.1,
    }
    assert "top_k" not in second  # 0 leaves it out, for servers that do not know it


def test_a_prefix_is_continued() -> None:
    with chat_server() as server:
        results = answers(sampler(server), [Request(prompt="q", prefix=f"First {i}.\n\n", n=2) for i in range(9)])
    assert [completion.text for completion in results[3]] == [f"q\n\nseed 0, answer {i}" for i in range(2)]
    for body in server.requests:
        assert body["messages"][1]["content"].endswith(".\n\n")
        assert body["continue_final_message"] is True
        assert body["add_generation_prompt"] is False
    assert {server.prompt(body) for body in server.requests} == {
        f"<|user|>q<|end|><|assistant|>First {i}.\n\n" for i in range(9)
    }
    # open, closed, and with white space at the end: the server is probed once, by the first of them
    assert (len(server.requests), len(server.bodies)) == (9, 12)
    assert {body["max_tokens"] for body in server.bodies if body not in server.requests} == {1}


def test_a_server_that_would_open_a_new_turn_is_refused() -> None:
    with chat_server(continues=False) as server:
        assert answers(sampler(server), [Request(prompt="q")])[0][0].finish_reason == "stop"
        with pytest.raises(ConfigError, match=r"ignores continue_final_message.*name the checkpoint's folder"):
            answers(sampler(server), [Request(prompt="q", prefix="First,")])
    assert len(server.requests) == 1  # nothing was continued


def test_a_server_that_does_not_count_prompt_tokens_is_refused() -> None:
    with chat_server(counts_prompts=False) as server:
        with pytest.raises(ConfigError, match=r"does not tell usage\.prompt_tokens"):
            answers(sampler(server), [Request(prompt="q", prefix="First,")])


def test_a_server_that_takes_a_chat_template_neither_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    with chat_server(continues=False) as server:
        with pytest.raises(ConfigError, match=r"and it ignores a chat template of its own .*; use vLLM or SGLang"):
            answers(sampler(server, chat_template=tmp_path), [Request(prompt="q", prefix="First,")])


def test_an_answer_does_not_repeat_its_prefix_even_where_the_server_does() -> None:
    prefixes = ["First,", " Then\n\n", "q\n\nseed 0, answer 0"]
    with chat_server(echoes=True) as server:
        results = answers(sampler(server), [Request(prompt="q", prefix=prefix) for prefix in prefixes])
    assert [results[i][0].text for i in range(3)] == ["q\n\nseed 0, answer 0"] * 3
    # a server that does not echo may well say the same twice
    with chat_server() as server:
        results = answers(sampler(server), [Request(prompt="q", prefix=prefix) for prefix in prefixes])
    assert [results[i][0].text for i in range(3)] == ["q\n\nseed 0, answer 0"] * 3


def test_an_echo_of_something_else_is_no_answer() -> None:
    def answer(body: dict[str, Any], number: int) -> dict[str, Any]:
        prefix = body["messages"][-1]["content"]
        texts = {"a": "b goes on", " a.\n\n": "a.\n\nso", "c.\n\n": "c."}  # the last two as stripped at both ends
        text = texts.get(prefix, prefix + "!")
        return {"index": number, "message": {"content": text}, "finish_reason": "stop"}

    requests = [Request(prompt="q", prefix=prefix) for prefix in ("a", " a.\n\n", "c.\n\n")]
    with chat_server(answer=answer) as server:
        results = answers(sampler(server), requests)
    assert "repeats the prefix of answers, but not of this one" in str(results[0][0].error)
    assert [results[i][0].text for i in (1, 2)] == ["so", ""]


def test_white_space_that_the_server_cuts_off_is_reported_and_not_repeated() -> None:
    def answer(_body: dict[str, Any], number: int) -> dict[str, Any]:
        return {"index": number, "message": {"content": "\n\nNext."}, "finish_reason": "stop"}

    with chat_server(trims=True, answer=answer) as server, pytest.warns(UserWarning, match="cuts white space off"):
        results = answers(sampler(server), [Request(prompt="q", prefix="First.\n\n")])
    assert results[0][0].text == "Next."
    with chat_server(answer=answer) as server:
        results = answers(sampler(server), [Request(prompt="q", prefix="First.\n\n")])
    assert results[0][0].text == "\n\nNext."


def test_the_key_goes_into_the_header_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of another server")
    with chat_server() as server:
        answers(sampler(server, api_key="secret"), [Request(prompt="q")])
        answers(sampler(server), [Request(prompt="q")])
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert "Authorization" not in server.headers[1]
    assert "secret" not in str(server.bodies) + str(server.headers[0] | {"Authorization": ""})


@pytest.mark.parametrize("fault", [401, 500, "garbage", "drop"])
def test_the_key_is_in_no_message(fault: int | str) -> None:
    with chat_server(fault=lambda _number, _body: fault) as server:
        try:
            [completion] = answers(sampler(server, api_key="secret", retries=1), [Request(prompt="q")])[0]
            message = str(completion.error)
        except MprmError as error:
            message = str(error)
    assert message
    assert "secret" not in message


def test_the_key_goes_with_health_checks() -> None:
    with chat_server(fault=lambda number, _body: 503 if number == 1 else None) as server:
        answers(sampler(server, api_key="secret", concurrency=1), [Request(prompt=f"q{i}") for i in range(3)])
    assert len(server.bodies) - len(server.requests) == 1
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret"}


@pytest.mark.parametrize(("path", "expected"), [("", "/v1"), ("/", "/v1"), ("/v1", "/v1"), ("/api/v3/", "/api/v3")])
def test_a_bare_address_gets_v1(path: str, expected: str) -> None:
    assert HTTPSampler(f"http://host:1{path}", "m").base_url == f"http://host:1{expected}"


def test_a_server_that_gives_one_answer_at_a_time_is_asked_again() -> None:
    requests = [Request(prompt=f"q{i}", n=4, seed=i) for i in range(3)]
    with chat_server(takes_n=False) as server:
        results = answers(sampler(server, concurrency=1), requests)
        again = answers(sampler(server, concurrency=1), requests[::-1])
    for i in range(3):
        seeds = [i, *(derived_seed(i, number) for number in range(1, 4))]
        assert [c.text for c in results[i]] == [f"q{i}\n\nseed {seed}, answer 0" for seed in seeds]
        # the answers do not depend on whether the server's limit was known yet
        assert [c.text for c in again[2 - i]] == [c.text for c in results[i]]
    assert sum("n" in body for body in server.bodies) == 4  # each run learns it with the two that are under way
    assert results[0][0].n_tokens == 7


def test_a_server_that_refuses_n_is_asked_for_one_at_a_time() -> None:
    with chat_server(fault=lambda _number, body: 422 if "n" in body else None) as server:
        results = answers(sampler(server, concurrency=1), [Request(prompt=f"q{i}", n=2) for i in range(3)])
    assert all(c.finish_reason == "stop" for i in range(3) for c in results[i])
    assert sum("n" in body for body in server.bodies) == 2  # those that are under way when it is learnt


def test_passing_faults_are_retried_and_nothing_is_lost() -> None:
    faults: list[int | str] = [500, 429, "drop", 503, "garbage"]

    def fault(number: int, _body: dict[str, Any]) -> int | str | None:
        return faults[number % 10] if number % 10 < len(faults) else None

    requests = [Request(prompt=f"q{i}", n=2, seed=i) for i in range(40)]
    with chat_server(fault=fault) as server:
        results = answers(sampler(server, concurrency=8, retries=40), requests)
    assert results == {
        # 7 tokens in all, shared out
        i: [Completion(text=f"q{i}\n\nseed {i}, answer {k}", finish_reason="stop", n_tokens=4 - k) for k in range(2)]
        for i in range(40)
    }
    assert len(server.bodies) >= 75  # half of them failed


def test_the_server_says_how_long_to_wait() -> None:
    with chat_server(fault=lambda number, _body: 429 if number == 0 else None, retry_after_s=0.3) as server:
        began = time.monotonic()
        results = answers(sampler(server), [Request(prompt="q")])
    assert results[0][0].finish_reason == "stop"
    assert 0.3 <= time.monotonic() - began < 2


def test_a_reply_that_takes_too_long_is_asked_for_again() -> None:
    with chat_server(fault=lambda number, _body: "slow" if number == 0 else None) as server:
        results = answers(sampler(server, timeout_s=0.3), [Request(prompt="q")])
    assert results[0][0].finish_reason == "stop"
    assert len(server.bodies) == 2


def test_a_request_that_always_fails_is_recorded_and_the_others_go_on() -> None:
    def fault(_number: int, body: dict[str, Any]) -> int | None:
        return 500 if body["messages"][0]["content"] == "q1" else None

    with chat_server(fault=fault) as server:
        results = answers(sampler(server, retries=2), [Request(prompt=f"q{i}", n=2) for i in range(3)])
    assert [c.finish_reason for c in results[0] + results[2]] == ["stop"] * 4
    assert [c.finish_reason for c in results[1]] == ["error"] * 2
    assert results[1][0].error == '3 tries failed, the last with HTTP 500: {"error": {"message": "fault 500"}}'
    assert sum(body["messages"][0]["content"] == "q1" for body in server.bodies) == 3


def test_a_rejected_request_is_not_retried() -> None:
    with chat_server(fault=lambda _number, _body: 400) as server:
        results = answers(sampler(server), [Request(prompt="too long", n=3)])
    assert [c.error for c in results[0]] == ['HTTP 400: {"error": {"message": "fault 400"}}'] * 3
    assert len(server.bodies) == 2  # with n, and once without it


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_every_request_would_meet_stops_the_run(status: int) -> None:
    with chat_server(fault=lambda _number, _body: status) as server:
        with pytest.raises(ConfigError, match=rf"refuses: HTTP {status}.*--api-key-env"):
            answers(sampler(server), [Request(prompt=f"q{i}") for i in range(100)])
    assert len(server.bodies) <= 64 + 1 + 64 // 8  # those that were taken


def test_a_server_without_top_k_names_the_remedy() -> None:
    with chat_server(fault=lambda _number, _body: "refuse {'top_k'}") as server:
        with pytest.raises(ConfigError, match="--top-k 0"):
            answers(sampler(server), [Request(prompt="q")])


def test_transformers_serve_is_recognised_and_gets_a_generation_config() -> None:
    def fault(_number: int, body: dict[str, Any]) -> str | None:
        return "refuse Unexpected fields in the request: {'top_k'}" if "top_k" in body else None

    requests = [Request(prompt=f"q{i}") for i in range(20)]
    with chat_server(fault=fault, delay_s=0.01) as server:
        results = answers(sampler(server, concurrency=4), requests)
        extra = {"generation_config": '{"top_k": 5, "min_p": 0.1}'}
        answers(sampler(server, extra_body=extra), [Request(prompt="own")])
    assert {results[i][0].finish_reason for i in range(20)} == {"stop"}
    taken = [body for body in server.bodies if "top_k" not in body]
    assert len(taken) == 21
    assert len(server.bodies) - len(taken) <= 5 + 1  # only those that were under way are sent twice
    assert json.loads(taken[0]["generation_config"]) == {"do_sample": True, "top_k": 30}
    assert json.loads(taken[-1]["generation_config"]) == {"do_sample": True, "top_k": 5, "min_p": 0.1}


def test_control_characters_of_a_server_are_not_passed_on() -> None:
    with chat_server(fault=lambda _number, _body: b"go \x1b[2Jaway\x07") as server:
        with pytest.raises(ConfigError, match=r"refuses: HTTP 404: go \\x1b\[2Jaway\\x07\. See --server"):
            answers(sampler(server), [Request(prompt="q")])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"timeout_s": -1.0}, "timeout_s must be above 0, got -1.0"),
        ({"timeout_s": float("nan")}, "timeout_s must be"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        ({"patience_s": -1.0}, "patience_s must be at least 0, got -1.0"),
        ({"patience_s": float("nan")}, "patience_s must be"),
    ],
)
def test_limits_that_make_no_sense_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        HTTPSampler("http://localhost:8000", "policy", **settings)


def test_no_server_is_reported_at_once() -> None:
    with pytest.raises(MprmError, match=r"no server answers at http://127\.0\.0\.1:9/v1/chat/completions"):
        answers(HTTPSampler("http://127.0.0.1:9", "m"), [Request(prompt="q")])


@pytest.mark.parametrize(
    ("given", "reason", "expected"),
    [
        ("a", "length", "length"),
        ("a", "eos_token", "stop"),
        ("a", "content_filter", "error"),
        (None, "stop", "error"),
    ],
)
def test_the_finish_reason_is_kept(given: str | None, reason: str, expected: str) -> None:
    def answer(_body: dict[str, Any], number: int) -> dict[str, Any]:
        return {"index": number, "message": {"content": given}, "finish_reason": reason}

    with chat_server(answer=answer) as server:
        [completion] = answers(sampler(server), [Request(prompt="q")])[0]
    assert completion.finish_reason == expected
    assert (completion.error is not None) == (expected == "error")


def test_many_requests_are_in_flight_but_not_more_than_allowed() -> None:
    with chat_server(delay_s=0.2, takes_n=False) as server:
        results = answers(sampler(server, concurrency=6), [Request(prompt=f"q{i}", n=3) for i in range(12)])
    assert sum(map(len, results.values())) == 36
    assert 3 <= server.most_at_once <= 6


def test_whoever_stops_early_stops_the_requests() -> None:
    before = threading.active_count()
    with chat_server(delay_s=0.02) as server:
        stream = protocol.answers(sampler(server, concurrency=2), (Request(prompt=f"q{i}") for i in range(500)))
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert len(server.bodies) < 50
    assert threading.active_count() <= before + 1


def test_requests_are_taken_while_others_are_answered() -> None:
    taken: list[int] = []

    def requests() -> Iterator[Request]:
        for number in range(11):
            taken.append(number)
            yield Request(prompt=f"q{number}")

    with chat_server(delay_s=0.05) as server:
        stream = sampler(server, concurrency=8).sample(requests())
        done = next(stream)
        assert len(taken) == 10  # 8 in flight, and 1 + 8 // 8 to follow at once
        for batch in stream:
            done += batch
    assert sorted(index for index, _ in done) == list(range(11))
    assert list(sampler(server).sample([])) == []


def test_a_server_that_answers_one_by_one_is_kept_busy_by_fewer_requests() -> None:
    taken: list[int] = []

    def requests() -> Iterator[Request | None]:
        for number, n in enumerate((60, 1, 1, 1)):
            taken.append(number)
            yield Request(prompt=f"q{number}", n=n)
            if number == 1:
                yield None

    def fault(_number: int, body: dict[str, Any]) -> None:
        if body["messages"][0]["content"] == "q1":
            time.sleep(0.15)

    with chat_server(delay_s=0.05, takes_n=False, fault=fault) as server:
        stream = sampler(server, concurrency=8).sample(requests())
        [(first, _)], [(second, completions)] = next(stream), next(stream)
        # after the answer to request 1, more posts of request 0 are left than are sent ahead
        assert (first, second, len(completions), taken) == (1, 0, 60, [0, 1])
        assert sorted(index for batch in stream for index, _ in batch) == [2, 3]
    assert server.most_at_once == 8


def test_what_was_answered_before_an_error_is_handed_out_first() -> None:
    def fault(_number: int, body: dict[str, Any]) -> int | None:
        return 401 if body["messages"][0]["content"] == "q2" else None

    with chat_server(fault=fault, delay_s=0.05) as server:
        stream = sampler(server, concurrency=2).sample([Request(prompt=f"q{number}") for number in range(3)])
        done = next(stream)
        time.sleep(0.5)  # the second answer and the error wait together
        if len(done) == 1:
            done += next(stream)
        assert sorted(index for index, _ in done) == [0, 1]
        with pytest.raises(ConfigError, match="HTTP 401"):
            next(stream)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python leaves SIGINT ignored where its parent ignored it, as a shell's background job does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_wait_can_be_interrupted() -> None:
    before = threading.active_count()
    with chat_server(delay_s=5.0) as server:
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            answers(sampler(server), [Request(prompt="q")])
        assert time.monotonic() - began < 2
    assert threading.active_count() <= before + 2  # the server's own, that sleep


def test_a_server_that_dies_and_comes_back_answers_every_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEALTH_CHECK_S", 0.05)
    done: list[tuple[int, list[Completion]]] = []
    with chat_server(delay_s=0.02) as server:
        policy = sampler(server, concurrency=8)
        thread = collect(policy, [Request(prompt=f"q{i}", seed=i) for i in range(200)], done)
        for n_requests in (40, 120):
            until(lambda n=n_requests: len(server.requests) > n)
            server.die()
            time.sleep(0.2)  # what had come is read
            n_before = len(server.bodies)
            time.sleep(0.4)
            assert len(server.bodies) == n_before
            server.start()
        thread.join()
    assert sorted(number for number, _ in done) == list(range(200))
    for number, [completion] in done:
        assert completion.text == f"q{number}\n\nseed {number}, answer 0"
    # each of the two deaths cost at most the 8 requests in flight and those that results the door shut
    assert 200 <= len(server.requests) <= 200 + 2 * 8


@pytest.mark.parametrize("fault", [503, "drop"])
def test_a_server_that_is_away_is_not_asked_by_everyone(fault: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEALTH_CHECK_S", 0.2)
    is_away = False

    def requests() -> Iterator[Request | None]:
        yield Request(prompt="q")
        while not is_away:
            yield None
        for number in range(32):
            yield Request(prompt=f"q{number}")

    with chat_server(fault=lambda _number, _body: fault if is_away else None) as server:
        stream = sampler(server, concurrency=32).sample(requests())
        done = next(stream)
        is_away = True
        thread = threading.Thread(target=lambda: done.extend(each for batch in stream for each in batch))
        thread.start()
        time.sleep(1.5)
        # each once at most; then one by one at 0.1–0.2 s, 0.2–0.4 s, 0.4–0.8 s, …: 5 at most in 1.5 s
        assert 2 <= len(server.requests) <= 33
        assert 1 <= len(server.bodies) - len(server.requests) <= 5
        is_away = False
        thread.join()
    assert [completion.finish_reason for _, [completion] in done] == ["stop"] * 33


def test_patience_with_a_server_that_stays_away_ends() -> None:
    is_dead = False

    def requests() -> Iterator[Request | None]:
        yield Request(prompt="q")
        while not is_dead:
            yield None
        yield Request(prompt="q")

    with chat_server() as server:
        stream = sampler(server, patience_s=0.6).sample(requests())
        assert len(next(stream)) == 1
        server.die()
        time.sleep(0.7)  # nobody asked anything: patience starts with the first request without an answer
        is_dead, began = True, time.monotonic()
        with pytest.raises(MprmError, match=r"has not answered for 0\.6 s.*no connection.*saved; the same command"):
            next(stream)
        assert 0.5 < time.monotonic() - began < 5


def test_a_request_that_never_gets_a_reply_while_others_do_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEALTH_CHECK_S", 0.001)

    def fault(_number: int, body: dict[str, Any]) -> str | None:
        return "drop" if body["messages"][0]["content"] == "q1" else None

    with chat_server(fault=fault) as server:
        results = answers(sampler(server, retries=2), [Request(prompt=f"q{i}") for i in range(3)])
    assert [results[i][0].finish_reason for i in range(3)] == ["stop", "error", "stop"]
    assert "3 tries failed, the last with RemoteProtocolError" in str(results[1][0].error)


def test_images_stand_at_their_marks_or_before_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(PNG)  # a PNG by another name is sent as what it is
    (tmp_path / "b.png").write_bytes(PNG + b"b")
    images = (tmp_path / "a.jpg", tmp_path / "b.png")
    prompts = ["Look.", "Is <image> like <image>?", "Is <image2> like <image1>?", "One <image> only."]
    with chat_server() as server:
        answers(sampler(server, concurrency=1), [Request(prompt=prompt, images=images) for prompt in prompts])
    a, b = ("data:image/png;base64," + base64.b64encode(data).decode() for data in (PNG, PNG + b"b"))
    said = [
        [part.get("text") or {a: "A", b: "B"}[part["image_url"]["url"]] for part in body["messages"][0]["content"]]
        for body in server.bodies
    ]
    assert said == [
        ["A", "B", "Look."],
        ["Is", "A", "like", "B", "?"],
        ["Is", "B", "like", "A", "?"],
        ["A", "B", "One <image> only."],
    ]


def test_an_image_that_cannot_be_read_fails_its_question_alone(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    requests = [Request(prompt="q", images=(tmp_path / name,), n=2) for name in ("gone.png", "text.png")]
    with chat_server() as server:
        results = answers(sampler(server), [*requests, Request(prompt="q")])
    assert "gone.png' cannot be read: No such file" in str(results[0][1].error)
    assert "text.png' is no PNG, JPEG" in str(results[1][0].error)
    assert results[2][0].finish_reason == "stop"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://"])
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no server"):
        HTTPSampler(url, "m")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_sampling_parameters_that_make_no_sense_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        SamplingParams(**settings)


def test_several_answers_at_temperature_0_are_refused() -> None:
    with pytest.raises(ConfigError, match="would be the same"):
        Request(prompt="q", n=2, sampling=SamplingParams(temperature=0))


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://localhost:abc/v1", "http://localhost:99999/v1", "http://a\x07b/v1", "ftp://a", "x"]
)
def test_addresses_of_no_server_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no server"):
        HTTPSampler(url, "policy")


def test_a_key_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="API key holds letters beyond ASCII"):
        HTTPSampler("http://localhost:1", "policy", api_key="schlüssel")


@pytest.mark.parametrize(
    ("usage", "expected"), [(10, [4, 3, 3]), ("7", [None] * 3), ([7], [None] * 3), (-1, [None] * 3)]
)
def test_the_tokens_of_several_answers_are_shared_out_or_unknown(usage: Any, expected: list[int | None]) -> None:
    choice = {"message": {"content": "so"}, "finish_reason": "stop"}

    class Counting(ChatServer):
        def reply(self, body: dict[str, Any]) -> dict[str, Any]:
            return {"choices": [choice] * 3, "usage": {"completion_tokens": usage}}

    server = Counting()
    server.start()
    try:
        results = answers(sampler(server), [Request(prompt="q", n=3)])
    finally:
        server.die()
    assert [completion.n_tokens for completion in results[0]] == expected
