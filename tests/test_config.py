"""Options are declared once: their checks, their command line, their Python signature."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

import mprm
from mprm.cli.arguments import parsed
from mprm.config import Config, Option, takes
from mprm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class MadeUp(Config):
    """A made-up command."""

    rho: Annotated[tuple[float, ...], Option("Fractions.", "NUMBER", above=0, at_most=1)] = (0.1,)
    n: Annotated[int | None, Option("A number.", "N", group="other", at_least=1)] = None
    kind: Annotated[Literal["a", "b"], Option("A kind.")] = "a"
    cached: Annotated[bool, Option("Do not cache.")] = True
    loud: Annotated[bool, Option("Be loud.")] = False
    out: Annotated[str | None, Option("A file.", "FILE")] = None
    extra: int = 3
    """Not for the command line."""


@dataclass(frozen=True, kw_only=True)
class MadeUpCommand(MadeUp):
    """A made-up command."""

    paths: Annotated[tuple[str, ...], Option("Inputs.", "INPUT", is_positional=True)]


@takes(MadeUp)
def made_up(paths, config=None, *, progress=None, **options):
    """Takes the options."""
    return MadeUp.of(config, options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rho": 0}, "rho must be above 0 and at most 1, got 0"),
        ({"rho": (0.5, 2.0)}, "got 2.0"),
        ({"rho": float("nan")}, "rho must be above 0 and at most 1, got nan"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"n": 1.5}, "n must be a whole number, got 1.5"),
        ({"n": True}, "n must be a whole number, got True"),
        ({"kind": "aa"}, "unknown kind 'aa'; did you mean a\\? Expected one of a, b"),
        ({"cached": 1}, "cached must be True or False, got 1"),
        ({"out": 3}, "out must be text, got 3"),
        ({"kind": None}, "kind must not be None"),
        ({"rhoo": 0.1}, "unknown option 'rhoo'; did you mean rho"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_expected(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made_up("x", **options)


def test_values_are_brought_to_their_form() -> None:
    config = made_up("x", rho=0.5, out=Path("a") / "b")
    assert (config.rho, config.out) == ((0.5,), "a/b")
    assert made_up("x", config, rho=[0.1, 0.2]) == MadeUp(rho=(0.1, 0.2), out="a/b")


def test_the_command_line_is_that_of_the_config() -> None:
    options = parsed(
        MadeUpCommand,
        ["x", "y", "--rho", "0.1", "0.2", "--no-cached", "--loud", "--n", "3"],
        command="made-up",
        example="mprm made-up x",
    )
    assert options.paths == ("x", "y")
    assert options.narrowed(MadeUp) == MadeUp(rho=(0.1, 0.2), cached=False, loud=True, n=3)


def test_help_has_groups_defaults_and_choices_and_fits_its_width(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parsed(MadeUpCommand, ["--help"], command="made-up", example="mprm made-up x")
    text = capsys.readouterr().out
    assert "\nother:\n  --n N" in text
    assert "(default: 0.1)" in text
    assert "--kind {a,b}" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_unknown_option_names_the_nearest(capsys) -> None:
    with pytest.raises(SystemExit):
        parsed(MadeUpCommand, ["x", "--load"], command="made-up", example="mprm made-up x")
    assert "did you mean --loud?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["check", "convert", "score", "select", "stats"])
def test_each_function_shows_its_options(name: str) -> None:
    parameters = inspect.signature(getattr(mprm, name)).parameters
    assert {"paths", "config", "progress", "format", "engine"} <= set(parameters)
