"""What a suite is: programs to run, where they come from, and what each of their tests did.

An outcome has a status and, where a program prints facts instead of verdicts, a value. Two runs
agree on a test if both are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"
ABSENT = "absent"

# The rules by which a forwarded outcome may differ from the native one.
FEWER = "fewer"  # its value's words are some of the native value's, or the test is absent
SKIPS = "skips"  # it skips


@dataclass(frozen=True)
class Outcome:
    """What one test did; `detail` explains a failure and is not compared."""

    status: str
    value: str = ""
    detail: str = ""

    def shown(self) -> str:
        """The outcome in a few words."""
        words = f"{self.status} {self.value}".strip()
        return f"{words} ({self.detail})" if self.detail else words


Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class Output:
    """What a program left: exit status (negative: signal), its output, its result file."""

    status: int
    timed_out: bool
    stdout: str
    stderr: str
    result: bytes = b""


Parse = Callable[[Output], Outcomes]


@dataclass(frozen=True)
class Step:
    """One program of a suite.

    In `argv` and `environment`, `{python}` stands for the interpreter that has the suite's
    packages, `{source}` for the unpacked source package, `{work}` for an empty folder, which is
    the working directory unless `in_source`. `result` is a file there that the parser wants.
    """

    name: str
    argv: tuple[str, ...]
    parse: Parse
    timeout_s: float = 120.0
    result: str = ""
    in_source: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # written to `{work}` before


@dataclass(frozen=True)
class Truth:
    """A difference that is right, because the device we report lacks a feature that native has.

    `tests` is a regular expression for the whole name of a test, `how` one of the rules above.
    """

    tests: str
    how: str
    reason: str


@dataclass(frozen=True)
class Source:
    """A source package of the Python index whose folder `folder` holds tests."""

    package: str
    version: str
    folder: str


@dataclass(frozen=True)
class Suite:
    """A program or test suite of others.

    `debian` are the packages it comes in, `python` the requirements of its environment. Steps named
    in `guest` run in `guest` placement; `short` ones make up the short run.
    """

    name: str
    doc: str
    steps: tuple[Step, ...]
    debian: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    source: Source | None = None
    truths: tuple[Truth, ...] = ()
    guest: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
