"""Options that several commands share, and turning a dataclass into a command line."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, TypeVar

import tyro

from mprm.engines.engine import EngineName
from mprm.rollouts.formats import FORMATS

Paths = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="INPUT [INPUT ...]", help="Files, globs, folders or URLs of rollouts."),
]
"""Files, globs, folders or URLs of rollouts."""

InputFormat = Annotated[
    str | None,
    tyro.conf.arg(
        aliases=("--input-format",),
        metavar="NAME",
        help=f"Format of the input, where the first record must not decide: {', '.join(FORMATS)}.",
    ),
]
Engine = Annotated[EngineName, tyro.conf.arg(help="Where the work runs: on this machine's cores, or on Ray.")]
Processes = Annotated[int | None, tyro.conf.arg(metavar="N", help="Worker processes; all cores by default.")]
RayAddress = Annotated[
    str | None, tyro.conf.arg(metavar="ADDRESS", help="Ray cluster to join; a local one by default.")
]
TextOnly = Annotated[bool, tyro.conf.arg(help="Accept records without an image.")]
SkipBad = Annotated[
    bool, tyro.conf.arg(help="Drop bad records, each with its reason, instead of stopping at the first.")
]
Force = Annotated[bool, tyro.conf.arg(help="Replace outputs that exist.")]
Json = Annotated[bool, tyro.conf.arg(help="Print the summary as JSON.")]

Config = TypeVar("Config")


def parsed(config: type[Config], arguments: list[str], *, command: str, example: str) -> Config:
    """The command's options; prints help and exits when asked to, or when they are wrong."""
    return tyro.cli(
        config,
        args=arguments,
        prog=f"mprm {command}",
        description=f"{inspect.cleandoc(config.__doc__ or '')}\n\nExample:\n  {example}",
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def as_json(value: Any) -> str:
    """The value as indented JSON text."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
