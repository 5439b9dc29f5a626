"""``mprm quickstart``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import parsed
from mprm.config import Config, Force, Option


@dataclass(frozen=True, kw_only=True)
class QuickstartCommand(Config):
    """Write the quick-start corpus: 400 annotated rollouts of a small visual world, with their images."""

    folder: Annotated[str, Option("Folder for annotations/ and images/.", "DIR", is_positional=True)] = "."
    force: Force = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.quickstart`, print."""
    options = parsed(QuickstartCommand, arguments, command="quickstart", example="mprm quickstart")
    from mprm.data.quickstart import quickstart

    paths = quickstart(options.folder, force=options.force)
    for path in paths:
        print(f"{path}: {len(path.read_bytes().splitlines())} rollouts")
    folder = paths[0].parent
    print(f"Images are in {folder.parent / 'images'}.\nNext: mprm stats {shlex.quote(str(folder))}")
    return 0
