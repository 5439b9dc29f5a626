"""A corpus: files of rollouts, what format each is in, and the pieces they are read in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mprm.errors import ConfigError, DataError
from mprm.rollouts.chunks import Chunk, chunks_of, lines_of
from mprm.rollouts.dropped import Dropped
from mprm.rollouts.files import CorpusFile, corpus_files
from mprm.rollouts.format import Format
from mprm.rollouts.formats import FORMATS
from mprm.rollouts.frames import arrow_table, imported, is_frame, write_frame
from mprm.rollouts.problem import CHECK_ONLY, ERRORS, Problems, Report
from mprm.rollouts.read import Judgement, file_format, is_blank, judge_rollout, read_line, record_of
from mprm.rollouts.rollout import Rollout
from mprm.rollouts.source_ranges import source_ranges
from mprm.rollouts.temporary import TemporaryFolder

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
