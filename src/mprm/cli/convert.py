"""``mprm convert``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import progress
from mprm.config import EngineOptions, Force, InputFormat, Json, Option, Paths, SkipBad, TextOnly
from mprm.data.convert import TARGETS


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertCommand(EngineOptions):
    """Turn a corpus into another format; what the format cannot hold is refused."""

    paths: Paths
    out: Annotated[str, Option("Output; .gz, .zst and .parquet by its name.", "FILE")]
    to: Annotated[str | None, Option(f"{', '.join(TARGETS)}.", "FORMAT")] = None
    tau: Annotated[
        float, Option("Where the output has binary labels: positive when the score is strictly above it.", "NUMBER")
    ] = 0.0
    format: InputFormat = None
    text_only: TextOnly = False
    skip_bad: SkipBad = False
    force: Force = False
    json: Json = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.convert`, print."""
    options = parsed(
        ConvertCommand,
        arguments,
        command="convert",
        example="mprm convert bis10.jsonl --to trl --out bis10_trl.jsonl",
    )
    from mprm.data.convert import convert
    from mprm.data.records import corpus_files

    with progress("converting", sum(file.n_bytes for file in corpus_files(options.paths))) as on_chunk:
        summary = convert(
            options.paths,
            options.out,
            to=options.to,
            tau=options.tau,
            format=options.format,
            text_only=options.text_only,
            skip_bad=options.skip_bad,
            force=options.force,
            engine=options.engine,
            processes=options.processes,
            ray_address=options.ray_address,
            on_chunk=on_chunk,
        )
    if options.json:
        print(as_json(asdict(summary)))
        return 0
    print(f"{summary.n_records:,} records read, {summary.n_rollouts:,} rollouts in {summary.out}.")
    if summary.n_dropped:
        print(f"{summary.n_dropped:,} bad records dropped, each with its reason in {summary.dropped_to}.")
    for kind, n in summary.warnings.items():
        print(f"{n:,} warnings of {kind}: see mprm check.")
    return 0
