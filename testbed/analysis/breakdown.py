"""Where the time of forwarded calls goes: the table that instrumented trials leave.

`breakdown.csv` in a run's directory has one line for each part of each function, with the columns

    workload, form, placement, system   which trials
    function                            API function, or `-` for what belongs to none
    part                                where the time went (below)
    calls                               calls of the function that were counted
    seconds                             in total over these calls

Parts, in the order in which a call meets them (`PARTS`): the backend's is what native spends too;
all others are extra cost.  Those of `APART` are shown but in no share: compiling and the wait for
kernels to end are the accelerator's own work, and the wait for calls sent before is their time,
which is counted with them.  Other names are allowed and come last.

The raw data are the stub's `times` lines at the marks where the measured steps begin and end: sums
by opcode, of the client's time and of the worker's, each by its own clock.  ARCHITECTURE.md,
section 8, says what they mean and where their limits are.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from testbed.analysis.measure import legs_of, measure, of_source, step_times, window
from testbed.analysis.rundir import TRIALS, read_lines
from testbed.errors import TestbedError
from testbed.protocol.spec import CUDA_NAMES, load_api

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
APART = {
    "compile": "compilation",
    "kernel": "wait for kernels",
    "queue": "wait for calls before",
}

INSTRUMENT = "breakdown"
OVERHEAD_FILE = "instrumentation.csv"

NS_PER_S = 1_000_000_000

#: Columns of the stub's rows behind the opcode (guest_agent/stub/times.h).
CLIENT = ("calls", "stub", "copy", "waits", "wait", "busy", "sends", "send")
#: The worker's (wh_times_row).
WORKER = (
    *("messages", "answered", "answered_time", "take"),
    *("backend", "compile", "kernel", "copy", "encode", "send"),
)
API_NAMES = ("core", "opencl", *CUDA_NAMES)
OWN = "whTimes"  # the call that asks, which is none of the application's

Event = Mapping[str, Any]


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


@dataclass(frozen=True)
class Overhead:
    """What instrumenting costs: milliseconds a step (medians), of `trials` trials each."""

    workload: str
    form: str
    placement: str
    system: str
    plain_ms: float
    instrumented_ms: float
    trials: int

    @property
    def ratio(self) -> float:
        return self.instrumented_ms / self.plain_ms


def write_breakdown(run: Path) -> tuple[tuple[Entry, ...], tuple[Overhead, ...]]:
    """Make both tables of a run from its raw events and write them; none without such trials."""
    entries, overheads = collect(run)
    if entries:
        names = [field.name for field in fields(Entry)]
        _write(run / FILE, names, [asdict(entry) for entry in entries])
    if overheads:
        lines = [{**asdict(o), "ratio": round(o.ratio, 4)} for o in overheads]
        _write(run / OVERHEAD_FILE, list(lines[0]), lines)
    return entries, overheads


def _write(path: Path, names: Sequence[str], lines: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def collect(run: Path) -> tuple[tuple[Entry, ...], tuple[Overhead, ...]]:
    """The parts of all instrumented trials that count, and what instrumenting them cost."""
    names = opcode_names()
    sums: dict[tuple[_Place, str, str], list[int]] = {}
    steps: dict[_Place, dict[bool, list[float]]] = {}
    for trial, warmup_steps, events in measured(run):
        place = _place(trial)
        instrumented = trial.get("instrument") == INSTRUMENT
        ms = measure(events, warmup_steps).get("ms_per_step")
        if isinstance(ms, float):
            steps.setdefault(place, {True: [], False: []})[instrumented].append(ms)
        if instrumented:
            for (function, part), (calls, ns) in divide(events, warmup_steps, names).items():
                total = sums.setdefault((place, function, part), [0, 0])
                total[0] += calls
                total[1] += ns
    entries = tuple(
        Entry(*place, function=function, part=part, calls=calls, seconds=ns / NS_PER_S)
        for (place, function, part), (calls, ns) in sums.items()
    )
    overheads = tuple(
        Overhead(
            *place,
            plain_ms=median(both[False]),
            instrumented_ms=median(both[True]),
            trials=len(both[True]),
        )
        for place, both in steps.items()
        if both[True] and both[False]
    )
    return entries, overheads


def measured(
    run: Path, instrumented: bool = False
) -> Iterator[tuple[dict[str, Any], int, list[Event]]]:
    """Record, warm-up steps and events of each trial that counts; of one with legs, of each leg.

    With `instrumented` of such trials alone.
    """
    for trial in read_lines(run / TRIALS):
        legs = trial.get("legs") or {}
        if trial["warmup"] or (trial["status"] != "ok" and not legs):
            continue
        if instrumented and trial.get("instrument") != INSTRUMENT:
            continue
        events = read_lines(run / str(trial["events"]))
        warmup_steps = int(trial.get("warmup_steps", 0))
        for name, warmup, of in legs_of(events, str(trial["workload"]), warmup_steps):
            if legs.get(name, trial)["status"] == "ok":
                yield {**trial, "workload": name}, warmup, of


_Place = tuple[str, str, str, str]


def _place(trial: Mapping[str, Any]) -> _Place:
    workload, form = str(trial["workload"]), str(trial["form"])
    return workload, form, str(trial["placement"]), str(trial["system"])


def opcode_names() -> dict[int, str]:
    """Name of the function behind each opcode."""
    return {f.opcode: f.name for name in API_NAMES for f in load_api(name).functions}


def divide(
    events: Sequence[Event], warmup_steps: int, names: Mapping[int, str]
) -> dict[tuple[str, str], tuple[int, int]]:
    """(function, part) -> calls and nanoseconds, between the marks of the measured steps.

    Nothing if the trial left no rows of both.
    """
    ends = _ends(events, warmup_steps)
    if ends is None:
        return {}
    begin, end = ends
    client = _difference(begin["client"], end["client"], CLIENT)
    worker = _difference(begin["worker"], end["worker"], WORKER)
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for opcode in sorted({*client, *worker}):
        function = names.get(opcode, "-")
        if function == OWN:
            continue
        mine = client.get(opcode, dict.fromkeys(CLIENT, 0))
        theirs = worker.get(opcode, dict.fromkeys(WORKER, 0))
        for part, (calls, ns) in _parts(mine, theirs, end.get("transport") == "shm").items():
            if ns > 0:
                found[function, part] = calls, ns
    return found


def sent(events: Sequence[Event], warmup_steps: int, names: Mapping[int, str]) -> dict[str, int]:
    """Function -> messages between the marks of the measured steps; nothing without rows of both.

    The call that asks for the rows is none of the application's.
    """
    ends = _ends(events, warmup_steps)
    if ends is None:
        return {}
    found: dict[str, int] = {}
    for opcode, row in _difference(ends[0]["client"], ends[1]["client"], CLIENT).items():
        function = names.get(opcode, "-")
        if function != OWN and row["waits"] + row["sends"] > 0:
            found[function] = found.get(function, 0) + row["waits"] + row["sends"]
    return found


def _ends(events: Sequence[Event], warmup_steps: int) -> tuple[Event, Event] | None:
    """The rows at the marks where the measured steps begin and end."""
    steps = step_times(of_source(events, "program"))
    if not steps:
        return None
    first, last = window(steps, warmup_steps)
    marks = {e.get("label"): e for e in of_source(events, "stub") if e.get("event") == "times"}
    begin, end = marks.get(f"step {first}"), marks.get(f"step {last}")
    return None if begin is None or end is None or begin is end else (begin, end)


def _difference(
    begin: Sequence[Sequence[int]], end: Sequence[Sequence[int]], columns: Sequence[str]
) -> dict[int, dict[str, int]]:
    before = {row[0]: row[1:] for row in begin}
    nothing = [0] * len(columns)
    return {
        row[0]: {
            name: new - old
            for name, new, old in zip(columns, row[1:], before.get(row[0], nothing), strict=True)
        }
        for row in end
    }


def _parts(
    client: Mapping[str, int], worker: Mapping[str, int], shared: bool
) -> dict[str, tuple[int, int]]:
    """What a wait is made of: the worker's time of this call, of calls before it, and the way.

    Over TCP the worker's time for other calls is not known; without one-way calls there are none.
    """
    busy = client["busy"] if shared else worker["answered_time"]
    messages = worker["messages"]
    return {
        "encode": (client["calls"], client["stub"]),
        "publish": (
            client["sends"] + client["waits"],
            client["send"] + max(client["wait"] - busy - worker["send"], 0),
        ),
        "queue": (client["waits"], max(busy - worker["answered_time"], 0)),
        "take": (messages, worker["take"]),
        BACKEND: (messages, worker["backend"]),
        "compile": (messages, worker["compile"]),
        "kernel": (messages, worker["kernel"]),
        "copy": (client["calls"], client["copy"] + worker["copy"]),
        "reply": (messages, worker["encode"] + worker["send"]),
    }


def breakdown_text(entries: Sequence[Entry], overheads: Sequence[Overhead]) -> str:
    """The shares of each system as text, with the cost of instrumenting; empty without entries."""
    lines: list[str] = []
    cost = {(o.workload, o.form, o.placement, o.system): o for o in overheads}
    for place in dict.fromkeys(entry.place for entry in entries):
        workload, form, placement = place
        lines.append(f"-- where forwarded calls spend their time: {workload}, {form}, {placement}")
        for name in dict.fromkeys(e.system for e in entries if e.place == place):
            parts = by_part(select(entries, place, name))
            share = extra_share(parts)
            counted_s = sum(s for part, s in parts.items() if part not in APART)
            shown = ", ".join(
                f"{part_name(part)} {seconds / counted_s:.1%}"
                for part, seconds in parts.items()
                if part not in APART and counted_s > 0
            )
            apart = ", ".join(
                f"{part_name(part)} {seconds:.3g} s"
                for part, seconds in parts.items()
                if part in APART
            )
            extra = "unknown" if share is None else f"{share:.1%}"
            lines.append(f"{name}: extra cost {extra} of {counted_s:.3g} s ({shown})")
            lines.append(f"    apart: {apart or 'nothing'}")
            measured = cost.get((*place, name))
            if measured is not None:
                lines.append(
                    f"    instrumenting: {measured.ratio:.3f} times the plain trials' time a step"
                    f" (medians of {measured.trials})"
                )
    return "\n".join(lines)
