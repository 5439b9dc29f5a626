"""All formats by name, and telling which one a file is in from its first record."""

from __future__ import annotations

from mprm.errors import ConfigError, DataError
from mprm.rollouts.format import Format, Record
from mprm.rollouts.math_aps import MATH_APS
from mprm.rollouts.math_shepherd import MATH_SHEPHERD
from mprm.rollouts.mm_prm import MM_PRM, MM_PRM_SOFT
from mprm.rollouts.prm800k import PRM800K
from mprm.rollouts.rated_steps import RATED_STEPS
from mprm.rollouts.stepwise_critic import STEPWISE_CRITIC
from mprm.rollouts.trl_stepwise import TRL
from mprm.rollouts.visualprm_conversation import VISUALPRM_CONVERSATION
from mprm.rollouts.visualprm_raw import VISUALPRM_RAW, VL_PRM

FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        VISUALPRM_RAW,
        VL_PRM,
        MM_PRM,
        MM_PRM_SOFT,
        VISUALPRM_CONVERSATION,
        TRL,
        MATH_SHEPHERD,
        PRM800K,
        STEPWISE_CRITIC,
        RATED_STEPS,
        MATH_APS,
    )
}

WRITABLE = tuple(name for name, fmt in FORMATS.items() if fmt.dump is not None)


def format_named(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}; expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


def recognised(record: Record, file: str) -> Format:
    """The format of a file whose first record this is."""
    for fmt in FORMATS.values():
        if fmt.recognise(record):
            return fmt
    keys = ", ".join(sorted(map(str, record))[:12]) or "none"
    raise DataError(
        f"{file}:1: the record has the fields {keys}, which fit no known format;"
        f" name one with --input-format: {', '.join(FORMATS)}."
    )
