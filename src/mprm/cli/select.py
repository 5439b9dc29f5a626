"""``mprm select``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from mprm.cli.arguments import as_json, command, show_warnings
from mprm.config import DryRun, Force, Json, Paths, output
from mprm.errors import ConfigError, counted
from mprm.progress import progress_bar
from mprm.selection.select import SelectConfig, select

if TYPE_CHECKING:
    from mprm.selection.selection import Selection, Written


@dataclass(frozen=True, kw_only=True)
class SelectCommand(SelectConfig):
    paths: Paths
    out: Annotated[str | None, output("File for the one subset.", "FILE")] = None
    out_dir: Annotated[str | None, output("Folder for the subsets, one file a strategy and rho.", "DIR")] = None
    by_source: Annotated[bool, output("Under --out-dir: one folder a subset, with one file a source.")] = False
    dry_run: DryRun = False
    force: Force = False
    json: Json = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.out is None) == (self.out_dir is None) and not self.dry_run:
            raise ConfigError("name either --out FILE or --out-dir DIR (or --dry-run)")
        if "" in (self.out, self.out_dir):
            raise ConfigError("the output has no name")
        n_subsets = len(self.strategy) * len(self.rho)
        if self.out is not None and n_subsets > 1:
            raise ConfigError(f"{n_subsets} subsets do not go into one file; name --out-dir instead of --out")
        if self.out is not None and self.by_source:
            raise ConfigError("--by-source writes a folder; name --out-dir instead of --out")


@command(SelectCommand, "select", "annotations/*.jsonl --strategy bis --rho 0.10 --alpha 0.05 --out bis10.jsonl")
def run_select(options: SelectCommand) -> None:
    from mprm.data.convert import target_for
    from mprm.data.output import Outputs, check_output_name
    from mprm.data.records import container_of

    out, out_dir = (None, None) if options.dry_run else (options.out, options.out_dir)
    outs: list[str] = []
    if out is not None:
        check_output_name(out)
        target_for(options.to, container_of(out), options.tau)
        outs = [out]
    elif out_dir is not None:
        outs = options.outputs(out_dir, by_source=options.by_source)
    written: list[Written] = []
    with Outputs(*outs, force=options.force) as outputs:
        selection = select(options.paths, options, progress=progress_bar)
        how: Any = {"outputs": outputs, "progress": progress_bar}
        if out is not None:
            written = [selection.write(out, **how)]
        elif out_dir is not None:
            written = selection.write_all(out_dir, by_source=options.by_source, **how)
    if options.json:
        print(as_json(_summary(selection, written)))
    else:
        _print(selection, written)
        for subset in selection.subsets:
            show_warnings("select", subset.warnings, of=subset.name if len(selection.subsets) > 1 else "")


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
                "warnings": subset.warnings,
                "paths": next((list(w.paths) for w in written if w.subset is subset), []),
                "manifest": next((w.manifest for w in written if w.subset is subset), None),
            }
            for subset in selection.subsets
        ],
    }


def _print(selection: Selection, written: list[Written]) -> None:
    from mprm.selection.scan import IS_COMPILED

    _print_table(selection)
    dropped = f"{len(selection.dropped):,} dropped"
    if selection.dropped_to:
        dropped += f", each with its reason in {selection.dropped_to}"
    lines = [f"{counted(selection.n_read, 'record')} read, {dropped}."]
    for entry in written:
        n_kept = sum(s.n_rollouts for s in entry.subset.statistics.values())
        where = entry.paths[0] if len(entry.paths) == 1 else f"{len(entry.paths)} files"
        lines.append(f"{counted(n_kept, 'rollout')} in {where}, manifest {entry.manifest}.")
    if not written:
        lines.append("Dry run: nothing was written.")
    if not IS_COMPILED:
        lines.append("mprm was installed without a C compiler: reading is several times slower than it could be.")
    print(*lines, sep="\n")


def _print_table(selection: Selection) -> None:
    """Kept of read, and the statistics of the subset beside the corpus's: by source and overall, or by subset."""
    from mprm.cli.tables import show_summary
    from mprm.selection.stats import STATISTICS, total

    shown = [column for column in STATISTICS[1:] if column.head not in ("avg out of N", "never sampled")]
    n_dropped, n_read, subsets = len(selection.dropped), selection.n_read, selection.subsets
    is_one, corpus = len(subsets) == 1, total(selection.statistics)
    every = [
        (source, account["read"], account["dropped"], subsets[0].statistics[source], selection.statistics[source])
        for source, account in selection.by_source(subsets[0]).items()
        if is_one
    ]
    for subset in subsets:
        every.append(("all" if is_one else subset.name, n_read, n_dropped, total(subset.statistics), corpus))
    n_counts = 3 if n_dropped else 2
    heads = ["source" if is_one else "subset", *("kept", "read", "dropped")[:n_counts]]
    rows = []
    for name, read, dropped, kept, full in every:
        counts = [f"{n:,}" for n in (kept.n_rollouts, read, dropped)[:n_counts]]
        rows.append([name, *counts, *(f"{column.cell(kept)} ({column.cell(full)})" for column in shown)])
    show_summary(
        f"{subsets[0].name if is_one else 'Subsets'}: kept (the corpus in brackets)",
        [*heads, *(column.head for column in shown)],
        rows,
        optional=("error steps", "dropped", "read", "tied at α", "avg MC", "steps", "words/step"),
        total_last=is_one,
    )
