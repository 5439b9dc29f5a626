"""``mprm push`` against a hub on 127.0.0.1: what arrives, what comes back from there, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import mprm
from mprm.cli.main import run
from mprm.data.output import hash_file
from mprm.errors import MissingDependencyError
from mprm.models.checkpoint import fingerprint_of
from mprm.training import train
from tests.fake_hub import FakeHub
from tests.tiny_rollouts import write_records
from tests.training.test_train import config_for

ROOT = Path(__file__).parents[2]
MODEL = {"README.md", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors"}
MODEL |= {"prm_config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        yield server
        server.may_store.set()


def environment(hub: FakeHub, tmp_path: Path, **more: str) -> dict[str, str]:
    path = f"{ROOT}:{ROOT / 'src'}"
    return {**os.environ, **hub.env(tmp_path, token=True), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def push(hub: FakeHub, tmp_path: Path, *words: Any, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mprm", "push", *map(str, words)]
    done = environment(hub, tmp_path, **more)
    return subprocess.run(command, env=done, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)


def python(hub: FakeHub, tmp_path: Path, code: str) -> Any:
    """What the program prints as JSON, in a process that uses the hub."""
    code = f"import json, mprm\n{code}"
    done = [sys.executable, "-c", code]
    out = subprocess.run(
        done, env=environment(hub, tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert out.returncode == 0, out.stderr[-3000:]
    return json.loads(out.stdout.splitlines()[-1])


def on_hub(hub: FakeHub, name: str, branch: str = "main") -> dict[str, bytes]:
    repo = hub.repos[name]
    return repo.commits[repo.branches[branch]]


def copy(made: Path, name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / name, tmp_path / name))


QUESTION = {"question": "how long is bar 1? it is 7", "steps": ["the bar is 7 long", "the bar is 2 long"]}


def test_a_run_comes_back_from_the_hub_with_its_scores_and_figures(made: Path, hub: FakeHub, tmp_path: Path) -> None:
    folder = copy(made, "run", tmp_path)
    (folder / "notes.txt").write_text("private")
    done = push(hub, tmp_path, "run", "org/bis80", "--evaluation", made / "eval", "--private")
    assert done.returncode == 0
    assert done.stderr == (
        "mprm push: warning: The base checkpoint is named 'text', as its folder; --base-model names it on the hub.\n"
    )
    assert done.stdout.splitlines()[-1].endswith(f": {hub.url}/org/bis80")
    files = on_hub(hub, "org/bis80")
    assert set(files) == MODEL
    assert hub.repos["org/bis80"].private
    assert not [name for name, content in files.items() if str(made).encode() in content or b"private" in content]
    assert files["README.md"] == (folder / "README.md").read_bytes()
    overall = json.loads((made / "eval" / "metrics.json").read_text())["models"][0]["metrics"]["all"]["overall"]
    assert f"{overall['value']:.4f} | {overall['low']:.4f} to {overall['high']:.4f} |" in files["README.md"].decode()
    scores = python(hub, tmp_path, f"print(json.dumps(mprm.PRM.from_pretrained('org/bis80').score(**{QUESTION})))")
    assert scores == mprm.PRM.from_pretrained(folder).score(**QUESTION)
    n_commits = len(hub.repos["org/bis80"].commits)
    again = push(hub, tmp_path, "run", "org/bis80", "--evaluation", made / "eval")
    assert again.returncode == 0, again.stderr
    assert len(hub.repos["org/bis80"].commits) == n_commits  # the same files
    without = mprm.push(folder, "org/bis80", dry_run=True)
    assert "The card has no evaluation any more" in without.notes[-1]


@pytest.mark.slow
def test_an_adapter_finds_its_base_by_name_and_takes_the_place_of_whole_weights(
    made: Path, hub: FakeHub, tmp_path: Path
) -> None:
    hub.add("org/tiny", {path.name: path.read_bytes() for path in (made / "qwen2_5_vl").iterdir()})
    old = {"model-00001-of-00002.safetensors": b"old", "config.json": b"{}", "sub/mine.safetensors": b"mine"}
    hub.add("org/lora", {**old, "prm_config.json": b"{}", "notes.md": b"mine"})
    done = push(hub, tmp_path, made / "lora", "org/lora", "--base-model", "org/tiny", "--license", "mit")
    assert done.returncode == 0, done.stderr
    deleted = "config.json, model-00001-of-00002.safetensors"
    assert f"Weights in org/lora that this model does not have were deleted: {deleted}.\n" in done.stderr
    files = on_hub(hub, "org/lora")
    assert files.pop("sub/mine.safetensors")
    assert {name for name in files if "config" in name or "safetensors" in name} == {
        *("adapter_config.json", "adapter_model.safetensors", "prm_config.json", "preprocessor_config.json"),
        "tokenizer_config.json",
    }
    assert files["notes.md"] == b"mine"
    assert not [name for name, content in files.items() if str(made).encode() in content]
    assert b"base_model: org/tiny\nbase_model_relation: adapter\n" in files["README.md"]
    image = str(made / "images" / "1.png")
    question = {**QUESTION, "images": [image]}
    scores = python(hub, tmp_path, f"print(json.dumps(mprm.PRM.from_pretrained('org/lora').score(**{question})))")
    assert scores == pytest.approx(mprm.PRM.from_pretrained(made / "lora").score(**question), abs=1e-6)


@pytest.mark.slow
def test_an_adapter_on_a_run_is_loaded_once_both_are_on_the_hub(made: Path, hub: FakeHub, tmp_path: Path) -> None:
    base = copy(made, "run", tmp_path)
    config = config_for("text", made, tmp_path / "lora", lora_rank=2, model=str(base))
    train(str(made / "bis80.jsonl"), config)
    here = mprm.PRM.from_pretrained(tmp_path / "lora")
    assert here.config.base_fingerprint == fingerprint_of(base)
    for what, repo, options in ((base, "org/run", []), (tmp_path / "lora", "org/on", ["--base-model", "org/run"])):
        assert push(hub, tmp_path, what, repo, *options).returncode == 0
    code = f"print(json.dumps(mprm.PRM.from_pretrained('org/on').score(**{QUESTION})))"
    assert python(hub, tmp_path, code) == pytest.approx(here.score(**QUESTION), abs=1e-6)
    weights = on_hub(hub, "org/run")["model.safetensors"]
    hub.repos["org/run"].commit({**on_hub(hub, "org/run"), "model.safetensors": weights[:-1] + b"!"})
    with pytest.raises(AssertionError, match="is not the checkpoint that the adapter in"):
        python(hub, tmp_path, code)


@pytest.mark.parametrize(
    ("what", "data", "manifests"),
    [
        ("one.jsonl", ["one.jsonl"], ["one.jsonl.manifest.json"]),
        (
            "subsets",
            ["bis-0.5.jsonl", "random-0.5.jsonl"],
            ["bis-0.5.jsonl.manifest.json", "random-0.5.jsonl.manifest.json"],
        ),
    ],
)
def test_subsets_come_back_from_the_hub_with_their_rollouts_and_sources(
    made: Path, hub: FakeHub, tmp_path: Path, what: str, data: list[str], manifests: list[str]
) -> None:
    done = push(hub, tmp_path, made / what, "org/two")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith(f": {hub.url}/datasets/org/two")
    files = on_hub(hub, "datasets/org/two")
    assert set(files) == {"README.md", *data, *manifests}
    folder = made if what == data[0] else made / what
    assert all(files[name] == (folder / name).read_bytes() for name in data)
    assert not [name for name, content in files.items() if str(made).encode() in content]
    config = data[0].removesuffix(".jsonl")
    code = f"""
import datasets
from huggingface_hub import snapshot_download
folder = snapshot_download("org/two", repo_type="dataset")
here = mprm.select(folder + "/{data[0]}", rho=1)
there = mprm.select("hf://datasets/org/two/{data[0]}", rho=1)
table = datasets.load_dataset("org/two", "{config}", split="train")
print(json.dumps([here.n_read, there.n_read, sorted(here.statistics), len(table)]))"""
    sources = json.loads((folder / manifests[0]).read_text())["sources"]
    sources = sorted(source for source, account in sources.items() if account["kept"])
    assert python(hub, tmp_path, code) == [4, 4, sources, 4]


def test_a_second_subset_leaves_the_first_in_the_card(made: Path, hub: FakeHub, tmp_path: Path) -> None:
    assert push(hub, tmp_path, made / "subsets" / "bis-0.5.jsonl", "org/two").returncode == 0
    files = on_hub(hub, "datasets/org/two")
    not_there = files["bis-0.5.jsonl.manifest.json"].replace(b"bis-0.5.jsonl", b"gone.jsonl")
    hub.repos["datasets/org/two"].commit({**files, "gone.jsonl.manifest.json": not_there, "a.manifest.json": b"{}"})
    assert push(hub, tmp_path, made / "subsets" / "random-0.5.jsonl", "org/two").returncode == 0
    code = """
import datasets
names = datasets.get_dataset_config_names("org/two")
print(json.dumps([names, [len(datasets.load_dataset("org/two", name, split="train")) for name in names]]))"""
    assert python(hub, tmp_path, code) == [["bis-0.5", "random-0.5"], [4, 4]]
    both = on_hub(hub, "datasets/org/two")["README.md"].decode()
    assert both.count("Labels") == 2


def test_subsets_of_like_names_have_different_configs(made: Path, hub: FakeHub, tmp_path: Path) -> None:
    for name, rho in (("mix.jsonl", 0.2), ("mix.parquet", 0.4), ("a b.jsonl", 0.6), ("a-b.jsonl", 0.8)):
        to = "parquet" if name.endswith("parquet") else None
        mprm.select(str(made / "images.jsonl"), rho=rho, to=to).write(str(tmp_path / "like" / name))
    assert push(hub, tmp_path, tmp_path / "like", "org/two").returncode == 0
    code = """
import datasets
names = datasets.get_dataset_config_names("org/two")
lines = [name for name in names if "parquet" not in name]  # datasets reads one kind of file of a repository
print(json.dumps([names, [len(datasets.load_dataset("org/two", name, split="train")) for name in lines]]))"""
    assert python(hub, tmp_path, code) == [["a-20-b.jsonl", "a-b.jsonl", "mix.jsonl", "mix.parquet"], [6, 8, 2]]


def test_a_subset_by_source_has_its_dropped_records_only_when_asked(made: Path, hub: FakeHub, tmp_path: Path) -> None:
    done = push(hub, tmp_path, made / "by_source" / "bis-0.5", "org/two", "--with-dropped", "--revision", "v1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("/datasets/org/two/tree/v1")
    assert not on_hub(hub, "datasets/org/two")
    files = on_hub(hub, "datasets/org/two", "v1")
    assert json.loads(files["dropped.jsonl"])["file"] == "two.jsonl"
    assert {"README.md", "dropped.jsonl", "bis-0.5.manifest.json", "bis-0.5/plain.jsonl"} < set(files)
    assert len(files) == 5


@pytest.mark.parametrize(
    ("repo", "options", "variables", "words"),
    [
        ("org/bis", [], {"HF_TOKEN": ""}, "there is no token for the hub; run hf auth login, or set HF_TOKEN"),
        ("org/bis", [], {"HF_TOKEN": "hf_wrong"}, "access is refused (HTTP 401)"),
        ("others/bis", [], {}, "access is refused (HTTP 403)"),
        ("org/bis", [], {"HF_ENDPOINT": "http://127.0.0.1:9"}, "there is no connection"),
        ("org/bis", ["--license", "nobody-knows"], {}, '"license" must be one of'),
        ("org/public", ["--private"], {}, "is there already and is public; nothing was uploaded"),
    ],
)
def test_what_the_hub_refuses_is_one_line_and_leaves_nothing_there(
    made: Path, hub: FakeHub, tmp_path: Path, repo: str, options: list[str], variables: dict[str, str], words: str
) -> None:
    hub.read_only.add("others")
    hub.add("org/public", {})
    folder = copy(made, "run", tmp_path)
    done = push(hub, tmp_path, folder, repo, *options, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("mprm push: ")
    assert words in line
    assert set(hub.repos) == {"org/public"}
    assert not on_hub(hub, "org/public")
    assert (folder / "README.md").read_bytes() == (made / "run" / "README.md").read_bytes()


def test_what_somebody_else_uploaded_is_replaced_only_by_force(made: Path, hub: FakeHub, tmp_path: Path) -> None:
    theirs = {"README.md": b"# Theirs", "model.safetensors": b"theirs", "pytorch_model-2.safetensors": b"theirs"}
    model, data = hub.add("org/theirs", theirs), hub.add("datasets/org/theirs", {"train.csv": b"a,b"})
    hub.add("org/new", {".gitattributes": b"", "README.md": b"---\nlicense: mit\n---\n"})
    for what, found in (("run", "model.safetensors"), ("one.jsonl", "train.csv")):
        done = push(hub, tmp_path, made / what, "org/theirs", "--revision", "v1")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        [line] = done.stderr.splitlines()
        assert f"org/theirs has files that mprm did not write, such as {found}; push to another name" in line
        assert line.endswith("or replace them with --force")
    assert [len(repo.commits) for repo in (model, data)] == [len(repo.branches) for repo in (model, data)] == [1, 1]
    folder = copy(made, "run", tmp_path)
    assert push(hub, tmp_path, folder, "org/new").returncode == 0
    done = push(hub, tmp_path, folder, "org/theirs", "--force")
    assert done.returncode == 0
    assert "were deleted: pytorch_model-2.safetensors." in done.stderr
    assert set(on_hub(hub, "org/theirs")) == MODEL


def test_a_card_that_was_edited_on_the_hub_is_kept(made: Path, hub: FakeHub, tmp_path: Path) -> None:
    folder = copy(made, "run", tmp_path)
    assert push(hub, tmp_path, folder, "org/bis80").returncode == 0
    files, local = on_hub(hub, "org/bis80"), (folder / "README.md").read_bytes()
    edited = files["README.md"].rsplit(b"<!--", 1)[0] + b"Mine, with an \xff.\n"
    hub.repos["org/bis80"].commit({**files, "README.md": edited})
    (folder / "config.json").write_bytes((folder / "config.json").read_bytes() + b"\n")
    done = push(hub, tmp_path, folder, "org/bis80")
    assert done.returncode == 0
    assert "README.md in org/bis80 was written by hand and is kept; --force replaces it.\n" in done.stderr
    assert on_hub(hub, "org/bis80")["README.md"] == edited
    assert on_hub(hub, "org/bis80")["config.json"] == (folder / "config.json").read_bytes()
    assert (folder / "README.md").read_bytes() == local
    done = push(hub, tmp_path, folder, "org/bis80", "--license", "mit")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "README.md in org/bis80 was written by hand and is kept; --force replaces it" in done.stderr
    done = push(hub, tmp_path, folder, "org/bis80", "--license", "mit", "--force")
    assert b"license: mit\n" in on_hub(hub, "org/bis80")["README.md"]


def test_a_killed_upload_leaves_no_commit_and_is_repeated(made: Path, hub: FakeHub, tmp_path: Path) -> None:
    folder = copy(made, "run", tmp_path)
    hub.may_store.clear()
    command = [sys.executable, "-m", "mprm", "push", str(folder), "org/bis80", "--evaluation", str(made / "eval")]
    with subprocess.Popen(command, env=environment(hub, tmp_path), cwd=tmp_path) as process:
        assert hub.before_object.wait(60)
        process.send_signal(signal.SIGKILL)
    assert not on_hub(hub, "org/bis80")
    assert (folder / "README.md").read_bytes() == (made / "run" / "README.md").read_bytes()
    hub.may_store.set()
    assert push(hub, tmp_path, folder, "org/bis80").returncode == 0
    assert set(on_hub(hub, "org/bis80")) == MODEL


def refusal(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """The one line that a push prints which needs no hub to be refused."""
    assert run(["push", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    [line] = captured.err.splitlines()
    return line


def test_what_is_no_finished_run_or_whole_subset_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "'bis' is no name of a repository" in refusal(capsys, made / "run", "bis")
    assert "'a/../b' is no name of a repository" in refusal(capsys, made / "run", "a/../b")
    assert "is neither a training run nor a subset" in refusal(capsys, made / "images", "org/x")
    assert "is neither a training run nor a subset" in refusal(capsys, tmp_path / "nothing", "org/x")
    assert "is neither a training run nor a subset" in refusal(capsys, made / "images.jsonl", "org/x")
    unfinished = copy(made, "run", tmp_path)
    (unfinished / "prm_config.json").unlink()
    assert "is a training run that is not finished" in refusal(capsys, unfinished, "org/x")
    shutil.copy(made / "run" / "prm_config.json", unfinished)
    (unfinished / "model.safetensors").unlink()
    assert "expected weights in model.safetensors" in refusal(capsys, unfinished, "org/x")
    (unfinished / "train.json").write_text("{}")
    assert "model.safetensors" in refusal(capsys, unfinished, "org/x")
    subsets = copy(made, "subsets", tmp_path)
    with (subsets / "bis-0.5.jsonl").open("ab") as file:
        file.write(b"\n")
    assert "bis-0.5.jsonl is not as mprm select wrote it" in refusal(capsys, subsets, "org/x")
    assert "--evaluation and --base-model are for a model" in refusal(
        capsys, made / "one.jsonl", "org/x", "--base-model", "a/b"
    )
    manifest = subsets / "random-0.5.jsonl.manifest.json"
    manifest.write_text(manifest.read_text().replace('"random-0.5.jsonl"', '"../../one.jsonl"'))
    assert "which is not beside it" in refusal(capsys, subsets / "random-0.5.jsonl", "org/x")
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "files": ["random-0.5.jsonl"], "sources": 3}))
    assert "not as mprm wrote it" in refusal(capsys, subsets / "random-0.5.jsonl", "org/x")
    manifest.write_text('{"mprm": "0.1.0", "command": "select"}')
    assert "is neither a training run nor a subset" in refusal(capsys, subsets / "random-0.5.jsonl", "org/x")


def sharded(folder: Path) -> dict[str, str]:
    """The weight map of the folder's model, whose weights are now in two files."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(weights)}
    for shard in set(shards.values()):
        save_file(
            {name: weights[name] for name in weights if shards[name] == shard}, folder / shard, {"format": "pt"}
        )
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return shards


def test_a_damaged_run_is_refused(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (copy(made, "run", tmp_path / name) / name).unlink()
        assert f"{name} is missing" in refusal(capsys, tmp_path / name / "run", "org/x", "--dry-run")
    (copy(made, "run", tmp_path / "words") / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refusal(capsys, tmp_path / "words" / "run", "org/x", "--dry-run")
    for name, weights in (("run", "model.safetensors"), ("lora", "adapter_model.safetensors")):
        folder = copy(made, name, tmp_path)
        whole = (folder / weights).read_bytes()
        for cut in (whole[:-1], whole[:100], b""):
            (folder / weights).write_bytes(cut)
            assert f"{weights} is missing, cut short or unreadable" in refusal(capsys, folder, "org/x", "--dry-run")
        (folder / weights).write_bytes(whole)
    folder = tmp_path / "run"
    config = json.loads((folder / "prm_config.json").read_text())
    hashes = {"model.safetensors": hash_file(str(folder / "model.safetensors")), "optimizer.pt": "0", "README.md": 1}
    (folder / "prm_config.json").write_text(json.dumps({**config, "files": hashes}))
    assert mprm.push(folder, "org/x", dry_run=True)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1] + b"!")
    assert "model.safetensors has changed since" in refusal(capsys, folder, "org/x", "--dry-run")
    folder = copy(made, "run", tmp_path / "shards")
    shard = sorted(sharded(folder).values())[-1]
    (folder / shard).unlink()
    assert f"{shard} is missing" in refusal(capsys, folder, "org/x", "--dry-run")


def test_only_the_files_of_the_model_are_uploaded(made: Path, tmp_path: Path) -> None:
    folder = copy(made, "run", tmp_path)
    for stray in ("zz-optimizer.safetensors", "tokenizer_secrets.json", "vocab.db", "chat_template_mine.txt"):
        (folder / stray).write_text("private")
    assert set(mprm.push(folder, "org/x", dry_run=True).files) == MODEL
    shards = {*sharded(folder).values(), "model.safetensors.index.json"}
    assert set(mprm.push(folder, "org/x", dry_run=True).files) == MODEL - {"model.safetensors"} | shards


def test_an_evaluation_of_other_weights_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is an evaluation of 'run', not of the model that is in" in refusal(
        capsys, made / "lora", "org/x", "--evaluation", made / "eval"
    )
    assert "metrics.json is missing" in refusal(capsys, made / "run", "org/x", "--evaluation", tmp_path)
    changed = copy(made, "run", tmp_path)
    weights = bytearray((changed / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (changed / "model.safetensors").write_bytes(weights)
    assert "not of the model that is in" in refusal(capsys, changed, "org/x", "--evaluation", made / "eval")


def test_a_dry_run_lists_files_and_card_and_touches_nothing(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    folder = copy(made, "run", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert run(["push", str(folder), "org/bis80", "--dry-run", "--evaluation", str(made / "eval")]) == 0
    printed = capsys.readouterr().out
    listed = {
        line.split()[1]: int(line.split()[0].replace(",", "")) for line in printed.split("\n\n")[0].splitlines()
    }
    assert set(listed) == MODEL
    assert listed["model.safetensors"] == (folder / "model.safetensors").stat().st_size
    assert "# org/bis80" in printed
    assert "## Evaluation on text.jsonl" in printed
    assert printed.splitlines()[-1] == "Dry run: 8 files, 0.2 MB for the model org/bis80."
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_card_written_by_hand_is_uploaded_as_it_is(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(made, "run", tmp_path)
    card = (folder / "README.md").read_text()
    assert "Delete this line to keep what you change" in card.splitlines()[-1]
    mine = card.replace("# run", "# Mine").removesuffix(card.splitlines()[-1] + "\n")
    (folder / "README.md").write_text(mine)
    pushed = mprm.push(folder, "org/bis80", dry_run=True)
    assert pushed.card == mine
    assert "was written by hand and is uploaded as it is" in pushed.notes[-1]
    assert "was written by hand" in refusal(capsys, folder, "org/x", "--evaluation", made / "eval")
    (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n\n# Model Card for Model ID\n")
    assert "library_name: mprm" in mprm.push(folder, "org/bis80", dry_run=True).card


@pytest.mark.parametrize("what", ["run", "subsets"])
def test_a_card_that_is_no_text_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    own = copy(made, what, tmp_path) / "README.md"
    own.write_bytes("# Größe\n".encode("latin-1"))
    assert f"{own} is no UTF-8 text; move it away" in refusal(capsys, own.parent, "org/x")
    own.unlink()
    own.mkdir()
    assert f"{own} is no UTF-8 text; move it away" in refusal(capsys, own.parent, "org/x")


def test_whole_paths_in_records_are_warned_of(made: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in (made / "images.jsonl").read_text().splitlines()]
    for number in (0, len(records) - 1):
        one = [{**r, "image": "/home/me/" * (i == number) + r["image"]} for i, r in enumerate(records)]
        write_records(tmp_path / "whole.jsonl", one)
        mprm.select(str(tmp_path / "whole.jsonl"), rho=1).write(str(tmp_path / "bis.jsonl"), force=True)
        [note] = mprm.push(tmp_path / "bis.jsonl", "org/x", dry_run=True).notes
        found = f"/home/me/{records[number]['image']}."
        assert note == f"Records of bis.jsonl hold whole paths, uploaded as they are, such as {found}"


@pytest.mark.parametrize("missing", ["huggingface_hub", "yaml"])
def test_a_missing_library_is_named_with_its_extra(made: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingDependencyError, match=r"install mprm with its extra \[hub\]"):
        mprm.push(made / "run", "org/x")
