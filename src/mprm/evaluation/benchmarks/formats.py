"""All benchmarks by name, and telling which one a file holds from its first record."""

from __future__ import annotations

from mprm.errors import ConfigError, DataError
from mprm.evaluation.benchmarks.benchmark_format import BenchmarkFormat
from mprm.evaluation.benchmarks.prmbench import PRMBENCH
from mprm.evaluation.benchmarks.processbench import PROCESSBENCH
from mprm.evaluation.benchmarks.visualprocessbench import VISUALPROCESSBENCH
from mprm.evaluation.benchmarks.vlrmbench import VLRMBENCH
from mprm.rollouts.format import Format, Record
from mprm.rollouts.formats import FORMATS

BENCHMARKS: dict[str, BenchmarkFormat] = {
    fmt.name: fmt for fmt in (VISUALPROCESSBENCH, PROCESSBENCH, PRMBENCH, VLRMBENCH)
}


def benchmark_format(name: str | None, first: tuple[int, Record] | None, file: str) -> BenchmarkFormat | Format:
    """The named format, or the one that the file's first record, at its line, shows; rollouts are a benchmark too."""
    every: dict[str, BenchmarkFormat | Format] = {**BENCHMARKS, **FORMATS}
    if name is not None:
        if name not in every:
            raise ConfigError(f"unknown benchmark format {name!r}; expected one of {', '.join(every)}")
        return every[name]
    if first is None:
        raise DataError(f"{file}: the file holds no record; expected solutions with labelled steps")
    line, record = first
    for fmt in every.values():
        if fmt.recognise(record):
            return fmt
    keys = ", ".join(sorted(map(str, record))[:12]) or "none"
    raise DataError(
        f"{file}:{line}: the record has the fields {keys}, which fit no known benchmark;"
        f" name one with --benchmark-format: {', '.join(every)}."
    )
