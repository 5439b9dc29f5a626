"""``mprm lab``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.cli.arguments import Force, Option, parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCommand:
    """Write the sample corpus that mprm ships: about 3,000 made-up rollouts of eight sources, without images."""

    what: Annotated[Literal["corpus"], Option("What to write.", is_positional=True)]
    folder: Annotated[str, Option("Folder to write to; made if it is not there.", "DIR", is_positional=True)]
    force: Force = False


def run(arguments: list[str]) -> int:
    """Parse, call `write_sample`, print."""
    options = parsed(LabCommand, arguments, command="lab", example="mprm lab corpus demo\n  mprm stats demo")
    import shlex

    from mprm.lab.sample_corpus import write_sample
    from mprm.rollouts.files import source_name
    from mprm.scores.statistics import stats

    paths = write_sample(options.folder, force=options.force)
    found = stats(paths)
    for path in paths:
        entry = found.sources[source_name(str(path))]
        print(f"{path}: {entry.n_rollouts:,} rollouts, {entry.n_steps:,} steps")
    print(f"{len(paths)} files: {found.total.n_rollouts:,} rollouts, {found.total.n_steps:,} steps")
    print(f"Next: mprm stats {shlex.quote(options.folder)}")
    return 0
