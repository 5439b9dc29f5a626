"""``mprm export`` and ``mprm serve``."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mprm.cli.arguments import as_json, command, parsed
from mprm.config import Config, Json, positional
from mprm.errors import InputNotFoundError, MissingDependencyError
from mprm.models.serving import VLLM_CONFIG, ExportConfig, export

SERVE_EXAMPLE = "runs/bis10"


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


def run_serve(arguments: list[str]) -> int:
    """Become ``vllm serve``."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parsed(ServeCommand, arguments[:end], command="serve", example=f"mprm serve {SERVE_EXAMPLE}")
    settings = Path(options.run).expanduser() / VLLM_CONFIG
    if not settings.is_file():
        raise InputNotFoundError(f"{settings} is not there; write it with mprm export {options.run} --for vllm")
    program = shutil.which("vllm") or shutil.which("vllm", path=str(Path(sys.executable).parent))
    if program is None:
        start = f"in an environment of its own: pip install vllm, then vllm serve --config {settings}"
        raise MissingDependencyError(f"vLLM is not installed here; {start}")
    sys.stdout.flush()
    os.execv(program, ["vllm", "serve", "--config", str(settings), *arguments[end + 1 :]])  # noqa: S606
