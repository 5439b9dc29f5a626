"""``mprm select``: from an annotated corpus to the subset that teaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mprm.engines.engine import EngineName, make_engine
from mprm.errors import DataError
from mprm.rollouts.chunks import Chunk
from mprm.rollouts.convert_lines import output_forbids, target_for
from mprm.rollouts.corpus import open_corpus
from mprm.rollouts.dropped import DroppedRecords
from mprm.scores.count_labels import start_counting
from mprm.selection.config import SelectConfig, StrategyName, Ties

if TYPE_CHECKING:
    from mprm.selection.selection import Selection


def select(
    paths: Any,
    *,
    strategy: StrategyName | Sequence[StrategyName] = "bis",
    rho: float | Sequence[float] | None = None,
    keep: int | None = None,
    source_rho: Mapping[str, float] | None = None,
    alpha: float = 0.05,
    tau: float = 0.0,
    seed: int = 0,
    ties: Ties = "hash",
    pool: bool = False,
    to: str | None = None,
    format: str | None = None,
    text_only: bool = False,
    skip_bad: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> Selection:
    """Choose the rollouts of a corpus that teach the most.

    Reads the corpus once, ranks the rollouts of each source and keeps the best; nothing is written
    until `Selection.write`.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes.
    strategy, rho, keep, source_rho, alpha, tau, seed, ties, pool
        See `SelectConfig`.
    to
        Output format, None to copy the kept lines byte for byte.
    format
        Input format, where it must not be guessed from the first record.
    text_only
        Accept records without an image.
    skip_bad
        Drop bad records, each with its reason, instead of stopping at the first.
    engine, processes, ray_address
        Where the work runs.
    on_chunk
        Called after each piece of the corpus, for progress.

    Examples
    --------
    >>> rollouts = [{"prompt": "?", "completions": ["a", "b"], "labels": labels}
    ...             for labels in ([True, True], [True, False], [False, False])]
    >>> selection = select(rollouts, rho=0.34)
    >>> selection.subsets[0].kept.between(0, 3).tolist()
    [False, True, False]
    """
    config = SelectConfig(
        strategy=(strategy,) if isinstance(strategy, str) else tuple(strategy),
        rho=(rho,) if isinstance(rho, int | float) else tuple(rho or ()),
        keep=keep,
        source_rho=dict(source_rho or {}),
        alpha=alpha,
        tau=tau,
        seed=seed,
        ties=ties,
        pool=pool,
    )
    if to is not None:
        target_for(to, "parquet" if to == "parquet" else "plain", tau)
    corpus = open_corpus(paths, format=format, text_only=text_only, forbids=output_forbids(to))
    worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
    counting = start_counting(corpus, worker, tau=tau, stop_at_bad=not skip_bad)
    # numpy and what needs it are loaded only now, while the workers read
    from mprm.scores.label_counts import ROLLOUT, gather_counts
    from mprm.selection.selection import Selection

    dropped = DroppedRecords() if skip_bad else None
    counts = gather_counts(corpus, counting, on_bad=dropped, on_chunk=on_chunk)
    if not any(counts.n_lines(ROLLOUT).values()):
        raise DataError(
            f"there is nothing to select from: {len(dropped or ())} records were read and none is usable;"
            " mprm check says why"
        )
    return Selection(corpus, counts, config, dropped, to, worker, is_local=engine == "local")
