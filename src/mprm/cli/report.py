"""``mprm report``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import progress
from mprm.config import Alpha, EngineOptions, Force, InputFormat, Json, Option, SkipBad, Tau, TextOnly
from mprm.data.corpus import open_corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommand(EngineOptions):
    """Write one page that shows a corpus, what a selection keeps of it, and training runs; it opens offline."""

    paths: Annotated[
        tuple[str, ...],
        Option("Files, globs, folders or URLs of rollouts; not needed for runs alone.", "INPUT", is_positional=True),
    ] = ()
    out: Annotated[str, Option("The HTML file, or a folder for report.html.", "FILE|DIR")]
    runs: Annotated[
        tuple[str, ...], Option("Folders of mprm train, evaluate and rerank, or that hold such.", "DIR")
    ] = ()
    figures: Annotated[str | None, Option("Folder for the figures as SVG, PNG and PDF.", "DIR")] = None
    rho: Annotated[float, Option("Fraction kept from each source where the page begins.", "NUMBER")] = 0.10
    alpha: Alpha = 0.05
    tau: Tau = 0.0
    seed: Annotated[int, Option("Seed of the random order.", "N")] = 0
    cards: Annotated[int, Option("Case studies of each kind from each source.", "N")] = 1
    image_root: Annotated[
        str | None, Option("Folder that image paths are relative to; without it no image is shown.", "DIR")
    ] = None
    format: InputFormat = None
    text_only: TextOnly = False
    skip_bad: SkipBad = False
    force: Force = False
    json: Json = False


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.report`, print."""
    options = parsed(
        ReportCommand,
        arguments,
        command="report",
        example="mprm report annotations/*.jsonl --image-root images --runs runs eval --out report.html",
    )
    from dataclasses import asdict

    from mprm.report.corpus_view import ReportConfig
    from mprm.report.report import report

    config = ReportConfig(
        rho=options.rho,
        alpha=options.alpha,
        tau=options.tau,
        seed=options.seed,
        cards=options.cards,
        image_root=options.image_root,
    )
    opened = open_corpus(options.paths, format=options.format, text_only=options.text_only) if options.paths else None
    with progress("reading", opened.n_bytes if opened else 0) as on_chunk:
        found = report(
            () if opened is None else opened,
            out=options.out,
            runs=options.runs,
            figures=options.figures,
            config=config,
            skip_bad=options.skip_bad,
            force=options.force,
            engine=options.engine,
            processes=options.processes,
            ray_address=options.ray_address,
            on_chunk=on_chunk,
        )
    if options.json:
        print(as_json(asdict(found)))
        return 0
    if found.n_rollouts or found.n_dropped:
        print(f"{found.n_rollouts:,} rollouts, {found.n_dropped:,} bad records left out.")
    print(f"The page is {found.page} ({found.n_bytes / 1e6:.2f} MB); it opens without a network.")
    if found.figures:
        print(f"{len(found.figures)} figures are in {options.figures}.")
    return 0
