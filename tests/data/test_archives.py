"""Zip archives, whole and split: unpacked once, and nothing of a hostile one."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

import mprm
from mprm.data import archives
from mprm.data.archives import archives_of, unpacked, unpacked_root
from mprm.data.benchmarks import read_benchmark
from mprm.data.images import image_folder
from mprm.data.questions import input_entries
from mprm.data.records import find_files, is_archive
from mprm.errors import ConfigError, DataError, InputNotFoundError
from tests.conftest import raw_record


def as_zip(path: Path, files: dict[str, bytes], *, folder: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(f"{folder}/{name}" if folder else name, content)
    return path


def as_split_zip(path: Path, files: dict[str, bytes], *, n_parts: int = 3) -> list[Path]:
    """The archive as ``split`` cuts it: x.zip_aa, x.zip_ab, …; the archive itself is not left."""
    content = as_zip(path, files).read_bytes()
    path.unlink()
    size = -(-len(content) // n_parts)
    parts = [path.with_name(f"{path.name}_a{chr(ord('a') + number)}") for number in range(n_parts)]
    for number, part in enumerate(parts):
        part.write_bytes(content[number * size : (number + 1) * size])
    return parts


def line(*scores: float, **fields: object) -> bytes:
    return json.dumps(raw_record(list(scores), **fields)).encode() + b"\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPRM_CACHE", str(tmp_path / "cache"))
    unpacked_root.cache_clear()
    return tmp_path / "cache"


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_an_archive_is_read_like_a_folder_and_unpacked_once(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"annotations/ai2d.jsonl": line(1.0, 0.0) * 2, "annotations/geos.jsonl": line(0.5), "README.md": b"-"}
    path = as_zip(tmp_path / "annotations.zip", files | {"__MACOSX/annotations/._geos.jsonl": b"\0"})
    assert [(Path(file.path).name, file.source) for file in find_files(path)] == [
        ("ai2d.jsonl", "ai2d"),
        ("geos.jsonl", "geos"),
    ]
    (folder,) = folders(cache)
    assert folder.startswith("annotations.zip-")
    assert capsys.readouterr().err.count("unpacking") == 1
    assert mprm.stats(path).total.n_rollouts == 3
    assert capsys.readouterr().err == ""
    as_zip(path, files | {"annotations/more.jsonl": line(0.25)})  # another archive of that name
    assert mprm.stats(path).total.n_rollouts == 4
    assert len(folders(cache)) == 2


def test_outputs_name_the_archive_and_the_file_in_it(tmp_path: Path, cache: Path) -> None:
    path = as_zip(tmp_path / "a.zip", {"in/ai2d.jsonl": line(1.0, 0.0) + line(0.0, 1.0) + b"{}\n"})
    mprm.select(path, rho=1.0, skip_bad=True).write(str(tmp_path / "all.jsonl"))
    [entry] = json.loads((tmp_path / "all.jsonl.manifest.json").read_text())["inputs"]
    assert (entry["path"], entry["source"]) == (f"{path}::in/ai2d.jsonl", "ai2d")
    record = json.dumps({"question": "1+1?", "answer": "2"}).encode()
    assert [question["path"] for question in input_entries(as_zip(path, {"q.jsonl": record}))] == [f"{path}::q.jsonl"]
    as_zip(path, {"b.jsonl": line(1.0, 0.0)})
    benchmark = read_benchmark(path, text_only=True)
    assert [file["path"] for file in benchmark.files] == [f"{path}::b.jsonl"]
    assert [solution.location for solution in benchmark.solutions] == [f"{path}::b.jsonl:1"]
    assert [file.name for file in find_files(f"zip://b.jsonl::{path}")] == [f"zip://b.jsonl::{path}"]


def test_several_archives_are_several_inputs_and_one_image_root(tmp_path: Path) -> None:
    for number in (1, 2):
        as_zip(tmp_path / f"data{number}.zip", {"train.jsonl": line(1.0, image=f"{number}/a.png")})
        as_zip(tmp_path / f"images{number}.zip", {f"{number}/a.png": b"-"})
    assert len(find_files([tmp_path / "data1.zip", tmp_path / "data2.zip"])) == 2
    assert len(find_files(str(tmp_path / "data*.zip"))) == 2
    root = image_folder(str(tmp_path / "images*.zip"))
    assert root is not None
    assert sorted(path.parent.name for path in root.rglob("*.png")) == ["1", "2"]
    with pytest.raises(DataError, match=r"data2\.zip: train\.jsonl is there twice"):
        image_folder(str(tmp_path / "data*.zip"))


@pytest.mark.parametrize("name, n_lines", [("images/a/1.png", 1), ("a.png", 0)])
def test_an_image_root_whose_images_lie_one_folder_deeper_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, n_lines: int
) -> None:
    path = as_zip(tmp_path / "images.zip", {name: b"-", "__MACOSX/._a.png": b"-"})
    for _ in range(2):
        image_folder(str(path))
    hint = f"{path}: all of it lies in images/, with which image paths have to begin then"
    assert capsys.readouterr().err.splitlines()[1:] == [hint] * n_lines  # the first says that it is unpacked


@pytest.mark.parametrize("has_more", [True, False])
def test_archives_in_a_folder_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], has_more: bool) -> None:
    folder = tmp_path / "data"
    (folder / "in").mkdir(parents=True)
    as_zip(folder / "in" / "A.ZIP", {"a.jsonl": line(1.0)})
    as_split_zip(folder / "b.zip", {"b.jsonl": line(1.0)})
    told = f"{folder}: 2 zip archives in it must be named as inputs themselves, such as {folder}/*.zip"
    if has_more:
        (folder / "c.jsonl").write_bytes(line(1.0))
        assert [file.source for _ in range(2) for file in find_files(folder)] == ["c", "c"]
        assert capsys.readouterr().err == f"{told}; passed over\n"
    else:
        with pytest.raises(InputNotFoundError, match=re.escape(f"or .json list; {told.partition(': ')[2]}")):
            find_files(folder)


@pytest.mark.parametrize("name", ["images.zip_aa", "images.zip_ab", "images.zip_a*", "images.zip_a", "images.zip"])
def test_a_split_archive_is_named_by_a_part_a_glob_or_its_stem(tmp_path: Path, cache: Path, name: str) -> None:
    content = os.urandom(10_000)
    parts = as_split_zip(tmp_path / "images.zip", {"a/1.png": content, "a/2.png": b"-", "b/3.png": content[:99]})
    root = image_folder(str(tmp_path / name))
    assert root is not None
    assert (root / "a/1.png").read_bytes() == content
    assert (root / "b/3.png").read_bytes() == content[:99]
    assert all(
        path.is_dir() or path.suffix in (".lock", ".content") for path in cache.iterdir()
    )  # nothing was joined on disk
    assert archives_of(str(tmp_path / name)) == [tuple(map(str, parts))]


def test_archives_whose_names_only_begin_alike_are_not_taken(tmp_path: Path, cache: Path) -> None:
    parts = as_split_zip(tmp_path / "data.zip", {"a.jsonl": os.urandom(5_000)})
    for name in ("data.zip-old.zip.001", "other.zip.001"):
        (tmp_path / name).write_bytes(b"PK")
    for name in ("data.zip", "data.zip_aa", "*.zip_aa", "data.zip_a*"):
        assert archives_of(str(tmp_path / name)) == [tuple(map(str, parts))], name


def test_other_names_of_parts(tmp_path: Path) -> None:
    assert is_archive("UP.ZIP")
    assert is_archive("UP.ZIP_AA")
    for name in ("UP.ZIP_AA", "UP.ZIP_AB", "x.zip.001", "x.zip.002", "y.zip.aa", "y.zip.ab", "z.zip", "z.zip_aa"):
        (tmp_path / name).touch()
    ends = {
        name: [Path(part).name for part in archives_of(str(tmp_path / name))[0]]
        for name in ("x.zip", "y.zip", "z.zip")
    }
    assert [len(parts) for parts in archives_of(str(tmp_path / "UP.ZIP_AB"))] == [2]
    assert ends == {"x.zip": ["x.zip.001", "x.zip.002"], "y.zip": ["y.zip.aa", "y.zip.ab"], "z.zip": ["z.zip"]}
    assert is_archive("https://host/x.zip?key=a/b.json#c")
    for name in (
        "x.zip.jsonl",
        "x.zip.gz",
        "https://host/x.jsonl?from=a.zip",
        "x.jsonl",
        "zip://a.jsonl::x.zip",
        "x.zip.parquet",
        str(tmp_path),
    ):
        assert not is_archive(name), name


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = as_split_zip(tmp_path / "images.zip", {"1.png": os.urandom(1000)}, n_parts=4)
    parts[1].unlink()
    with pytest.raises(
        InputNotFoundError, match=r"images\.zip: of its parts aa, ac, ad are there; expected all, in a row"
    ):
        image_folder(str(tmp_path / "images.zip_aa"))
    parts[2].unlink()
    parts[3].unlink()
    with pytest.raises(
        DataError, match=r"images\.zip_aa: the zip archive cannot be unpacked: File is not a zip file"
    ):
        image_folder(str(tmp_path / "images.zip_aa"))
    parts[0].unlink()
    with pytest.raises(InputNotFoundError, match=r"images\.zip_aa: no such zip archive"):
        image_folder(str(tmp_path / "images.zip_aa"))
    with pytest.raises(ConfigError, match="the image root none is not a folder"):
        image_folder("none")


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    "info, problem",
    [
        (entry("../../evil.jsonl"), "would lie outside of the folder"),
        (entry("a/../../evil.jsonl"), "would lie outside of the folder"),
        (entry("/tmp/evil.jsonl"), "would lie outside of the folder"),
        (entry("C:\\evil.jsonl"), "would lie outside of the folder"),
        (entry("..\\evil.jsonl"), "would lie outside of the folder"),
        (entry("link", stat.S_IFLNK | 0o777), "is a link or a device"),
        (entry("pipe", stat.S_IFIFO | 0o777), "is a link or a device"),
    ],
    ids=lambda value: value.filename if isinstance(value, zipfile.ZipInfo) else "",
)
def test_hostile_entries_are_refused(tmp_path: Path, cache: Path, info: zipfile.ZipInfo, problem: str) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("good.jsonl", line(1.0))
        archive.writestr(info, b"/etc/passwd")
    with pytest.raises(DataError, match=problem) as caught:
        find_files(tmp_path / "bad.zip")
    assert "\n" not in str(caught.value)
    assert folders(cache) == []
    assert not list(tmp_path.rglob("evil*"))


def test_bombs_cut_damaged_and_encrypted_archives_are_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = as_zip(tmp_path / "a.zip", {"a.jsonl": line(1.0) * 50, "b.jsonl": os.urandom(5000)})
    whole = path.read_bytes()

    def refused() -> str:
        with pytest.raises(DataError) as caught:
            find_files(path)
        assert folders(cache) == []
        assert "\n" not in str(caught.value)
        return str(caught.value)

    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "cannot be unpacked" in refused()
    for byte in (60, 2000, len(whole) - 30, len(whole) - 100):
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 0xFF]) + whole[byte + 1 :])
        with suppress(DataError):  # some bytes, as those of a time, do no harm
            find_files(path)
        assert not [name for name in folders(cache) if name.endswith(".partial")]
        for folder in cache.glob("a.zip-*/"):
            subprocess.run(["rm", "-r", folder], check=True)
    encrypted = bytearray(whole)
    for mark, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        encrypted[encrypted.index(mark) + flags] |= 1
    path.write_bytes(encrypted)
    assert "'a.jsonl' is encrypted" in refused()
    as_zip(path, {"bomb.jsonl": bytes(3_000_000)})
    monkeypatch.setattr(archives, "MAX_LINE_BYTES", 1000)
    assert "it unpacks to 3,000,000 bytes, over 200 times its size" in refused()
    monkeypatch.undo()
    monkeypatch.setenv("MPRM_CACHE", str(cache))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 2_000_000}))
    assert "3,000,000 bytes, and" in refused()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits a child process")
def test_a_disk_that_is_full_is_not_blamed_on_the_archive(tmp_path: Path, cache: Path) -> None:
    path = as_zip(tmp_path / "a.zip", {"a.jsonl": os.urandom(3 << 20)})
    code = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))\n"
    code += "from mprm.cli.main import run; sys.exit(run(['stats', sys.argv[1]]))"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    message = f"File too large: '{cache}/a.zip-"
    assert (done.returncode, message in done.stderr.splitlines()[-1]) == (1, True), done.stderr
    assert folders(cache) == []


SLOW = """
import sys, time
from mprm.data import archives
whole = archives._opened
class Slow:
    def __init__(self, archive): self.archive = archive
    def __getattr__(self, name): return getattr(self.archive, name)
    def open(self, info): print("opened", flush=True); time.sleep(float(sys.argv[2])); return self.archive.open(info)
import contextlib
@contextlib.contextmanager
def slow(parts):
    with whole(parts) as archive: yield Slow(archive)
archives._opened = slow
print(archives.unpacked([(sys.argv[1],)]))
"""


def started(path: Path, pause_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW, str(path), str(pause_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_unpacking_leaves_nothing_that_counts_as_complete(tmp_path: Path, cache: Path) -> None:
    path = as_zip(tmp_path / "a.zip", {"a.jsonl": line(1.0), "b.jsonl": line(0.5)})
    with started(path, 60) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    (left,) = folders(cache)
    assert left.endswith(".partial")
    folder = unpacked([(str(path),)])
    assert sorted(os.listdir(folder)) == ["a.jsonl", "b.jsonl"]
    assert folders(cache) == [folder.name]


def test_two_processes_at_once_unpack_once(tmp_path: Path, cache: Path) -> None:
    path = as_zip(tmp_path / "a.zip", {"a.jsonl": line(1.0)})
    first = started(path, 0.7)
    assert first.stdout is not None
    assert first.stdout.readline() == "opened\n"
    second = started(path, 0)
    outs = [process.communicate() for process in (first, second)]
    assert [out.splitlines()[-1] for out, _ in outs] == [str(cache / folders(cache)[0])] * 2
    assert [err.count("unpacking") for _, err in outs] == [1, 0]


def removed(folder: Path) -> None:
    (folder / "a.jsonl").unlink()


def added(folder: Path) -> None:
    (folder / "in" / "c.jsonl").write_bytes(line(0.0))


def changed(folder: Path) -> None:
    (folder / "a.jsonl").write_bytes(line(0.0))


def replaced_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def replaced_by_a_dead_link(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("none")


@pytest.mark.parametrize("change", [removed, added, changed, replaced_by_a_file, replaced_by_a_dead_link])
def test_what_is_not_as_it_was_unpacked_is_unpacked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None]
) -> None:
    files = {"a.jsonl": line(1.0), "in/b.jsonl": line(0.5)}
    archive = [(str(as_zip(tmp_path / "a.zip", files)),)]
    folder = unpacked(archive)
    capsys.readouterr()
    change(folder)
    assert unpacked(archive) == folder
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")} == files
    again, unpacking = capsys.readouterr().err.splitlines()
    assert again == f"{folder} is not as it was unpacked; it is unpacked again"
    assert unpacking.startswith("unpacking ")
    unpacked(archive)
    assert capsys.readouterr().err == ""


def test_a_file_in_an_archive_can_be_read_by_its_url(tmp_path: Path, cache: Path) -> None:
    path = as_zip(tmp_path / "x.zip", {"in/ai2d.jsonl": line(1.0, 0.0) * 3, "in/geos.jsonl": line(0.5)})
    assert [file.source for file in find_files(f"zip://in/*.jsonl::{path}")] == ["ai2d", "geos"]
    assert mprm.stats(f"zip://in/ai2d.jsonl::{path}").total.n_rollouts == 3
    assert mprm.stats(f"zip://in::file://{path}").total.n_rollouts == 4
    assert not cache.exists()
    with pytest.raises(InputNotFoundError, match=r"zip://none\.jsonl::.*x\.zip: no such file"):
        find_files(f"zip://none.jsonl::{path}")
    with pytest.raises(InputNotFoundError, match="no such file"):
        find_files(f"zip://a.jsonl::{tmp_path}/none.zip")
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read: File is not a zip file"):
        find_files(f"zip://a.jsonl::{path}")


def test_an_archive_behind_a_url_is_unpacked(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "x.zip", {"ai2d.jsonl": line(1.0)})
    parts = as_split_zip(tmp_path / "y.zip", {"ai2d.jsonl": line(1.0)})
    assert mprm.stats(f"file://{path}").total.n_rollouts == 1
    assert mprm.stats(f"file://{parts[0]}").total.n_rollouts == 1
    assert mprm.stats(f"file://{tmp_path}/y.zip_a*").total.n_rollouts == 1


def test_a_part_is_read_from_anywhere(tmp_path: Path) -> None:
    handles = [io.BytesIO(b"abc"), io.BytesIO(b""), io.BytesIO(b"defg")]
    joined = io.BufferedReader(archives._Joined(handles), 2)
    assert joined.read() == b"abcdefg"
    assert [(joined.seek(start), joined.read(3)) for start in (5, 2, 0, 3)] == [
        (5, b"fg"),
        (2, b"cde"),
        (0, b"abc"),
        (3, b"def"),
    ]


@contextmanager
def served(folder: Path, headers: Mapping[str, str]) -> Iterator[str]:
    """The address of a server on this machine of the folder's files, whatever is asked for after ``?``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = (folder / self.path.partition("?")[0].lstrip("/")).read_bytes()
            own = {"Accept-Ranges": "bytes"}
            if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                start, size = int(wanted[1]), len(content)
                content = content[start : int(wanted[2] or size) + 1]
                own["Content-Range"] = f"bytes {start}-{start + len(content) - 1}/{size}"
            self.send_response(206 if wanted else 200)
            for name, value in {"Content-Length": str(len(content)), **own, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", ["ETag", "last_modified", "LastModified", "Last-Modified", "Content-MD5", "Digest"])
def test_what_a_file_system_says_of_a_change_is_noticed(tmp_path: Path, name: str) -> None:
    path, said = as_zip(tmp_path / "a.zip", {"a.jsonl": line(1.0)}), {name: "1"}

    class Said(LocalFileSystem):
        """The local files, of which it says something else."""

        protocol = "said"
        cachable = False

        def info(self, path: str, **_: object) -> dict[str, object]:
            kept = {key: value for key, value in super().info(path).items() if key in ("name", "size", "type")}
            return {**kept, **said}

    fsspec.register_implementation("said", Said, clobber=True)
    folders = [unpacked([(f"said://{path}",)]) for _ in range(2)]
    said[name] = "2"
    assert folders[0] == folders[1] != unpacked([(f"said://{path}",)])


@pytest.mark.parametrize("header", ["ETag", "Last-Modified", "Content-MD5", "Digest"])
def test_a_changed_archive_behind_a_server_is_unpacked_again(tmp_path: Path, header: str) -> None:
    pytest.importorskip("aiohttp")
    stamps = {header: "Wed, 01 Jan 2025 00:00:00 GMT"}
    path = as_zip(tmp_path / "a.zip", {"a.jsonl": line(1.0)})
    with served(tmp_path, stamps) as address:
        url = f"http://{address}/a.zip"
        assert mprm.stats(url).total.n_rollouts == 1
        size = path.stat().st_size
        as_zip(path, {"b.jsonl": line(1.0)})
        assert path.stat().st_size == size
        stamps[header] = "Wed, 01 Jan 2025 00:00:01 GMT"
        assert [file.source for file in find_files(url)] == ["b"]


def test_no_output_holds_the_secrets_of_a_url(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "bars.jsonl").write_bytes(line(1.0, 0.0) * 2)
    (tmp_path / "bars.jsonl.gz").write_bytes(gzip.compress(line(1.0, 0.0) * 2))
    as_zip(tmp_path / "bars.zip", {"bars.jsonl": line(1.0, 0.0) * 2})
    for number, name in enumerate(["bars.jsonl", "bars.jsonl.gz", "bars.zip"]):
        with served(tmp_path, {}) as address:
            url = f"http://me:SECRET@{address}/{name}?X-Sig=SECRET&x=a/b.json#SECRET"
            assert [file.source for file in find_files(url)] == ["bars"]
            mprm.select(url, rho=1.0).write(str(tmp_path / "out" / f"{number}.jsonl"))
            assert (tmp_path / "out" / f"{number}.jsonl").read_bytes() == line(1.0, 0.0) * 2
    written = [path for folder in (tmp_path / "out", cache) for path in folder.rglob("*")]
    assert len(written) > 6
    for path in written:
        assert b"SECRET" not in path.name.encode() + (path.read_bytes() if path.is_file() else b"")
    assert "SECRET" not in capsys.readouterr().err


def test_results_do_not_hold_the_secrets_of_an_image_root() -> None:
    config = mprm.EvaluateConfig(image_root="https://me:SECRET@host/images.zip?key=SECRET")
    assert config.recorded()["image_root"] == "https://host/images.zip"
