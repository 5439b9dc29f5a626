"""Command lines from configs.

Built on argparse, which loads in a tenth of the time of richer libraries: ``mprm select --help`` must feel instant.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from mprm.config import DEFAULT_KEY, Config, ConnectionOptions, Declared, ModelOptions, declared, serving
from mprm.errors import ConfigError, counted

if TYPE_CHECKING:
    from mprm.data.types import StepScorer

GROUPS = ["input", "selection", "labels", "annotation", "adaptive", "policy", "server", "training", "others"]
GROUPS += ["options", "compute", "output"]
"""Order of the headings in ``--help``."""
WIDTH = 80
"""No line of help is longer, however wide the terminal."""
METAVARS = {int: "N", float: "NUMBER"}
ELSEWHERE = {"--select": "--strategy", "--soft": "--labels", "--model": "--served-model", "--lr": "--learning-rate"}
ELSEWHERE |= {"--max-tokens": "--max-new-tokens", "-o": "--out", "--output": "--out"}
"""What options are called elsewhere."""

C = TypeVar("C", bound=Config)
Run = Callable[[list[str]], int]


@dataclass(frozen=True, kw_only=True)
class ScorerOptions(ModelOptions, ConnectionOptions):
    """A process reward model, in this process or on a server."""

    prm_server: Annotated[str | None, serving("vLLM server of the reward model, see mprm serve.", "URL")] = None
    prm_name: Annotated[str | None, serving("Its name on that server, if it has several models.", "NAME")] = None
    prm_key_env: Annotated[str, serving("Environment variable of that server's API key.", "NAME")] = DEFAULT_KEY

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lower_bound", "readout"):
            if getattr(self, name) is not None and not self.has_scorer:
                raise ConfigError(f"{name} is for a model's scores, and no --model is named")

    @property
    def has_scorer(self) -> bool:
        return self.model is not None or self.prm_server is not None

    def need_scorer(self) -> None:
        """Stop where no reward model is named."""
        if not self.has_scorer:
            raise ConfigError("name the reward model with --model DIR or --prm-server URL")

    def scorer(self) -> StepScorer:
        from mprm.data.output import check_not_inputs
        from mprm.evaluation.scores import ScoringConfig

        if self.readout is not None:
            check_not_inputs([self.readout], [str(getattr(self, "out", None))])
        names = [field.name for field in fields(ScorerOptions) if field.name not in ("prm_name", "prm_key_env")]
        server: dict[str, Any] = {"served_model": self.prm_name, "api_key_env": self.prm_key_env}
        return ScoringConfig(**self.as_dict(*names), **server).load_model()


def command(config: type[C], name: str, example: str) -> Callable[[Callable[[C], int | None]], Run]:
    """Make a function of a command's options one of its arguments; it returns the exit code, or None for 0."""

    def decorate(function: Callable[[C], int | None]) -> Run:
        whole = f"mprm {name} {example}"
        return lambda arguments: function(parsed(config, arguments, command=name, example=whole)) or 0

    return decorate


def parsed(config: type[C], arguments: list[str], *, command: str, example: str) -> C:
    """The command's options; prints help and exits when asked to, or when they are wrong."""
    options = vars(parser_of(config, command=command, example=example).parse_args(arguments))
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    try:
        return config(**given)
    except ConfigError as error:  # name the option as it was typed
        found = re.match(r"(unknown )?(\w+)(?= '| must )", str(error))
        if found is None or found[2] not in given:
            raise
        flag = f"{found[1] or ''}--{found[2].rstrip('_').replace('_', '-')}"
        raise ConfigError(flag + str(error)[found.end() :]) from None


def parser_of(config: type[Config], *, command: str, example: str) -> argparse.ArgumentParser:
    """The parser of a command, with one option for each field of its config."""
    parser = _Parser(
        prog=command if command.startswith("mprm") else f"mprm {command}",
        description=_description(config.__doc__ or "", example),
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    entries = declared(config)
    names = dict.fromkeys(entry.option.group for entry in entries if not entry.option.is_positional)
    ordered = sorted(names, key=lambda name: GROUPS.index(name if name in GROUPS else "others"))
    groups = {name: parser.add_argument_group(name) for name in ordered}
    for entry in entries:
        _add(parser if entry.option.is_positional else groups[entry.option.group], entry)
    return parser


def _description(text: str, example: str) -> str:
    """Paragraphs and example in lines that fit; the example is cut before an option."""
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]
    whole = re.sub(r"(--\S+) (?!-)", "\\1\xa0", example)  # a value stays beside its option
    lines = textwrap.wrap(whole, WIDTH - 4, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    shown = "Example:\n  " + " \\\n  ".join(lines).replace("\xa0", " ")
    return "\n\n".join([*(textwrap.fill(part, WIDTH) for part in paragraphs), shown])


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that fits 80 columns, without argparse's own list of all options at the top."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(shutil.get_terminal_size().columns, WIDTH) - 1)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        positional = [action for action in actions if not action.option_strings]
        required = [action for action in actions if action.option_strings and action.required]
        words = [self._format_args(action, action.metavar or action.dest) for action in positional]
        words += [f"{action.option_strings[-1]} {action.metavar or action.dest.upper()}" for action in required]
        super().add_usage(usage or " ".join(["%(prog)s", *words, "[options]"]), actions, groups, prefix)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest option where one is unknown."""

    words: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.words = tuple(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for flag in (word.split("=")[0] for word in self.words if re.match("--?[a-z]", word)):
            if flag in self._option_string_actions:
                continue
            same = [name for name in known if name == ELSEWHERE.get(flag)]
            for close in same or difflib.get_close_matches(flag, known, n=1):
                message += f" ({flag}: did you mean {close}?)"
        stop = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{stop} Inputs go before the options; {self.prog} --help lists them.\n")


def _add(parser: Any, entry: Declared) -> None:
    option, default = entry.option, entry.default
    is_required = default is MISSING
    name = entry.name.rstrip("_").replace("_", "-")  # for_: its flag is a keyword of Python
    words = option.help.replace("%", "%%")
    if entry.kind is bool:
        flag, action = (f"--no-{name}", "store_false") if default is True else (f"--{name}", "store_true")
        parser.add_argument(flag, dest=entry.name, action=action, help=words)
        return
    metavar = option.metavar or METAVARS.get(entry.kind)
    if entry.choices and entry.is_many:  # argparse would repeat all of them
        metavar, words = "NAME", f"{words} One or more of {', '.join(entry.choices)}."
    elif entry.choices and metavar:
        words += f" One of {', '.join(entry.choices)}."
    elif entry.choices:  # which the config checks: it names the nearest
        metavar = f"{{{','.join(entry.choices)}}}"
    if default not in (MISSING, None, ()):
        words += f" (default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
    settings: dict[str, Any] = {
        "help": words,
        "type": _number(entry.kind) if entry.kind in METAVARS else str,
        "metavar": metavar,
        "nargs": "+" if entry.is_many else None,
        "default": None if is_required else default,
    }
    if not option.is_positional:
        parser.add_argument(f"--{name}", dest=entry.name, required=is_required, **settings)
        return
    if not is_required:
        settings["nargs"] = "*" if entry.is_many else "?"
    parser.add_argument(entry.name, **settings)


def show_warnings(command: str, warnings: Iterable[str], of: str = "") -> None:
    """Print warnings about data on stderr; nothing in them steers the terminal."""
    from mprm.data.output import printable

    sys.stdout.flush()
    for warning in warnings:
        print(printable(f"mprm {command}: warning: {of}{': ' * bool(of)}{warning}"), file=sys.stderr)


def say_dropped(name: str, n_dropped: int) -> None:
    """Print on stderr how many bad records a command left out."""
    if n_dropped:
        print(f"mprm {name}: left out {counted(n_dropped, 'bad record')}; mprm check lists them", file=sys.stderr)


def _number(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Reads a number, and names the one that was probably meant: 0.1 for 10% or 0,1; 1024 for 1,024 or 1e3."""

    def read(text: str) -> float:
        try:
            return kind(text)
        except ValueError:
            message = f"{text!r} is no {'whole ' if kind is int else ''}number"
        with suppress(ValueError):
            meant = float(text.removesuffix("%").replace(",", "" if kind is int else "."))
            meant /= 100 if text.endswith("%") else 1
            message += f"; did you mean {meant:.0f}?" if kind is int else f"; did you mean {meant:g}?"
        raise argparse.ArgumentTypeError(message)

    return read


def as_json(value: Any) -> str:
    """The value as indented JSON text."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
