"""What the figures of a run show, as plain records.  Pure.

A chart has panels, and a panel has records; a figure is drawn from these alone (`figures.py`), and
they are kept beside it as CSV, so that what is seen can be taken up by anybody.  A chart exists
only where the run has its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.analysis.breakdown import (
    APART,
    PARTS,
    Entry,
    by_part,
    extra_share,
    part_name,
    select,
)
from testbed.analysis.samples import Run
from testbed.analysis.tables import PROCESSOR, Comparison, Row, Step

Record = Mapping[str, Any]

#: Points of a distribution that are kept: every percent.
QUANTILES = 101

FUNCTIONS_SHOWN = 8
OTHER_FUNCTIONS = "all others"
NO_FUNCTION = "no function"


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its title and the records that it is drawn from."""

    title: str
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Chart:
    """One figure: `kind` says how it is drawn, `what` explains its marks, `trials` counts."""

    kind: str
    title: str
    what: str
    panels: tuple[Panel, ...]
    trials: tuple[int, ...]

    @property
    def records(self) -> list[Record]:
        return [record for panel in self.panels for record in panel.records]


def charts(
    run: Run, comparisons: Sequence[Comparison], breakdown: Sequence[Entry]
) -> tuple[Chart, ...]:
    """Every chart that the run has data for, in the order in which a reader wants them."""
    makers: tuple[Callable[[], Chart | None], ...] = (
        lambda: _speedup(run, comparisons),
        lambda: _ladder(run, comparisons),
        lambda: _breakdown(run, comparisons, breakdown),
        lambda: _functions(run, breakdown),
        lambda: _notifications(comparisons),
        lambda: _exits(comparisons),
        lambda: _processor(comparisons),
        lambda: _latency(comparisons),
        lambda: _batches(run, comparisons),
    )
    return tuple(chart for chart in (make() for make in makers) if chart is not None)


def _speedup(run: Run, comparisons: Sequence[Comparison]) -> Chart | None:
    panels: dict[str, list[Record]] = {}
    # The experiment's order: groups come placement by placement.
    parts = [str(part.get("name")) for part in run.experiment.get("parts", ())]
    parts = list(dict.fromkeys((*parts, *(c.group.part for c in comparisons))))
    several = len({c.group.part for c in comparisons}) > 2
    shown = [c for c in comparisons if any(row.ratio for row in c.rows)]
    for comparison in sorted(shown, key=lambda c: parts.index(c.group.part)):
        group = comparison.group
        where = f"{group.part}: {_place(comparison)}" if several else _place(comparison)
        records = panels.setdefault(where, [])
        for row in comparison.rows:
            ratio = row.ratio
            records.append(
                {
                    **_cell(comparison, row.system),
                    "ratio": None if ratio is None else ratio.estimate,
                    "low": None if ratio is None else ratio.low,
                    "high": None if ratio is None else ratio.high,
                    "rounds": 0 if ratio is None else ratio.count,
                    "status": row.status,
                    "baseline": comparison.baseline,
                }
            )
    return _chart(
        "speedup",
        "Speed relative to each part's baseline",
        "bars: geometric mean of the ratios of each round; whiskers: 95 % interval"
        " (none with fewer than 3 rounds)",
        panels,
        shown,
    )


def _ladder(run: Run, comparisons: Sequence[Comparison]) -> Chart | None:
    panels: dict[str, list[Record]] = {}
    shown = []
    for comparison in comparisons:
        several = len(comparison.orders) > 1
        for number, steps in enumerate(comparison.orders, start=1):
            if len(steps) < 2 or any(step.ratio is None for step in steps):
                continue  # one step is the ratio of two systems, which stands elsewhere
            shown.append(comparison)
            title = comparison.group.title + (f", order {number}" if several else "")
            panels.setdefault(title, []).extend(_rungs(comparison, number, steps))
    return _chart(
        "ladder",
        "Where the gain comes from, one switch at a time",
        "each bar: the factor that one change brings, on top of those before it; the first system's"
        " speed = 1; brackets: 95 % interval",
        panels,
        shown,
    )


def _rungs(comparison: Comparison, order: int, steps: Sequence[Step]) -> Iterable[Record]:
    reached = 1.0
    for step in steps:
        assert step.ratio is not None
        before, reached = reached, reached * step.ratio.estimate
        yield {
            **_cell(comparison, step.after),
            "order": order,
            "from": step.before,
            "cause": step.cause,
            "factor": step.ratio.estimate,
            "low": step.ratio.low,
            "high": step.ratio.high,
            "speed_before": before,
            "speed_after": reached,
            "verdict": step.verdict,
        }


def _notifications(comparisons: Sequence[Comparison]) -> Chart | None:
    panels: dict[str, list[Record]] = {}
    shown = [c for c in comparisons if any(row.notified for row in c.rows)]
    for comparison in shown:
        for row in comparison.rows:
            for heading, way in (("out, a call", "to the worker"), ("in, a call", "to the client")):
                if heading in row.notified:
                    panels.setdefault(comparison.group.title, []).append(
                        {
                            **_cell(comparison, row.system),
                            "way": way,
                            "for_each_api_call": row.notified[heading],
                        }
                    )
    return _chart(
        "notifications",
        "Notifications for each API call",
        "bars: mean over trials, as the stub counts them between the marks of the measured steps",
        panels,
        shown,
    )


def _exits(comparisons: Sequence[Comparison]) -> Chart | None:
    panels: dict[str, list[Record]] = {}
    shown = [c for c in comparisons if any(row.exits for row in c.rows)]
    for comparison in shown:
        for row in comparison.rows:
            reasons = {r: n for r, n in row.exits.items() if r != "exits" and n > 0}
            rest = row.exits.get("exits", 0.0) - sum(reasons.values())
            if rest > 0:
                reasons["other reasons"] = rest
            panels.setdefault(comparison.group.title, []).extend(
                {**_cell(comparison, row.system), "reason": reason, "for_each_api_call": number}
                for reason, number in reasons.items()
            )
    return _chart(
        "exits",
        "VM exits for each API call, by reason",
        "bars: KVM's own counters of the guest's processors over a whole trial, by the API calls of"
        " that trial",
        panels,
        shown,
    )


def _breakdown(
    run: Run, comparisons: Sequence[Comparison], entries: Sequence[Entry]
) -> Chart | None:
    panels: dict[str, list[Record]] = {}
    systems = _divided(run, entries)
    for place, system in systems:
        parts = by_part(select(entries, place, system))
        workload, form, placement = place
        total_s = sum(seconds for part, seconds in parts.items() if part not in APART)
        for part, seconds in parts.items():
            panels.setdefault(f"{workload}, {form}, {placement} placement", []).append(
                {
                    "workload": workload,
                    "form": form,
                    "placement": placement,
                    "system": system,
                    "part": part_name(part),
                    "seconds": seconds,
                    "share": None if part in APART or total_s <= 0 else seconds / total_s,
                    "extra_share": extra_share(parts),
                }
            )
    places = {place for place, _ in systems}
    shown = [
        c for c in comparisons if (c.group.workload, c.group.form, c.group.placement) in places
    ]
    return _chart(
        "breakdown",
        "Where the time of forwarded calls goes",
        "bars: time of all forwarded calls of an instrumented run; above: extra cost as a share of"
        f" it, in which these are not counted: {', '.join(APART.values())}",
        panels,
        shown,
    )


def _divided(run: Run, entries: Sequence[Entry]) -> list[tuple[tuple[str, str, str], str]]:
    """The places and systems of a breakdown, each place's systems in the experiment's order."""
    order = [str(chosen["name"]) for chosen in run.experiment.get("systems", [])]
    found = list(dict.fromkeys((entry.place, entry.system) for entry in entries))
    places = list(dict.fromkeys(place for place, _ in found))

    def rank(key: tuple[tuple[str, str, str], str]) -> tuple[int, int]:
        place, system = key
        return places.index(place), order.index(system) if system in order else len(order)

    return sorted(found, key=rank)


def _functions(run: Run, entries: Sequence[Entry]) -> Chart | None:
    """The functions that the time goes to, those of least time put together."""
    panels: dict[str, list[Record]] = {}
    for place, system in _divided(run, entries):
        workload, form, placement = place
        found = [e for e in select(entries, place, system) if e.part not in APART]
        totals: dict[str, float] = {}
        for entry in found:
            totals[entry.function] = totals.get(entry.function, 0.0) + entry.seconds
        most = sorted(totals, key=lambda name: -totals[name])[:FUNCTIONS_SHOWN]
        sums: dict[tuple[str, str], float] = {}
        for entry in found:
            name = entry.function if entry.function in most else OTHER_FUNCTIONS
            sums[name, entry.part] = sums.get((name, entry.part), 0.0) + entry.seconds
        total_s = sum(totals.values())
        panels[f"{system}\n{workload}, {form}, {placement} placement"] = [
            {
                "workload": workload,
                "form": form,
                "placement": placement,
                "system": system,
                "function": NO_FUNCTION if name == "-" else name,
                "part": part_name(part),
                "seconds": sums[name, part],
                "share": sums[name, part] / total_s if total_s > 0 else None,
            }
            for name in [*most, OTHER_FUNCTIONS]
            for part in PARTS
            if (name, part) in sums
        ]
    return _chart(
        "functions",
        "Which API functions the time of forwarded calls goes to",
        "bars: seconds of all calls of a function in the instrumented trials, the"
        f" {FUNCTIONS_SHOWN} with most; not counted: {', '.join(APART.values())}",
        {title: records for title, records in panels.items() if records},
        (),
    )


def _processor(comparisons: Sequence[Comparison]) -> Chart | None:
    panels: dict[str, list[Record]] = {}
    shown = [c for c in comparisons if any(processor_parts(row) for row in c.rows)]
    for comparison in shown:
        for row in comparison.rows:
            for process, (user_s, kernel_s) in processor_parts(row).items():
                # The supervisor begins before the trial's program and ends after it.
                wall_s = None if process == "supervisor" else row.means.get("client_wall_s")
                panels.setdefault(comparison.group.title, []).append(
                    {
                        **_cell(comparison, row.system),
                        "process": process,
                        "user_s": user_s,
                        "kernel_s": kernel_s,
                        "total_s": wall_s,
                        "utilisation": (user_s + kernel_s) / wall_s if wall_s else None,
                    }
                )
    return _chart(
        "processor_time",
        "Processor time of a whole trial, by process",
        "bars: mean over trials from each process's start to its end, user time below, kernel time"
        " (lighter) above it; what runs in a guest is part of its VM's",
        panels,
        shown,
    )


def _latency(comparisons: Sequence[Comparison]) -> Chart | None:
    panels: dict[str, list[Record]] = {}
    shown = []
    for comparison in comparisons:
        records: list[Record] = []
        for row in comparison.rows:
            if row.speed is None:
                continue
            times_ms = [ms for s in comparison.group.of(row.system) for ms in s.step_ms]
            if len(times_ms) < 2:
                continue
            levels = np.linspace(0.0, 1.0, QUANTILES)
            records += [
                {
                    **_cell(comparison, row.system),
                    "share_of_steps": round(float(level), 2),
                    "ms": float(value),
                    "steps": len(times_ms),
                }
                for level, value in zip(levels, np.quantile(times_ms, levels), strict=True)
            ]
        if records:
            shown.append(comparison)
            panels.setdefault(comparison.group.title, []).extend(records)
    return _chart(
        "latency",
        "Distribution of the time of a step",
        "lines: share of all steps after warm-up, of all trials, that took at most so long",
        panels,
        shown,
    )


def _batches(run: Run, comparisons: Sequence[Comparison]) -> Chart | None:
    points: dict[str, dict[tuple[str, int], Record]] = {}
    shown: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        group = comparison.group
        facts = run.workload(group.workload)
        name, batch = facts.get("name"), facts.get("batch")
        if not isinstance(name, str) or not isinstance(batch, int) or batch < 1:
            continue
        title = f"{name}, {group.form}, {group.place} placement"
        for row in comparison.rows:
            if row.speed is None:
                continue
            low, high = row.speed.low, row.speed.high
            record = {
                **_cell(comparison, row.system),
                "batch": batch,
                "samples_per_s": batch * row.speed.estimate,
                "low": None if low is None else batch * low,
                "high": None if high is None else batch * high,
                "rounds": row.speed.count,
            }
            # Several parts may have measured the same: the first of those with most rounds counts.
            of_place = points.setdefault(title, {})
            before = of_place.get((row.system, batch))
            if before is None or record["rounds"] > before["rounds"]:
                of_place[row.system, batch] = record
        shown.setdefault(title, []).append(comparison)
    panels: dict[str, list[Record]] = {}
    for title, of_place in points.items():
        systems = [system for system, _ in of_place]
        swept = [record for (name, _), record in of_place.items() if systems.count(name) > 1]
        if swept:
            panels[title] = swept
    return _chart(
        "batch",
        "Throughput over batch size",
        "points: geometric mean over trials; whiskers: 95 % interval",
        panels,
        [comparison for title in panels for comparison in shown[title]],
    )


def processor_parts(row: Row) -> dict[str, tuple[float, float]]:
    """User and kernel seconds on the host by process.

    What runs inside a VM has its time there: a client in a guest, the server in a second one.
    """
    found = {}
    for name, (user, kernel) in PROCESSOR.items():
        values = row.means.get(user), row.means.get(kernel)
        if any(value is not None for value in values):
            found[name] = (values[0] or 0.0, values[1] or 0.0)
    inside = {"VM": ("client",), "server VM": ("worker", "supervisor")}
    for name in [name for machine in inside if machine in found for name in inside[machine]]:
        found.pop(name, None)
    if "VM: vCPUs" in found:
        del found["VM"]  # it is the sum of its parts
    return found


def _chart(
    kind: str,
    title: str,
    what: str,
    panels: Mapping[str, Sequence[Record]],
    shown: Iterable[Comparison],
) -> Chart | None:
    if not panels:
        return None
    counts = {row.ok for comparison in shown for row in comparison.rows if row.ok}
    return Chart(
        kind,
        title,
        what,
        tuple(Panel(name, tuple(records)) for name, records in panels.items()),
        tuple(sorted(counts)),
    )


def _cell(comparison: Comparison, system: str) -> dict[str, Any]:
    group = comparison.group
    return {
        "workload": group.workload,
        "form": group.form,
        "placement": group.placement,
        "system": system,
    }


def _place(comparison: Comparison) -> str:
    return f"{comparison.group.form}, {comparison.group.place} placement"
