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
from dataclasses import MISSING
from typing import Any, NoReturn, TypeVar

from mprm.config import Config, Declared, declared
from mprm.errors import ConfigError

FIRST_GROUPS = ("input", "selection", "labels", "annotation", "adaptive", "policy", "server", "training")
LAST_GROUPS = ("options", "compute", "output")
"""Order of the headings in ``--help``; others are between."""
WIDTH = 80
"""No line of help is longer, however wide the terminal."""
RENAMED = {"--select": "--strategy", "--keep": "--save-total-limit", "--max-updates": "--max-optimizer-steps"}
RENAMED |= {"--model": "--served-model", "--timeout-s": "--check-timeout-s", "--cards": "--cases"}
RENAMED |= {"--lr": "--learning-rate", "--max-tokens": "--max-new-tokens", "-o": "--out", "--output": "--out"}
"""What an option was called before, or is called elsewhere."""

C = TypeVar("C", bound=Config)


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
        flag = f"{found[1] or ''}--{found[2].replace('_', '-')}"
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
    names = list(dict.fromkeys(entry.option.group for entry in entries if not entry.option.is_positional))
    order = [*FIRST_GROUPS, *(name for name in names if name not in (*FIRST_GROUPS, *LAST_GROUPS)), *LAST_GROUPS]
    groups = {name: parser.add_argument_group(name) for name in sorted(names, key=order.index)}
    for entry in entries:
        _add(parser if entry.option.is_positional else groups[entry.option.group], entry)
    return parser


def _description(text: str, example: str) -> str:
    """Paragraphs and example in lines that fit; the example is cut before an option."""
    paragraphs = (" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))
    lines = textwrap.wrap(
        re.sub(r"(--\S+) (?!-)", "\\1\xa0", example),  # a value stays beside its option
        WIDTH - 4,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n\n".join(
        [
            *(textwrap.fill(part, WIDTH) for part in paragraphs),
            "Example:\n  " + " \\\n  ".join(lines).replace("\xa0", " "),
        ]
    )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that fits 80 columns, without argparse's own list of all options at the top."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(shutil.get_terminal_size().columns, WIDTH) - 1)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        positional = [action for action in actions if not action.option_strings]
        required = [action for action in actions if action.option_strings and action.required]
        words = [*(self._format_args(action, action.metavar or action.dest) for action in positional)]
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
            renamed = [name for name in known if name == RENAMED.get(flag)]
            for close in renamed or difflib.get_close_matches(flag, known, n=1):
                message += f" ({flag}: did you mean {close}?)"
        stop = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{stop} Inputs go before the options; {self.prog} --help lists them.\n")


def _add(parser: Any, entry: Declared) -> None:
    field, option = entry.field, entry.option
    is_required = field.default is MISSING
    default = None if is_required else field.default
    flag = f"--{entry.name.replace('_', '-')}"
    words = option.help.replace("%", "%%")
    if entry.kind is bool and default is True:
        parser.add_argument(f"--no-{flag[2:]}", dest=entry.name, action="store_false", help=words)
        return
    if entry.kind is bool:
        parser.add_argument(flag, dest=entry.name, action="store_true", help=words)
        return
    metavar = option.metavar
    if entry.choices:  # which the config checks: it names the nearest
        metavar = f"{{{','.join(entry.choices)}}}"
    if entry.choices and entry.is_many:  # argparse would repeat all of them
        metavar, words = "NAME", f"{words} One or more of {', '.join(entry.choices)}."
    if default is not None and default != ():
        words += f" (default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
    settings: dict[str, Any] = {
        "help": words,
        "type": _number(entry.kind) if entry.kind in (int, float) else str,
        "metavar": metavar,
        "nargs": "+" if entry.is_many else None,
    }
    if option.is_positional and not is_required:
        parser.add_argument(entry.name, **{**settings, "nargs": "*" if entry.is_many else "?", "default": default})
    elif option.is_positional:
        parser.add_argument(entry.name, **settings)
    else:
        parser.add_argument(flag, dest=entry.name, default=default, required=is_required, **settings)


def show_warnings(command: str, warnings: Iterable[str], of: str = "") -> None:
    """Print warnings about data on stderr; nothing in them steers the terminal."""
    from mprm.data.output import printable

    sys.stdout.flush()
    for warning in warnings:
        print(printable(f"mprm {command}: warning: {of}{': ' * bool(of)}{warning}"), file=sys.stderr)


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
