"""The ``mprm-lab`` command."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mprm.cli import Program, as_json, parsed, run, show_table
from mprm.config import Config, DryRun, Force, Json, Option, Seed, output, positional
from mprm.errors import ConfigError, InputNotFoundError
from mprm.progress import progress_bar

if TYPE_CHECKING:
    from mprm_lab.reproduce.plan import ReproducePlan
    from mprm_lab.reproduce.reproduce import Reproduction

COMMANDS = {
    "open": ("mprm_lab.cli:run_open", "write the shipped lab into a folder, and draw its pictures"),
    "demo": ("mprm_lab.cli:run_demo", "the pipeline from end to end on the shipped lab, without a GPU"),
    "reproduce": ("mprm_lab.cli:run_reproduce", "the paper's experiments on a lab"),
    "compare": ("mprm_lab.cli:run_compare", "BIS against its rivals, on a lab"),
    "theory": ("mprm_lab.cli:run_theory", "the paper's analysis, verified by simulation"),
    "make": ("mprm_lab.cli:run_make", "train policies from scratch and let them make a lab"),
    "pack": ("mprm_lab.cli:run_pack", "compress a lab, and its excerpt for mprm quickstart, as packages ship them"),
}
MPRM_LAB = Program(
    name="mprm-lab",
    about="the proving ground of mprm: a small visual world, and the paper's experiments on it.",
    example="mprm-lab demo demo",
    commands=COMMANDS,
    resumable=("make", "reproduce", "compare"),
)

log = partial(print, file=sys.stderr, flush=True)
Folder = Annotated[str, positional("Folder of the lab; made if it is not there.", "DIR")]


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:], MPRM_LAB))


@dataclass(frozen=True, kw_only=True)
class OpenCommand(Config):
    """Write the shipped lab, as make made it: annotated rollouts, benchmarks, candidates, policies, pictures."""

    folder: Folder
    force: Force = False


def run_open(arguments: list[str]) -> int:
    """Parse, open, print."""
    options = parsed(OpenCommand, arguments, command="mprm-lab open", example="mprm-lab open LAB")
    from mprm_lab.shipped import open_lab

    for path in open_lab(options.folder, force=options.force):
        print(path)
    print(f"{options.folder}/policies and {options.folder}/images belong to them.")
    return 0


@dataclass(frozen=True, kw_only=True)
class DemoCommand(Config):
    """Open the shipped lab, select a tenth by BIS and at random, train on both, evaluate, rerank and report.

    Takes a few minutes on two cores, without a GPU.
    """

    folder: Annotated[str, positional("A new folder.", "DIR")]


def run_demo(arguments: list[str]) -> int:
    """Parse, run the demo."""
    options = parsed(DemoCommand, arguments, command="mprm-lab demo", example="mprm-lab demo demo")
    from mprm_lab.demo import demo

    demo(Path(options.folder).expanduser())
    return 0


@dataclass(frozen=True, kw_only=True)
class MakeCommand(Config):
    """Train small policies on the visual world and let them make a corpus, two step benchmarks and candidates.

    Every part that is there already is kept. Meant for a GPU.
    """

    folder: Folder
    only: Annotated[
        tuple[
            Literal[
                "policies",
                "checking",
                "backbones",
                "corpus",
                "benchmark",
                "validation",
                "candidates",
                "scores",
                "fresh",
                "by-errors",
            ],
            ...,
        ],
        Option("Parts to make; all but fresh and by-errors by default."),
    ] = ()


def run_make(arguments: list[str]) -> int:
    """Parse, make."""
    options = parsed(MakeCommand, arguments, command="mprm-lab make", example="mprm-lab make LAB --only policies")
    from mprm_lab.make import make_lab

    make_lab(options.folder, only=options.only, log=log)
    return 0


@dataclass(frozen=True, kw_only=True)
class PackCommand(Config):
    """Compress what make wrote into FOLDER/shipped, as the package ships it, with the excerpt that mprm ships."""

    folder: Folder


def run_pack(arguments: list[str]) -> int:
    """Parse, pack, print."""
    options = parsed(PackCommand, arguments, command="mprm-lab pack", example="mprm-lab pack LAB")
    from mprm_lab.shipped import pack_lab

    out = Path(options.folder) / "shipped"
    sizes = pack_lab(options.folder, out)
    for name, n_bytes in sizes.items():
        print(f"{out / name}: {n_bytes:,} bytes")
    print(f"{sum(sizes.values()):,} bytes in all")
    return 0


@dataclass(frozen=True, kw_only=True)
class RunsCommand(Config):
    """Options of both commands that train and evaluate run by run."""

    folder: Folder
    only: Annotated[str, Option("Runs whose names match this pattern, such as 'qwen.*-10.*'.", "PATTERN")] = "*"
    seeds: Annotated[int, Option("Seeds of each condition.", at_least=1, at_most=1000)] = 5
    trials: Annotated[bool, Option("Try the settings that the plan's were chosen from, instead.")] = False
    jobs: Annotated[
        int | None, Option("Runs at a time; by default 3/4 of the cores on a GPU, else one.", at_least=1)
    ] = None
    dry_run: DryRun = False


@dataclass(frozen=True, kw_only=True)
class ReproduceCommand(RunsCommand):
    """Train and evaluate the paper's experiments on what make wrote or open opened, run by run.

    A stopped command continues where it was. Meant for a GPU.
    """

    make: Annotated[bool, Option("Make the lab first, where files are missing: the whole from nothing.")] = False
    out: Annotated[str | None, output("Folder for lab.json, lab.md and its figures, once runs are done.", "DIR")] = (
        None
    )
    force: Force = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.force and self.out is None:
            raise ConfigError("--force replaces results in --out; runs to be repeated are to be removed by hand")
        if self.dry_run and self.make:
            raise ConfigError("--dry-run makes nothing, so that --make does not go with it")


def run_reproduce(arguments: list[str]) -> int:
    """Parse, reproduce, print."""
    example = "mprm-lab reproduce LAB --out results"
    options = parsed(ReproduceCommand, arguments, command="mprm-lab reproduce", example=example)
    from mprm.data import check_overwrite, need_altair
    from mprm_lab.folder import LabFolder
    from mprm_lab.make import make_lab
    from mprm_lab.reproduce.page import write_page
    from mprm_lab.reproduce.plan import ReproducePlan
    from mprm_lab.reproduce.reproduce import dry_run, wanted_runs

    folder, plan = Path(options.folder), ReproducePlan(seeds=options.seeds)
    if options.dry_run:
        print(*dry_run(folder, plan, only=options.only, trials=options.trials), sep="\n")
        return 0
    if options.out is not None:
        need_altair()  # before minutes of training
        check_overwrite(f"{options.out}/lab.json", force=options.force)
    if options.make:
        wanted = wanted_runs(plan, options.only, trials=options.trials)  # stops before minutes of making
        try:
            LabFolder.read(folder, {run.backbone for run in wanted})
        except InputNotFoundError:
            make_lab(folder, log=log)
    done = _do_runs(options, plan)
    if options.out is not None:
        print(*write_page(folder, Path(options.out), plan), sep="\n")
    return 1 if done.failed else 0


def _do_runs(options: RunsCommand, plan: ReproducePlan) -> Reproduction:
    """Do the runs of a plan that are not finished, and say how far they are."""
    from mprm_lab.reproduce.reproduce import reproduce

    done = reproduce(
        options.folder,
        plan,
        only=options.only,
        trials=options.trials,
        jobs=options.jobs,
        log=log,
        progress=progress_bar,
    )
    print(f"{done.n_runs - len(done.failed):,} of {done.n_runs:,} runs are done, {done.n_kept:,} from before.")
    for name, error in done.failed.items():
        print(f"{name} failed: {error}", file=sys.stderr)
    return done


@dataclass(frozen=True, kw_only=True)
class CompareCommand(RunsCommand):
    """Compare BIS with other selections, label schemes and losses, at three budgets.

    A stopped command continues where it was. Meant for a GPU.
    """

    methods: Annotated[tuple[str, ...], Option("Names of methods; all by default.", "NAME")] = ()
    backbones: Annotated[tuple[str, ...], Option("Folders in policies/ to train from.", "NAME")] = (
        "internvl",
        "qwen",
    )
    first_seed: Annotated[int, Option("The lowest of the seeds.", at_least=0, below=2**31)] = 0
    out: Annotated[str | None, output("Folder for compare.json and compare.md, once runs are done.", "DIR")] = None
    force: Force = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trials and self.methods:
            raise ConfigError("--trials tries all settings; leave out --methods, and name some with --only")
        from mprm_lab.reproduce.compare import METHODS, ComparePlan

        if unknown := [name for name in self.methods if name not in METHODS]:
            raise ConfigError(f"no method is called {unknown[0]!r}; they are {', '.join(METHODS)}")
        if self.first_seed <= (trial := ComparePlan().trial_seed) < self.first_seed + self.seeds:
            raise ConfigError(f"seed {trial} is that of the trials; choose other seeds")


def run_compare(arguments: list[str]) -> int:
    """Parse, compare, print."""
    example = "mprm-lab compare LAB --out results"
    options = parsed(CompareCommand, arguments, command="mprm-lab compare", example=example)
    from mprm.data import check_overwrite
    from mprm_lab.reproduce.compare import METHODS, ComparePlan, write_compare
    from mprm_lab.reproduce.reproduce import dry_run

    methods = {name: METHODS[name] for name in options.methods or METHODS}
    backbones = tuple(dict.fromkeys(options.backbones))
    plan = ComparePlan(methods=methods, backbones=backbones, seeds=options.seeds, first_seed=options.first_seed)
    folder = Path(options.folder)
    if options.dry_run:
        print(*dry_run(folder, plan, only=options.only, trials=options.trials), sep="\n")
        return 0
    for name in ("compare.json", "compare.md") if options.out is not None else ():
        check_overwrite(f"{options.out}/{name}", force=options.force)
    done = _do_runs(options, plan)
    if options.out is not None:
        print(*write_compare(folder, Path(options.out), plan), sep="\n")
    return 1 if done.failed else 0


@dataclass(frozen=True, kw_only=True)
class TheoryCommand(Config):
    """Simulate what each statement of the paper's analysis is about, and show whether it holds.

    Exits with 1 when a statement does not hold.
    """

    seed: Seed = 0
    only: Annotated[
        tuple[Literal["steps", "rollouts", "success-rates", "training", "strategies"], ...],
        Option("Parts to simulate; all by default."),
    ] = ()
    out: Annotated[str | None, output("Folder for theory.json and the figures.", "DIR")] = None
    force: Force = False
    json: Json = False


def run_theory(arguments: list[str]) -> int:
    """Parse, verify, write, print."""
    options = parsed(TheoryCommand, arguments, command="mprm-lab theory", example="mprm-lab theory --out theory")
    from mprm.data import atomic_write, can_draw, check_overwrite
    from mprm_lab.theory.statements import CRITERION, STATEMENTS
    from mprm_lab.theory.verify import FIGURES, verify, write_figures

    folder = Path(options.out or "").expanduser()
    if options.out is not None:
        for name in ("theory.json", *FIGURES):
            check_overwrite(str(folder / name), force=options.force)
    verification = verify(seed=options.seed, only=options.only, progress=progress_bar)
    written: list[str] = []
    if options.out is not None:
        with atomic_write(str(folder / "theory.json")) as temporary:
            temporary.write_text(as_json(verification.as_dict()) + "\n", encoding="utf-8")
        names = ["theory.json", *(write_figures(verification, folder) if can_draw() else ())]
        written = [str(folder / name) for name in names]
        if not can_draw():
            written.append("No figures: they need Altair and vl-convert; install mprm with its extra [report].")
    if options.json:
        print(as_json(verification.as_dict()))
        return 0 if verification.holds else 1
    rows = []
    for result in verification.results:
        compared, (low, high) = result.comparison, result.interval()
        interval = f"{low:.4g} to {high:.4g}" if compared.error[0] else "exact"
        values = [f"{compared.predicted[0]:.4g}", f"{compared.simulated[0]:.4g}", interval]
        verdict = "holds" if result.holds else "FAILS"
        rows.append([compared.name, *STATEMENTS[compared.name], *values, str(len(compared.predicted)), verdict])
    show_table(
        f"The paper's statements, simulated (seed {verification.seed})",
        ["statement", "in the paper", "what it says", "", "predicted", "simulated", "95% interval", "settings", ""],
        rows,
        left=(0, 1, 2),
        total_last=False,
    )
    print(CRITERION)
    n_holding = sum(result.holds for result in verification.results)
    print(f"{n_holding} of {len(rows)} lines hold.", *written, sep="\n")
    return 0 if verification.holds else 1
