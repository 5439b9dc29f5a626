"""``mprm export`` and ``mprm serve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command, parsed
from mprm.config import Config, Json, positional
from mprm.models.serving import ExportConfig, export, serve


@dataclass(frozen=True, kw_only=True)
class ExportCommand(ExportConfig):
    run: Annotated[str, positional("Folder of the trained model.", "RUN")]
    json: Json = False


@command(ExportCommand, "export", "runs/bis10 --for vllm")
def run_export(options: ExportCommand) -> None:
    summary = export(options.run, options)
    if options.json:
        print(as_json(summary))
        return
    print(f"{', '.join(summary.files)} in {summary.folder}.")
    print(f"Start the server: mprm serve {summary.folder}, or {summary.command}")


@dataclass(frozen=True, kw_only=True)
class ServeCommand(Config):
    """Start vLLM with an exported model, on this machine alone unless --host says otherwise.

    What follows -- goes to vLLM: mprm serve runs/bis10 -- --port 8001 --host 0.0.0.0
    """

    run: Annotated[str, positional("Folder that mprm export wrote.", "RUN")]


def run_serve(arguments: list[str]) -> None:
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parsed(ServeCommand, arguments[:end], command="serve", example="mprm serve runs/bis10")
    serve(options.run, arguments[end + 1 :])
