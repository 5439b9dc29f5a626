"""The text of docs/cli.md: what every command's ``--help`` prints. ``python -m mprm.cli.reference > docs/cli.md``."""

from __future__ import annotations

import contextlib
import io
import os

from mprm.cli.main import COMMANDS, run

SUBCOMMANDS = {"theory": ("fit",)}
WIDTH = "100"


def reference() -> str:
    """The reference of the command line, in Markdown."""
    names = [[name, sub] for name in COMMANDS for sub in SUBCOMMANDS.get(name, ("",))]
    sections = [f"## mprm {' '.join(filter(None, name))}\n\n```text\n{_help(name)}```\n" for name in names]
    head = "# Command line\n\nMade by `python -m mprm.cli.reference > docs/cli.md`; a test keeps it current.\n"
    return "\n".join([head, *sections])


def _help(name: list[str]) -> str:
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            run([*filter(None, name), "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return printed.getvalue()


if __name__ == "__main__":
    print(reference(), end="")
