"""The quick-start corpus: small, clean, with its images, and like the lab's corpus that it is an excerpt of."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

import mprm
from mprm.cli.main import run
from mprm.errors import OutputExistsError


def test_the_corpus_is_clean_and_every_image_is_there(tmp_path: Path) -> None:
    paths = mprm.quickstart(tmp_path)
    assert len(paths) == 10
    report = mprm.check(paths, image_root=str(tmp_path / "images"))
    assert (report.n_records, report.n_errors, report.n_warnings) == (400, 0, 0)
    image = pytest.importorskip("PIL.Image")
    names = {name for rollout in mprm.open_corpus(paths) for name in rollout.images}
    assert len(names) == 100
    for name in names:
        with image.open(tmp_path / "images" / name) as picture:
            picture.load()
            assert picture.size == (112, 112)


def test_its_statistics_are_near_those_of_the_whole_corpus(tmp_path: Path) -> None:
    total = mprm.stats(mprm.quickstart(tmp_path)).total
    # docs/lab.md: 6.89% error steps, 10.7% mixed rollouts, mean MC 0.877, 5.59 steps a rollout
    assert total.error_step_ratio == pytest.approx(0.0689, rel=0.02)
    assert total.mixed_share == pytest.approx(0.107, rel=0.02)
    assert total.mean_mc == pytest.approx(0.877, rel=0.02)
    assert total.steps_per_rollout == pytest.approx(5.59, rel=0.02)


def test_it_is_small() -> None:
    assert len((files("mprm.data") / "quickstart.tar.zst").read_bytes()) <= 500_000


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    mprm.quickstart(tmp_path)
    with pytest.raises(OutputExistsError, match="exists already"):
        mprm.quickstart(tmp_path)
    mprm.quickstart(tmp_path, force=True)


def test_the_command_says_what_it_wrote_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["quickstart"]) == 0
    shown = capsys.readouterr().out
    assert "annotations/grid-max.jsonl: 40 rollouts" in shown
    assert "Next: mprm stats annotations" in shown
    assert run(["select", "annotations", "--rho", "0.1", "--out", "bis10.jsonl"]) == 0
    assert run(["quickstart"]) == 1
