"""Outputs that cannot be, and inputs that are not there, are refused before anything is read or simulated."""

from pathlib import Path

import pytest

from mprm.cli.main import run as run_mprm
from mprm.errors import ConfigError, OutputExistsError
from mprm.report.corpus_view import ReportConfig
from mprm.report.report import page_path, report
from tests.conftest import raw_record, write_jsonl


@pytest.fixture
def annotations(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in" / "ai2d.jsonl", [raw_record([1.0, 0.0])])


def test_an_output_without_a_name_is_not_the_root_of_the_disk() -> None:
    with pytest.raises(ConfigError, match="no name"):
        page_path("")


def test_a_file_beside_the_page_is_not_replaced_without_force(annotations: Path, tmp_path: Path) -> None:
    notes = tmp_path / "r.html.manifest.json"
    notes.write_text("mine")
    with pytest.raises(OutputExistsError, match="manifest"):
        report(annotations, out=tmp_path / "r.html")
    assert notes.read_text() == "mine"
    report(annotations, out=tmp_path / "r.html", force=True)


@pytest.mark.parametrize("option", ["--out", "--figures"])
def test_a_file_is_no_folder_for_a_report(option: str, annotations: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("altair")
    (tmp_path / "file").touch()
    options = {"--out": str(tmp_path / "r.html"), option: str(tmp_path / "file")}
    words = [word for pair in options.items() for word in pair]
    assert run_mprm(["report", str(annotations), *words]) == 2
    assert "is a file" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_an_image_root_in_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "images").mkdir()
    image.new("RGB", (8, 8)).save(tmp_path / "images" / "0.png")
    path = write_jsonl(tmp_path / "in" / "ai2d.jsonl", [raw_record([1.0, 0.0], image="0.png")])
    report(path, out=tmp_path / "r.html", config=ReportConfig(image_root="~/images"))
    assert "data:image/png" in (tmp_path / "r.html").read_text()
