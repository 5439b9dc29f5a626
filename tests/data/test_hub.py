"""Models and datasets by their names on the hub, through the command line, against a small hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

import mprm
from mprm.data.hub import dataset_files, local_checkpoint, pinned_name, reason_of
from mprm.errors import ConfigError, MissingDependencyError
from tests.conftest import raw_record, write_jsonl
from tests.data.test_archives import as_split_zip, as_zip
from tests.fake_hub import FakeHub, files_in

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick-start corpus with few rollouts, in folders and in the paper's layout; caches are made here too."""
    home = tmp_path_factory.mktemp("hub")
    mprm.quickstart(home)
    for path in sorted((home / "annotations").glob("*.jsonl"))[:-2]:
        path.unlink()
    for path in (home / "annotations").glob("*.jsonl"):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    as_zip(home / "annotations.zip", files_in(home / "annotations"), folder="annotations")
    as_split_zip(home / "images.zip", files_in(home / "images"))
    return home


@pytest.fixture(scope="module")
def hub(home: Path) -> Iterator[FakeHub]:
    """A model that is public and one that is gated; the corpus as the paper's is published, and a tag on it."""
    with FakeHub() as hub:
        hub.add("org/gated", {"config.json": b"{}", "model.safetensors": b""}, gated=True)
        hub.add("org/readme", {"README.md": b"soon"})
        hub.add("org/pickle", {"config.json": b"{}", "pytorch_model.bin": b"", "onnx/model.safetensors": b""})
        packed = {path.name: path.read_bytes() for path in home.glob("*.zip*")}
        annotations = {f"data/{name}": content for name, content in files_in(home / "annotations").items()}
        corpus = hub.add("datasets/org/corpus", annotations | packed)
        corpus.tags["v1"] = corpus.branches["main"]
        corpus.commit({"data/other.jsonl": json.dumps(raw_record([1.0, 0.0])).encode()})
        corpus.tags["feature/x"] = corpus.branches["main"]
        yield hub


def environment(hub: FakeHub, home: Path) -> dict[str, str]:
    return os.environ | hub.env(home) | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}


def mprm_on(hub: FakeHub, home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = environment(hub, home) | variables
    command = [sys.executable, "-m", "mprm", *words]
    return subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, check=False)


def manifest_of(path: Path) -> dict[str, object]:
    return json.loads(path.with_name(path.name + ".manifest.json").read_bytes())


def test_train_evaluate_and_work_offline_with_names_on_the_hub(hub: FakeHub, home: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    from tests.tiny_models import save_tiny

    tiny = files_in(save_tiny("qwen2_5_vl", home / "tiny"))
    hub.add("org/tiny", tiny | {"pytorch_model.bin": b"pickle", "modeling.py": b"1/0", "onnx/config.json": b"{}"})
    base = hub.repos["org/tiny"].branches["main"]
    few = ("--device", "cpu", "--dataloader-workers", "0")

    # the paper's layout as it is published, and a model by its name
    words = ("annotations.zip", "--image-root", "images.zip_a", "--model", "org/tiny", "--lora-rank", "2")
    done = mprm_on(hub, home, "train", *words, "--batch-size", "8", "--report-to", "none", "--out", "run", *few)
    assert done.returncode == 0, done.stderr
    assert f"downloading org/tiny, commit {base}\n" in done.stderr
    snapshot = home / "hf" / "hub" / "models--org--tiny" / "snapshots" / base
    assert sorted(path.name for path in snapshot.iterdir()) == sorted(tiny)  # no pickle, no code, no other format
    config = json.loads((home / "run" / "prm_config.json").read_bytes())
    assert config["base"] == f"org/tiny@{base}"
    adapter = json.loads((home / "run" / "adapter_config.json").read_bytes())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("org/tiny", base)

    # the adapter on the hub, whose base comes from the hub too, though its branch has moved on
    run = hub.add("org/prm", {name: text for name, text in files_in(home / "run").items() if "/" not in name})
    run.tags["v1"] = run.branches["main"]
    run.commit({"README.md": b"another commit"})
    hub.repos["org/tiny"].commit({"README.md": b"another commit"})
    archive = "hf://datasets/org/corpus@v1"
    words = ("--model", "org/prm@v1", "--threshold", "0.5", *few[:2])
    data = (f"{archive}/data/*.jsonl", "--image-root", f"{archive}/images.zip_aa")
    online = mprm_on(hub, home, "evaluate", *data, *words, "--out", "results")
    assert online.returncode == 0, online.stderr
    metrics = json.loads((home / "results" / "metrics.json").read_bytes())
    assert metrics["models"][0]["name"] == "org/prm@v1"
    info = manifest_of(home / "results" / "metrics.json")["config"]["model_info"]
    assert (info["path"], info["prm_config.json"]["base"]) == (f"org/prm@{run.tags['v1']}", f"org/tiny@{base}")

    # what is in the cache needs no hub: neither switched off nor out of reach
    code = "from mprm.data.hub import local_checkpoint as c\n"
    code += f"print(c('org/prm@v1'), c('org/tiny@{base}'), c('org/tiny'))"
    folders = [str(snapshot.parents[2] / "models--org--prm" / "snapshots" / run.tags["v1"]), *[str(snapshot)] * 2]
    for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:1"}):
        n_requests = len(hub.requests)
        env = environment(hub, home) | variables
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        assert (done.stdout.split(), len(hub.requests)) == (folders, n_requests), done.stderr


@pytest.mark.parametrize(
    "name, variables, message",
    [
        ("org/none", {}, "org/none: no such folder here, and the hub has no such repository, or a private one: "),
        (
            "org/gated",
            {},
            "org/gated: the download failed: its licence must be accepted on its page on the hub; then ",
        ),
        (
            "org/gated@v2",
            {},
            "org/gated@v2: no such folder here, and the hub has no such revision of it; expected a ",
        ),
        (
            "org/none@v2",
            {"HF_HUB_OFFLINE": "1"},
            "org/none@v2: no such folder here nor checkpoint in the cache, and it is not in the cache, and HF_HUB_",
        ),
        (
            "org/none",
            {"HF_ENDPOINT": "http://127.0.0.1:1"},
            "org/none: no such folder here nor checkpoint in the cache, and there is no connection (",
        ),
        ("org/readme", {}, "org/readme: it has no .safetensors files; pickles, such as pyto"),
        (
            "org/pickle",
            {},
            "org/pickle: it has no .safetensors files; pickles, such as pytorch_model.bin, are not read",
        ),
    ],
    ids=["name", "gated", "revision", "offline", "no-connection", "readme", "pickle"],
)
def test_a_model_that_cannot_be_had_is_one_line(
    hub: FakeHub, home: Path, name: str, variables: dict[str, str], message: str
) -> None:
    words = ("annotations", "--image-root", "images", "--model", name, "--out", "none")
    done = mprm_on(hub, home, "train", *words, **variables)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("downloading")]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert lines[0].startswith(f"mprm train: {message}")
    assert not (home / "none").exists()


def test_internvl_with_code_of_its_own_is_refused_before_its_weights_are_downloaded(hub: FakeHub, home: Path) -> None:
    config = b'{"model_type": "internvl_chat", "llm_config": {"model_type": "internlm2"}}'
    repo = hub.add("org/VisualPRM", {"config.json": config, "model.safetensors": b"weights"})
    commit = repo.tags["v1"] = repo.branches["main"]
    convert = "--local-dir VisualPRM && mprm convert-internvl VisualPRM --out VisualPRM-native"
    for name, offline, download in (
        ("org/VisualPRM", "0", "hf download org/VisualPRM"),
        ("org/VisualPRM@v1", "0", "hf download org/VisualPRM --revision v1"),
        (f"org/VisualPRM@{commit}", "1", f"hf download org/VisualPRM --revision {commit}"),  # cached by now
    ):
        words = ("annotations", "--image-root", "images", "--model", name, "--out", "none")
        done = mprm_on(hub, home, "train", *words, HF_HUB_OFFLINE=offline)
        lines = done.stderr.splitlines()
        assert (done.returncode, len(lines)) == (2, 1), done.stderr
        assert lines[0].endswith(
            f"{name} is in InternVL's remote-code layout; download it and convert it: {download} {convert}"
        )
    assert not [request for request in hub.requests if "VisualPRM" in request and "safetensors" in request]


def test_select_reads_a_dataset_by_its_name_and_says_which_commit(hub: FakeHub, home: Path) -> None:
    done = mprm_on(
        hub, home, "select", "org/corpus@v1", "--files", "data/*.jsonl", "--rho", "0.5", "--out", "half.jsonl"
    )
    assert done.returncode == 0, done.stderr
    commit = hub.repos["datasets/org/corpus"].tags["v1"]
    paths = [entry["path"] for entry in manifest_of(home / "half.jsonl")["inputs"]]
    names = sorted(path.name for path in (home / "annotations").iterdir())
    assert paths == [f"hf://datasets/org/corpus@{commit}/data/{name}" for name in names]
    assert mprm_on(hub, home, "select", "annotations", "--rho", "0.5", "--out", "here.jsonl").returncode == 0
    assert (home / "half.jsonl").read_bytes() == (home / "here.jsonl").read_bytes()
    # an archive among the files, and a folder here in place of the dataset
    packed = f"hf://datasets/org/corpus@{commit}/annotations.zip::annotations/"
    for words, folder in (
        (("org/corpus@v1", "--files", "annotations.zip"), packed),
        ((str(home), "--files", "annotations/*.jsonl"), f"{home}/annotations/"),
    ):
        assert mprm_on(hub, home, "select", *words, "--rho", "0.5", "--out", "half.jsonl", "--force").returncode == 0
        assert (home / "half.jsonl").read_bytes() == (home / "here.jsonl").read_bytes()
        paths = [entry["path"] for entry in manifest_of(home / "half.jsonl")["inputs"]]
        assert paths == [f"{folder}{name}" for name in names]


def test_check_reads_urls_globs_and_folders_on_the_hub(hub: FakeHub, home: Path) -> None:
    commit = hub.repos["datasets/org/corpus"].branches["main"]
    for url in ("data/other.jsonl", "data/*.jsonl", "data"):
        done = mprm_on(hub, home, "check", f"hf://datasets/org/corpus/{url}", "--json")
        assert json.loads(done.stdout)["records"] == 1, done.stderr
    done = mprm_on(hub, home, "check", "org/corpus@feature/x", "--files", "data/*.jsonl", "--json")
    assert json.loads(done.stdout)["records"] == 1, done.stderr
    done = mprm_on(hub, home, "check", "hf://datasets/org/corpus@v1/data", "--image-root", "images.zip_a*")
    assert (done.returncode, "8 records in 2 files: 0 errors" in done.stdout) == (0, True), done.stderr
    bad = {"data/bad.jsonl": b'{"prompt": "1+1?", "completions": ["2"], "labels": [true]}\n{"half"'}
    hub.repos["datasets/org/corpus"].commit(bad, branch="bad")
    sha = hub.repos["datasets/org/corpus"].branches["bad"]
    done = mprm_on(hub, home, "stats", "hf://datasets/org/corpus@bad/data/bad.jsonl")
    assert f"hf://datasets/org/corpus@{sha}/data/bad.jsonl:2: not JSON" in done.stderr
    assert commit != sha


@pytest.mark.parametrize(
    "url, variables, code, reason",
    [
        ("org/corpus/none.jsonl", {}, 1, "no such file"),
        ("org/corpus/none*.jsonl", {}, 1, "no such file"),
        ("org/none/a.jsonl", {}, 2, "the hub has no such repository, or a private one"),
        ("org/corpus@v9/data", {}, 2, "the hub has no such revision"),
        ("org/corpus/data", {"HF_ENDPOINT": "http://127.0.0.1:1"}, 2, "there is no connection"),
        ("org/corpus/none.zip", {}, 1, "no such zip archive"),
    ],
    ids=["file", "glob", "repository", "revision", "connection", "archive"],
)
def test_data_that_cannot_be_had_is_one_line(
    hub: FakeHub, home: Path, url: str, variables: dict[str, str], code: int, reason: str
) -> None:
    done = mprm_on(hub, home, "stats", f"hf://datasets/{url}", **variables)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert done.stderr.startswith(f"mprm stats: hf://datasets/{url}: {reason}")


def test_files_need_the_name_of_a_dataset_or_a_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [raw_record([1.0])])
    assert dataset_files("org/name", ()) == "org/name"
    assert dataset_files("org/name@v1", ("a/*.jsonl", "b.zip")) == [
        "hf://datasets/org/name@v1/a/*.jsonl",
        "hf://datasets/org/name@v1/b.zip",
    ]
    assert dataset_files("org/name@feature/x", ("a/b.zip",)) == ["hf://datasets/org/name@feature%2Fx/a/b.zip"]
    assert dataset_files(tmp_path, ("*.jsonl",)) == [f"{tmp_path}/*.jsonl"]
    assert mprm.stats(tmp_path, files="*.jsonl").total.n_rollouts == 1
    with pytest.raises(
        ConfigError, match=r"a\.jsonl: files are those of a dataset on the hub, org/name, or of a folder"
    ):
        dataset_files(tmp_path / "a.jsonl", ("*.jsonl",))
    with pytest.raises(ConfigError, match="expected its name, org/name"):
        mprm.stats([raw_record([1.0])], files="*.jsonl")


@pytest.mark.parametrize("pattern", ["", " ", "/"])
def test_an_empty_pattern_of_files_is_wrong_usage(hub: FakeHub, home: Path, pattern: str) -> None:
    done = mprm_on(hub, home, "stats", "org/corpus", "--files", pattern)
    assert (done.returncode, done.stderr.startswith("mprm stats: --files is empty; expected globs")) == (2, True)


@pytest.mark.parametrize("url", ["", "datasets", "datasets/", "datasets/org", "org", "datasets/org/corpus@/data"])
def test_a_url_without_a_name_is_wrong_usage(hub: FakeHub, home: Path, url: str) -> None:
    done = mprm_on(hub, home, "stats", f"hf://{url}")
    lines = [
        f"mprm stats: hf://{url}: expected hf://datasets/ORG/NAME/FILES, or hf://datasets/ORG/NAME@REVISION/FILES"
    ]
    assert (done.returncode, done.stderr.splitlines()) == (2, lines)


@pytest.mark.parametrize(
    "name",
    [
        "hf://org/run",
        "hf://models/org/run@v1",
        "https://huggingface.co/org/run",
        "https://huggingface.co/org/run/tree/main?a#b",
        "org/run@",
    ],
)
def test_the_name_of_a_model_is_no_url(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"neither a folder nor a name on the hub; write org/run, or org/run@REVISI"
    ):
        local_checkpoint(name)


def test_a_folder_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    for name in ("org/tiny", str(tmp_path / "none"), "a/b/c", "none"):
        assert (local_checkpoint(name), pinned_name(name)) == (name, name)


def test_without_huggingface_hub_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"org/absent: no such folder; .* its extra \[hub\]"):
        local_checkpoint("org/absent")


def test_an_error_of_a_server_keeps_its_own_words() -> None:
    class RefusedError(Exception):
        status = 403

    assert (
        reason_of(RefusedError("no\nmore"))
        == "access is refused (HTTP 403); log in first, to the hub with hf auth login"
    )
    assert reason_of(ValueError("odd\nand long")) == "cannot be read: odd"
