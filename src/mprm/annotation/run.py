"""What `mprm.annotate` and `mprm.sample` have in common: options, checks of the output, the summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from mprm.annotation.samplers.sampler import SamplingParams
from mprm.config import Force, ImageRoot, InputFormat, Option, Seed
from mprm.errors import ConfigError

FAILED_SUFFIX = ".failed"
MAX_NAME_BYTES = 220
"""Of a file's name; file systems take 255, and other files are named after it."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(SamplingParams):
    """Options that `mprm.annotate` and `mprm.sample` share."""

    format: InputFormat = None
    image_root: ImageRoot = None
    seed: Seed = 0
    allow_failures: Annotated[
        bool, Option("Write the output without the questions that failed, instead of stopping.", group="output")
    ] = False
    force: Force = False

    @cached_property
    def sampling(self) -> SamplingParams:
        return self.narrowed(SamplingParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What became of the questions: questions = done + failed."""

    out: str
    n_questions: int
    n_done: int
    n_failed: int
    n_resumed: int
    """Of those done, the ones that an earlier run had done."""
    stats: dict[str, Any]
    """Sums over the questions that are done."""
    failed_to: str | None
    manifest: str
    seconds: float
    n_extracted: int
    """Questions whose gold answer was read out of a longer one, such as a rationale that ends in ``#### 18``."""
    renamed_images: dict[str, str] = field(default_factory=dict)
    """Images that lie under the image root by another name than the question's: that name, by the question's."""
    n_dropped: int = 0
    dropped_to: str | None = None


def check_output(out: str, inputs: Any, *, force: bool) -> None:
    """Stop when nothing can be written to ``out``."""
    # here and not above: these would slow the command line's help
    from mprm.annotation.journal import SUFFIX
    from mprm.data.output import MANIFEST_SUFFIX, check_not_inputs, check_overwrite
    from mprm.data.questions import is_in_memory
    from mprm.data.records import find_files, is_url

    if is_url(out):
        raise ConfigError(f"{out}: answers are saved as they come, on this machine; name a local file")
    if out.endswith((".gz", ".zst", ".parquet", "/")):
        raise ConfigError(f"{out}: answers are written as plain JSON lines; name a file such as raw.jsonl")
    if len(Path(out).name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"{out}: the name is too long for the files beside it; take a shorter one")
    beside = [out + suffix for suffix in (SUFFIX, FAILED_SUFFIX, MANIFEST_SUFFIX)]
    for path in beside:
        if Path(path).expanduser().is_dir():
            raise ConfigError(f"{path} is a folder, and would be a file beside the output; choose another output")
    if inputs is not None and not is_in_memory(inputs):
        check_not_inputs([file.path for file in find_files(inputs)], [out, *beside])
    check_overwrite(out, force=force)
