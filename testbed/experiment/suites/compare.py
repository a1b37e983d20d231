"""Compares what a suite did natively and forwarded: pure decisions and the table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.experiment.suites.suite import (
    ABSENT,
    FEWER,
    PASSED,
    SKIPPED,
    SKIPS,
    Outcome,
    Outcomes,
    Truth,
)

NOT_THERE = Outcome(ABSENT)


@dataclass(frozen=True)
class Difference:
    """A test that did something else; `reason` is a truth about the device, or empty."""

    test: str
    native: Outcome
    forwarded: Outcome
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """One suite, native and forwarded. `differences` hold those that no truth explains."""

    suite: str
    native: Outcomes
    forwarded: Outcomes
    truthful: tuple[Difference, ...]
    differences: tuple[Difference, ...]


def compare(
    suite: str, native: Outcomes, forwarded: Outcomes, truths: Sequence[Truth]
) -> Comparison:
    """Sort the tests whose status or value differs into truthful ones and others."""
    found = []
    for test in dict.fromkeys((*native, *forwarded)):
        ours, theirs = forwarded.get(test, NOT_THERE), native.get(test, NOT_THERE)
        if (ours.status, ours.value) != (theirs.status, theirs.value):
            found.append(Difference(test, theirs, ours, _reason(test, theirs, ours, truths)))
    return Comparison(
        suite,
        native,
        forwarded,
        tuple(entry for entry in found if entry.reason),
        tuple(entry for entry in found if not entry.reason),
    )


def _reason(test: str, native: Outcome, forwarded: Outcome, truths: Sequence[Truth]) -> str:
    for truth in truths:
        if re.fullmatch(truth.tests, test) and _allows(truth.how, native, forwarded):
            return truth.reason
    return ""


def _allows(how: str, native: Outcome, forwarded: Outcome) -> bool:
    if how == SKIPS:
        return forwarded.status == SKIPPED
    if how == FEWER:
        # An empty mask is printed as 0 or as nothing.
        words = set(re.split(r"[\s|;]+", forwarded.value)) - {"", "0"}
        absent = forwarded.status == ABSENT
        return absent or (
            forwarded.status == native.status and words <= set(re.split(r"[\s|;]+", native.value))
        )
    raise ValueError(f"no rule {how!r}")


def counts(outcomes: Outcomes) -> tuple[int, int, int]:
    """How many passed, did not pass, were skipped."""
    by_status = Counter(outcome.status for outcome in outcomes.values())
    passed, skipped = by_status[PASSED], by_status[SKIPPED]
    return passed, by_status.total() - passed - skipped, skipped


def table(comparisons: Iterable[Comparison]) -> str:
    """One line a suite, then the truthful differences by reason, then the others by name."""
    rows: list[tuple[str, ...]] = [
        ("suite", "native p/f/s", "forwarded p/f/s", "truthful", "differences")
    ]
    notes: list[str] = []
    for done in comparisons:
        numbers = ["/".join(map(str, counts(side))) for side in (done.native, done.forwarded)]
        rows.append((done.suite, *numbers, str(len(done.truthful)), str(len(done.differences))))
        by_reason = Counter(entry.reason for entry in done.truthful)
        notes += [f"{done.suite}: {number} truthful: {why}" for why, number in by_reason.items()]
        notes += [
            f"{done.suite}: DIFFERS: {entry.test or '(the program)'}\n"
            f"    native:    {entry.native.shown()}\n"
            f"    forwarded: {entry.forwarded.shown()}"
            for entry in done.differences
        ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", *notes] if notes else lines)
