"""``mprm select``: from an annotated corpus to the subset that teaches the most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mprm.config import (
    OUTPUT_FORMATS,
    PAPER_STRATEGIES,
    Alpha,
    Columns,
    ScanOptions,
    StrategyName,
    Stratify,
    Tau,
    name_of_strategy,
    output,
    selection,
    strategy_names,
    takes,
)
from mprm.errors import ConfigError, DataError
from mprm.progress import Progress, silent

if TYPE_CHECKING:
    from mprm.selection.selection import Selection


SUMS_ALONE = (*PAPER_STRATEGIES, "bis-adaptive", "bis-sampled")
"""Strategies that need no details of the scan; a test compares them with `STRATEGIES`."""


@dataclass(frozen=True, kw_only=True)
class SelectConfig(ScanOptions):
    """Keep, from each source of a corpus, the rollouts that teach the most."""

    strategy: Annotated[
        tuple[StrategyName, ...],
        selection("How to rank rollouts; several give several subsets from one scan.", choices=strategy_names),
    ] = ("bis",)
    """In Python also a function of `mprm.selection.Rollouts`."""
    columns: Columns = None
    rho: Annotated[
        tuple[float, ...],
        selection("Fraction kept from each source; several give several subsets.", above=0, at_most=1),
    ] = (0.1,)
    keep: Annotated[
        int | None,
        selection("Number kept from each source; not together with rho.", at_least=1),
    ] = None
    source_rho: Annotated[tuple[str, ...], selection("Fraction for single sources.", "SOURCE=RHO")] = ()
    """In Python also a mapping from source to fraction."""
    alpha: Alpha = 0.05
    tau: Tau = 0.0
    seed: Annotated[int, selection("Seed of the random order.")] = 0
    ties: Annotated[
        Literal["hash", "file-order"],
        selection("Rollouts of equal rank: in seeded random order, or in file order as the paper's code."),
    ] = "hash"
    pool: Annotated[bool, selection("Rank all sources together instead of each by itself.")] = False
    stratify: Stratify = None
    to: Annotated[
        str | None,
        output(f"Output format; without it lines are copied byte for byte. {', '.join(OUTPUT_FORMATS)}.", "FORMAT"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strategy or not self.rho:
            raise ConfigError("name at least one strategy and one rho")
        if self.keep is not None and (self.rho != (0.1,) or self.source_rho):
            raise ConfigError("keep and rho both say how many to keep; name one of them")
        names = self.strategy_names
        functions = [name_of_strategy(strategy) for strategy in self.strategy if callable(strategy)]
        if same := [name for name in functions if name in strategy_names()]:
            raise ConfigError(f"a function is called like the strategy {same[0]}; give it another name")
        if len(set(names)) < len(names) or len(set(self.rho)) < len(self.rho):
            hint = "; give functions names of their own, by def" if any(map(callable, self.strategy)) else ""
            raise ConfigError(f"a strategy or rho is named twice{hint}")
        if self.pool and self.source_rho:
            raise ConfigError("source_rho has no meaning when sources are pooled")
        from mprm.data.convert import target_for

        target_for(self.to, "parquet" if self.to == "parquet" else "plain", self.tau)
        self.rho_of_source()

    def rho_of_source(self) -> dict[str, float]:
        """The fraction of each source that has one of its own."""
        rhos: dict[str, float] = {}
        for entry in self.source_rho:
            source, _, text = entry.rpartition("=")
            try:
                rhos[source] = float(text)
            except ValueError:
                rhos[source] = 0.0
            if not source or not 0 < rhos[source] <= 1:
                raise ConfigError(f"source_rho takes SOURCE=RHO with 0 < RHO <= 1, such as ai2d=0.2; got {entry!r}")
        return rhos

    @property
    def strategy_names(self) -> tuple[str, ...]:
        return tuple(map(name_of_strategy, self.strategy))

    @property
    def suffix(self) -> str:
        return ".parquet" if self.to == "parquet" else ".jsonl"

    def outputs(self, folder: str, *, by_source: bool) -> list[str]:
        """What each subset is written to under a folder: a file, or a folder with a file a source."""
        suffix = "" if by_source else self.suffix
        sizes = self.rho if self.keep is None else (self.keep,)
        return [
            f"{folder.rstrip('/')}/{strategy}-{size}{suffix}" for strategy in self.strategy_names for size in sizes
        ]

    def n_keep(self, rho: float | None, source: str | None, n_rollouts: int) -> int:
        """How many of a source's rollouts to keep: ``max(1, int(n * rho))``, and none of none."""
        share = self.rho_of_source().get(source or "", rho)
        n_wanted = (self.keep or n_rollouts) if share is None else max(1, int(n_rollouts * share))
        return min(n_wanted, n_rollouts)


@takes(SelectConfig)
def select(
    paths: Any, config: SelectConfig | None = None, *, progress: Progress = silent, **options: Any
) -> Selection:
    """Choose the rollouts of a corpus that teach the most.

    Reads the corpus, which is whatever `mprm.open_corpus` takes, once, ranks the rollouts of each source and keeps
    the best; nothing is written until `Selection.write`. The options are those of `SelectConfig`.

    >>> rollouts = [{"prompt": "?", "completions": ["a", "b"], "labels": labels}
    ...             for labels in ([True, True], [True, False], [False, False])]
    >>> selection = select(rollouts, rho=0.34)
    >>> selection.subsets[0].kept.tolist()
    [False, True, False]
    """
    config = SelectConfig.of(config, options)
    from mprm.data.convert import open_for
    from mprm.data.corpus import flattened
    from mprm.data.engine import make_engine
    from mprm.data.output import DroppedRecords
    from mprm.selection.scan import start_counting

    dropped = DroppedRecords()
    on_bad = dropped if config.skip_bad else None
    corpus = flattened(open_for(config.to, paths, config), on_bad)
    engine = make_engine(config, n_bytes=corpus.n_bytes)
    with_details = any(callable(strategy) or strategy not in SUMS_ALONE for strategy in config.strategy)
    counting = start_counting(
        corpus, engine, tau=config.tau, stop_at_bad=not config.skip_bad, with_details=with_details
    )
    # numpy and what needs it are loaded only now, while the workers read
    from mprm.selection.selection import Selection
    from mprm.selection.stats import gather_counts

    counts = gather_counts(corpus, counting, on_bad=on_bad, progress=progress)
    if not any(counts.n_rollouts.values()):
        raise DataError(
            f"there is nothing to select from: {len(dropped)} records were read and none is usable;"
            " mprm check says why"
        )
    return Selection(corpus, counts, config, dropped, engine)
