"""What forwarding costs CUDA programs: one line a workload, over all parts of a run.

The speed beside native with an A/A of native, the ratio to the usual forwarder over TCP, what
crosses for each optimiser step, and what a user waits for before the first.  Made where a run has
programs with legs (measure.py), which say how many optimiser steps a step is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from testbed.analysis.breakdown import measured, opcode_names
from testbed.analysis.breakdown import sent as sent_messages
from testbed.analysis.samples import Group, Run, Sample
from testbed.analysis.statistics import Interval, paired_ratio, rate_interval
from testbed.analysis.tables import (
    MISSING,
    interval_text,
    markdown_table,
    significant,
    speeds_of,
    status_of,
    text_table,
)
from testbed.protocol.spec import CUDA_NAMES, load_api

TITLE = "CUDA programs: what forwarding costs"
NATIVE, OURS, USUAL = "native", "wormhole", "tcp-sync"
EQUAL = "equal bit for bit"  # what the gate says of losses (testbed/experiment/gate.py)
NS_PER_MS = 1e6

#: Metrics of the table of what crosses, each for one step of the program.
CROSSING = {
    "API calls": "api_calls_per_step",
    "messages": "messages_per_step",
    "round trips": "round_trips_per_step",
}


@dataclass(frozen=True)
class CudaRow:
    """One workload in one placement.

    Ratios are paired by round. `again` is native under a second name against native. Counts are
    means over trials, for an optimiser step; `per_execution` is messages for each kernel launch and
    execution of a library's function, counted in instrumented trials. `beginning` is by system.
    """

    workload: str
    placement: str
    native: Interval | None
    ratio: Interval | None
    again: Interval | None
    over_tcp: Interval | None
    losses: str
    crossing: Mapping[str, float | None]
    executions: float | None
    per_execution: float | None
    beginning: Mapping[str, Mapping[str, float | None]]


def cuda_rows(run: Run) -> tuple[CudaRow, ...]:
    """A line for each workload and placement; none for a run without such programs."""
    groups = [g for g in run.groups if any("optimiser_steps" in s.metrics for s in g.samples)]
    executed = _executions(run) if groups else {}
    places = dict.fromkeys((g.workload, g.placement) for g in groups)
    rows = []
    for workload, placement in places:
        of = [g for g in groups if (g.workload, g.placement) == (workload, placement)]
        counts = executed.get((workload, placement))
        rows.append(_row(run, workload, placement, of, counts))
    return tuple(rows)


def tables_of(rows: Sequence[CudaRow]) -> list[tuple[str, list[list[str]]]]:
    """The tables with their headings, as rows of text."""
    speed = [["workload", "native (opt. steps/s)", "wormhole / native", "native / native"]]
    speed[0] += ["wormhole / tcp-sync", "losses"]
    crossing = [["workload", *CROSSING, "launches, executions", "messages for each"]]
    beginning = [["workload", "native (ms)", "wormhole (ms)", "bytes out", "most", "bytes in"]]
    for row in rows:
        ratios = map(interval_text, (row.native, row.ratio, row.again, row.over_tcp))
        speed.append([_name(row), *ratios, row.losses])
        counts = [*row.crossing.values(), row.executions, row.per_execution]
        crossing.append([_name(row), *map(_number, counts)])
        native, ours = (row.beginning.get(name, {}) for name in (NATIVE, OURS))
        beginning.append([_name(row), *_waits(native, ours, "first_step")])
    for title, metric in (("import of PyTorch", "import"), ("until the device is there", "start")):
        waits = [
            _waits(r.beginning.get(NATIVE, {}), r.beginning.get(OURS, {}), metric) for r in rows
        ]
        beginning += [[title, *cells] for cells in waits[:1]]
    return [
        ("speed: ratios paired by round, brackets 95 %", speed),
        ("what crosses for an optimiser step under wormhole", crossing),
        ("the first optimiser step, and what comes before it", beginning),
    ]


def text(rows: Sequence[CudaRow]) -> str:
    """For the terminal."""
    lines = [TITLE, "=" * len(TITLE)]
    for heading, table in tables_of(rows):
        lines += [f"-- {heading}", *text_table(table)]
    return "\n".join(lines)


def markdown(rows: Sequence[CudaRow]) -> str:
    """As Markdown."""
    parts = [f"### {TITLE}\n"]
    for heading, table in tables_of(rows):
        parts.append(f"**{heading}**\n\n{markdown_table(table)}\n")
    return "\n".join(parts)


def json_text(rows: Sequence[CudaRow]) -> str:
    """Every number."""
    return json.dumps([asdict(row) for row in rows], indent=2) + "\n"


def _row(
    run: Run,
    workload: str,
    placement: str,
    groups: Sequence[Group],
    counts: tuple[float, float] | None,
) -> CudaRow:
    """Speeds beside native come from the part with most rounds of both."""
    names = [str(s["name"]) for s in run.experiment.get("systems", ()) if s.get("preset") == NATIVE]
    best = max(groups, key=lambda group: _rounds(group, NATIVE, OURS))
    usual = max(groups, key=lambda group: _rounds(group, OURS, USUAL))
    speeds = {name: _optimiser_speeds(best.of(name)) for name in best.systems}
    other = next((name for name in names if name != NATIVE and name in best.systems), "")
    native = speeds.get(NATIVE, {})
    ours = [sample for group in groups for sample in group.of(OURS)]
    inner = next((n for s in ours if (n := s.number("optimiser_steps"))), 1.0)
    instrumented = [s for s in run.instrumented_trials if s.workload == workload and s.counts]
    return CudaRow(
        workload=workload,
        placement=placement,
        native=rate_interval(list(native.values())) if native else None,
        ratio=paired_ratio(speeds.get(OURS, {}), native),
        again=paired_ratio(speeds.get(other, {}), native),
        over_tcp=paired_ratio(
            _optimiser_speeds(usual.of(OURS)), _optimiser_speeds(usual.of(USUAL))
        ),
        losses=_losses([s for group in groups for s in group.samples if s.system not in names]),
        crossing={
            name: None if (mean := _mean(best.of(OURS), metric)) is None else mean / inner
            for name, metric in CROSSING.items()
        },
        executions=None if counts is None else counts[1] / inner,
        per_execution=None if counts is None or not counts[1] else counts[0] / counts[1],
        beginning={
            name: _beginning(
                [s for group in groups for s in group.of(name) if s.counts],
                [s for s in instrumented if s.system == name],
            )
            for name in (NATIVE, OURS)
        },
    )


def _rounds(group: Group, first: str, second: str) -> int:
    return len({s.round for s in group.of(first)} & {s.round for s in group.of(second)})


def _optimiser_speeds(samples: Sequence[Sample]) -> dict[int, float]:
    """Round -> optimiser steps a second; none for a system with a wrong trial."""
    inner = {s.round: s.number("optimiser_steps") or 1.0 for s in samples}
    return {number: speed * inner[number] for number, speed in speeds_of(samples).items()}


def _losses(samples: Sequence[Sample]) -> str:
    """Whether the forwarded trials that were compared, warm-ups too, computed native's numbers."""
    compared = [s for s in samples if s.detail or s.status != "ok"]
    if status_of(compared) != "ok":
        return status_of(compared) if compared else MISSING
    equal = sum(sample.detail.endswith(EQUAL) for sample in compared)
    return f"equal in {equal} of {len(compared)}"


def _executions(run: Run) -> dict[tuple[str, str], tuple[float, float]]:
    """(workload, placement) -> messages, and launches and executions, for a step of wormhole's."""
    names = opcode_names()
    # What the specs let go one way once its shape has succeeded is what makes the device work.
    executing = {f.name for api in CUDA_NAMES for f in load_api(api).functions if f.mode == "shape"}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    if not run.instrumented_trials:
        return {}
    for trial, warmup_steps, events in measured(run.path, instrumented=True):
        steps = sum(e.get("source") == "program" and e.get("event") == "step" for e in events)
        between = steps - max(warmup_steps, 1)
        messages = sent_messages(events, warmup_steps, names)
        if trial["system"] == OURS and messages and between > 0:
            worked = sum(count for name, count in messages.items() if name in executing)
            place = str(trial["workload"]), str(trial["placement"])
            found.setdefault(place, []).append((sum(messages.values()) / between, worked / between))
    return {
        place: (sum(a for a, _ in of) / len(of), sum(b for _, b in of) / len(of))
        for place, of in found.items()
    }


def _beginning(samples: Sequence[Sample], others: Sequence[Sample]) -> dict[str, float | None]:
    """Milliseconds and bytes of how a program begins; `start` is import and context together.

    Medians; `most` is the largest number of bytes, `others` included: device code is kept, so the
    first trial of all sent it.
    """
    found: dict[str, float | None] = {}
    for name in ("import", "context", "first_step"):
        times = [ns for sample in samples if (ns := sample.number(f"{name}_ns")) is not None]
        # The median: a machine's first process reads all from the disk.
        found[f"{name}_ms"] = median(times) / NS_PER_MS if times else None
    known = [found[f"{name}_ms"] for name in ("import", "context")]
    found["start_ms"] = None if None in known else sum(ms for ms in known if ms is not None)
    for name in ("start", "first_step"):
        for way, metric in (("out", "bytes_sent"), ("in", "bytes_received")):
            sent, of_others = (
                [n for s in of if (n := s.number(f"{name}_{metric}")) is not None]
                for of in (samples, others)
            )
            found[f"{name}_{way}"] = median(sent) if sent else None
            found[f"{name}_{way}_most"] = max([*sent, *of_others], default=None)
    return found


def _waits(
    native: Mapping[str, float | None], ours: Mapping[str, float | None], what: str
) -> list[str]:
    times = [_number(of.get(f"{what}_ms")) for of in (native, ours)]
    return [*times, *(_bytes(ours.get(f"{what}_{way}")) for way in ("out", "out_most", "in"))]


def _mean(samples: Sequence[Sample], metric: str) -> float | None:
    values = [n for s in samples if s.counts and (n := s.number(metric)) is not None]
    return sum(values) / len(values) if values else None


def _name(row: CudaRow) -> str:
    return row.workload if row.placement == "process" else f"{row.workload}, {row.placement}"


def _number(value: float | None) -> str:
    return MISSING if value is None else significant(value)


def _bytes(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}"
