"""Run folders that something went wrong with: each is refused by name, without a traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mprm.errors import DataError
from mprm.report.runs import read_runs

ESTIMATE = {"value": 0.5}


def evaluation() -> dict[str, Any]:
    metrics = {"all": {"overall": ESTIMATE}, "sources": {"bars": {"macro_f1": ESTIMATE}}}
    return {"threshold": "held out", "models": [{"name": "m", "metrics": metrics}]}


def reranking(n: str) -> dict[str, Any]:
    return {"model": "m", "aggregate": "min", "total": {"n_questions": 1, "accuracy": {"prm": {n: ESTIMATE}}}}


def without(*path: Any) -> bytes:
    made = inner = evaluation()
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return json.dumps(made).encode()


@pytest.mark.parametrize(
    "content",
    [
        without("models", 0, "metrics", "all", "overall"),
        without("models", 0, "metrics", "sources", "bars", "macro_f1"),
        json.dumps(evaluation()).encode().replace(b'"m"', b'"\xff"'),
        b'{"models":' + b"[" * 100_000,
        *(json.dumps(reranking(n)).encode() for n in ("abc", "0", "-1", "9" * 5000)),
    ],
    ids=["no overall", "no macro_f1", "not UTF-8", "deep", "abc", "0", "-1", "long"],
)
def test_metrics_that_are_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_bytes(content)
    with pytest.raises(DataError, match=r"metrics\.json: .*expected what mprm"):
        read_runs([tmp_path])


@pytest.mark.parametrize("info", [[1], "x", {"mprm.json": "x"}, {"mprm.json": {"data": [1]}}])
def test_a_manifest_whose_card_is_none(info: Any, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps(evaluation()))
    (tmp_path / "metrics.json.manifest.json").write_text(json.dumps({"config": {"model_info": info}}))
    with pytest.raises(DataError, match=r"manifest\.json: .*expected what mprm"):
        read_runs([tmp_path])


def _bad_curve(folder: Path) -> None:
    (folder / "curve.jsonl").write_bytes(b'{"update": 0, "overall": 0.5, "macro_f1": {"\xff": 0.5}}\n')


def _bad_options(folder: Path) -> None:
    (folder / "train.json").write_bytes(b'{"seed": 0, "model": "\xff"}')


@pytest.mark.parametrize(("spoil", "where"), [(_bad_curve, "curve.jsonl:1: "), (_bad_options, "train.json: ")])
def test_training_files_that_are_not_utf_8(spoil: Callable[[Path], None], where: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"seed": 0, "model": "base"}')
    spoil(tmp_path)
    with pytest.raises(DataError) as error:
        read_runs([tmp_path])
    assert where in str(error.value)
