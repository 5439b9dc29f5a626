"""``mprm convert-internvl``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, parsed
from mprm.config import Json, Option
from mprm.models.internvl_convert import ConvertInternVLConfig, convert_internvl
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class ConvertInternVLCommand(ConvertInternVLConfig):
    """Rewrite a published InternVL2.5 checkpoint for transformers' own class, without running its code."""

    source: Annotated[str, Option("Folder of the published checkpoint.", "SOURCE", is_positional=True)]
    out: Annotated[str, Option("Folder to write.", "DIR", group="output")]
    json: Json = False


def run(arguments: list[str]) -> int:
    example = "mprm convert-internvl InternVL2_5-8B --out InternVL2_5-8B-native"
    command = parsed(ConvertInternVLCommand, arguments, command="convert-internvl", example=example)
    config = command.narrowed(ConvertInternVLConfig)
    summary = convert_internvl(command.source, command.out, config, progress=progress_bar)
    if command.json:
        print(as_json(asdict(summary)))
        return 0
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)
    print(
        f"{summary.n_source_tensors:,} tensors read, {summary.n_tensors:,} written to {summary.out}:"
        f" {summary.n_parameters:,} parameters, {summary.n_bytes / 1e9:.2f} GB of {summary.dtype},"
        f" language model {summary.language_model}, image token {summary.image_token_id}."
    )
    return 0
