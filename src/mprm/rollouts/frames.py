"""To and from tables in memory: pandas, polars, pyarrow, Hugging Face datasets, lists of dicts."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from mprm.errors import DataError, MissingDependencyError
from mprm.rollouts.rollout import Rollout
from mprm.rollouts.visualprm_raw import dump

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
    return {**dump(rollout, 0.0), "image": list(rollout.images), "source": source}
