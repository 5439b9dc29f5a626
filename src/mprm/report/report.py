"""``mprm report``: one page on a corpus, what a selection keeps of it, and what came of training on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mprm.data.corpus import (
    MANIFEST_SUFFIX,
    InputHashes,
    check_inputs_kept,
    check_unchanged,
    hash_file,
    open_corpus,
    write_manifest,
)
from mprm.data.engine import EngineName, make_engine
from mprm.data.output import atomic_write, check_folder, check_overwrite
from mprm.data.records import Chunk
from mprm.errors import ConfigError
from mprm.report.corpus_view import ReportConfig, view_corpus
from mprm.report.page import page_of
from mprm.report.run_views import view_runs
from mprm.report.runs import read_runs

PAGE = "report.html"
"""The page's name in a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What was written."""

    page: str
    n_bytes: int
    figures: tuple[str, ...]
    n_rollouts: int
    n_dropped: int


def page_path(out: str | Path) -> str:
    """Where the page goes: ``out`` itself where it names an HTML file, else a file in that folder."""
    path = str(out)
    if not path:
        raise ConfigError("the output has no name; expected an HTML file or a folder")
    return path if path.lower().endswith((".html", ".htm")) else f"{path.rstrip('/')}/{PAGE}"


def report(
    paths: Any = (),
    *,
    out: str | Path,
    runs: str | Path | Sequence[str | Path] = (),
    figures: str | Path | None = None,
    config: ReportConfig | None = None,
    format: str | None = None,
    text_only: bool = False,
    skip_bad: bool = False,
    force: bool = False,
    engine: EngineName = "local",
    processes: int | None = None,
    ray_address: str | None = None,
    on_chunk: Callable[[Chunk], Any] | None = None,
) -> Reported:
    """Write one HTML page that shows a corpus, its selection, case studies and runs; it needs no network.

    Parameters
    ----------
    paths
        Whatever `mprm.open_corpus` takes; may be empty where there are runs.
    out
        An HTML file, or a folder for ``report.html``.
    runs
        Folders of `mprm train`, `mprm evaluate` and `mprm rerank`, or folders that hold such.
    figures
        Folder for the figures as SVG, PNG and PDF.
    config
        See `ReportConfig`.
    format, text_only, skip_bad, engine, processes, ray_address, on_chunk
        As for `mprm.select`.
    """
    config = config or ReportConfig()
    page = page_path(out)
    has_corpus = not (isinstance(paths, list | tuple) and not paths)
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    if not has_corpus and not folders:
        raise ConfigError("there is nothing to report on: name files of rollouts, or --runs DIR")
    if figures is not None:
        from mprm.data.charts import need_altair

        need_altair()
        check_folder(str(figures))
    for path in (page, page + MANIFEST_SUFFIX):
        check_overwrite(path, force=force)
    if config.image_root is not None and not Path(config.image_root).expanduser().is_dir():
        raise ConfigError(f"the image root {config.image_root} is not a folder")
    found_runs = view_runs(read_runs(folders)) if folders else None
    view, inputs = None, []
    if has_corpus:
        corpus = open_corpus(paths, format=format, text_only=text_only)
        check_inputs_kept(corpus, [page, page + MANIFEST_SUFFIX])
        worker = make_engine(engine, n_bytes=corpus.n_bytes, processes=processes, ray_address=ray_address)
        view = view_corpus(corpus, worker, config, skip_bad=skip_bad, on_chunk=on_chunk)
        inputs = InputHashes(corpus, worker).entries()
        check_unchanged(corpus)
    written: tuple[str, ...] = ()
    if figures is not None:
        from mprm.report.figures import write_figures

        written = write_figures(view, found_runs, config, str(figures), force=force)
    with atomic_write(page) as temporary:
        temporary.write_text(page_of(view, found_runs, config), encoding="utf-8")
        n_bytes = temporary.stat().st_size
        write_manifest(
            page,
            command="report",
            config={**asdict(config), "runs": [str(folder) for folder in folders], "skip_bad": skip_bad},
            inputs=inputs,
            sources={} if view is None else {name: entry.n_rollouts for name, entry in view.statistics.items()},
            output={
                "path": page,
                "n_bytes": n_bytes,
                "xxh3_128": hash_file(str(temporary)),
                "figures": list(written),
            },
        )
    return Reported(
        page=page,
        n_bytes=n_bytes,
        figures=written,
        n_rollouts=sum(entry.n_rollouts for entry in view.statistics.values()) if view else 0,
        n_dropped=view.n_dropped if view else 0,
    )
