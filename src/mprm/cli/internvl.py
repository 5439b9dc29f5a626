"""``mprm convert-internvl``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command
from mprm.config import Json, output, positional
from mprm.models.internvl_convert import ConvertInternVLConfig, convert_internvl
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class ConvertInternVLCommand(ConvertInternVLConfig):
    source: Annotated[str, positional("Folder of the published checkpoint.", "SOURCE")]
    out: Annotated[str, output("Folder to write.", "DIR")]
    json: Json = False


@command(ConvertInternVLCommand, "convert-internvl", "InternVL2_5-8B --out InternVL2_5-8B-native")
def run_internvl(options: ConvertInternVLCommand) -> None:
    summary = convert_internvl(options.source, options.out, options, progress=progress_bar)
    if options.json:
        print(as_json(summary))
        return
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)
    print(
        f"{summary.n_source_tensors:,} tensors read, {summary.n_tensors:,} written to {summary.out}:"
        f" {summary.n_parameters:,} parameters, {summary.n_bytes / 1e9:.2f} GB of {summary.dtype},"
        f" language model {summary.language_model}, image token {summary.image_token_id}."
    )
