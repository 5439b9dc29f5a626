"""Options of a command, declared once on a frozen dataclass beside the function of the same name.

The command line, the Python signature, the stored run configuration and the option tables of the docs are made from
it: a field's annotation says what the option is for and which values it takes.

>>> @dataclass(frozen=True, kw_only=True)
... class KeepConfig(Config):
...     rho: Annotated[float, Option("Fraction that is kept.", above=0, at_most=1)] = 0.1
>>> @takes(KeepConfig)
... def keep(paths, config=None, **options):
...     return KeepConfig.of(config, options).rho
>>> keep("a.jsonl", rho=0.25)
0.25
"""

from __future__ import annotations

import difflib
import inspect
import operator
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from mprm.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
}
"""What an option's type accepts, and how it is called."""
BOUNDS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}


@dataclass(frozen=True, slots=True)
class Option:
    """What an option is for, how it is shown, and which numbers it takes."""

    help: str
    metavar: str | None = None
    group: str = "options"
    """Heading in ``--help``."""
    is_positional: bool = False
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: Callable[[], tuple[str, ...]] | None = None
    """The names that it takes, where they are not those of a Literal; in Python also any function."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A field of a config with its annotation taken apart."""

    name: str
    default: Any
    """MISSING where the option is required."""
    option: Option
    kind: Any
    """Type of one value: str, int, float, bool, Literal or whatever the field holds."""
    choices: tuple[Any, ...]
    """The values of a Literal; empty for other types."""
    is_many: bool
    is_optional: bool


def declared(config: type[Config]) -> tuple[Declared, ...]:
    """The options of a config, in the order of its fields; one without an `Option` is not for the command line."""
    hints = get_type_hints(config, include_extras=True)
    entries = []
    for field in fields(config):
        if get_origin(hints[field.name]) is not Annotated:
            continue
        kind, option = get_args(hints[field.name])
        members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
        kinds = [member for member in members if member is not types.NoneType]
        kind = kinds[0] if len(kinds) == 1 else object  # of several types: the config itself checks the value
        is_many = get_origin(kind) is tuple
        kind = get_args(kind)[0] if is_many else kind
        choices = get_args(kind) if get_origin(kind) is Literal else option.choices() if option.choices else ()
        is_optional = types.NoneType in members
        entries.append(Declared(field.name, field.default, option, kind, choices, is_many, is_optional))
    return tuple(entries)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Checks each option's type, choices and range; a subclass adds what must hold between them."""

    def __init_subclass__(cls) -> None:
        cls.__doc__ = cls.__doc__ or cls.__mro__[1].__doc__  # a command's help is that of its config

    def __post_init__(self) -> None:
        for entry in declared(type(self)):
            value = _plain(getattr(self, entry.name), entry)
            object.__setattr__(self, entry.name, value)
            for single in value if entry.is_many and value is not None else (value,):
                if single is not None:
                    _check(single, entry)
                elif not entry.is_optional:
                    raise ConfigError(f"{entry.name} must not be None")

    @classmethod
    def of(cls, config: Self | None, options: Mapping[str, Any]) -> Self:
        """The config, or the default one, with these options in place of its own."""
        parameters = inspect.signature(cls).parameters
        for name in options:
            if name not in parameters:
                raise ConfigError(f"unknown option {name!r}; {nearest(name, parameters)}")
        if config is not None:
            return replace(config.narrowed(cls), **options)
        missing = [name for name, p in parameters.items() if p.default is p.empty and name not in options]
        if missing:
            raise ConfigError(f"{', '.join(missing)} must be given")
        return cls(**options)

    def narrowed(self, cls: type[C]) -> C:
        """The same options as an instance of ``cls``, a class that this one extends."""
        return cls(**{field.name: getattr(self, field.name) for field in fields(cls)})

    def as_dict(self, *names: str) -> dict[str, Any]:
        """All options by name, or those of these names, as they are stored beside outputs."""
        return {name: getattr(self, name) for name in names or [field.name for field in fields(self)]}


C = TypeVar("C", bound=Config)


def _plain(value: Any, entry: Declared) -> Any:
    """Paths as text, one value for many as a tuple of one, a mapping as NAME=VALUE."""
    if isinstance(value, Mapping):
        return tuple(f"{name}={single}" for name, single in value.items())
    if entry.is_many and value is not None:
        values = (value,) if isinstance(value, str | Path) or not isinstance(value, Iterable) else value
        return tuple(str(single) if isinstance(single, Path) else single for single in values)
    return str(value) if isinstance(value, Path) else value


def _check(value: Any, entry: Declared) -> None:
    name, option = entry.name, entry.option
    if option.choices is not None and callable(value) and entry.kind is not str:
        return
    if entry.choices and value not in entry.choices:
        raise ConfigError(f"unknown {name} {value!r}; {nearest(value, entry.choices)}")
    kinds, words = KINDS.get(entry.kind, (object, ""))
    if not isinstance(value, kinds) or (isinstance(value, bool) and entry.kind in (int, float)):
        raise ConfigError(f"{name} must be {words}, got {value!r}")
    if entry.kind not in (int, float):
        return
    bounds = [(bound, limit) for bound in BOUNDS if (limit := getattr(option, bound)) is not None]
    if not (abs(value) < float("inf") and all(BOUNDS[bound](value, limit) for bound, limit in bounds)):
        expected = " and ".join(f"{bound.replace('_', ' ')} {limit}" for bound, limit in bounds) or "finite"
        hint = f"; did you mean {value / 100:g}?" if option.at_most == 1 and 2 <= value <= 100 else ""
        raise ConfigError(f"{name} must be {expected}, got {value}{hint}")


def nearest(name: Any, names: Iterable[Any]) -> str:
    """The end of a message on an unknown name: the valid ones, and the nearest of them first.

    >>> nearest("bsi", ["bis", "random"])
    'did you mean bis? Expected one of bis, random'
    """
    valid = [str(single) for single in names]
    close = difflib.get_close_matches(str(name), valid, n=1)
    expected = f"xpected one of {', '.join(valid)}"
    return f"did you mean {close[0]}? E{expected}" if close else f"e{expected}"


def takes(config: type[Config]) -> Callable[[F], F]:
    """Show the options of ``config`` in the signature of a function that takes them as ``**options``."""

    def decorate(function: F) -> F:
        own = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD}
        options = [p for name, p in inspect.signature(config).parameters.items() if name not in own]
        function.__signature__ = inspect.Signature([*own.values(), *options])  # type: ignore[attr-defined]
        return function

    return decorate


@cache
def strategy_names() -> tuple[str, ...]:
    """The names of all strategies, those of other packages last."""
    from importlib.metadata import entry_points

    return (*PAPER_STRATEGIES, *OTHER_STRATEGIES, *sorted(entry_points(group=STRATEGY_GROUP).names))


def name_of_strategy(strategy: Any) -> str:
    """What outputs and messages call a strategy.

    >>> name_of_strategy("bis"), name_of_strategy(lambda rollouts: rollouts["n_steps"])
    ('bis', 'lambda')
    """
    return strategy if isinstance(strategy, str) else re.sub(r"\W+", "", getattr(strategy, "__name__", "function"))


# Options that several commands share.

positional = partial(Option, is_positional=True)
inputs, selection, labels = (partial(Option, group=name) for name in ("input", "selection", "labels"))
annotation, adapt = (partial(Option, group=name) for name in ("annotation", "adaptive"))
sampling, serving, training = (partial(Option, group=name) for name in ("policy", "server", "training"))
evaluation, compute, output = (partial(Option, group=name) for name in ("evaluation", "compute", "output"))
"""An `Option` under this heading."""
PAPER_STRATEGIES = ("bis", "random", "low-mc", "mixed", "reliable")
OTHER_STRATEGIES = (
    *("bis-adaptive", "bis-sampled", "drop", "difficulty", "scan", "agreement"),
    *("disagreement", "uncertainty", "bis-filtered"),  # these need a model's scores
)
"""The selection strategies; `mprm.selection.strategies` says how each ranks."""
STRATEGY_GROUP = "mprm.strategies"
"""Group of the entry points by which another package adds strategies."""
StrategyName = str | Callable[..., Any]
"""A strategy's name, or in Python a function of `mprm.selection.Rollouts`."""
OUTPUT_FORMATS = ("visualprm-raw", "mm-prm", "mm-prm-soft", "visualprm", "trl", "parquet")
"""What ``--to`` takes; `mprm.data.rollout_formats` writes them."""
POSITIVE, NEGATIVE = "Yes", "No"
"""Tokens that a model is asked to choose from at ``<prm>``."""
MAX_LENGTH = 8192
"""Tokens that a chain is truncated to."""
PromptLayout = Literal["user", "paper", "chat"]
"""Which turns of the chat hold question and steps; `mprm.models.prompt` says how."""
PRMLayout = Literal["visualprm", "qwen-math", "math-shepherd", "rlhflow", "skywork", "trl"]
"""Process reward models that others trained; `mprm.models.published` says how each is asked and read."""

DEFAULT_KEY = "OPENAI_API_KEY"

Paths = Annotated[tuple[str, ...], positional("Files, globs, folders, zip archives or URLs of rollouts.", "INPUT")]
InputFormat = Annotated[str | None, inputs("Input format, where the first record must not decide.", "NAME")]
HubFiles = Annotated[tuple[str, ...], inputs("Globs of the files in a dataset ORG/NAME on the hub.", "PATTERN")]
ImageRoot = Annotated[str | None, inputs("Folder, or zip archive, that image paths are relative to.", "DIR")]
TextOnly = Annotated[bool, inputs("Accept records without an image beside others with one.")]
KeyMap = Annotated[tuple[str, ...], inputs("Fields called otherwise, such as steps=chain,scores=mc.", "FIELD=KEY")]
SkipBad = Annotated[bool, inputs("Drop bad records, each with its reason, instead of stopping at the first.")]
Alpha = Annotated[float, selection("BIS smoothing; larger lets in more single-label rollouts.", at_least=0)]
Tau = Annotated[float, labels("A step is positive if its score is strictly above it.", at_least=0, below=1)]
Stratify = Annotated[
    Literal["length"] | None, selection("Rank among rollouts of equal length: kept ones are as long as the corpus's.")
]
Columns = Annotated[
    str | None, selection("Table with further columns for strategies, a row a rollout; see mprm score.", "FILE")
]
Seed = Annotated[int, Option("Random seed.", at_least=0, below=2**64)]
Device = Annotated[str, compute("Device of the model, such as cpu or cuda:1.", "NAME")]
Dtype = Annotated[Literal["auto", "float32", "bfloat16", "float16"], compute("Number format of the weights.")]
RayAddress = Annotated[str | None, compute("Ray cluster to join; a local one by default.", "ADDRESS")]
Force = Annotated[bool, output("Replace outputs that exist.")]
Json = Annotated[bool, output("Print the summary as JSON.")]
DryRun = Annotated[bool, output("Show what would be done, and write nothing.")]


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(Config):
    """What is read, and how: the options of `mprm.open_corpus`."""

    files: HubFiles = ()
    format: InputFormat = None
    map: KeyMap = ()
    text_only: TextOnly = False

    def reading(self) -> dict[str, Any]:
        return self.as_dict(*(field.name for field in fields(ReadingOptions)))


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(ReadingOptions):
    """How rollouts are read."""

    skip_bad: SkipBad = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Config):
    """The process reward model that scores steps."""

    model: Annotated[str | Any | None, inputs("Process reward model that scores the steps.", "DIR|ORG/NAME")] = None
    """A folder, or a name on the hub; in Python also anything with ``score_many``."""
    files: HubFiles = ()
    format: InputFormat = None
    image_root: ImageRoot = None
    prompt_layout: Annotated[
        PromptLayout | None, inputs("Layout of a model with <prm> not from mprm train; else a check.")
    ] = None
    prm_layout: Annotated[
        PRMLayout | None, inputs("Layout of a published model without <prm>; some are recognised.")
    ] = None
    lower_bound: Annotated[
        float | None,
        inputs("Mean less so many standard deviations (train --loss beta-binomial).", "NUMBER", at_least=0),
    ] = None
    readout: Annotated[
        str | None, inputs("What mprm readout fitted: the model's scores with a policy's log-probabilities.", "FILE")
    ] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    batch_tokens: Annotated[int | None, compute("Tokens in a batch; fewer need less memory.", at_least=1)] = None


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions(Config):
    """How many requests a server gets, and how long it is waited for."""

    concurrency: Annotated[int, serving("Requests in flight.", at_least=1)] = 64
    timeout_s: Annotated[float, serving("Time limit of a whole reply.", "SECONDS", above=0)] = 600.0
    retries: Annotated[int, serving("Retries of a request, with back-off.", at_least=0)] = 10
    patience_s: Annotated[float, serving("Time limit of an outage.", "SECONDS", at_least=0)] = 900.0


def read_api_key(name: str) -> str | None:
    """The API key in an environment variable; only the usual one may be missing."""
    key = os.environ.get(name)
    if key is None and name != DEFAULT_KEY:
        raise ConfigError(f"--api-key-env {name}: the environment has no such variable")
    return key


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Config):
    """Where a corpus is scanned."""

    engine: Annotated[Literal["local", "ray"], compute("This machine's cores, or Ray.")] = "local"
    processes: Annotated[int | None, compute("Worker processes; all cores by default.", at_least=1)] = None
    ray_address: RayAddress = None


@dataclass(frozen=True, kw_only=True)
class ScanOptions(CorpusOptions, EngineOptions):
    """How rollouts are read, and where."""
