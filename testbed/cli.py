"""Entry of ./inv: splits off the command after `--`, then lets Invoke run the task."""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module

from invoke.collection import Collection
from invoke.exceptions import ParseError
from invoke.program import Program

from testbed.errors import TestbedError

_command: tuple[str, ...] = ()


def command_after_dashes() -> list[str]:
    """Arguments that stood after `--`, untouched by Invoke's parser."""
    return list(_command)


class _Inv(Program):
    """Invoke, with its refusals in our own words."""

    def no_tasks_given(self) -> None:
        """`./inv` without arguments lists the tasks instead of failing."""
        self.list_tasks()

    def parse_tasks(self) -> None:
        """Raises TestbedError for an unknown task or option, or a value of the wrong type."""
        try:
            super().parse_tasks()
        except ParseError as error:
            words = [word for word in self.argv[1:] if not word.startswith("-")]
            raise TestbedError(f"{error}".strip(), self._help_for(words)) from error
        except ValueError as error:
            # An option's value that is no number.
            raise TestbedError(f"{error}", self._help_for(self.argv[1:])) from error

    def _help_for(self, words: list[str]) -> str:
        names = sorted(self.collection.task_names)
        task = words[0] if words else ""
        if task in names:
            return f"see ./inv {task} --help"
        near = difflib.get_close_matches(task, names, 1)
        return f"did you mean {near[0]}? ./inv lists the tasks" if near else "./inv lists the tasks"


def main(argv: list[str] | None = None) -> None:
    """Run one task; exits with the task's status.  Raises TestbedError for a wrong command line."""
    global _command
    words = list(sys.argv if argv is None else argv)
    if "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
        _command = tuple(rest)
    if "--debug" in words:
        words.remove("--debug")
        os.environ["WORMHOLE_DEBUG"] = "1"
    words[0] = "inv"
    if {"--help", "-h"} & set(words[2:]):
        # Invoke would take the word for the value of an option or argument that lacks one.
        words = ["inv", "--help", words[1]]
    namespace = Collection.from_module(import_module("tasks"))
    _Inv(namespace=namespace, name="inv", binary="./inv").run(words)
