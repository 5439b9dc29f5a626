"""A corpus: files of rollouts, the format of each, and the chunks they are read in; frames in and out."""

from __future__ import annotations

import re
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from mprm.config import nearest
from mprm.data.format import format_named, format_of
from mprm.data.images import image_folder
from mprm.data.output import (
    MANIFEST_SUFFIX,
    Dropped,
    InputHashes,
    TemporaryFolder,
    check_unchanged,
    hash_file,
    writing,
)
from mprm.data.records import (
    Chunk,
    DataFile,
    Paths,
    chunks_of,
    decode_record,
    find_files,
    is_blank,
    is_deep,
    is_utf8,
    lines_of,
    mapped,
)
from mprm.data.rollout_formats import ROLLOUT_FORMATS, ParsedLine, RolloutFormat, write_raw, write_trl
from mprm.data.types import IN_MEMORY, BadRecord, Issues, Rollout, ValidationOptions, location, validate
from mprm.errors import ConfigError, DataError, imported

LOOK_AT = 1000
"""How many broken lines at a file's start are passed over in the search for a record."""
BATCH_ROWS = 4096
"""Rows of a frame that are converted at a time."""
NO_ISSUES = Issues()


def parse_line(
    line: bytes, fmt: RolloutFormat, options: ValidationOptions | None, issues: Issues
) -> tuple[Rollout, ...]:
    """The line's rollouts, validated unless ``options`` is None; none where there is an error."""
    decoded = fmt.decode(line) if fmt.decode is not None and is_utf8(line) and not is_deep(line) else None
    rollouts: tuple[Rollout, ...] = () if decoded is None else (decoded,)
    if decoded is None:
        data = decode_record(line)
        try:
            if isinstance(data, BadRecord):
                raise data
            rollouts = fmt.parse(data, issues)
        except BadRecord as bad:
            issues.add_bad(bad)
    if options is not None:
        for rollout in rollouts:
            validate(rollout, issues, options, has_images=fmt.has_images)
    return rollouts


def parse_lines(lines: Iterable[bytes], chunk: Chunk, options: ValidationOptions | None) -> Iterator[ParsedLine]:
    """What each line of a chunk gave, blank lines left out; lines that were validated before come without options."""
    fmt = ROLLOUT_FORMATS[chunk.format]
    if fmt.regroup is None:
        yield from _parsed(lines, fmt, options)
        return
    for parsed in fmt.regroup(_parsed(lines, fmt, None)):
        for rollout in parsed.rollouts:
            validate(rollout, parsed.issues, options or ValidationOptions(), has_images=fmt.has_images)
        yield parsed._replace(rollouts=parsed.rollouts if parsed.issues.first_error() is None else ())


def _parsed(lines: Iterable[bytes], fmt: RolloutFormat, options: ValidationOptions | None) -> Iterator[ParsedLine]:
    for index, line in enumerate(lines):
        if options is None and fmt.decode is not None and (decoded := fmt.decode(line)) is not None:
            yield ParsedLine(index, line, (decoded,), NO_ISSUES)
        elif not is_blank(line):
            issues = Issues()
            rollouts = parse_line(line, fmt, options, issues)
            yield ParsedLine(index, line, rollouts if issues.first_error() is None else (), issues)


class CountedLines:
    """Lines, and how many there were."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.n_lines = self.n_blank = 0
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.n_lines += 1
            self.n_blank += is_blank(line)
            yield line


@dataclass(frozen=True, slots=True)
class LocatedRollout:
    """A rollout with the file and line that it was read from, and its source."""

    file: str
    line: int
    source: str
    rollout: Rollout
    raw: bytes = b""
    """The line itself, in formats of one rollout a line."""


class Tabular:
    """What can be one table, in any of the packages that hold one."""

    __slots__ = ()

    def to_arrow(self) -> Any:
        raise NotImplementedError

    def to_pandas(self) -> Any:
        imported("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        return imported("polars").from_arrow(self.to_arrow())

    def to_dataset(self) -> Any:
        return imported("datasets").Dataset(self.to_arrow())


@dataclass(frozen=True, slots=True)
class Corpus(Tabular):
    """Files of rollouts; iterate over it for the rollouts."""

    files: tuple[DataFile, ...]
    formats: Mapping[str, RolloutFormat]
    """Format of each file, by path."""
    chunks: tuple[Chunk, ...]
    """Every file's chunks, in canonical order."""
    options: ValidationOptions = field(default_factory=ValidationOptions)
    _folders: tuple[TemporaryFolder, ...] = ()
    """Hold the file of a frame, and those that `flattened` made."""
    origins: Mapping[str, tuple[str, Sequence[int] | None]] = field(default_factory=dict)
    """Of each file that `flattened` made: the file of the corpus, and the line of each rollout in it."""

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)

    def __iter__(self) -> Iterator[Rollout]:
        return (located.rollout for located in self.located())

    def located(
        self, on_bad: Callable[[Dropped], None] | None = None, on_issues: Callable[[str, Issues], None] | None = None
    ) -> Iterator[LocatedRollout]:
        """Every rollout with its location.

        ``on_bad`` takes each bad record (None: the first is a `DataError`), ``on_issues`` FILE:LINE and the issues of
        each usable one.
        """
        path, first_line = "", 1
        for chunk in self.chunks:
            if chunk.path != path:
                path, first_line = chunk.path, 1
            lines = CountedLines(lines_of(chunk))
            for number, raw, rollouts, issues in parse_lines(lines, chunk, self.options):
                line = first_line + number
                error = issues.first_error()
                if error is not None:
                    drop_or_raise(Dropped(path, line, chunk.source, *error, raw), on_bad)
                elif on_issues is not None:
                    on_issues(location(path, line), issues)
                for rollout in rollouts:
                    yield LocatedRollout(*self.origin(path, line), rollout.source or chunk.source, rollout, raw)
            first_line += lines.n_lines
        check_unchanged(self.files)

    def origin(self, path: str, line: int) -> tuple[str, int]:
        """File and line that a rollout was read from, from those of its chunk."""
        path, lines = self.origins.get(path, (path, None))
        return path, line if lines is None else lines[line - 1]

    def manifest_entries(self, hashes: InputHashes) -> list[dict[str, Any]]:
        """Path, size, hash and format of every input file, as it was read; no hash for files behind URLs."""
        entries = [
            {
                "path": location(file.name),
                "n_bytes": file.n_bytes,
                "xxh3_128": hashes.of(file),
                "format": self.formats[file.path].name,
                "source": file.source,
            }
            for file in self.files
        ]
        check_unchanged(self.files)
        return entries

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` with one row a rollout, in v1.1-Raw columns and with its source."""
        return arrow_table((located.rollout, located.source) for located in self.located())


def flattened(corpus: Corpus, on_bad: Callable[[Dropped], Any] | None) -> Corpus:
    """The corpus with one rollout a line, and nothing else.

    Files that keep several rollouts in one record, or one in several, are written anew to a temporary folder: in
    v1.1-Raw form where they have MC scores, else in TRL's.
    """
    if corpus.origins or not any(fmt.many for fmt in corpus.formats.values()):
        return corpus
    folder, chunks, origins = TemporaryFolder(), list[Chunk](), dict[str, tuple[str, Sequence[int] | None]]()
    for file in corpus.files:
        fmt, own = corpus.formats[file.path], tuple(chunk for chunk in corpus.chunks if chunk.path == file.path)
        if not fmt.many:
            chunks += own
            continue
        has_mc = fmt.labels == "mc"
        options = replace(corpus.options, needs_image=corpus.options.needs_image or has_mc)
        path, lines, name = folder.path / f"{len(origins)}.jsonl", array("q"), "visualprm-raw" if has_mc else "trl"
        with writing(tempfile.gettempdir()), path.open("wb") as out:
            for located in replace(corpus, files=(file,), chunks=own, options=options).located(on_bad):
                record = write_raw(located.rollout, 0.0) if has_mc else write_trl(located.rollout, 0.5)
                out.write(msgspec.json.encode(record) + b"\n")
                lines.append(located.line)
        origins[str(path)] = file.path, lines
        flat = replace(file, path=str(path), container="plain", n_bytes=path.stat().st_size)
        chunks += [replace(chunk, format=name) for chunk in chunks_of(flat)]
    return replace(corpus, chunks=tuple(chunks), _folders=(*corpus._folders, folder), origins=origins)


def drop_or_raise(dropped: Dropped, on_bad: Callable[[Dropped], Any] | None) -> None:
    """Hand a bad record to ``on_bad``, or stop with a `DataError` where there is none."""
    if on_bad is not None:
        on_bad(dropped)
        return
    command = "mprm.check" if location(dropped.file) == IN_MEMORY else f'"mprm check {dropped.file}"'
    # a check knows nothing of the output, and so nothing of what the output cannot hold
    look = "" if dropped.kind == "separator_in_text" else f" List all bad records with {command}."
    remedy = "Leave bad records out with --skip-bad (in Python: skip_bad=True)."
    raise DataError(f"{location(dropped.file, dropped.line)}: {dropped.reason}.{look} {remedy}")


def open_corpus(
    paths: Paths | Any,
    *,
    format: str | None = None,
    map: Mapping[str, str] | Sequence[str] = (),
    files: Sequence[str] = (),
    text_only: bool = False,
    image_root: str | Path | None = None,
    forbids: str | None = None,
    needs_image: bool = False,
) -> Corpus:
    """Find the files and recognise their formats; only each file's first record is read yet.

    Parameters
    ----------
    paths
        Files, globs, folders or URLs of rollouts; or a pandas or polars frame, a Hugging Face `Dataset`, a pyarrow
        table, or a list of dicts; or a corpus, to be validated by more than it was.
    format
        Name of the format, where the first record must not decide.
    map
        The records' own key of each field that they call otherwise: ``{"scores": "mc"}`` or ``["scores=mc"]``.
    files
        Globs of the files that are read, where a path is the name of a dataset on the hub, ``org/name``, or a folder.
    text_only
        Accept records without an image. It is so without a word where no record has one, and where the manifest of a
        file says that it was so when mprm wrote it.
    image_root, forbids, needs_image
        See `ValidationOptions`.

    Examples
    --------
    >>> corpus = open_corpus([{"prompt": "1+1?", "completions": ["2"], "labels": [True]}])
    >>> [rollout.scores for rollout in corpus]
    [(1.0,)]
    """
    if files:
        from mprm.data.hub import dataset_files  # it reads URLs with `records`

        paths = dataset_files(paths, files)
    old = paths.options if isinstance(paths, Corpus) else ValidationOptions()
    options = ValidationOptions(
        text_only=text_only or old.text_only,
        image_root=None if image_root is None else image_folder(image_root),
        forbids=forbids or old.forbids,
        needs_image=needs_image or old.needs_image,
    )
    if isinstance(paths, Corpus):
        if format is not None and any(fmt.name != format for fmt in paths.formats.values()):
            raise ConfigError(f"the corpus was opened in another format than {format}; open its files again")
        return replace(paths, options=options)
    folders: tuple[TemporaryFolder, ...] = ()
    if is_frame(paths):
        folders = (TemporaryFolder(),)
        paths = write_frame(paths, folders[0].path / IN_MEMORY / "frame.jsonl")
    inputs, key_map = tuple(find_files(paths)), _key_map(map)
    formats: dict[str, RolloutFormat] = {}
    chunks: list[Chunk] = []
    for file in inputs:
        pieces = [replace(piece, key_map=key_map) for piece in chunks_of(file)]
        fmt, is_array = _format_of_file(file, format, pieces)
        formats[file.path] = fmt
        if pieces and (is_array or fmt.regroup is not None):
            pieces = [replace(pieces[0], stop=pieces[-1].stop, is_array=is_array)]
        for piece in pieces:
            chunks += _split_by_source(file, replace(piece, format=fmt.name))
    if not text_only and _is_text_only(inputs, formats, chunks, needs_image=needs_image):
        options = replace(options, text_only=True)
    return Corpus(inputs, formats, tuple(chunks), options, folders)


def _key_map(entries: Mapping[str, str] | Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(field, key) of each entry of ``FIELD=KEY``, several of which may be joined with commas."""
    if isinstance(entries, Mapping):
        entries = [f"{name}={key}" for name, key in entries.items()]
    pairs = [part.partition("=") for entry in entries for part in entry.split(",")]
    known = {"answer", "id", "image", "question_orig", "task"}  # and those that formats are recognised by
    known.update(key for fmt in ROLLOUT_FORMATS.values() for key in fmt.matches.keys)
    for name, sign, key in pairs:
        if not name or not sign or not key:
            raise ConfigError(f"map takes FIELD=KEY, such as steps=solution_steps; got {name + sign + key!r}")
        if name not in known:
            raise ConfigError(f"map: unknown field {name!r}; {nearest(name, sorted(known))}")
    return tuple((name, key) for name, _, key in pairs)


NAMES_IMAGE = re.compile(rb'"image"\s*+:\s*+(?!null|""|\[\s*+\])')


def _is_text_only(
    files: Iterable[DataFile], formats: Mapping[str, RolloutFormat], chunks: list[Chunk], *, needs_image: bool
) -> bool:
    """Whether records would need an image, and none has one, or a file's manifest says that some have none."""
    some = [
        file
        for file in files
        if needs_image or (fmt := formats[file.path]).has_images or (fmt.many and fmt.labels == "mc")
    ]
    return bool(some) and all(
        ((manifest := _manifest_of(file)) is not None and manifest.config.get("text_only") is True)
        or not any(_names_image(chunk) for chunk in chunks if chunk.path == file.path)
        for file in some
    )


def _names_image(chunk: Chunk) -> bool:
    if not chunk.is_range:
        return any(NAMES_IMAGE.search(line) for line in lines_of(chunk))
    with mapped(chunk) as data:
        return chunk.start == 0 and NAMES_IMAGE.search(data) is not None


def _format_of_file(file: DataFile, name: str | None, chunks: list[Chunk]) -> tuple[RolloutFormat, bool]:
    """The named format, or the one that the file's first record shows; and whether the file is one JSON array."""
    fmt = None if name is None else format_named(name, ROLLOUT_FORMATS, "rollout")
    lines = lines_of(chunks[0]) if chunks and (fmt is None or file.container != "parquet") else iter(())
    for number, line in enumerate(islice(lines, LOOK_AT), start=1):
        if is_blank(line):
            continue
        is_array = line.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["
        if is_array and fmt is None:
            items = lines_of(replace(chunks[0], stop=chunks[-1].stop, is_array=True))
            line = next((item for item in items if not is_blank(item)), b"")
        fmt = fmt or _format_of_line(line, location(file.path, number))
        if fmt is not None or is_array:
            return fmt or ROLLOUT_FORMATS["visualprm-raw"], is_array
    # nothing to go by: an empty file is no error, and a file without one good record is reported line by line
    return fmt or ROLLOUT_FORMATS["visualprm-raw"], False


def _format_of_line(line: bytes, location: str) -> RolloutFormat | None:
    """The format that a record shows; None where the line is no record."""
    data = decode_record(line)
    if isinstance(data, BadRecord):
        return None
    try:
        return format_of(data, ROLLOUT_FORMATS, "rollout")
    except BadRecord as reason:
        raise DataError(f"{location}: {_other_kind(data) or reason}.") from None


def _other_kind(data: dict[str, Any]) -> str | None:
    """What a record that is no rollout is instead, and which command reads it."""
    from mprm.data.benchmarks import BENCHMARK_FORMATS
    from mprm.data.candidates import CANDIDATE_FORMATS
    from mprm.data.questions import QUESTION_FORMATS

    named = {name: fmt for name, fmt in QUESTION_FORMATS.items() if name != "plain"}  # which fits rollouts too
    for formats, kind, commands in (
        (BENCHMARK_FORMATS, "a solution of the step benchmark", "mprm evaluate reads it"),
        (CANDIDATE_FORMATS, "a question with candidates, format", "mprm rerank reads it"),
        (named, "a question, format", "mprm annotate and mprm sample read it"),
    ):
        for name, fmt in formats.items():
            if fmt.matches(data):
                return f"the record is no rollout but {kind} {name}; {commands}"
    return None


# A file that `mprm select` wrote holds the lines of every source, one source after the other. The manifest beside it
# says where each begins, so that sources survive being put into one file.


def bytes_by_source(parts: Iterable[tuple[str, int]]) -> dict[str, int] | None:
    """Bytes of each source in a file, in order, from its parts; None where sources are interleaved."""
    sizes = [(source, sum(n for _, n in group)) for source, group in groupby(parts, key=itemgetter(0))]
    n_bytes_of = dict(sizes)
    return n_bytes_of if len(n_bytes_of) == len(sizes) else None


class _Output(msgspec.Struct):
    n_bytes: int
    xxh3_128: str | None = None
    source_bytes: dict[str, int] | None = None


class _Manifest(msgspec.Struct):
    output: _Output
    config: dict[str, Any] = {}


def _split_by_source(file: DataFile, chunk: Chunk) -> Iterator[Chunk]:
    """The chunk, cut where a new source begins as the manifest says, each part with its source."""
    manifest = _manifest_of(file) if chunk.is_range else None
    sizes = (manifest and manifest.output.source_bytes) or {}
    if not sizes or sum(sizes.values()) != file.n_bytes:
        yield chunk
        return
    start = chunk.start
    for source, end in zip(sizes, accumulate(sizes.values()), strict=True):
        stop = min(end, chunk.stop)
        if start < stop:
            yield replace(chunk, source=source, start=start, stop=stop)
            start = stop


def _manifest_of(file: DataFile) -> _Manifest | None:
    """The manifest that mprm wrote with the file; None where there is none, or the file was changed since."""
    path = Path(file.path + MANIFEST_SUFFIX)
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
        is_whole = manifest.output.n_bytes == file.n_bytes
        if is_whole and Path(file.path).stat().st_mtime_ns > path.stat().st_mtime_ns:
            is_whole = manifest.output.xxh3_128 == hash_file(file.path)  # changed since, or only copied or downloaded
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    return manifest if is_whole else None


def is_frame(thing: Any) -> bool:
    """Whether the thing is a table in memory, not a path or a list of paths."""
    if isinstance(thing, list | tuple):
        return bool(thing) and isinstance(thing[0], dict)
    return type(thing).__module__.split(".")[0] in {"pandas", "polars", "pyarrow", "datasets"}


def _rows_of(frame: Any) -> Iterator[dict[str, Any]]:
    """The rows of a frame as dicts; images of a Hugging Face dataset as their paths instead of pixels."""
    package = type(frame).__module__.split(".")[0]
    if package == "pandas":
        for start in range(0, len(frame), BATCH_ROWS):
            yield from frame.iloc[start : start + BATCH_ROWS].to_dict("records")
    elif package == "polars":
        yield from (frame.collect() if hasattr(frame, "collect") else frame).iter_rows(named=True)
    elif package == "pyarrow":
        for batch in frame.to_batches(BATCH_ROWS):
            yield from batch.to_pylist()
    elif package == "datasets":
        datasets = imported("datasets")
        if isinstance(frame, dict):
            if len(frame) != 1:
                first = next(iter(frame), "train")
                raise ConfigError(
                    f"the {type(frame).__name__} has the splits {', '.join(frame)}; expected one data set. Pass"
                    f' a split, such as dataset["{first}"], or several with datasets.concatenate_datasets.'
                )
            (frame,) = frame.values()
        for name, feature in (frame.features or {}).items():
            if isinstance(feature, datasets.Image):
                frame = frame.cast_column(name, datasets.Image(decode=False))
        yield from frame
    else:
        yield from frame


def _plain(value: Any) -> Any:
    """Values that JSON does not know: numpy's arrays and numbers as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise DataError(f"a record cannot hold a {type(value).__name__}; expected text, numbers or lists")


def write_frame(frame: Any, path: Path) -> Path:
    """Write the frame's rows as JSON lines."""
    encode = msgspec.json.Encoder(enc_hook=_plain).encode
    path.parent.mkdir()
    with writing(tempfile.gettempdir()), path.open("wb") as out:
        for number, row in enumerate(_rows_of(frame)):
            image = row.get("image") if isinstance(row, dict) else None
            if isinstance(image, dict):
                if not image.get("path"):
                    raise DataError(f"row {number}: the image has bytes but no path; save it and give its path")
                row = {**row, "image": image["path"]}
            try:
                out.write(encode(row) + b"\n")
            except RecursionError:
                raise DataError(f"row {number}: the value is nested too deeply to be a record") from None
            except UnicodeEncodeError as error:
                raise DataError(f"row {number}: text that is not Unicode: {error.reason}") from None
    return path


def arrow_schema() -> Any:
    """The columns of a rollout table: those of v1.1-Raw, and the source."""
    import pyarrow as pa

    counts = [("num_mc_correct", pa.int64()), ("num_mc_total", pa.int64())]
    step = pa.struct([("step", pa.string()), ("score", pa.float64()), *counts])
    texts = [(name, pa.string()) for name in ("question", "question_orig", "answer", "response")]
    columns = [("image", pa.list_(pa.string())), *texts, ("steps_with_score", pa.list_(step))]
    return pa.schema([*columns, ("num_mc_sequences", pa.int64()), ("source", pa.string())])


def arrow_batches(rollouts: Iterable[tuple[Rollout, str | None]]) -> Iterator[Any]:
    """Record batches of (rollout, source) pairs."""
    import pyarrow as pa

    schema, pairs = arrow_schema(), iter(rollouts)
    while batch := list(islice(pairs, BATCH_ROWS)):
        rows = [
            {**write_raw(rollout, 0.0), "image": list(rollout.images), "source": source} for rollout, source in batch
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def arrow_table(rollouts: Iterable[tuple[Rollout, str | None]]) -> Any:
    """A `pyarrow.Table` of (rollout, source) pairs."""
    import pyarrow as pa

    return pa.Table.from_batches(arrow_batches(rollouts), schema=arrow_schema())
