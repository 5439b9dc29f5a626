"""The folder of a training run: kills, full disks, damage, moves, unfinished models, and saving by time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mprm
from mprm.cli.main import run as run_cli
from mprm.errors import ConfigError, MprmError
from mprm.evaluation import EvaluateConfig
from mprm.models import PRM
from mprm.models.checkpoint import read_prm_config, write_prm_config
from mprm.training import train
from mprm.training.train import resume_hint
from tests.annotation.full_disk import files_of_at_most
from tests.conftest import calling
from tests.tiny_models import save_tiny
from tests.tiny_rollouts import bar_records, text_records, write_records
from tests.training.test_train import config_for, weights

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny text model, ten rollouts, and the weights of a whole run."""
    root = tmp_path_factory.mktemp("run_folder")
    save_tiny("text", root / "text")
    write_records(root / "text.jsonl", text_records(bar_records(10, root / "images")))
    train(str(root / "text.jsonl"), config_for("text", root, root / "whole"))
    return root


def go(folder: Path, out: Path, *, resume: bool = False, force: bool = False, **options: Any) -> Any:
    return train(str(folder / "text.jsonl"), config_for("text", folder, out, **options), resume=resume, force=force)


def assert_whole(folder: Path, out: Path) -> None:
    ours, expected = weights(out), weights(folder / "whole")
    assert all(torch.equal(ours[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("every", [80, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_at_any_change_of_its_folder_a_run_is_resumed_to_the_same_weights(every: int, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, "-m", "tests.training.kills", str(tmp_path), str(every)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "kills of" in done.stdout


def test_a_model_configuration_that_a_full_disk_left_empty_is_no_finished_run(folder: Path, tmp_path: Path) -> None:
    go(folder, tmp_path / "run", max_optimizer_steps=2)
    (tmp_path / "run" / "prm_config.json").touch()
    assert go(folder, tmp_path / "run", resume=True).n_optimizer_steps == 3
    assert_whole(folder, tmp_path / "run")


def test_a_start_that_was_killed_before_train_json_had_its_name_is_repeated(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("lock", ".train.json.x1y2.tmp"):
        (tmp_path / "run" / name).touch()
    assert go(folder, tmp_path / "run").is_finished
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".train.json.x1y2.tmp").touch()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="not the folder of a training run"):
        go(folder, tmp_path / "mine", force=True)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "prm_config.json", "trainer_state.json"])
def test_a_checkpoint_damaged_at_its_full_size_is_passed_over_with_a_word(
    folder: Path, tmp_path: Path, name: str, capfd: Any
) -> None:
    go(folder, tmp_path / "run", save_every=1, max_optimizer_steps=2)
    path = tmp_path / "run" / "checkpoints" / "checkpoint-2" / name
    content = bytearray(path.read_bytes())
    content[-40:-20] = b"\xff" * 20  # the end of the weights: a file that would load all the same
    path.write_bytes(content)
    assert go(folder, tmp_path / "run", resume=True).n_optimizer_steps == 3
    assert f"checkpoint-2 is not used: {name} " in capfd.readouterr().err
    assert_whole(folder, tmp_path / "run")


def test_a_checkpoint_of_an_earlier_version_is_compared_by_size(folder: Path, tmp_path: Path, capfd: Any) -> None:
    import msgspec

    go(folder, tmp_path / "run", save_every=1, max_optimizer_steps=2)
    path = tmp_path / "run" / "checkpoints" / "checkpoint-2" / "prm_config.json"
    config = msgspec.json.decode(path.read_bytes())
    config["files"] = {name: (path.parent / name).stat().st_size for name in config["files"]}
    path.write_bytes(msgspec.json.encode(config))
    go(folder, tmp_path / "run", resume=True)
    assert "is not used" not in capfd.readouterr().err
    assert_whole(folder, tmp_path / "run")


def test_a_run_is_resumed_by_another_name_of_its_folder_and_after_a_move(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go(folder, Path("run"), max_optimizer_steps=1)
    go(folder, tmp_path / "." / "run", max_optimizer_steps=2, resume=True)
    Path("run").rename("moved")
    shutil.copytree(folder / "text", "base")
    assert go(folder, Path("moved"), model="./base", resume=True).is_finished
    assert_whole(folder, tmp_path / "moved")


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("chat_template.jinja", None, "chat_template.jinja is missing"),
        ("tokenizer_config.json", b"{}", "tokenizer_config.json has changed since it was written"),
        ("tokenizer.json", b"", "tokenizer.json has changed since it was written"),
    ],
)
def test_a_run_whose_tokenizer_or_template_is_not_as_it_was_is_refused(
    name: str, change: bytes | None, found: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    run = shutil.copytree(folder / "whole", tmp_path / "run")
    (run / name).unlink()
    if change is not None:
        (run / name).write_bytes(change)
    for model in (run, shutil.copytree(run, tmp_path / "again")):
        data = [str(folder / "text.jsonl"), "--device", "cpu", "--text-only"]
        assert run_cli(["evaluate", *data, "--model", str(model)]) == 2
        printed = capsys.readouterr().err
        assert f"{model}: {found}; scores would differ." in printed
        assert printed.count("\n") == 1
    for use in (mprm.export, partial(mprm.push, repo="org/run", dry_run=True)):
        with pytest.raises(ConfigError, match=re.escape(found)):
            use(run)


def test_a_whole_run_is_moved_saved_exported_and_of_an_earlier_version(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder / "whole", tmp_path / "moved")
    assert set(read_prm_config(run).files) == {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}
    prm = PRM.from_pretrained(run, device="cpu")
    expected = prm.score("how?", steps=["one", "two"])
    prm.save_pretrained(tmp_path / "saved")
    mprm.export(run, out=tmp_path / "exported", device="cpu")
    mprm.export(run, device="cpu")
    old = shutil.copytree(run, tmp_path / "old")
    write_prm_config(old, replace(read_prm_config(old), files={}))
    (old / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    for name in ("moved", "saved", "exported"):
        assert PRM.from_pretrained(tmp_path / name, device="cpu").score("how?", steps=["one", "two"]) == expected
    assert PRM.from_pretrained(old, device="cpu").score("how?", steps=["one", "two"]) != expected
    (tmp_path / "exported" / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match=r"exported: chat_template\.jinja is missing"):
        PRM.from_pretrained(tmp_path / "exported", device="cpu")


def test_weights_can_be_read_by_whom_the_umask_lets(folder: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        go(folder, tmp_path / "run", save_every=2)
    finally:
        os.umask(before)
    paths = [*(tmp_path / "run").rglob("*.safetensors"), tmp_path / "run" / "prm_config.json"]
    assert len(paths) == 4  # of two checkpoints and the model
    assert {oct(path.stat().st_mode & 0o777) for path in paths} == {"0o640"}


@pytest.mark.parametrize("n_bytes", [600, 3_000, 20_000, 60_000])
def test_a_full_disk_is_one_line_and_the_run_is_resumed_once_there_is_room(
    folder: Path, tmp_path: Path, n_bytes: int
) -> None:
    # the options alone have more than 1 KB, the training set 5 KB, weights 30 KB, the optimizer's state 90 KB
    with (
        pytest.raises(MprmError, match=r"the disk is full.*Free some space.*--resume") as error,
        files_of_at_most(n_bytes),
    ):
        go(folder, tmp_path / "run", save_every=1)
    assert str(tmp_path / "run") in str(error.value)
    assert "\n" not in str(error.value)
    go(folder, tmp_path / "run", save_every=1, resume=True)
    assert_whole(folder, tmp_path / "run")


def test_an_unfinished_run_is_called_so_and_its_checkpoint_named(folder: Path, tmp_path: Path) -> None:
    import mprm

    run = tmp_path / "run"
    go(folder, run, max_optimizer_steps=2)
    config = EvaluateConfig(text_only=True, device="cpu", draws=0, threshold=0.5)
    with pytest.raises(ConfigError) as error:
        mprm.evaluate(str(folder / "text.jsonl"), model=str(run), config=config)
    checkpoint = run / "checkpoints" / "checkpoint-2"
    for words in ("a training run that is not finished", str(checkpoint), "mprm train … --resume"):
        assert words in str(error.value)
    assert mprm.evaluate(str(folder / "text.jsonl"), model=str(checkpoint), config=config).models
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ConfigError, match="it has no checkpoint"):
        PRM.from_pretrained(run)
    with pytest.raises(ConfigError, match="was not trained by mprm train"):
        PRM.from_pretrained(folder / "text")


def test_a_checkpoint_is_written_when_the_last_is_too_old(folder: Path, tmp_path: Path) -> None:
    def steps(out: Path) -> list[str]:
        return sorted(path.name for path in (out / "checkpoints").iterdir())

    go(folder, tmp_path / "often", save_every_min=1e-9)
    assert steps(tmp_path / "often") == ["checkpoint-1", "checkpoint-2"]  # after the third, the model itself
    go(folder, tmp_path / "seldom", save_every_min=60)
    go(folder, tmp_path / "never", save_every_min=0)
    assert steps(tmp_path / "seldom") == steps(tmp_path / "never") == []
    assert_whole(folder, tmp_path / "often")


@pytest.mark.slow
def test_on_a_terminal_nothing_tears_the_bar_and_ctrl_c_names_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = f"""train {folder / "text.jsonl"} --model {folder / "text"} --out {out} --text-only --batch-size 2
        --epochs 5000 --device cpu --dataloader-workers 0 --report-to none --save-every 5""".split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200", "TERM": "xterm"}
    ours, theirs = os.openpty()
    process = subprocess.Popen([sys.executable, "-m", "mprm", *words], env=environment, stderr=theirs)
    os.close(theirs)
    printed, is_stopped = b"", False
    with suppress(OSError):  # at its end
        while chunk := os.read(ours, 4096):
            printed += chunk
            if not is_stopped and printed.count(b"/2500") > 3 and list(out.glob("checkpoints/*/prm_config.json")):
                process.send_signal(signal.SIGINT)
                is_stopped = True
    os.close(ours)
    assert process.wait(timeout=60) == 130, printed[-2000:]
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\r", "", printed.decode())
    bars, messages = text.split("mprm train: interrupted")
    assert re.search(r"training .* \d+/25000 0:\d\d:\d\d.* loss \d\.\d{4}, [\d.e-]+ s/step", bars)
    assert "Writing model shards" not in bars
    assert resume_hint(out) in messages
    assert f"with --resume continues from {out / 'checkpoints' / 'checkpoint-'}" in messages
    assert "Traceback" not in text


def test_the_bar_counts_to_the_last_step_that_is_done(folder: Path, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    advanced: list[int] = []

    def progress(title: str, total: int | None, unit: str = "items") -> Any:
        seen[title] = total
        return calling(advanced.append if title == "training" else lambda _n: None)(title, total)

    config = config_for("text", folder, tmp_path / "run", max_optimizer_steps=2)
    train(str(folder / "text.jsonl"), config, progress=progress)
    assert (seen["training"], sum(advanced)) == (2, 2)
    advanced.clear()
    train(str(folder / "text.jsonl"), config_for("text", folder, tmp_path / "run"), resume=True, progress=progress)
    assert (seen["training"], sum(advanced)) == (3, 3)
