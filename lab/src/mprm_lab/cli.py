"""``mprm lab``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from mprm.cli.arguments import parsed
from mprm.config import Config, Force, Option
from mprm.errors import ConfigError, InputNotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCommand(Config):
    """The laboratory.

    corpus: write the sample corpus that mprm ships, about 3,000 made-up rollouts of eight sources, without images.
    open: write the lab that mprm ships, as make made it: annotated rollouts of a visual world, benchmarks, candidates
    and policies; pictures are drawn.
    demo: open it, choose a tenth by BIS and at random, train on both, measure, choose among candidates, and write the
    report page; without a GPU.
    make: train small policies on the lab's visual world and let them make a corpus with Monte-Carlo scores, two step
    benchmarks and candidates; every part that is there already is kept. Meant for a GPU.
    reproduce: train and measure the paper's experiments on what make wrote or open opened, cell by cell; a stopped
    command goes on where it was. With --make it is the whole, from nothing. Meant for a GPU.
    pack: compress what make wrote into FOLDER/shipped, as the package ships it.
    """

    what: Annotated[
        Literal["corpus", "open", "demo", "make", "pack", "reproduce"], Option("What to do.", is_positional=True)
    ]
    folder: Annotated[str, Option("Folder of the lab; made if it is not there.", "DIR", is_positional=True)]
    only: Annotated[
        tuple[str, ...],
        Option(
            "make: parts to make (policies, corpus, benchmark, validation, candidates, scores); reproduce: a pattern"
            " of names of cells, such as 'qwen.*-10.*'. All by default.",
            "NAME",
        ),
    ] = ()
    seeds: Annotated[int | None, Option("reproduce: seeds of each cell; 5 by default.", "N")] = None
    jobs: Annotated[
        int | None, Option("reproduce: cells at a time; by default 3/4 of the cores on a GPU, else one.", "N")
    ] = None
    out: Annotated[
        str | None, Option("reproduce: folder for lab.json, lab.md and its figures, once cells are done.", "DIR")
    ] = None
    dry_run: Annotated[
        bool, Option("reproduce: list the cells, and how long they will take where that is known.")
    ] = False
    make: Annotated[bool, Option("reproduce: make the lab first, where it is not whole.")] = False
    force: Force = False


OF_REPRODUCE = ("seeds", "jobs", "out", "dry_run", "make")


def run(arguments: list[str]) -> int:
    """Parse, call what is asked for, print."""
    options = parsed(LabCommand, arguments, command="lab", example="mprm lab corpus demo\n  mprm stats demo")
    if options.what == "reproduce":
        return _reproduce(options)
    if unfit := [name for name in OF_REPRODUCE if not any(getattr(options, name) is no for no in (None, False))]:
        raise ConfigError(f"--{unfit[0].replace('_', '-')} is for mprm lab reproduce")
    if options.what == "make":
        if options.force:
            raise ConfigError("mprm lab make keeps what is there; remove what is to be made anew")
        from mprm_lab.make import make_lab

        make_lab(options.folder, only=options.only, say=_say)
        return 0
    if options.only:
        raise ConfigError("--only is for mprm lab make and mprm lab reproduce")
    return {"corpus": _write_sample, "open": _open, "demo": _demo, "pack": _pack}[options.what](options)


def _open(options: LabCommand) -> int:
    from mprm_lab.shipped import open_lab

    for path in open_lab(options.folder, force=options.force):
        print(path)
    print(f"{options.folder}/policies and {options.folder}/images belong to them.")
    return 0


def _demo(options: LabCommand) -> int:
    from pathlib import Path

    from mprm_lab.demo import demo

    if options.force:
        raise ConfigError("mprm lab demo removes nothing; choose a folder that is empty")
    demo(Path(options.folder).expanduser())
    return 0


def _pack(options: LabCommand) -> int:
    from pathlib import Path

    from mprm_lab.shipped import pack_lab

    if options.force:
        raise ConfigError("mprm lab pack replaces what it packed before, and needs no --force")
    out = Path(options.folder) / "shipped"
    written = pack_lab(options.folder, out)
    for name, n_bytes in written.items():
        print(f"{out / name}: {n_bytes:,} bytes")
    print(f"{sum(written.values()):,} bytes in all")
    return 0


def _reproduce(options: LabCommand) -> int:
    from pathlib import Path

    from mprm.data.charts import need_altair
    from mprm.data.output import check_overwrite
    from mprm_lab.reproduce.dry_run import dry_run
    from mprm_lab.reproduce.inputs import find_inputs
    from mprm_lab.reproduce.reproduce import check_free, check_jobs, reproduce, wanted_cells
    from mprm_lab.reproduce.reproduce_plan import ReproducePlan
    from mprm_lab.reproduce.write_page import write_page

    if options.force and options.out is None:
        raise ConfigError("--force replaces results in --out; cells to be measured anew are to be removed by hand")
    if len(options.only) > 1:
        raise ConfigError(f"mprm lab reproduce --only takes one pattern, got {' '.join(options.only)}")
    only = options.only[0] if options.only else "*"
    plan = ReproducePlan() if options.seeds is None else ReproducePlan(seeds=options.seeds)
    if options.dry_run and options.make:
        raise ConfigError("--dry-run makes nothing, so that --make does not go with it")
    if options.dry_run:
        for line in dry_run(options.folder, plan, only=only):
            print(line)
        return 0
    if options.out is not None:
        need_altair()  # before minutes of training
        check_overwrite(f"{options.out}/lab.json", force=options.force)
    if options.make:
        from mprm_lab.make import make_lab

        backbones = {cell.backbone for cell in wanted_cells(plan, only)}  # stops before minutes of making
        if options.jobs is not None:
            check_jobs(options.jobs)
        check_free(Path(options.folder))
        try:
            find_inputs(Path(options.folder), tuple(backbones))
        except InputNotFoundError:
            make_lab(options.folder, say=_say)
    found = reproduce(options.folder, plan, only=only, jobs=options.jobs, say=_say)
    print(f"{found.n_cells - len(found.failed):,} of {found.n_cells:,} cells are done, {found.n_kept:,} from before.")
    if options.out is not None:
        for path in write_page(Path(options.folder), Path(options.out), plan):
            print(path)
    for name, error in found.failed.items():
        print(f"{name} failed: {error}", file=sys.stderr)
    return 1 if found.failed else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write_sample(options: LabCommand) -> int:
    import shlex

    from mprm.data.records import source_name
    from mprm.selection.stats import stats
    from mprm_lab.sample_corpus import write_sample

    paths = write_sample(options.folder, force=options.force)
    found = stats(paths)
    for path in paths:
        entry = found.sources[source_name(str(path))]
        print(f"{path}: {entry.n_rollouts:,} rollouts, {entry.n_steps:,} steps")
    print(f"{len(paths)} files: {found.total.n_rollouts:,} rollouts, {found.total.n_steps:,} steps")
    print(f"Next: mprm stats {shlex.quote(options.folder)}")
    return 0
