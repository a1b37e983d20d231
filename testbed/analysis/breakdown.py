"""Where the time of forwarded calls goes: the table that an instrumented run leaves.

`breakdown.csv` in a run's directory has one line for each part of each function, with the columns

    workload, form, placement, system   which trials
    function                            API function, or `-` for what belongs to none
    part                                where the time went (below)
    calls                               calls of the function that were counted
    seconds                             in total over these calls

Parts, in the order in which a call meets them (`PARTS`): the backend's is what native spends too;
all others are extra cost.  Those of `APART` - compiling, and the wait for kernels to end - are the
accelerator's own work, shown but in no share.  Other names are allowed and come last.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError

FILE = "breakdown.csv"
COLUMNS = ("workload", "form", "placement", "system", "function", "part", "calls", "seconds")

BACKEND = "backend"
PARTS = {
    "encode": "stub: encode",
    "publish": "publish and wait",
    "take": "take and decode",
    BACKEND: "backend",
    "reply": "reply",
    "copy": "copies",
}
APART = {"compile": "compilation", "kernel": "wait for kernels"}


@dataclass(frozen=True)
class Entry:
    """One line of the table."""

    workload: str
    form: str
    placement: str
    system: str
    function: str
    part: str
    calls: int
    seconds: float

    @property
    def place(self) -> tuple[str, str, str]:
        return self.workload, self.form, self.placement


def read_breakdown(run: Path) -> tuple[Entry, ...]:
    """The table of a run; empty if it has none.

    Raises TestbedError that names the line if the table is damaged.
    """
    path = run / FILE
    try:
        with path.open(encoding="utf-8", newline="") as source:
            reader = csv.DictReader(source)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise TestbedError(
                    f"{path} has no column {', '.join(missing)}", f"it needs {', '.join(COLUMNS)}"
                )
            return tuple(_entry(path, reader.line_num, line) for line in reader)
    except FileNotFoundError:
        return ()


def _entry(path: Path, number: int, line: Mapping[str, str]) -> Entry:
    try:
        calls, seconds = int(line["calls"]), float(line["seconds"])
    except (TypeError, ValueError) as error:
        raise TestbedError(f"{path}:{number}: {error}", "measure it anew") from error
    if calls < 0 or not 0.0 <= seconds < float("inf"):
        raise TestbedError(
            f"{path}:{number}: {calls} calls in {seconds} s cannot be", "measure it anew"
        )
    return Entry(
        workload=line["workload"],
        form=line["form"],
        placement=line["placement"],
        system=line["system"],
        function=line["function"],
        part=line["part"],
        calls=calls,
        seconds=seconds,
    )


def by_part(entries: Iterable[Entry]) -> dict[str, float]:
    """Seconds of each part, in the order of `PARTS`, then those apart, then others."""
    found: dict[str, float] = {}
    for entry in entries:
        found[entry.part] = found.get(entry.part, 0.0) + entry.seconds
    order = [*PARTS, *APART]
    known = [part for part in order if part in found]
    return {part: found[part] for part in [*known, *(p for p in found if p not in order)]}


def part_name(part: str) -> str:
    """A part as people read it."""
    return PARTS.get(part) or APART.get(part) or part


def extra_share(parts: Mapping[str, float]) -> float | None:
    """Extra cost as a share of all forwarded time; None without any time."""
    counted = {part: seconds for part, seconds in parts.items() if part not in APART}
    total_s = sum(counted.values())
    return 1.0 - counted.get(BACKEND, 0.0) / total_s if total_s > 0 else None


def extra_seconds(parts: Mapping[str, float]) -> float:
    """Seconds of everything but the backend and what is apart."""
    return sum(s for part, s in parts.items() if part != BACKEND and part not in APART)


def select(entries: Sequence[Entry], place: tuple[str, str, str], system: str) -> list[Entry]:
    """The lines of one system in one place."""
    return [entry for entry in entries if entry.place == place and entry.system == system]
