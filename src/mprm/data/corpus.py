"""From one line to its rollouts, with everything that is wrong with it reported.

Where one file holds the rollouts of several sources, because mprm wrote it.

To and from tables in memory: pandas, polars, pyarrow, Hugging Face datasets, lists of dicts.

A corpus: files of rollouts, what format each is in, and the pieces they are read in.

The manifest beside every output: what made it, out of what, and what was left out.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from mprm import __version__
from mprm.data.engine import Engine
from mprm.data.format import Format, Record, shown
from mprm.data.output import Dropped, TemporaryFolder, atomic_write, check_not_inputs
from mprm.data.records import Chunk, CorpusFile, chunks_of, corpus_files, is_url, lines_of, stamp_of
from mprm.data.rollout_formats import FORMATS, dump_visualprm_raw, format_named, recognised
from mprm.data.types import Rollout
from mprm.data.validate import CHECK_ONLY, ERRORS, Problems, Report, judge
from mprm.errors import ConfigError, DataError, MissingDependencyError

LOOK_AT = 1000
"""How many broken lines at a file's start are passed over in the search for a record."""

_decode = msgspec.json.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a rollout must satisfy, beyond what every rollout must."""

    text_only: bool = False
    """Records need no image."""
    image_root: Path | None = None
    """Folder that must hold every image."""
    forbids: str | None = None
    """Text that the output format cannot hold inside a step."""


def record_of(line: bytes, report: Report) -> Record | None:
    """The line's JSON object; None, and a report, when it is not one."""
    try:
        record = _decode(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        record = _slow_record(line, report)
        if record is None:
            return None
    if not isinstance(record, dict):
        report("not_json", f"the line is {shown(record)}; expected a JSON object")
        return None
    return record


def _slow_record(line: bytes, report: Report) -> Any:
    """Decode again with the standard library, which takes NaN, and say what is wrong."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "; the file looks like UTF-16, save it as UTF-8" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        report("not_utf8", f"byte {error.start} (0x{line[error.start]:02x}) is not UTF-8{hint}")
        return None
    if text.startswith("\ufeff"):
        report("not_json", "the line begins with a byte-order mark; save the file as UTF-8 without it")
        return None
    try:
        record = json.loads(text)
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        report("not_utf8", "the text holds half of a surrogate pair (\\ud800 to \\udfff)")
        return None
    except RecursionError:
        report("not_json", "the value is nested too deeply")
        return None
    except ValueError as error:
        report("not_json", f"not JSON: {error}")
        return None
    return record


def read_line(line: bytes, fmt: Format, judgement: Judgement | None, report: Report) -> tuple[Rollout, ...]:
    """The line's rollouts, judged unless they have been already."""
    if fmt.quick is not None and is_utf8(line) and (rollout := fmt.quick(line)) is not None:
        judge_rollout(rollout, fmt, judgement, report)
        return (rollout,)
    record = record_of(line, report)
    if record is None:
        return ()
    rollouts = fmt.parse(record, report)
    for rollout in rollouts:
        judge_rollout(rollout, fmt, judgement, report)
    return rollouts


def is_utf8(line: bytes) -> bool:
    """Whether every byte of the line is, also in fields that a typed decoder skips."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def judge_rollout(rollout: Rollout, fmt: Format, judgement: Judgement | None, report: Report) -> None:
    """Report what is wrong with a rollout of this format; nothing when there is no judgement to make."""
    if judgement is None:
        return
    judge(
        rollout,
        report,
        needs_image=fmt.has_images and not judgement.text_only,
        image_root=judgement.image_root,
        forbids=judgement.forbids,
    )


def is_blank(line: bytes) -> bool:
    """Whether the line holds no record at all."""
    return not line.strip(b" \t\r\n")


def file_format(file: CorpusFile, name: str | None, first_chunk: Chunk | None) -> Format:
    """The named format, or the one that the file's first record shows."""
    if name is not None:
        return format_named(name)
    first_problem: tuple[str, str] | None = None
    for line in _some(lines_of(first_chunk)) if first_chunk else ():
        if is_blank(line):
            continue
        problems = Problems()
        record = record_of(line, problems)
        if record is not None:
            return recognised(record, file.path)
        if line.lstrip()[:1] == b"[":
            raise DataError(
                f"{file.path}:1: the file is one JSON array; expected one object a line."
                f" Make it so with: jq -c '.[]' {file.path}"
            )
        first_problem = first_problem or problems.found[0]
    # nothing to go by: an empty file is no error, and a file without one good record is told line by line
    return FORMATS["visualprm-raw"]


def _some(lines: Iterable[bytes]) -> Iterable[bytes]:
    for _, line in zip(range(LOOK_AT), lines, strict=False):
        yield line


MANIFEST_SUFFIX = ".manifest.json"


def bytes_by_source(parts: Iterable[tuple[str, int]]) -> dict[str, int] | None:
    """Bytes of each source in a file, in order, from its parts; None where sources are interleaved."""
    found: dict[str, int] = {}
    last = None
    for source, n_bytes in parts:
        if source != last and source in found:
            return None
        last = source
        found[source] = found.get(source, 0) + n_bytes
    return found


class _Output(msgspec.Struct):
    n_bytes: int
    source_bytes: dict[str, int] | None = None


class _Manifest(msgspec.Struct):
    output: _Output


def source_ranges(file: CorpusFile, piece: Chunk) -> Iterator[Chunk]:
    """The piece, cut where a new source begins, each part with its source."""
    ends = _source_ends(file) if piece.is_range else []
    if not ends:
        yield piece
        return
    start = piece.start
    for source, end in ends:
        stop = min(end, piece.stop)
        if start < stop:
            yield Chunk(piece.path, piece.container, source, start, stop, piece.format)
            start = stop


def _source_ends(file: CorpusFile) -> list[tuple[str, int]]:
    """(source, end of its bytes) in order; empty where no manifest fits the file."""
    path = Path(file.path + MANIFEST_SUFFIX)
    try:
        if Path(file.path).stat().st_mtime_ns > path.stat().st_mtime_ns:
            return []  # written to after its manifest
        manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except (OSError, ValueError, msgspec.MsgspecError):
        return []
    output = manifest.output
    if not output.source_bytes or not output.n_bytes == sum(output.source_bytes.values()) == file.n_bytes:
        return []  # the file was changed after mprm wrote it
    ends, end = [], 0
    for source, n_bytes in output.source_bytes.items():
        end += n_bytes
        ends.append((source, end))
    return ends


ROWS = 4096
"""Rows turned at a time."""


def imported(package: str) -> Any:
    """The optional package, or an error that says how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(f"this needs {package}: pip install {package}") from error


def is_frame(thing: Any) -> bool:
    """Whether the thing is a table in memory, not a path or a list of paths."""
    if isinstance(thing, list | tuple):
        return bool(thing) and isinstance(thing[0], dict)
    return type(thing).__module__.split(".")[0] in {"pandas", "polars", "pyarrow", "datasets"}


def records_of(frame: Any) -> Iterator[dict[str, Any]]:
    """The rows of a frame as dicts."""
    package = type(frame).__module__.split(".")[0]
    if package == "pandas":
        for start in range(0, len(frame), ROWS):
            yield from frame.iloc[start : start + ROWS].to_dict("records")
    elif package == "polars":
        yield from (frame.collect() if hasattr(frame, "collect") else frame).iter_rows(named=True)
    elif package == "pyarrow":
        for batch in frame.to_batches(ROWS):
            yield from batch.to_pylist()
    elif package == "datasets":
        yield from _undecoded(frame)
    else:
        yield from frame


def _undecoded(dataset: Any) -> Iterator[dict[str, Any]]:
    """Rows of a Hugging Face dataset, images as their paths instead of pixels."""
    datasets = imported("datasets")
    for name, feature in (dataset.features or {}).items():
        if isinstance(feature, datasets.Image):
            dataset = dataset.cast_column(name, datasets.Image(decode=False))
    yield from dataset


def _plain(value: Any) -> Any:
    """Values that JSON does not know: numpy's arrays and numbers as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise DataError(
        f"a value of type {type(value).__name__} has no place in a record; expected text, numbers or lists"
    )


def write_frame(frame: Any, path: Path) -> Path:
    """Write the frame's rows as JSON lines."""
    encode = msgspec.json.Encoder(enc_hook=_plain).encode
    with path.open("wb") as out:
        for number, row in enumerate(records_of(frame)):
            image = row.get("image")
            if isinstance(image, dict):
                if not image.get("path"):
                    raise DataError(
                        f"row {number}: the image has bytes but no path; save the images to files"
                        " and put their paths into the image column"
                    )
                row = {**row, "image": image["path"]}
            out.write(encode(row) + b"\n")
    return path


def arrow_schema() -> Any:
    """The columns of a rollout table: those of v1.1-Raw, and the source."""
    import pyarrow as pa

    step = pa.struct(
        [
            ("step", pa.string()),
            ("score", pa.float64()),
            ("num_mc_correct", pa.int64()),
            ("num_mc_total", pa.int64()),
        ]
    )
    return pa.schema(
        [
            ("image", pa.list_(pa.string())),
            ("question", pa.string()),
            ("question_orig", pa.string()),
            ("answer", pa.string()),
            ("response", pa.string()),
            ("steps_with_score", pa.list_(step)),
            ("num_mc_sequences", pa.int64()),
            ("source", pa.string()),
        ]
    )


def arrow_batches(rollouts: Iterable[tuple[Rollout, str | None]]) -> Iterator[Any]:
    """Record batches of (rollout, source) pairs."""
    import pyarrow as pa

    schema = arrow_schema()
    pairs = iter(rollouts)
    while rows := [_row(rollout, source) for rollout, source in islice(pairs, ROWS)]:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def arrow_table(rollouts: Iterable[tuple[Rollout, str | None]]) -> Any:
    """A pyarrow table of (rollout, source) pairs."""
    import pyarrow as pa

    return pa.Table.from_batches(arrow_batches(rollouts), schema=arrow_schema())


def _row(rollout: Rollout, source: str | None) -> dict[str, Any]:
    return {**dump_visualprm_raw(rollout, 0.0), "image": list(rollout.images), "source": source}


Paths = str | Path | Sequence[str | Path]
"""Files, globs, folders or URLs."""


@dataclass(frozen=True, slots=True)
class PlacedRollout:
    """A rollout with the file and line that it was read from, and its source."""

    file: str
    line: int
    source: str
    rollout: Rollout
    raw: bytes = b""
    """The line itself, in formats of one rollout a line."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Files of rollouts; iterate over it for the rollouts."""

    files: tuple[CorpusFile, ...]
    formats: Mapping[str, Format]
    """Format of each file, by path."""
    chunks: tuple[Chunk, ...]
    """Every file's pieces, in canonical order."""
    judgement: Judgement = field(default_factory=Judgement)
    _frame: TemporaryFolder | None = None
    """Holds the file behind a corpus that was made from a frame."""

    @property
    def is_frame(self) -> bool:
        """Whether the corpus was made from a table in memory."""
        return self._frame is not None

    @property
    def n_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.n_bytes for file in self.files)

    def __iter__(self) -> Iterator[Rollout]:
        for placed in self.placed():
            yield placed.rollout

    def placed(self, on_bad: Callable[[Dropped], None] | None = None) -> Iterator[PlacedRollout]:
        """Every rollout with its place; a bad record stops with a `DataError`, or goes to ``on_bad``."""
        path, first_line = "", 1
        for chunk in self.chunks:
            if chunk.path != path:
                path, first_line = chunk.path, 1
            lines = CountedLines(lines_of(chunk))
            report_at = _Reports(chunk, first_line, lines, on_bad)
            for number, rollout in rollouts_of(lines, chunk, self.judgement, report_at):
                source = rollout.source or chunk.source
                yield PlacedRollout(path, first_line + number, source, rollout, lines.current)
            first_line += lines.n_lines

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` with one row a rollout, in v1.1-Raw columns and with its source."""
        return arrow_table((placed.rollout, placed.source) for placed in self.placed())

    def to_pandas(self) -> Any:
        """A pandas frame with one row a rollout."""
        imported("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """A polars frame with one row a rollout."""
        return imported("polars").from_arrow(self.to_arrow())

    def to_dataset(self) -> Any:
        """A Hugging Face `Dataset` with one row a rollout."""
        return imported("datasets").Dataset(self.to_arrow())


class CountedLines:
    """Lines, and how many there were."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.n_lines = self.n_blank = 0
        self.current = b""
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.n_lines += 1
            self.n_blank += is_blank(line)
            self.current = line
            yield line


class _Reports:
    """Raises at the first bad record, or puts each aside with its first reason."""

    def __init__(
        self, chunk: Chunk, first_line: int, lines: CountedLines, on_bad: Callable[[Dropped], None] | None
    ) -> None:
        self._chunk, self._first_line, self._lines, self._on_bad = chunk, first_line, lines, on_bad
        self._seen: set[int] = set()

    def __call__(self, number: int) -> Report:
        path, line = self._chunk.path, self._first_line + number

        def report(kind: str, text: str) -> None:
            if kind not in ERRORS or kind in CHECK_ONLY or number in self._seen:
                return
            if self._on_bad is None:
                raise bad_record(path, line, kind, text)
            self._seen.add(number)
            self._on_bad(Dropped(path, line, self._chunk.source, kind, text, self._lines.current))

        return report


def bad_record(file: str, line: int, kind: str, text: str) -> DataError:
    """The error for a record that cannot be used."""
    # a check knows nothing of the output, and so nothing of what the output cannot hold
    look = "" if kind == "separator_in_text" else f'List the bad records of the file with "mprm check {file}", or '
    remedy = f"{look}leave bad records out with --skip-bad (in Python: skip_bad=True)."
    return DataError(f"{file}:{line}: {text}. {remedy[0].upper()}{remedy[1:]}")


def rollouts_of(
    lines: Iterable[bytes], chunk: Chunk, judgement: Judgement | None, report_at: Callable[[int], Report]
) -> Iterator[tuple[int, Rollout]]:
    """(line within the chunk, rollout) of every usable record; problems go to ``report_at(line)``."""
    fmt = FORMATS[chunk.format]
    if fmt.regroup is not None:
        rows = (
            (number, record)
            for number, line in enumerate(lines)
            if not is_blank(line) and (record := record_of(line, report_at(number))) is not None
        )
        for number, rollout in fmt.regroup(rows, report_at):
            problems = Problems()
            judge_rollout(rollout, fmt, judgement, problems)
            problems.pass_on(report_at(number))
            if problems.first_error() is None:
                yield number, rollout
        return
    for number, line in enumerate(lines):
        if judgement is None and fmt.quick is not None and (quick := fmt.quick(line)) is not None:
            yield number, quick
            continue
        if is_blank(line):
            continue
        problems = Problems()
        rollouts = read_line(line, fmt, judgement, problems)
        problems.pass_on(report_at(number))
        if problems.first_error() is None:
            for rollout in rollouts:
                yield number, rollout


def open_corpus(
    paths: Paths | Any,
    *,
    format: str | None = None,
    text_only: bool = False,
    image_root: str | Path | None = None,
    forbids: str | None = None,
) -> Corpus:
    """Find the files and recognise their formats; nothing but each file's first record is read yet.

    Parameters
    ----------
    paths
        Files, globs, folders or URLs of rollouts; or a pandas or polars frame, a Hugging Face
        `Dataset`, a pyarrow table, or a list of dicts; or a corpus, to be judged by more than it was.
    format
        Name of the format, where it must not be guessed from the first record.
    text_only
        Accept records without an image.
    image_root
        Folder that must hold every image.
    forbids
        Text that no step or question may hold.

    Examples
    --------
    >>> corpus = open_corpus([{"prompt": "1+1?", "completions": ["2"], "labels": [True]}])
    >>> [rollout.scores for rollout in corpus]
    [(1.0,)]
    """
    if isinstance(paths, Corpus):
        return _judged_by(paths, format, text_only, image_root, forbids)
    folder = None
    if is_frame(paths):
        folder = TemporaryFolder()
        paths = write_frame(paths, folder.path / "frame.jsonl")
    root = _folder(image_root)
    files = tuple(corpus_files(paths))
    formats: dict[str, Format] = {}
    chunks: list[Chunk] = []
    for file in files:
        pieces = chunks_of(file)
        fmt = file_format(file, format, pieces[0] if pieces else None)
        if fmt.regroup is not None and len(pieces) > 1:
            pieces = [_whole(pieces)]
        formats[file.path] = fmt
        chunks += [
            Chunk(part.path, part.container, part.source, part.start, part.stop, fmt.name)
            for piece in pieces
            for part in source_ranges(file, piece)
        ]
    return Corpus(
        files,
        formats,
        tuple(chunks),
        Judgement(text_only=text_only, image_root=root, forbids=forbids),
        folder,
    )


def _folder(path: str | Path | None) -> Path | None:
    root = None if path is None else Path(path).expanduser()
    if root is not None and not root.is_dir():
        raise ConfigError(f"the image root {root} is not a folder")
    return root


def _judged_by(
    corpus: Corpus,
    format_name: str | None,
    text_only: bool,
    image_root: str | Path | None,
    forbids: str | None,
) -> Corpus:
    if format_name is not None and any(fmt.name != format_name for fmt in corpus.formats.values()):
        raise ConfigError(f"the corpus was opened in another format than {format_name}; open its files again")
    judgement = Judgement(
        text_only=text_only or corpus.judgement.text_only,
        image_root=_folder(image_root) or corpus.judgement.image_root,
        forbids=forbids or corpus.judgement.forbids,
    )
    return replace(corpus, judgement=judgement)


def _whole(pieces: list[Chunk]) -> Chunk:
    first, last = pieces[0], pieces[-1]
    return Chunk(first.path, first.container, first.source, first.start, last.stop)


def hash_file(path: str) -> str:
    """XXH3-128 of a local file, as ``xxhsum -H2`` prints it."""
    with open(path, "rb") as handle:  # noqa: PTH123 - kept next to mmap
        if os.fstat(handle.fileno()).st_size == 0:
            return xxhash.xxh3_128_hexdigest(b"")  # an empty file cannot be mapped
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return xxhash.xxh3_128_hexdigest(data)  # mapped: not copied before it is hashed


def hash_files(paths: list[str]) -> dict[str, str]:
    """XXH3-128 of some local files."""
    return {path: hash_file(path) for path in paths}


class InputHashes:
    """The hashes of a corpus's local files; the engine works on them while other things are done."""

    BATCHES = 4
    """Few, so that an engine with workers takes all of them at once."""

    def __init__(self, corpus: Corpus, engine: Engine) -> None:
        self._corpus = corpus
        local = [file.path for file in corpus.files if not is_url(file.path)]
        batches = [local[number :: self.BATCHES] for number in range(self.BATCHES)]
        self._hashing: Iterator[dict[str, str]] = engine.map(hash_files, batches)
        self._found: dict[str, str] | None = None

    def entries(self) -> list[dict[str, Any]]:
        """Path, size, hash and format of every input file; no hash for files behind URLs."""
        if self._found is None:
            self._found = {path: digest for batch in self._hashing for path, digest in batch.items()}
        return [
            {
                "path": "(in memory)" if self._corpus.is_frame else file.path,
                "n_bytes": file.n_bytes,
                "xxh3_128": self._found.get(file.path),
                "format": self._corpus.formats[file.path].name,
                "source": file.source,
            }
            for file in self._corpus.files
        ]


def check_inputs_kept(corpus: Corpus, outs: list[str]) -> None:
    """Stop before an input is replaced by what is made of it."""
    check_not_inputs([file.path for file in corpus.files], outs)


def check_unchanged(corpus: Corpus) -> None:
    """Stop when a local input is not as it was when the corpus was opened."""
    for file in corpus.files:
        if not is_url(file.path) and file.stamp != stamp_of(file.path):
            raise DataError(f"{file.path}: the file changed while it was read; run again")


def write_manifest(
    out: str,
    *,
    command: str,
    config: Mapping[str, Any],
    inputs: list[dict[str, Any]],
    sources: Mapping[str, Any],
    output: Mapping[str, Any],
) -> str:
    """Write the manifest of ``out`` beside it; returns where.

    It holds no time and no place, so that the same run gives the same bytes.
    """
    manifest = {
        "mprm": __version__,
        "command": command,
        "config": config,
        "inputs": inputs,
        "sources": sources,
        "output": output,
    }
    beside = out + MANIFEST_SUFFIX
    with atomic_write(beside) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return beside


def write_with_manifest(path: str, data: bytes, *, output: Mapping[str, Any] | None = None, **manifest: Any) -> None:
    """Write a file and the manifest beside it, which is there before the file gets its name."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
        entry = {"path": path, "n_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
        write_manifest(path, output={**entry, **(output or {})}, **manifest)
