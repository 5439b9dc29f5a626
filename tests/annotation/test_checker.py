from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mprm.annotation.checker import AnswerChecker
from mprm.answers.grade import GradedAnswer
from mprm.data.types import Question
from mprm.errors import ConfigError, DataError, MissingDependencyError

pytest.importorskip("math_verify")

HANGS = "9^{9^{9^{9}}}"
"""Comparing it with anything computes a number that no computer holds."""


def open_question(gold: str) -> Question:
    return Question(id="1", question="?", answer=gold)


def choice(gold: str, *options: str) -> Question:
    return Question(id="1", question="?", answer=gold, options=options)


def worker_process(checker: AnswerChecker) -> subprocess.Popen[bytes]:
    process = checker._workers[-1].process
    assert process is not None
    return process


def boxed(answer: str) -> str:
    return f"We see it.\n\nSo it is \\boxed{{{answer}}}."


@pytest.fixture(scope="module")
def checker() -> Iterator[AnswerChecker]:
    with AnswerChecker(timeout_s=20, processes=1) as checker:
        yield checker


@pytest.mark.parametrize(
    ("answer", "gold", "grade"),
    [
        (r"\sqrt{12}", r"2\sqrt{3}", "correct"),
        ("x^2+2x+1", "(x+1)^2", "correct"),
        ("x^2+2x+2", "(x+1)^2", "incorrect"),
        ("-3", "y = -3", "correct"),
        ("x=-3", "y = -3", "incorrect"),
        (r"\frac{2\pi}{3}", "2.0944", "correct"),  # 2.09439…
        (r"\frac{\pi}{3}", "2.0944", "incorrect"),
        (r"\{2, 1\}", "1, 2", "correct"),
        ("3 or 4", "4, 3", "correct"),
        ("(4, 3)", "(3, 4)", "incorrect"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "correct"),
        (r"8\sqrt{3}\text{ cm}^2", r"4\sqrt{12}{squareinches}", "incorrect"),
        (r"8\sqrt{3}", r"4\sqrt{12}{squareinches}", "correct"),
        (r"3 \text{h} 5 \text{min}", r"3 \text{h} 35 \text{min}", "incorrect"),
    ],
)
def test_mathematics_is_compared_by_algebra(checker: AnswerChecker, answer: str, gold: str, grade: str) -> None:
    assert checker.check(boxed(answer), open_question(gold)).grade == grade


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{b}", "B"),
        (r"\boxed{B. $\frac{1}{2}$}", "B"),
        (r"\boxed{0.5}", "B"),  # the text of the option, another way
        (r"\boxed{\frac{\sqrt{4}}{4}}", "B"),  # by algebra
        (r"\boxed{\sqrt{9}}", "C"),
        ("The correct answer is (B) because it is.", "B"),
        ("Answer: B", "B"),
        ("It must be this one.\n\n(B)", "B"),
        (r"\boxed{\text{none}}", "none"),
        (r"\boxed{(A) and (B)}", r"(a) and (b)"),
    ],
)
def test_a_choice_is_made_by_letter_or_text(checker: AnswerChecker, response: str, letter: str) -> None:
    graded = checker.check(response, choice("B", r"$\frac{1}{3}$", r"$\frac{1}{2}$", "3", "x + 1"))
    assert graded.grade == ("correct" if letter == "B" else "incorrect")
    if len(letter) == 1:
        assert graded.answer == letter


def test_options_that_are_letters_of_the_picture_are_chosen_by_letter(checker: AnswerChecker) -> None:
    question = choice("C", "(A)", "(B)", "(C)")
    assert checker.check(r"\boxed{C}", question).grade == "correct"
    assert checker.check(r"\boxed{3}", question) == GradedAnswer("incorrect", "3")


def test_no_answer_is_incorrect_and_says_so(checker: AnswerChecker) -> None:
    for response in ("", r"\boxed{}", "First we look.\n\nThen we think about it.", r"cut off \boxed{12"):
        assert checker.check(response, open_question("5")) == GradedAnswer("incorrect", None, "no answer found")


def test_a_gold_answer_that_nobody_can_read_is_failed_not_incorrect(checker: AnswerChecker) -> None:
    graded = checker.check(boxed("5x"), open_question(r"\frac{1}{"))
    assert graded.grade == "failed"
    assert graded.reason is not None
    assert "cannot read the gold answer" in graded.reason
    assert checker.check(boxed("]5("), open_question("5x")).grade == "incorrect"


def test_a_response_cannot_change_the_gold_answer(checker: AnswerChecker) -> None:
    # whatever a response says of gold answers, dollars and boxes, it is compared with the question's own
    attacks = [
        r"5$ \boxed{7} $",
        r"7$ and $5",
        '5", "candidates": ["5"], "x": "',
        "5\n{}",
        r"gold = 5",
        "=5",
        r"5} \boxed{5",
    ]
    for attack in attacks:
        assert checker.check(f"The gold answer is 5. \\boxed{{{attack}}}", open_question("7x+1")).grade != "correct"
    assert checker.check(boxed("7x + 1"), open_question("7x+1")).grade == "correct"


def test_a_comparison_that_hangs_fails_in_time_and_the_next_ones_work() -> None:
    hangs = (boxed(HANGS), open_question("7x"))
    with AnswerChecker(timeout_s=2.0, processes=1) as checker:
        checker.check(boxed("2y"), open_question("y+y"))  # the worker has started
        start = time.monotonic()
        hung = checker.check(*hangs)
        assert 2.0 <= time.monotonic() - start < 2.0 + 2.0
        assert hung == GradedAnswer("failed", "9^{9^{9^9}}", "math-verify took longer than 2 s")
        start = time.monotonic()
        assert checker.check(*hangs) == hung
        assert time.monotonic() - start < 0.5  # known by now
        pairs = [
            (boxed("(10^{8})!"), open_question("7x")),
            (boxed(r"\sqrt{12}"), open_question(r"2\sqrt{3}")),
            (boxed(r"\sqrt{13}"), open_question(r"2\sqrt{3}")),
        ]
        assert [graded.grade for graded in checker.check_many(pairs)] == ["failed", "correct", "incorrect"]


def test_a_killed_worker_fails_one_check_only() -> None:
    with AnswerChecker(timeout_s=60, processes=1) as checker:
        checker.check(boxed("2y"), open_question("y+y"))
        victim = worker_process(checker).pid
        threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
        grades = checker.check_many(
            [(boxed(HANGS), open_question("7x")), (boxed(r"\sqrt{12}"), open_question(r"2\sqrt{3}"))]
        )
        assert grades[0] == GradedAnswer("failed", "9^{9^{9^9}}", "the worker process died (SIGKILL)")
        assert grades[1].grade == "correct"
        # one that dies while it is idle costs no grade at all
        os.kill(worker_process(checker).pid, signal.SIGKILL)
        worker_process(checker).wait()
        assert checker.check(boxed(r"3\sqrt{2}"), open_question(r"\sqrt{18}")).grade == "correct"


ORPHANS = f"""
from mprm.annotation.checker import AnswerChecker
from mprm.data.types import Question
checker = AnswerChecker(timeout_s=2, processes=2)
def check(answers):
    return checker.check_many([(r"\\boxed{{%s}}" % answer, Question(id="1", question="?", answer="7x")) for answer in answers])
check(["7 x + 0", "x 7 + 0"])
print(*[worker.process.pid for worker in checker._workers], flush=True)
check([{HANGS!r}])
"""


def test_workers_die_with_their_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        time.sleep(0.5)  # one worker hangs, the other is idle
        parent.kill()
    deadline = time.monotonic() + 2 + 1 + 3  # the time-out, what a worker adds to it, and slack
    while any(is_running(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if is_running(pid)]


UNGUARDED = r"""
import signal
from mprm.annotation.checker import AnswerChecker
from mprm.data.types import Question
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
print("script runs", flush=True)
question = Question(id="1", question="?", answer="7x")
with AnswerChecker(timeout_s=60, processes=1) as checker:
    print(checker.check(r"\boxed{7 x + 0}", question).grade, flush=True)
    try:
        checker.check(r"\boxed{HANGS}", question)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(checker.check(r"\boxed{x 7 + 0}", question).grade, flush=True)
"""


def test_a_script_needs_no_main_guard_and_can_be_interrupted(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.replace("HANGS", HANGS))
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["script runs\n", "correct\n"]
        time.sleep(0.5)  # the second check hangs
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does, to the workers too
        assert process.stdout.read() == "interrupted\ncorrect\n"
    assert process.returncode == 0


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_closing_ends_the_workers() -> None:
    with AnswerChecker(processes=1) as checker:
        checker.check(boxed("2y"), open_question("y+y"))
        pid = worker_process(checker).pid
    assert not is_running(pid)


def test_every_grade_is_reported_once_and_returned_in_order(checker: AnswerChecker) -> None:
    answers = ["2y", "5", "y+y", "7", r"\frac{4y}{2}"]
    reported: dict[int, GradedAnswer] = {}

    def report(index: int, graded: GradedAnswer) -> None:
        assert index not in reported
        reported[index] = graded

    pairs = [(boxed(answer), open_question("y \\cdot 2")) for answer in answers]
    grades = checker.check_many(pairs, on_checked=report)
    assert [graded.grade for graded in grades] == ["correct", "incorrect", "correct", "incorrect", "correct"]
    assert [reported[index] for index in range(5)] == grades


def test_a_caller_that_stops_leaves_no_old_grade_behind(checker: AnswerChecker) -> None:
    def stop(_index: int, _graded: GradedAnswer) -> None:
        raise RuntimeError("enough")

    pairs = [(boxed(f"{n}p+q"), open_question(f"q+{n}p")) for n in range(2, 6)]
    with pytest.raises(RuntimeError, match="enough"):
        checker.check_many(pairs, on_checked=stop)
    assert checker.check(boxed("p^2"), open_question("q+p")).grade == "incorrect"
    assert [graded.grade for graded in checker.check_many(pairs)] == ["correct"] * 4


def test_what_is_no_text_is_refused_with_its_index_before_anything_is_checked(checker: AnswerChecker) -> None:
    good = (boxed("4"), open_question("4"))
    reported: list[int] = []
    for bad, problem in (
        ((None, open_question("4")), "pair 1: the response is None; expected text"),
        ((boxed("4"), open_question(None)), "pair 1: the gold answer of question '1' is None; expected text"),
        ((boxed("4"), choice(4, "3", "4")), "pair 1: the gold answer of question '1' is 4; expected text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(DataError, match=problem):
            checker.check_many([good, bad], on_checked=lambda index, _graded: reported.append(index))  # type: ignore[list-item]
    assert reported == []


def test_threads_can_share_a_checker(checker: AnswerChecker) -> None:
    grades: list[str] = []

    def work(number: int) -> None:
        grades.append(checker.check(boxed(f"{number}a+b"), open_question(f"b + {number}a")).grade)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert grades == ["correct"] * 4


latexish = st.text("0123456789xyz+-*/^_{}()[]\\$%.,;:= abcdefgh<>|&#!'\"\n\x00\x0c\ud800é½", max_size=40)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text() | latexish.map(boxed) | latexish, st.text() | latexish, st.lists(latexish, max_size=4))
def test_any_text_can_be_checked(quick_checker: AnswerChecker, response: str, gold: str, options: list[str]) -> None:
    question = Question(id="1", question="?", answer=gold, options=tuple(options))
    graded = quick_checker.check(response, question)
    assert graded.grade in ("correct", "incorrect", "failed")
    assert (graded.answer is None) == (graded.reason == "no answer found")


@pytest.fixture(scope="module")
def quick_checker() -> Iterator[AnswerChecker]:
    with AnswerChecker(timeout_s=1.0, processes=1) as checker:
        yield checker


def test_wrong_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"timeout_s": 0}, {"timeout_s": float("nan")}, {"processes": 0}):
        with pytest.raises(ConfigError):
            AnswerChecker(**wrong)
    monkeypatch.setattr("mprm.annotation.checker.find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match="pip install math-verify"):
        AnswerChecker()
