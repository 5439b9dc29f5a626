"""Options of a command, declared once on a frozen dataclass beside the function of the same name.

The command line, the Python signature, the stored run configuration and the option tables of the docs are made from
it: a field's annotation says what the option is for and which values it takes.

>>> @dataclass(frozen=True, kw_only=True)
... class KeepConfig(Config):
...     rho: Annotated[float, Option("Fraction that is kept.", "NUMBER", above=0, at_most=1)] = 0.1
>>> @takes(KeepConfig)
... def keep(paths, config=None, **options):
...     return KeepConfig.of(config, options).rho
>>> keep("a.jsonl", rho=0.25)
0.25
>>> keep("a.jsonl", rho=10)
Traceback (most recent call last):
mprm.errors.ConfigError: rho must be above 0 and at most 1, got 10; did you mean 0.1?
"""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from mprm.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


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


@dataclass(frozen=True, slots=True)
class Declared:
    """A field of a config with its annotation taken apart."""

    field: Field[Any]
    option: Option
    kind: Any
    """Type of one value: str, int, float, bool, Literal or whatever the field holds."""
    is_many: bool
    is_optional: bool

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a Literal; empty for other types."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


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
        entries.append(Declared(field, option, kind, is_many, types.NoneType in members))
    return tuple(entries)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Checks each option's type, choices and range; a subclass adds what must hold between them."""

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
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                raise ConfigError(f"unknown option {name!r}; {nearest(name, names)}")
        if config is None:
            missing = [
                f.name for f in fields(cls) if f.default is f.default_factory is MISSING and f.name not in options
            ]
            if missing:
                raise ConfigError(f"{', '.join(missing)} must be given")
            return cls(**options)
        return replace(config.narrowed(cls), **options)

    def narrowed(self, cls: type[C]) -> C:
        """The same options as an instance of ``cls``, a class that this one extends."""
        return cls(**{field.name: getattr(self, field.name) for field in fields(cls)})

    def as_dict(self) -> dict[str, Any]:
        """All options by name, as they are stored beside outputs."""
        return asdict(self)


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
    if entry.choices and value not in entry.choices:
        raise ConfigError(f"unknown {name} {value!r}; {nearest(value, entry.choices)}")
    if entry.kind is bool and not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    if entry.kind is str and not isinstance(value, str):
        raise ConfigError(f"{name} must be text, got {value!r}")
    if entry.kind not in (int, float):
        return
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if entry.kind is int and not is_whole:
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    if not is_whole and not isinstance(value, float):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    if not in_range(value, option):
        hint = f"; did you mean {value / 100:g}?" if option.at_most == 1 and 2 <= value <= 100 else ""
        raise ConfigError(f"{name} must be {range_words(option)}, got {value}{hint}")


def in_range(value: float, option: Option) -> bool:
    """Whether the number is finite and within the option's bounds."""
    return (
        abs(value) < float("inf")
        and (option.at_least is None or value >= option.at_least)
        and (option.above is None or value > option.above)
        and (option.at_most is None or value <= option.at_most)
        and (option.below is None or value < option.below)
    )


def range_words(option: Option) -> str:
    """The option's bounds in words.

    >>> range_words(Option("", above=0, at_most=1)), range_words(Option("", at_least=1))
    ('above 0 and at most 1', 'at least 1')
    """
    bounds = (
        ("at least", option.at_least),
        ("above", option.above),
        ("at most", option.at_most),
        ("below", option.below),
    )
    return " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None) or "finite"


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
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=_default(field), annotation=field.type
            )
            for field in fields(config)
            if field.name not in {p.name for p in own}
        ]
        signature = inspect.Signature([*own, *options])
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return inspect.Parameter.empty if field.default_factory is MISSING else field.default_factory()


# Options that several commands share.

StrategyName = Literal["bis", "random", "low-mc", "mixed", "reliable"]
"""The selection strategies; `mprm.selection.strategies` says how each ranks."""
OUTPUT_FORMATS = ("visualprm-raw", "mm-prm", "mm-prm-soft", "visualprm", "trl", "parquet")
"""What ``--to`` takes; `mprm.data.rollout_formats` writes them."""
POSITIVE, NEGATIVE = "Yes", "No"
"""Tokens that a model is asked to choose from at ``<prm>``."""
MAX_LENGTH = 8192
"""Tokens that a chain is truncated to."""
PromptLayout = Literal["user", "paper", "chat"]
"""Which turns of the chat hold question and steps; `mprm.models.prompt` says how."""

Paths = Annotated[
    tuple[str, ...],
    Option("Files, globs, folders or URLs of rollouts.", "INPUT", group="input", is_positional=True),
]
InputFormat = Annotated[
    str | None, Option("Input format, where the first record must not decide.", "NAME", group="input")
]
ImageRoot = Annotated[str | None, Option("Folder that image paths are relative to.", "DIR", group="input")]
TextOnly = Annotated[bool, Option("Accept records without an image beside others with one.", group="input")]
KeyMap = Annotated[
    tuple[str, ...],
    Option("Fields that the records call otherwise, such as steps=chain,scores=mc.", "FIELD=KEY", group="input"),
]
SkipBad = Annotated[
    bool, Option("Drop bad records, each with its reason, instead of stopping at the first.", group="input")
]
Alpha = Annotated[
    float,
    Option("BIS smoothing; larger lets in more single-label rollouts.", "NUMBER", group="selection", at_least=0),
]
Tau = Annotated[
    float,
    Option("A step is positive if its score is strictly above it.", "NUMBER", group="labels", at_least=0, below=1),
]
Stratify = Annotated[
    Literal["length"] | None,
    Option("Rank among rollouts of equal length: kept ones are as long as the corpus's.", group="selection"),
]
Seed = Annotated[int, Option("Random seed.", "N", at_least=0, below=2**64)]
Device = Annotated[str, Option("Device of the model, such as cpu or cuda:1.", "NAME", group="compute")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"], Option("Number format of the weights.", group="compute")
]
BatchTokens = Annotated[
    int | None, Option("Tokens in a batch; fewer need less memory.", "N", group="compute", at_least=1)
]
Force = Annotated[bool, Option("Replace outputs that exist.", group="output")]
Json = Annotated[bool, Option("Print the summary as JSON.", group="output")]
DryRun = Annotated[bool, Option("Show what would be done, and write nothing.", group="output")]


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(Config):
    """How rollouts are read."""

    format: InputFormat = None
    map: KeyMap = ()
    text_only: TextOnly = False
    skip_bad: SkipBad = False


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Config):
    """The process reward model that scores steps."""

    model: Annotated[str | Any | None, Option("Process reward model that scores the steps.", "DIR", "input")] = None
    """A folder; in Python also anything with ``score_many``."""
    format: InputFormat = None
    image_root: ImageRoot = None
    prompt_layout: Annotated[
        PromptLayout | None,
        Option("Layout of a model not from mprm train; for others a check.", group="input"),
    ] = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    batch_tokens: BatchTokens = None


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Config):
    """Where a corpus is scanned."""

    engine: Annotated[Literal["local", "ray"], Option("This machine's cores, or Ray.", group="compute")] = "local"
    processes: Annotated[
        int | None, Option("Worker processes; all cores by default.", "N", group="compute", at_least=1)
    ] = None
    ray_address: Annotated[
        str | None, Option("Ray cluster to join; a local one by default.", "ADDRESS", group="compute")
    ] = None
