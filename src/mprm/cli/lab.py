"""``mprm lab``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.cli.arguments import Force, Option, parsed
from mprm.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCommand:
    """The laboratory.

    corpus: write the sample corpus that mprm ships, about 3,000 made-up rollouts of eight sources, without images.
    make: train small policies on the lab's visual world and let them make a corpus with Monte-Carlo scores, a step
    benchmark and candidates; every part that is there already is kept. Meant for a GPU.
    """

    what: Annotated[Literal["corpus", "make"], Option("What to make.", is_positional=True)]
    folder: Annotated[str, Option("Folder to write to; made if it is not there.", "DIR", is_positional=True)]
    only: Annotated[
        tuple[str, ...], Option("Parts to make: policies, corpus, benchmark, candidates; all by default.", "PART")
    ] = ()
    force: Force = False


def run(arguments: list[str]) -> int:
    """Parse, call what is asked for, print."""
    options = parsed(LabCommand, arguments, command="lab", example="mprm lab corpus demo\n  mprm stats demo")
    if options.what == "make":
        if options.force:
            raise ConfigError("mprm lab make keeps what is there; remove what is to be made anew")
        from mprm.lab.make import make_lab

        make_lab(options.folder, only=options.only, say=_say)
        return 0
    if options.only:
        raise ConfigError("--only is for mprm lab make")
    return _write_sample(options)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write_sample(options: LabCommand) -> int:
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
