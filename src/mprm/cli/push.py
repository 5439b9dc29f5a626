"""``mprm push``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, command, show_warnings
from mprm.config import Json, positional
from mprm.hub.push import PushConfig, push
from mprm.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class PushCommand(PushConfig):
    what: Annotated[str, positional("Folder of a finished run; file or folder of subsets.", "WHAT")]
    repo: Annotated[str, positional("Repository to upload to.", "ORG/NAME")]
    json: Json = False


@command(PushCommand, "push", "runs/bis10 my-org/bis10 --evaluation eval/bis10 --private")
def run_push(options: PushCommand) -> None:
    pushed = push(options.what, options.repo, options, progress=progress_bar)
    show_warnings("push", pushed.notes)
    if options.json:
        print(as_json(pushed))
        return
    if options.dry_run:
        print(*(f"{n_bytes:>16,}  {name}" for name, n_bytes in pushed.files.items()), "", pushed.card, sep="\n")
    total = f"{len(pushed.files)} files, {sum(pushed.files.values()) / 1e6:,.1f} MB"
    print(
        f"Dry run: {total} for the {pushed.kind} {pushed.repo}." if pushed.url is None else f"{total}: {pushed.url}"
    )
