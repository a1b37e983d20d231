"""The one error that tasks turn into a single line and a non-zero exit code."""

from __future__ import annotations


class TestbedError(Exception):
    """A failure that a user can act on.

    `what` names what failed, where and with which value; `remedy` says what to try.
    """

    __test__ = False  # not a pytest class

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} - {self.remedy}" if self.remedy else self.what
