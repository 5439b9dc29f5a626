"""``mprm theory`` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mprm.cli.main import run

Corpus = Callable[..., Path]
GOOD = [[k / 16, 1 - k / 16] for k in range(17)] * 4


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_fit_shows_priors_noise_and_subsets(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["theory", "fit", str(corpus(good=GOOD, sure=[[1.0, 1.0]] * 5)), "--rho", "0.2"]) == 0
    text = printed(capsys)
    assert "Success rates r ~ Beta(a, b)" in text
    assert "Pr(r < 0.5 | k)" in text
    assert "ρ = 0.2" in text
    assert "sure: every continuation succeeds" in text
    assert "by the prior of all sources" in text
    assert all(name in text for name in ("bis", "random", "low-mc", "mixed", "reliable"))


def test_fit_as_json_is_what_it_writes(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fit.json"
    command = ["theory", "fit", str(corpus(good=GOOD)), "--out", str(out)]
    assert run([*command, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed["all"]["n_steps"] == 2 * len(GOOD)
    assert (
        printed["all"]["prior"]["a_interval"][0]
        < printed["all"]["prior"]["a"]
        < printed["all"]["prior"]["a_interval"][1]
    )
    assert [entry["k"] for entry in printed["eta_eff"]] == list(range(17))
    noise = [entry["eta_eff"] for entry in printed["eta_eff"]]
    assert noise == sorted(noise, reverse=True)
    assert run(command) == 1
    assert "exists already" in capsys.readouterr().err


def test_fit_never_replaces_what_it_reads(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    path = corpus(good=GOOD) / "good.jsonl"
    before = path.read_bytes()
    assert run(["theory", "fit", str(path), "--out", str(path), "--force"]) != 0
    assert path.read_bytes() == before


def test_fit_tells_an_inferred_number_of_continuations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps_ = [{"step": "s", "score": k / 8} for k in range(9)]
    record = {"image": "a.png", "question": "q", "steps_with_score": steps_}
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for _ in range(5)))
    assert run(["theory", "fit", str(path)]) == 0
    text = printed(capsys)
    assert "8*" in text
    assert "N is not in the files" in text
    assert run(["theory", "fit", str(path), "--continuations", "7"]) == 1
    assert "is no k/7" in capsys.readouterr().err


def test_fit_counts_bad_records_that_it_leaves_out(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    folder = corpus(good=GOOD)
    with (folder / "good.jsonl").open("ab") as file:
        file.write(b"{}\n")
    assert run(["theory", "fit", str(folder)]) == 1
    assert "good.jsonl:69" in capsys.readouterr().err
    assert run(["theory", "fit", str(folder), "--skip-bad", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["dropped"] == 1
    assert "left out 1 bad record;" in shown.err


@pytest.mark.parametrize("arguments", [["nonsense"], ["fit"], ["verify"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = run(["theory", *arguments])
    except SystemExit as end:  # the parser leaves this way
        code = end.code
    assert code == 2
    assert capsys.readouterr().err


def test_help_names_the_subcommand_and_the_labs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(["theory", "--help"])
    text = printed(capsys)
    assert "mprm theory fit" in text
    assert "mprm-lab theory" in text
    assert run(["theory"]) == 2
    assert "expected the subcommand fit, got none" in capsys.readouterr().err
