"""The text of docs/cli.md: what every command's ``--help`` prints. ``python docs/cli_reference.py > docs/cli.md``."""

from __future__ import annotations

import contextlib
import io
import os

from mprm.cli.main import COMMANDS, run

SUBCOMMANDS = {"theory": "theory fit"}
WIDTH = "80"
HEAD = """# Command line

Made by `python docs/cli_reference.py > docs/cli.md`; a test keeps it current. Each section is what `--help` prints;
the Python function of the same name takes the same options. Exit codes: 0 done; 1 bad data or a failed run; 2 wrong
usage; 3 (`mprm check`) warnings only.

| command | what it does |
| --- | --- |
"""


def reference() -> str:
    """The reference of the command line, in Markdown: all commands, each with its options by group."""
    names = {name: SUBCOMMANDS.get(name, name) for name in COMMANDS}
    anchors = {name: f"mprm-{words.replace(' ', '-')}" for name, words in names.items()}
    rows = [f"| [`mprm {names[name]}`](#{anchors[name]}) | {about} |\n" for name, (_, about) in COMMANDS.items()]
    sections = [f"\n## mprm {words}\n\n```text\n{_help(words.split())}```\n" for words in names.values()]
    return "".join([HEAD, *rows, *sections])


def _help(words: list[str]) -> str:
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            run([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return printed.getvalue()


if __name__ == "__main__":
    print(reference(), end="")
