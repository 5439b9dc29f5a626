"""A lab packed and opened again is the lab."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mprm.errors import ConfigError, DataError, InputNotFoundError, OutputExistsError
from mprm_lab import shipped
from mprm_lab.shipped import open_lab, pack_lab
from mprm_lab.world import draw, problem


def made(folder: Path) -> Path:
    """A lab of one record a file; the weights are any bytes."""
    image = {name: f"bars-total/{number}.png" for number, name in enumerate(shipped.RECORDS)}
    for name in ("corpus", "validation", "benchmark"):
        (folder / f"{name}.jsonl").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jsonl").write_text(json.dumps({"image": image[name], "question": "?"}) + "\n")
    (folder / "candidates.jsonl").write_text(json.dumps({"images": [image["candidates"]]}) + "\n")
    (folder / "scores").mkdir()
    (folder / shipped.SCORES).write_text("{}\n")
    for name in shipped.POLICIES:
        (folder / "policies" / name).mkdir(parents=True)
        (folder / "policies" / name / "config.json").write_text("{}")
        (folder / "policies" / name / "model.safetensors").write_bytes(name.encode() * 100)
    return folder


def test_a_lab_that_is_packed_and_opened_is_the_same_with_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = made(tmp_path / "lab")
    written = pack_lab(lab, tmp_path / "packed")
    assert written.keys() == {path.name for path in (tmp_path / "packed").iterdir()}
    again = pack_lab(lab, tmp_path / "again")
    assert again == written
    for name in written:
        assert (tmp_path / "packed" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    monkeypatch.setattr(shipped, "shipped_files", lambda: tmp_path / "packed")
    opened = tmp_path / "opened"
    open_lab(opened)
    for path in lab.rglob("*"):
        if path.is_file():
            assert (opened / path.relative_to(lab)).read_bytes() == path.read_bytes()
    pictures = sorted((opened / "images" / "bars-total").iterdir())
    assert [path.name for path in pictures] == ["0.png", "1.png", "2.png", "3.png"]
    assert pictures[2].read_bytes() == draw(problem("bars-total", 2))
    with pytest.raises(OutputExistsError, match=r"corpus\.jsonl"):
        open_lab(opened)
    open_lab(opened, force=True)


def test_a_lab_that_is_not_whole_or_too_large_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = made(tmp_path / "lab")
    monkeypatch.setattr(shipped, "MOST_BYTES", 100)
    with pytest.raises(ConfigError, match="100 may be shipped"):
        pack_lab(lab, tmp_path / "packed")
    (lab / "benchmark.jsonl").unlink()
    with pytest.raises(InputNotFoundError, match=r"benchmark\.jsonl not there; make the lab first"):
        pack_lab(lab, tmp_path / "other")


def test_an_installation_without_a_lab_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "shipped_files", lambda: tmp_path)
    with pytest.raises(InputNotFoundError, match="mprm lab make DIR"):
        open_lab(tmp_path / "lab")


def test_nothing_that_is_there_is_replaced_unasked_and_nothing_stale_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_lab(made(tmp_path / "lab"), tmp_path / "packed")
    monkeypatch.setattr(shipped, "shipped_files", lambda: tmp_path / "packed")
    for path in ("policies/small/config.json", shipped.SCORES):
        other = tmp_path / path.replace("/", "-")
        (other / path).parent.mkdir(parents=True)
        (other / path).write_text("mine")
        with pytest.raises(OutputExistsError, match=Path(path).name):
            open_lab(other)
        assert [entry for entry in other.rglob("*") if entry.is_file()] == [other / path]
    stale = other / "images" / "bars-total" / "0.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another version")
    (other / "policies" / "small").mkdir(parents=True)
    (other / "policies" / "small" / "extra.bin").write_bytes(b"")
    open_lab(other, force=True)
    assert stale.read_bytes() == draw(problem("bars-total", 0))
    assert not (other / "policies" / "small" / "extra.bin").exists()


@pytest.mark.parametrize("name", ["corpus.jsonl.zst", "small.tar.zst", "full.jsonl.zst"])
def test_a_damaged_or_missing_file_is_named_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed"
    pack_lab(made(tmp_path / "lab"), packed)
    monkeypatch.setattr(shipped, "shipped_files", lambda: packed)
    whole = (packed / name).read_bytes()
    for damaged in (b"version https://git-lfs", b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        (packed / name).write_bytes(damaged)
        with pytest.raises(DataError, match=f"{name} is damaged .*install mprm anew"):
            open_lab(tmp_path / "opened")
    hashes = (packed / shipped.HASHES).read_bytes()
    for damaged in (b"", b"[]", b"{}"):
        (packed / shipped.HASHES).write_bytes(damaged)
        with pytest.raises(DataError, match=f"{shipped.HASHES} is damaged"):
            open_lab(tmp_path / "opened")
    (packed / shipped.HASHES).write_bytes(hashes)
    (packed / name).unlink()
    with pytest.raises(InputNotFoundError, match="ships no lab"):
        open_lab(tmp_path / "opened")
    assert not (tmp_path / "opened").exists()
