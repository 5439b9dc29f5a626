"""The ``mprm`` command: finds the subcommand and loads only that one."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import NamedTuple

from mprm import __version__
from mprm.errors import ConfigError, MprmError

COMMANDS = {
    "annotate": ("mprm.cli.annotate:run_annotate", "questions to rollouts with Monte-Carlo step scores"),
    "check": ("mprm.cli.data:run_check", "find every issue in a corpus, with file and line"),
    "stats": ("mprm.cli.corpus:run_stats", "the paper's statistics tables, per source and overall"),
    "score": ("mprm.cli.corpus:run_score", "one row a rollout: its label counts, R, mixture and BIS"),
    "select": ("mprm.cli.select:run_select", "keep the rollouts that teach the most"),
    "convert": ("mprm.cli.data:run_convert", "convert a corpus to another format"),
    "train": ("mprm.cli.runs:run_train", "from rollouts to a process reward model"),
    "evaluate": ("mprm.cli.evaluate:run_evaluate", "how well a model tells correct steps from incorrect ones"),
    "sample": ("mprm.cli.annotate:run_sample", "candidate solutions of questions, from a policy"),
    "search": ("mprm.cli.search:run_search", "candidate solutions, guided step by step by a reward model"),
    "rerank": ("mprm.cli.rerank:run_rerank", "choose the best of N candidates by step scores"),
    "readout": ("mprm.cli.readout:run_readout", "read a model's scores with a policy's log-probabilities"),
    "export": ("mprm.cli.serving:run_export", "what vLLM needs to serve a trained model"),
    "serve": ("mprm.cli.serving:run_serve", "start vLLM with an exported model"),
    "report": ("mprm.cli.runs:run_report", "one offline page on a corpus, its selection and its runs"),
    "push": ("mprm.cli.push:run_push", "upload a run or a subset, with its card, to the hub"),
    "convert-internvl": ("mprm.cli.internvl:run_internvl", "a published InternVL checkpoint for transformers"),
    "theory": ("mprm.cli.theory:run_theory", "the paper's model of Monte-Carlo labels, fitted to a corpus"),
    "quickstart": ("mprm.cli.data:run_quickstart", "write a small annotated corpus to try select and train on"),
}
"""Where each command lives, and what it is for."""


class Program(NamedTuple):
    """A command line made of subcommands."""

    name: str
    about: str
    example: str
    commands: dict[str, tuple[str, str]]
    """Where each subcommand lives, ``module:function``, and what it is for."""
    resumable: tuple[str, ...] = ()
    """Subcommands that save their work as it is done."""

    @property
    def help(self) -> str:
        """What ``--help`` prints."""
        commands = "\n".join(f"  {name:<18}{summary}" for name, (_, summary) in self.commands.items())
        return f"""{self.name} {__version__}
{self.about}

Usage: {self.name} COMMAND [OPTIONS]

Commands:
{commands}

Example:
  {self.example}

"{self.name} COMMAND --help" tells more of each.
Exit codes: 0 done; 1 bad data or a failed run; 2 wrong usage;
3 (check) warnings only.
"""


MPRM = Program(
    name="mprm",
    about="multimodal process reward models, from annotated rollouts to the best of N.",
    example="mprm select annotations/*.jsonl --strategy bis --rho 0.10 --out bis10.jsonl",
    commands=COMMANDS,
    resumable=("annotate", "sample", "search", "rerank", "evaluate"),
)


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str], program: Program = MPRM) -> int:
    """Run the command line; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(program.help, end="")
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"{program.name} {__version__}")
        return 0
    # mprm does no linear algebra: the threads that numpy would start for it only take time from the workers
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    name = arguments[0]
    if name not in program.commands:
        from mprm.config import nearest

        hint = "the lab is a package of its own: mprm-lab" if name == "lab" else nearest(name, program.commands)
        print(f"{program.name}: unknown command {name!r}; {hint}", file=sys.stderr)
        return 2
    command = f"{program.name} {name}"
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that knows no Greek shows ? for it
        module, _, function = program.commands[name][0].partition(":")
        code = int(getattr(importlib.import_module(module), function)(arguments[1:]) or 0)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        print(f"{command}: interrupted; nothing half-written was left under a final name", file=sys.stderr)
        if str(interrupt):  # how to go on
            print(interrupt, file=sys.stderr)
        if name in program.resumable and any(word.startswith("--out") for word in arguments):
            print("What is done is kept; the same command continues there.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output went away, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MprmError, OSError) as error:
        from mprm.data.output import printable

        # line by line, without anything from data that could steer the terminal
        print(f"{command}:", "\n".join(map(printable, str(error).split("\n"))), file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


if __name__ == "__main__":
    main()
