"""Tables with a row for each rollout: ``mprm score`` writes them, and ``--columns`` reads them beside a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mprm.config import Force, output, takes
from mprm.data.corpus import Corpus, Tabular, open_corpus, parse_lines
from mprm.data.engine import make_engine, n_cores
from mprm.data.output import (
    MANIFEST_SUFFIX,
    InputHashes,
    Outputs,
    check_not_inputs,
    dropped_path,
    output_entry,
)
from mprm.data.records import lines_of
from mprm.data.types import Chain, StepScorer, location
from mprm.errors import ConfigError, DataError, InputNotFoundError, shown
from mprm.progress import Progress, silent
from mprm.selection.scan import ROLLOUT
from mprm.selection.stats import (
    FloatArray,
    IntArray,
    LabelCounts,
    Part,
    R_of,
    StatsConfig,
    bis_of,
    flat_counts,
    mean_mc_of,
    p_pos_of,
)


def score_schema(steps: Iterable[str] = ()) -> Any:
    """The columns of a score table; ``steps`` are lists, a number a step."""
    import pyarrow as pa

    floats = [(name, pa.float64()) for name in ("p_pos", "mixture", "R", "mean_mc", "bis")]
    whole = [("line", pa.int64()), ("n", pa.uint32()), ("n_pos", pa.uint32())]
    lists = [(name, pa.list_(pa.float64())) for name in steps]
    return pa.schema([("source", pa.string()), ("file", pa.string()), *whole, *floats, *lists])


def score_batches(
    corpus: Corpus, counts: LabelCounts, *, alpha: float, steps: Mapping[str, FloatArray]
) -> Iterator[Any]:
    """Arrow record batches with the scores of every rollout, in canonical order; ``steps`` have shape (M,)."""
    import pyarrow as pa

    names, schema = pa.array(counts.sources, pa.string()), score_schema(steps)
    for part in counts.parts:
        rows = counts.rows[part.first_row : part.first_row + part.n_rows]
        indices = np.flatnonzero(rows["kind"] == ROLLOUT)
        rows = rows[indices]
        p_pos = p_pos_of(rows)
        sources = names.take(pa.array(rows["source"]))
        path, _ = corpus.origins.get(part.chunk.path, (part.chunk.path, None))
        lines = _line_numbers(corpus, part, counts)
        columns = [sources, [location(path)] * len(rows), lines, rows["n_steps"], rows["n_pos"]]
        columns += [p_pos, p_pos * (1 - p_pos), R_of(rows), mean_mc_of(rows), bis_of(rows, alpha)]
        ends = np.cumsum([0, *rows["n_steps"]], dtype=np.int32)
        for values_M in steps.values():
            own = counts.of_steps(values_M, indices + part.first_row)
            values = pa.array(own, pa.float64(), from_pandas=True)  # null where a model gives no score
            columns.append(pa.ListArray.from_arrays(pa.array(ends), values))
        yield pa.record_batch(columns, schema=schema)


CHAINS_AT_ONCE = 4096


def _chains(counts: LabelCounts, part: Part) -> Iterator[Chain]:
    """The chain of each rollout of a part, in the order of the rows."""
    is_rollout = counts.rows["kind"][part.first_row : part.first_row + part.n_rows] == ROLLOUT
    parsed = parse_lines(compress(lines_of(part.chunk), is_rollout), part.chunk, None)
    return (rollout.chain for line in parsed for rollout in line.rollouts)


def _check_images(counts: LabelCounts, model: StepScorer) -> None:
    """Raise an error that names the images which cannot be used, before any is scored: of a model in this process."""
    encoder = getattr(model, "encoder", None)
    images = {image for part in counts.parts for chain in _chains(counts, part) for image in chain.images}
    if encoder is None or not images:
        return
    with ThreadPoolExecutor(n_cores()) as pool:
        errors = [error for error in pool.map(encoder.image_error, sorted(images)) if error]
    if errors:
        first = "; ".join(errors[:3])
        raise DataError(f"{len(errors):,} of {len(images):,} images cannot be used: {first}. mprm check lists them")


def model_scores(counts: LabelCounts, model: StepScorer, progress: Progress) -> FloatArray:
    """A model's score of every step of the rollouts, shape (M,); nan for those that it truncates."""
    scores_M = np.full(int(counts.score_ends[-1]), np.nan)
    _check_images(counts, model)
    n_done = 0
    with progress("scoring", sum(counts.n_rollouts.values())) as advance:
        for part in counts.parts:
            chains = _chains(counts, part)
            while some := list(islice(chains, CHAINS_AT_ONCE)):
                rows = model.score_many(some)
                if [len(row) for row in rows] != [len(chain.steps) for chain in some]:
                    raise DataError(f"{type(model).__name__}.score_many does not give one score for each step")
                values = [score for row in rows for score in row]
                scores_M[n_done : n_done + len(values)] = values
                n_done += len(values)
                advance(len(some))
    return scores_M


def _write_table(batches: Iterator[Any], path: Path, suffix: str, steps: Iterable[str]) -> None:
    """Write record batches as a table of that kind."""
    if suffix == ".jsonl":
        encode = msgspec.json.Encoder().encode
        with path.open("wb") as out:
            out.writelines(encode(row) + b"\n" for batch in batches for row in batch.to_pylist())
        return
    from pyarrow import csv, parquet

    writer = partial(parquet.ParquetWriter, compression="zstd") if suffix == ".parquet" else csv.CSVWriter
    with writer(str(path), score_schema(steps)) as table:
        for batch in batches:
            table.write_batch(batch)


@dataclass(frozen=True, kw_only=True)
class ScoreConfig(StatsConfig):
    """Write one row a rollout: its label counts, R, mixture and BIS, and on demand the scores of its steps."""

    steps: Annotated[bool, output("Add the list scores, the Monte-Carlo score of each step.")] = False
    force: Force = False


@dataclass(frozen=True, slots=True)
class ScoreSummary(Tabular):
    """How many rollouts were scored and how many records dropped; and the scores, a row a rollout."""

    n_rollouts: int
    n_dropped: int
    dropped_to: str | None
    n_unscored: int
    """Steps that the model gave no score."""
    _batches: Callable[[], Iterator[Any]] = field(repr=False)
    _steps: tuple[str, ...] = field(repr=False)

    def to_arrow(self) -> Any:
        import pyarrow as pa

        return pa.Table.from_batches(self._batches(), schema=score_schema(self._steps))


@takes(ScoreConfig)
def score(
    paths: Any,
    out: str | None = None,
    config: ScoreConfig | None = None,
    *,
    model: StepScorer | None = None,
    progress: Progress = silent,
    **options: Any,
) -> ScoreSummary:
    """The scores of every rollout, written to ``out`` where it is named; ``to_pandas()`` of the result has them too.

    Columns: source, file, line, n, n_pos, p_pos, mixture, R, mean_mc, bis; with ``steps`` the list ``scores``, and
    with a ``model``, such as `mprm.PRM`, the list ``prm_scores``, its scores of the steps. ``paths`` are whatever
    `mprm.open_corpus` takes, ``out`` a .parquet, .csv or .jsonl file. With ``skip_bad``, bad records go to
    ``OUT.dropped.jsonl``.

    >>> scores = score([{"prompt": "1+1?", "completions": ["2", "3"], "labels": [True, False]}])
    >>> scores.to_arrow()["bis"].to_pylist()
    [0.3]
    """
    config = ScoreConfig.of(config, options)
    outs = [] if out is None else [str(out)]
    if model is not None and not callable(getattr(model, "score_many", None)):
        raise ConfigError(f"the model is {shown(model)}; expected mprm.PRM or mprm.RemotePRM")
    if outs and Path(outs[0]).suffix not in (".parquet", ".csv", ".jsonl"):
        raise ConfigError(f"{out}: scores go to a .parquet, .csv or .jsonl file")
    if outs and outs[0].endswith(".csv") and (config.steps or model is not None):
        raise ConfigError(f"{out}: lists of step scores go to a .parquet or .jsonl file")
    with Outputs(*outs, force=config.force) as outputs:
        corpus = open_corpus(paths, **config.reading())
        beside = [path for name in outs for path in (name, name + MANIFEST_SUFFIX, dropped_path(name))]
        check_not_inputs([file.path for file in corpus.files], beside)
        engine = make_engine(config, n_bytes=corpus.n_bytes)
        how: dict[str, Any] = {"tau": config.tau, "with_details": config.steps, "progress": progress}
        corpus, counts, dropped = flat_counts(corpus, engine, config, **how)
        steps = {"scores": counts.scores} if config.steps else {}
        if model is not None:
            steps["prm_scores"] = model_scores(counts, model, progress)
        batches = partial(score_batches, corpus, counts, alpha=config.alpha, steps=steps)
        n_rollouts, dropped_to = sum(counts.n_rollouts.values()), None
        for name in outs:
            hashes, temporary = InputHashes(corpus.files, engine), outputs.add(name)
            _write_table(batches(), temporary, Path(name).suffix, steps)
            dropped_to = dropped.write_beside(name, outputs)
            outputs.add_manifest(
                name,
                command="score",
                config=config.as_dict("alpha", "tau", "skip_bad", "map", "steps")
                | {"text_only": corpus.options.text_only, "model": getattr(model, "name", None)}
                | {"model_fingerprint": getattr(model, "fingerprint", None)},
                inputs=corpus.manifest_entries(hashes),
                sources={source: dropped.account(source, n_kept=n) for source, n in counts.n_rollouts.items()},
                output=output_entry(name, temporary, n_rollouts=n_rollouts),
            )
    n_unscored = 0 if model is None else int(np.isnan(steps["prm_scores"]).sum())
    return ScoreSummary(n_rollouts, len(dropped), dropped_to, n_unscored, batches, tuple(steps))


@dataclass(frozen=True, slots=True)
class Columns:
    """Further columns of a corpus's rollouts, from a table beside it."""

    by_rollout: dict[str, FloatArray]
    """Shape (rows,), nan where a row is no rollout."""
    by_step: dict[str, FloatArray]
    """Shape (M,)."""
    unusable: dict[str, str]
    """What other columns hold, which are no numbers."""

    def taken(self, counts: LabelCounts, indices: NDArray[np.intp]) -> dict[str, FloatArray]:
        """Of the rows at ascending indices."""
        of_steps = {name: counts.of_steps(values, indices) for name, values in self.by_step.items()}
        return {name: values[indices] for name, values in self.by_rollout.items()} | of_steps


def read_columns(path: str, corpus: Corpus, counts: LabelCounts) -> Columns:
    """The columns of numbers of a .parquet, .csv or .jsonl table, a row a rollout in corpus order.

    `mprm.score` writes such tables. The columns ``line`` and ``n`` must be those of the rollouts, where there are
    any; of a list there must be a number for each step.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    table = _read_table(path)
    if doubles := [name for name, n in Counter(table.column_names).items() if n > 1]:
        raise DataError(f"{path} has the column {doubles[0]!r} twice; expected each name once")
    is_rollout = counts.rows["kind"] == ROLLOUT
    rows = counts.rows[is_rollout]
    if table.num_rows != len(rows):
        raise DataError(
            f"{path} has {table.num_rows:,} rows, and the corpus {len(rows):,} rollouts; expected as many"
        )
    lines = np.concatenate([_line_numbers(corpus, part, counts) for part in counts.parts])
    columns = Columns({}, {}, {})
    for name in table.column_names:
        column = table[name].combine_chunks()
        own = {"line": lines, "n": rows["n_steps"]}.get(name)
        is_list = any(test(column.type) for test in (pa.types.is_list, pa.types.is_large_list))
        numbers = _numbers(column.flatten() if is_list else column)
        if numbers is None:
            columns.unusable[name] = str(column.type)
        elif is_list:
            n_each = pc.list_value_length(column).fill_null(-1).to_numpy()
            odd = np.flatnonzero(n_each != rows["n_steps"])
            if len(odd):
                n = n_each[odd[0]]
                found = f"{'no list' if n < 0 else f'{n} numbers'} for {rows['n_steps'][odd[0]]} steps"
                raise DataError(f"{path}: row {odd[0]} of {name!r} has {found}; expected one number a step")
            if name in ("scores", "prm_scores") and len(odd := np.flatnonzero((numbers < 0) | (numbers > 1))):
                row = int(np.searchsorted(np.cumsum(rows["n_steps"]), odd[0], side="right"))
                raise DataError(f"{path}: row {row} of {name!r} has {numbers[odd[0]]:g}; expected 0 to 1")
            columns.by_step[name] = numbers
        else:
            values = np.full(len(counts.rows), np.nan)
            values[is_rollout] = numbers
            if own is not None and (values[is_rollout] != own).any():
                row = int(np.flatnonzero(values[is_rollout] != own)[0])
                found = f"row {row} has {name} {values[is_rollout][row]:g}, its rollout {own[row]}"
                raise DataError(f"{path} is of other rollouts: {found}; make it again with mprm score")
            columns.by_rollout[name] = values
    return columns


def _numbers(column: Any) -> FloatArray | None:
    """A column as float64, null as nan; None where it holds no numbers."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    tests = (pa.types.is_floating, pa.types.is_integer, pa.types.is_decimal)
    if not any(test(column.type) for test in tests):
        return None
    numbers: FloatArray = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _read_table(path: str) -> Any:
    """The Arrow table in a file of that ending."""
    import pyarrow as pa
    from pyarrow import csv, json, parquet

    readers = {".parquet": parquet.read_table, ".csv": csv.read_csv, ".jsonl": json.read_json}
    suffix = Path(path).suffix
    if suffix not in readers:
        raise ConfigError(f"columns come from a .parquet, .csv or .jsonl table, got {path!r}")
    if not Path(path).is_file():
        raise InputNotFoundError(f"{path}: no such file; mprm score writes tables of columns")
    try:
        return readers[suffix](path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is no {suffix[1:]} table: {str(error).splitlines()[0]}") from error


def _line_numbers(corpus: Corpus, part: Part, counts: LabelCounts) -> IntArray:
    """The line of each rollout of a part in the file that it comes from, from 1."""
    kinds = counts.rows["kind"][part.first_row : part.first_row + part.n_rows]
    lines = np.flatnonzero(kinds == ROLLOUT) + part.first_line
    _, origins = corpus.origins.get(part.chunk.path, ("", None))
    return lines if origins is None else np.asarray(origins)[lines - 1]
