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
from testbed.machine.prebuilt import bundle_facts

# What a bundle can do without compiler, network and the packages for tables and figures.
BUNDLE_TASKS = (
    *("doctor", "run", "reproduce", "exec", "record", "replay", "bench.call"),
    *("vm.boot", "vm.shell", "vm.list", "vm.stop", "serve", "top", "workload.check"),
)

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
    if bundle_facts() is not None and words[1:2] and words[1] not in (*BUNDLE_TASKS, "--help"):
        raise TestbedError(
            f"{words[1]} needs a checkout, and this is a bundle",
            f"here there are {', '.join(BUNDLE_TASKS)}; records are read at home",
        )
    namespace = Collection.from_module(import_module("tasks"))
    if bundle_facts() is not None:
        namespace = _tasks_of_bundle(namespace)
    _Inv(namespace=namespace, name="inv", binary="./inv").run(words)


def _tasks_of_bundle(whole: Collection) -> Collection:
    """The tasks that a bundle can do, under their names."""
    top = Collection()
    groups: dict[str, Collection] = {}
    for name in BUNDLE_TASKS:
        group, _, task = name.rpartition(".")
        if group and group not in groups:
            groups[group] = Collection(group)
        (groups[group] if group else top).add_task(whole[name], name=task)
    for collection in groups.values():
        top.add_collection(collection)
    return top
