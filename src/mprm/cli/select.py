"""``mprm select``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from mprm.cli.arguments import as_json, parsed
from mprm.cli.progress import progress
from mprm.config import Alpha, EngineOptions, Force, InputFormat, Json, Option, Paths, SkipBad, Tau, TextOnly
from mprm.data.convert import TARGETS, check_output_name, target_for
from mprm.data.records import container_of
from mprm.errors import ConfigError
from mprm.selection.strategies import SelectConfig

if TYPE_CHECKING:
    from mprm.selection.select import Selection, Subset, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectCommand(EngineOptions):
    """Keep, from each source of a corpus, the rollouts that teach the most."""

    paths: Paths
    out: Annotated[str | None, Option("Where the one subset goes.", "FILE")] = None
    out_dir: Annotated[
        str | None,
        Option("Where the subsets go, one file for each strategy and rho.", "DIR"),
    ] = None
    strategy: Annotated[
        tuple[Literal["bis", "random", "low-mc", "mixed", "reliable"], ...],
        Option("How to rank rollouts; several give several subsets from one scan."),
    ] = ("bis",)
    rho: Annotated[
        tuple[float, ...],
        Option("Fraction kept from each source, in (0, 1]; several give several subsets. (default: 0.1)", "NUMBER"),
    ] = ()
    keep: Annotated[int | None, Option("Number kept from each source, instead of rho.", "N")] = None
    source_rho: Annotated[tuple[str, ...], Option("Fraction for single sources.", "SOURCE=RHO")] = ()
    alpha: Alpha = 0.05
    tau: Tau = 0.0
    seed: Annotated[int, Option("Seed of the random order.", "N")] = 0
    ties: Annotated[
        Literal["hash", "file-order"],
        Option("Rollouts of equal rank: in seeded random order, or in file order as the paper's code."),
    ] = "hash"
    pool: Annotated[bool, Option("Rank all sources together instead of each by itself.")] = False
    to: Annotated[
        str | None,
        Option(f"Output format; lines are copied byte for byte without it. {', '.join(TARGETS)}.", "FORMAT"),
    ] = None
    by_source: Annotated[bool, Option("Under --out-dir: one folder a subset, with one file a source.")] = False
    dry_run: Annotated[bool, Option("Show what would be kept, and write nothing.")] = False
    format: InputFormat = None
    text_only: TextOnly = False
    skip_bad: SkipBad = False
    force: Force = False
    json: Json = False

    def check(self) -> None:
        """Stop when the options do not go together, before anything is read."""
        if (self.out is None) == (self.out_dir is None) and not self.dry_run:
            raise ConfigError("name either --out FILE or --out-dir DIR (or --dry-run)")
        n_subsets = len(self.strategy) * max(1, len(self.rho))
        if self.out is not None and n_subsets > 1:
            raise ConfigError(f"{n_subsets} subsets do not go into one file; name --out-dir instead of --out")
        if self.out is not None and self.by_source:
            raise ConfigError("--by-source writes a folder; name --out-dir instead of --out")
        SelectConfig(
            strategy=self.strategy,
            rho=self.rho,
            keep=self.keep,
            alpha=self.alpha,
            tau=self.tau,
            seed=self.seed,
        )


def _source_rho(entries: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for entry in entries:
        name, _, rho = entry.rpartition("=")
        try:
            found[name] = float(rho)
        except ValueError:
            name = ""
        if not name:
            raise ConfigError(f"--source-rho takes SOURCE=RHO, such as ai2d=0.2; got {entry!r}")
    return found


def run(arguments: list[str]) -> int:
    """Parse, call `mprm.select`, write, print."""
    options = parsed(
        SelectCommand,
        arguments,
        command="select",
        example="mprm select annotations/*.jsonl --strategy bis --rho 0.10 --alpha 0.05 --seed 0 --out bis10.jsonl",
    )
    options.check()
    from mprm.data.corpus import open_corpus
    from mprm.data.output import check_overwrite
    from mprm.selection.select import select

    source_rho = _source_rho(options.source_rho)
    if options.out is not None and not options.dry_run:
        check_overwrite(options.out, force=options.force)
        check_output_name(options.out)
        target_for(options.to, container_of(options.out), options.tau)
    corpus = open_corpus(options.paths, format=options.format, text_only=options.text_only)
    with progress("reading", corpus.n_bytes) as on_chunk:
        selection = select(
            corpus,
            strategy=options.strategy,
            rho=options.rho,
            keep=options.keep,
            source_rho=source_rho,
            alpha=options.alpha,
            tau=options.tau,
            seed=options.seed,
            ties=options.ties,
            pool=options.pool,
            to=options.to,
            skip_bad=options.skip_bad,
            engine=options.engine,
            processes=options.processes,
            ray_address=options.ray_address,
            on_chunk=on_chunk,
        )
    written: list[Written] = []
    if not options.dry_run:
        with progress("writing", corpus.n_bytes * len(selection.subsets)) as on_chunk:
            if options.out is not None:
                written = [selection.write(options.out, force=options.force, on_chunk=on_chunk)]
            else:
                assert options.out_dir is not None
                written = selection.write_all(
                    options.out_dir, by_source=options.by_source, force=options.force, on_chunk=on_chunk
                )
    if options.json:
        print(as_json(_summary(selection, written)))
    else:
        _print(selection, written)
    return 0


def _summary(selection: Selection, written: list[Written]) -> dict[str, object]:
    from mprm.selection.stats import total

    return {
        "read": selection.n_read,
        "dropped": len(selection.dropped),
        "corpus": {source: entry.as_dict() for source, entry in selection.statistics.items()},
        "subsets": [
            {
                "name": subset.name,
                "strategy": subset.strategy,
                "rho": subset.rho,
                "keep": subset.keep,
                "kept": total(subset.statistics).n_rollouts,
                "sources": selection.by_source(subset),
                "statistics": {source: entry.as_dict() for source, entry in subset.statistics.items()},
                "paths": next((list(w.paths) for w in written if w.subset is subset), []),
                "manifest": next((w.manifest for w in written if w.subset is subset), None),
            }
            for subset in selection.subsets
        ],
    }


def _print(selection: Selection, written: list[Written]) -> None:
    from mprm.selection.scan import IS_COMPILED

    for subset in selection.subsets:
        _print_table(selection, subset)
    dropped = f"{len(selection.dropped):,} dropped"
    if selection.dropped_to:
        dropped += f", each with its reason in {selection.dropped_to}"
    lines = [f"{selection.n_read:,} records read, {dropped}."]
    for entry in written:
        n_kept = sum(s.n_rollouts for s in entry.subset.statistics.values())
        where = entry.paths[0] if len(entry.paths) == 1 else f"{len(entry.paths)} files"
        lines.append(f"{n_kept:,} rollouts in {where}, manifest {entry.manifest}.")
    if not written:
        lines.append("Dry run: nothing was written.")
    if not IS_COMPILED:
        lines.append("mprm was installed without a C compiler: reading is several times slower than it could be.")
    print(*lines, sep="\n")


def _print_table(selection: Selection, subset: Subset) -> None:
    """Kept of read, and the statistics of the subset beside the corpus's, by source and overall."""
    from mprm.cli.tables import show_fitted
    from mprm.selection.stats import STATISTICS, total

    shown = [column for column in STATISTICS[1:] if column.head not in ("avg out of N", "never sampled")]
    has_dropped = len(selection.dropped) > 0
    heads = ["source", "kept", "read", *(["dropped"] if has_dropped else []), *(column.head for column in shown)]
    rows = []
    every = [
        *((source, c["read"], c["dropped"], subset.statistics[source], selection.statistics[source])
          for source, c in selection.by_source(subset).items()),
        ("all", selection.n_read, len(selection.dropped), total(subset.statistics), total(selection.statistics)),
    ]  # fmt: skip
    for name, n_read, n_dropped, kept, full in every:
        counts = [f"{kept.n_rollouts:,}", f"{n_read:,}", *([f"{n_dropped:,}"] if has_dropped else [])]
        rows.append([name, *counts, *(f"{c.cell(kept)} ({c.cell(full)})" for c in shown)])
    spare = ["words/step", "steps/rollout", "tied at α", "steps", "mixed"]
    show_fitted(f"{subset.name}: the subset (the corpus in brackets)", heads, rows, spare=spare)
