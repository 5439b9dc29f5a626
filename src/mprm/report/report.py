"""``mprm report``: one page on a corpus, what a selection keeps of it, and the runs that were trained on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from mprm.config import Alpha, Force, ImageRoot, ScanOptions, Seed, Tau, inputs, output, selection, takes
from mprm.errors import ConfigError
from mprm.progress import Progress, silent

PAGE = "report.html"
NOT_STORED = ("out", "figures", "force", "engine", "processes", "ray_address")
"""Options that a manifest leaves out: the page does not depend on them."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig(ScanOptions):
    """Write one page that shows a corpus, what a selection keeps of it, and training runs; it opens offline."""

    out: Annotated[str, output("HTML file, or folder for report.html.", "FILE|DIR")]
    runs: Annotated[
        tuple[str, ...], inputs("Folders of mprm train, evaluate and rerank, or folders above them.", "DIR")
    ] = ()
    image_root: ImageRoot = None
    rho: Annotated[float, selection("Fraction kept from each source at first.", above=0, at_most=1)] = 0.10
    alpha: Alpha = 0.05
    tau: Tau = 0.0
    seed: Seed = 0
    cases: Annotated[int, output("Case studies of each kind from each source; 0 for none.", at_least=0)] = 1
    figures: Annotated[str | None, output("Folder for the figures as SVG, PNG and PDF.", "DIR")] = None
    force: Force = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.out:
            raise ConfigError("the output has no name; expected an HTML file or a folder")

    @property
    def page(self) -> str:
        """Path of the page: ``out`` itself where it names an HTML file, else a file in that folder."""
        return self.out if self.out.lower().endswith((".html", ".htm")) else f"{self.out.rstrip('/')}/{PAGE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """What was written."""

    page: str
    n_bytes: int
    figures: tuple[str, ...]
    n_rollouts: int
    n_dropped: int


@takes(ReportConfig)
def report(
    paths: Any = (), config: ReportConfig | None = None, *, progress: Progress = silent, **options: Any
) -> ReportResult:
    """Write one HTML page that shows a corpus, its selection, case studies and runs; it needs no network.

    ``paths``: whatever `mprm.open_corpus` takes; may be empty where there are runs.
    """
    # here and not above: the command line needs the options alone
    from mprm.data import charts, images
    from mprm.data.output import Outputs, check_folder, output_entry
    from mprm.report.corpus import view_corpus
    from mprm.report.page import page_markup, write_figures

    config = ReportConfig.of(config, options)
    has_corpus = not (isinstance(paths, list | tuple) and not paths)
    if not has_corpus and not config.runs:
        raise ConfigError("there is nothing to report on: name files of rollouts, or --runs DIR")
    images.image_folder(config.image_root)
    if config.figures is not None:
        charts.need_altair()
        check_folder(config.figures)
    with Outputs(config.page, force=config.force) as outputs:
        runs = None
        if config.runs:
            from mprm.report.runs import read_runs, view_runs

            runs = view_runs(read_runs(config.runs))
        corpus = view_corpus(paths, config, progress=progress) if has_corpus else None
        n_rollouts = {} if corpus is None else {name: entry.n_rollouts for name, entry in corpus.statistics.items()}
        temporary = outputs.add(config.page)
        temporary.write_text(page_markup(paths, corpus, runs, config), encoding="utf-8")
        figures = () if config.figures is None else write_figures(corpus, runs, config, outputs)
        entry = output_entry(config.page, temporary, figures=figures)
        outputs.add_manifest(
            config.page,
            command="report",
            config={name: value for name, value in config.as_dict().items() if name not in NOT_STORED},
            inputs=[] if corpus is None else corpus.inputs,
            sources=n_rollouts,
            output=entry,
            warnings=[] if corpus is None else corpus.warnings,
        )
    return ReportResult(
        page=config.page,
        n_bytes=entry["n_bytes"],
        figures=figures,
        n_rollouts=sum(n_rollouts.values()),
        n_dropped=0 if corpus is None else corpus.n_dropped,
    )
