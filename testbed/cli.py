"""Entry of ./inv: splits off the command after `--`, then lets Invoke run the task."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from invoke.collection import Collection
from invoke.program import Program

_command: tuple[str, ...] = ()


def command_after_dashes() -> list[str]:
    """Arguments that stood after `--`, untouched by Invoke's parser."""
    return list(_command)


class _Inv(Program):
    """`./inv` without arguments lists the tasks instead of failing."""

    def no_tasks_given(self) -> None:
        self.list_tasks()


def main(argv: list[str] | None = None) -> None:
    """Run one task; exits with the task's status."""
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
    namespace = Collection.from_module(import_module("tasks"))
    _Inv(namespace=namespace, name="inv", binary="./inv").run(words)


if __name__ == "__main__":
    # Under `-m` this file is __main__; tasks import it by name, so run that copy.
    import_module("testbed.cli").main()
