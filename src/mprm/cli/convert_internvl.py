"""``mprm convert-internvl``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from mprm.cli.arguments import as_json, parsed
from mprm.config import Config, Force, Json, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertInternVLCommand(Config):
    """Turn a published InternVL2.5 checkpoint into one for transformers' own class, without running its code."""

    src: Annotated[str, Option("Folder of the published checkpoint.", "SRC", is_positional=True)]
    dst: Annotated[str, Option("Folder to make.", "DST", is_positional=True)]
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, Option("Type of the weights; as published by default.")
    ] = None
    max_shard_size: Annotated[str, Option("Largest weight file; as much memory is needed.", "SIZE")] = "5GB"
    force: Force = False
    json: Json = False


def run(arguments: list[str]) -> int:
    """Parse, call `convert_internvl`, print."""
    options = parsed(
        ConvertInternVLCommand,
        arguments,
        command="convert-internvl",
        example="mprm convert-internvl InternVL2_5-8B InternVL2_5-8B-native",
    )
    from mprm.models.internvl import convert_internvl

    report = convert_internvl(
        options.src,
        options.dst,
        dtype=options.dtype,
        force=options.force,
        max_shard_size=options.max_shard_size,
        on_file=lambda name: print(f"writing {name}", file=sys.stderr),
    )
    if options.json:
        print(as_json(asdict(report)))
        return 0
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    print(
        f"{report.n_source_tensors:,} tensors read, {report.n_tensors:,} written to {report.dst}:"
        f" {report.n_parameters:,} parameters, {report.n_bytes / 1e9:.2f} GB of {report.dtype},"
        f" language model {report.language_model}, image token {report.image_token_id}."
    )
    return 0
