"""The one exception type that a task turns into a clear line and exit code 1."""

from __future__ import annotations


class TestbedError(Exception):
    """A failure that the user can understand: what failed, where, with which value; what to try."""

    __test__ = False  # pytest would otherwise take the name for a test class

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  try: {self.remedy}" if self.remedy else self.what
