"""Tables of a run: for the terminal, as Markdown, LaTeX, CSV and JSON.

A system of which a trial failed or gave other outputs than native is shown as such and has no
speed.  Form and placement stand in every title.  Noisy trials count, by the rule in the manifest;
where there are some, what would come out without them stands beside.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from testbed.analysis.causes import causes
from testbed.analysis.measure import EXITS
from testbed.analysis.samples import Group, Run, Sample
from testbed.analysis.statistics import (
    Interval,
    mean_interval,
    paired_ratio,
    rate_interval,
    verdict,
)

MISSING = "-"


@dataclass(frozen=True)
class Row:
    """One system of a group, evaluated."""

    system: str
    trials: int
    ok: int
    noisy: int
    status: str
    speed: Interval | None
    ratio: Interval | None
    ratio_to_native: Interval | None
    quiet_ratio: Interval | None
    verdict: str
    means: Mapping[str, float | None]
    facts: Mapping[str, str]
    own: Mapping[str, Interval]
    #: Heading of NOTIFICATIONS -> mean over trials of the quotient.
    notified: Mapping[str, float] = field(default_factory=dict)
    #: Reason -> VM exits for each API call, mean over trials; "exits" is all of them.
    exits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One rung of the ladder: what changing from one system to the next brings."""

    before: str
    after: str
    ratio: Interval | None
    verdict: str
    cause: str


@dataclass(frozen=True)
class Comparison:
    """A group with its rows.

    The baseline is the fastest of `settings`, which are those of the baseline that the group has.
    """

    group: Group
    baseline: str
    rows: tuple[Row, ...]
    ladder: tuple[Step, ...]
    other_ladders: tuple[tuple[Step, ...], ...] = ()
    settings: tuple[str, ...] = ()

    @property
    def orders(self) -> tuple[tuple[Step, ...], ...]:
        """All ladders that have a step, the first one first."""
        return tuple(steps for steps in (self.ladder, *self.other_ladders) if steps)


#: Metric -> heading, of the columns that show what was sent: out is client to host, in the reverse.
TRAFFIC = {
    "api_calls_per_step": "API calls",
    "messages_per_step": "messages",
    "round_trips_per_step": "round trips",
    "bytes_to_host_per_step": "bytes out",
    "bytes_to_client_per_step": "bytes in",
    "notifications_to_host_per_step": "notif. out",
    "notifications_to_client_per_step": "notif. in",
    "sleeps_per_step": "slept",
}

#: Heading -> metrics (user, system) of the columns that show processor seconds of a trial.
PROCESSOR = {
    "client": ("client_user_s", "client_system_s"),
    "worker": ("worker_user_s", "worker_system_s"),
    "supervisor": ("supervisor_user_s", "supervisor_system_s"),
    "VM": ("vm_user_s", "vm_system_s"),
    "VM: vCPUs": ("vcpus_user_s", "vcpus_system_s"),
    "VM: other threads": ("qemu_user_s", "qemu_system_s"),
    "server VM": ("server-vm_user_s", "server-vm_system_s"),
}

#: Metric -> heading, of the check of an instrumented run: totals of a trial, by who counted.
COUNTED = {
    "sent_notifications_to_host": "to host, stub",
    "device_notifications_to_host": "to host, device",
    "sent_wakes": "to client, worker",
    "device_wakes": "to client, device",
}

#: Heading -> metrics (count, what it is divided by) of the columns that show notifications.
NOTIFICATIONS = {
    "out, a call": ("notifications_to_host_per_step", "api_calls_per_step"),
    "in, a call": ("notifications_to_client_per_step", "api_calls_per_step"),
    "out, a message": ("notifications_to_host_per_step", "messages_per_step"),
    "in, a message": ("notifications_to_client_per_step", "messages_per_step"),
    "in, device, a call": ("trial_wakes", "trial_api_calls"),
    "out, device, a call": ("device_notifications_to_host", "trial_api_calls"),
}
EXIT_REASONS_SHOWN = 8  # in a table; the others are in the data

FACTS = {"spin_us": "spin (us)", "network": "network", "jail": "jail"}


def compare(run: Run) -> tuple[Comparison, ...]:
    """Evaluate every group of a run."""
    return tuple(
        compare_group(
            group,
            (run.baseline_of(group.part), *run.rivals_of(group.part)),
            run.ladders_of(group.part),
            run.minimum_effect,
            run.instrumented,
            run.manifest,
        )
        for group in run.groups
    )


def compare_group(
    group: Group,
    settings: Sequence[str],
    ladders: Sequence[Sequence[str]],
    minimum_effect: float,
    instrumented: bool = False,
    manifest: Mapping[str, Any] | None = None,
) -> Comparison:
    """Evaluate one group against the fastest setting of its baseline and along the ladders.

    An instrumented run has counts and no speeds: counting exactly costs time.  The manifest says
    what sets the systems of a step apart.
    """
    speeds = {
        system: {} if instrumented else speeds_of(group.of(system)) for system in group.systems
    }
    settings = tuple(name for name in settings if name in group.systems) or tuple(settings[:1])
    baseline = max(settings, key=lambda name: _typical(speeds.get(name, {})))
    rows = tuple(_row(group, system, speeds, baseline, minimum_effect) for system in group.systems)
    climbed = []
    for ladder in _ladders_within(group, ladders):
        steps = []
        for before, after in pairwise(ladder):
            ratio = paired_ratio(speeds[after], speeds[before])
            cause = causes(manifest or {}, before, after)
            steps.append(Step(before, after, ratio, verdict(ratio, minimum_effect), cause))
        climbed.append(tuple(steps))
    first, *others = climbed or [()]
    return Comparison(group, baseline, rows, first, tuple(others), settings)


def _typical(speeds: Mapping[int, float]) -> float:
    """The geometric mean of a system's speeds, as in ratios; 0 of none."""
    return statistics.geometric_mean(speeds.values()) if speeds else 0.0


def _ladders_within(group: Group, ladders: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The ladders without the systems that a group does not have, each once.

    One that has lost all but a step says no more than the ratio of two systems does.
    """
    found = []
    for ladder in ladders:
        names = tuple(name for name in ladder if name in group.systems)
        if len(names) >= min(len(ladder), 3):
            found.append(names)
    return tuple(dict.fromkeys(found))


def terminal(comparisons: Sequence[Comparison]) -> str:
    """All tables as aligned text."""
    return "\n\n".join(_aligned(comparison) for comparison in comparisons)


def markdown(comparisons: Sequence[Comparison]) -> str:
    """All tables as Markdown."""
    parts = []
    for comparison in comparisons:
        parts.append(f"### {comparison.group.title}\n")
        for heading, table in tables_of(comparison):
            parts.append(f"**{heading}**\n")
            parts.append(markdown_table(table) + "\n")
        parts += [f"{note}\n" for note in notes_of(comparison)]
    return "\n".join(parts)


def latex(comparisons: Sequence[Comparison]) -> str:
    """All tables as LaTeX for the package booktabs, a caption and label each."""
    parts = ["% needs \\usepackage{booktabs}"]
    for comparison in comparisons:
        group = comparison.group
        for index, (heading, table) in enumerate(tables_of(comparison), start=1):
            words = [group.part] if group.again else []
            words += [group.workload, group.form, group.placement, str(index)]
            label = f"tab:{'-'.join(words)}"
            parts.append(latex_table(table, f"{group.title}: {heading}", label))
    return "\n".join(parts)


def latex_table(table: Sequence[Sequence[str]], caption: str, label: str, left: int = 1) -> str:
    """One table, whose first `left` columns are words, the others figures."""
    # Imported here: it takes half a second, and most tasks write no table.
    import pandas

    columns = list(table[0])
    styler = pandas.DataFrame([list(row) for row in table[1:]], columns=columns).style.hide(
        axis="index"
    )
    styler = styler.format(escape="latex").format_index(escape="latex", axis="columns")
    text: str = styler.to_latex(
        hrules=True,
        column_format="l" * left + "r" * (len(columns) - left),
        caption=_latex_text(caption),
        label=label,
        position_float="centering",
    )
    return text


def csv_text(comparisons: Sequence[Comparison]) -> str:
    """One line a system and group, with every number, as CSV."""
    records = [record for comparison in comparisons for record in records_of(comparison)]
    fields = list(dict.fromkeys(key for record in records for key in record))
    sink = io.StringIO()
    writer = csv.DictWriter(sink, fieldnames=fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return sink.getvalue()


def json_text(comparisons: Sequence[Comparison]) -> str:
    """The same as `csv_text` as a JSON list, with the ladder of each group."""
    return json.dumps([json_object(comparison) for comparison in comparisons], indent=2) + "\n"


def json_object(comparison: Comparison) -> dict[str, Any]:
    """One group as plain data."""
    group = comparison.group
    return {
        "part": group.part,
        "form": group.form,
        "workload": group.workload,
        "placement": group.placement,
        "accelerator": group.accelerator,
        "baseline": comparison.baseline,
        "systems": records_of(comparison),
        "ladder": _steps_record(comparison.ladder),
        "other_ladders": [_steps_record(steps) for steps in comparison.other_ladders],
    }


def _steps_record(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [
        {
            "from": step.before,
            "to": step.after,
            "cause": step.cause,
            **_interval_record("ratio", step.ratio),
            "verdict": step.verdict,
        }
        for step in steps
    ]


def records_of(comparison: Comparison) -> list[dict[str, Any]]:
    """The rows of a group as flat records."""
    group = comparison.group
    return [
        {
            "workload": group.workload,
            "form": group.form,
            "placement": group.placement,
            "system": row.system,
            "status": row.status,
            "trials": row.trials,
            "ok": row.ok,
            "noisy": row.noisy,
            **_interval_record("steps_per_s", row.speed),
            **_interval_record(f"ratio_to_{comparison.baseline}", row.ratio),
            **_interval_record("ratio_to_native", row.ratio_to_native),
            "verdict": row.verdict,
            **{
                key: value
                for name in group.own_units
                for key, value in _interval_record(name, row.own.get(name)).items()
            },
            **row.means,
            **row.facts,
            **{f"notifications {name}": value for name, value in row.notified.items()},
            **{f"{EXITS}{reason}_per_call": value for reason, value in row.exits.items()},
        }
        for row in comparison.rows
    ]


def _row(
    group: Group,
    system: str,
    speeds: Mapping[str, Mapping[int, float]],
    baseline: str,
    minimum_effect: float,
) -> Row:
    samples = group.of(system)
    quiet = {name: _quiet(group.of(name), speeds.get(name, {})) for name in (system, baseline)}
    good = [sample for sample in samples if sample.counts]
    usable = speeds[system]
    ratio = paired_ratio(usable, speeds.get(baseline, {}))
    to_native = paired_ratio(usable, speeds.get("native", {}))
    keys = [
        *TRAFFIC,
        *COUNTED,
        "client_wall_s",
        *(key for pair in PROCESSOR.values() for key in pair),
    ]
    return Row(
        system=system,
        trials=len(samples),
        ok=len(good),
        noisy=sum(sample.noisy for sample in samples),
        status=status_of(samples),
        speed=rate_interval(list(usable.values())) if usable else None,
        ratio=ratio,
        ratio_to_native=to_native,
        quiet_ratio=paired_ratio(quiet[system], quiet[baseline]),
        verdict="baseline" if system == baseline else verdict(ratio, minimum_effect),
        means={key: _mean(good, key) for key in keys},
        facts={key: _fact(samples, key) for key in FACTS},
        own=_own_figures(group, good),
        notified={
            name: sum(found) / len(found)
            for name, keys in NOTIFICATIONS.items()
            if (found := _quotients(good, *keys))
        },
        exits={
            key.removeprefix(EXITS): sum(found) / len(found)
            for key in dict.fromkeys(k for s in good for k in s.metrics if k.startswith(EXITS))
            if (found := _quotients(good, key, "trial_api_calls"))
        },
    )


def status_of(samples: Sequence[Sample]) -> str:
    """ok, or the worst thing that happened to a system's trials."""
    for status in ("mismatch", "failed", "timeout"):
        count = sum(sample.status == status for sample in samples)
        if count:
            return f"{status} ({count} of {len(samples)})"
    return "ok" if samples else "not run"


def speeds_of(samples: Sequence[Sample]) -> dict[int, float]:
    """Round -> steps/s.  Empty for a system with any wrong or failed trial: it has no speed."""
    if status_of(samples) != "ok":
        return {}
    found = {}
    for sample in samples:
        speed = sample.number("steps_per_s")
        if speed is not None and speed > 0:
            found[sample.round] = speed
    return found


def _own_figures(group: Group, samples: Sequence[Sample]) -> dict[str, Interval]:
    """What the program measured itself: the mean over trials of each of its figures."""
    found = {}
    for name in group.own_units:
        values = [sample.own[name] for sample in samples if name in sample.own]
        if values:
            low, high = mean_interval(np.array(values))
            found[name] = Interval(sum(values) / len(values), low, high, len(values))
    return found


def _quiet(samples: Sequence[Sample], speeds: Mapping[int, float]) -> dict[int, float]:
    """The speeds of rounds in which the system's trial was not noisy."""
    noisy = {sample.round for sample in samples if sample.noisy}
    return {number: speed for number, speed in speeds.items() if number not in noisy}


def _mean(samples: Sequence[Sample], metric: str) -> float | None:
    values = [value for value in (sample.number(metric) for sample in samples) if value is not None]
    return sum(values) / len(values) if values else None


def _quotients(samples: Sequence[Sample], metric: str, divisor: str) -> list[float]:
    """Of each trial that has both."""
    pairs = [(sample.number(metric), sample.number(divisor)) for sample in samples]
    return [count / by for count, by in pairs if count is not None and by]


def _fact(samples: Sequence[Sample], key: str) -> str:
    """A fact that all trials share, or all its values."""
    values = dict.fromkeys(str(s.metrics[key]) for s in samples if s.metrics.get(key) is not None)
    return ", ".join(values) or MISSING


def tables_of(comparison: Comparison) -> list[tuple[str, list[list[str]]]]:
    """The three tables of a group and the ladder, as rows of text with headings first."""
    tables = [("speed", _speed_table(comparison))]
    if comparison.group.own_units:
        tables.append(("what the program measured itself", _own_table(comparison)))
    if any(row.means[key] is not None for row in comparison.rows for key in TRAFFIC):
        tables.append(
            ("per step; out: client to host, in: host to client", _traffic_table(comparison))
        )
    if any(row.means["device_wakes"] is not None for row in comparison.rows):
        tables.append(("notifications per trial, by who counted", _counted_table(comparison)))
    if any(row.notified for row in comparison.rows):
        tables.append(("notifications for each API call and message", _notified_table(comparison)))
    if any(row.exits for row in comparison.rows):
        tables.append(("VM exits for each API call, by reason (KVM)", _exits_table(comparison)))
    tables.append(("processor seconds per trial, user + system", _processor_table(comparison)))
    if any(row.means["client_wall_s"] for row in comparison.rows):
        tables.append(
            ("utilisation: processor time by the client's wall time", _use_table(comparison))
        )
    for number, steps in enumerate(comparison.orders, start=1):
        order = f", order {number}" if len(comparison.orders) > 1 else ""
        tables.append((f"where the gain comes from{order}", _ladder_table(steps)))
    if len(comparison.orders) > 1:
        tables.append(("the factor of each switch, by order", _switch_table(comparison)))
    return tables


def _speed_table(comparison: Comparison) -> list[list[str]]:
    baseline = comparison.baseline
    has_native = baseline != "native" and any(r.system == "native" for r in comparison.rows)
    has_noise = any(row.noisy for row in comparison.rows)
    table = [["system", "steps/s", f"ratio to {baseline}"]]
    table[0] += ["ratio to native"] if has_native else []
    table[0] += ["without noisy trials"] if has_noise else []
    table[0] += ["verdict", "ok/trials"]
    for row in comparison.rows:
        if row.speed is None:
            why = "not measured in this run" if row.status == "ok" else row.status
            cells = [row.system, f"none: {why}", MISSING]
        else:
            cells = [row.system, interval_text(row.speed), interval_text(row.ratio)]
        cells += [interval_text(row.ratio_to_native)] if has_native else []
        cells += [interval_text(row.quiet_ratio)] if has_noise else []
        cells.append(MISSING if row.speed is None else row.verdict)
        cells.append(f"{row.ok}/{row.trials}" + (f" ({row.noisy} noisy)" if row.noisy else ""))
        table.append(cells)
    return table


def _own_table(comparison: Comparison) -> list[list[str]]:
    units = comparison.group.own_units
    table = [["system", *(f"{name} ({unit})" if unit else name for name, unit in units.items())]]
    for row in comparison.rows:
        table.append([row.system, *(interval_text(row.own.get(name)) for name in units)])
    return table


def _traffic_table(comparison: Comparison) -> list[list[str]]:
    shown = [key for key in TRAFFIC if any(row.means[key] is not None for row in comparison.rows)]
    table = [["system", *(TRAFFIC[key] for key in shown)]]
    for row in comparison.rows:
        table.append([row.system, *(_count(row.means[key]) for key in shown)])
    return table


def _counted_table(comparison: Comparison) -> list[list[str]]:
    table = [["system", *COUNTED.values()]]
    for row in comparison.rows:
        table.append([row.system, *(_count(row.means[key]) for key in COUNTED)])
    return table


def _notified_table(comparison: Comparison) -> list[list[str]]:
    shown = [name for name in NOTIFICATIONS if any(name in row.notified for row in comparison.rows)]
    table = [["system", *shown]]
    for row in comparison.rows:
        if row.notified:
            cells = [row.notified.get(name) for name in shown]
            table.append([row.system, *(MISSING if c is None else f"{c:.4f}" for c in cells)])
    return table


def _exits_table(comparison: Comparison) -> list[list[str]]:
    """The reasons with most exits under any system first; "exits" counts all."""
    rows = [row for row in comparison.rows if row.exits]
    reasons = dict.fromkeys(reason for row in rows for reason in row.exits)
    most = {r: max(row.exits.get(r, 0.0) for row in rows) for r in reasons}
    shown = sorted((r for r in reasons if most[r] > 0), key=lambda r: (r != "exits", -most[r]))
    table = [["system", *shown[:EXIT_REASONS_SHOWN]]]
    for row in rows:
        table.append([row.system, *(f"{row.exits.get(r, 0.0):.4f}" for r in table[0][1:])])
    return table


def _processor_table(comparison: Comparison) -> list[list[str]]:
    shown = [
        name
        for name, pair in PROCESSOR.items()
        if any(row.means[pair[0]] is not None for row in comparison.rows)
    ]
    facts = [key for key in FACTS if key != "jail"]
    table = [["system", *shown, *(FACTS[key] for key in facts)]]
    for row in comparison.rows:
        cells = [row.system]
        for name in shown:
            user, system = (row.means[key] for key in PROCESSOR[name])
            cells.append(MISSING if user is None else f"{user:.2f} + {system or 0.0:.2f}")
        table.append([*cells, *(row.facts[key] for key in facts)])
    return table


def _use_table(comparison: Comparison) -> list[list[str]]:
    """The share of a processor that each process used while the client ran."""
    shown = {
        name: pair
        for name, pair in PROCESSOR.items()
        if name != "supervisor" and any(row.means[pair[0]] is not None for row in comparison.rows)
    }
    table = [["system", "wall (s)", *shown]]
    for row in comparison.rows:
        wall_s = row.means["client_wall_s"]
        cells = []
        for user, system in ((row.means[a], row.means[b]) for a, b in shown.values()):
            used_s = None if user is None else user + (system or 0.0)
            cells.append(f"{used_s / wall_s:.0%}" if used_s is not None and wall_s else MISSING)
        table.append([row.system, f"{wall_s:.2f}" if wall_s else MISSING, *cells])
    return table


def _ladder_table(steps: Sequence[Step]) -> list[list[str]]:
    table = [["from", "to", "switched", "ratio", "verdict"]]
    for step in steps:
        cells = [step.before, step.after, step.cause or MISSING]
        table.append([*cells, interval_text(step.ratio), step.verdict])
    return table


def _switch_table(comparison: Comparison) -> list[list[str]]:
    """What each change of switches brings in each order, and how far the orders are apart."""
    orders = comparison.orders
    changes = dict.fromkeys(_change(step) for steps in orders for step in steps)
    numbers = [f"order {number}" for number in range(1, len(orders) + 1)]
    table = [["switched", *numbers, "least to most"]]
    for change in changes:
        found = [
            next((step.ratio for step in steps if _change(step) == change), None)
            for steps in orders
        ]
        known = [ratio.estimate for ratio in found if ratio is not None]
        span = f"{significant(min(known))} to {significant(max(known))}" if known else MISSING
        table.append([change, *map(interval_text, found), span])
    return table


def _change(step: Step) -> str:
    return step.cause or f"{step.before} to {step.after}"


def _aligned(comparison: Comparison) -> str:
    lines = [comparison.group.title, "=" * len(comparison.group.title)]
    for heading, table in tables_of(comparison):
        lines += [f"-- {heading}", *text_table(table)]
    lines += notes_of(comparison)
    return "\n".join(lines)


def text_table(table: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned lines; the first `left` columns are words, the others figures."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def notes_of(comparison: Comparison) -> list[str]:
    """What is too long for a column."""
    notes = _jail_notes(comparison)
    if comparison.group.placement != "process":
        notes.append(
            "client: as the guest's kernel counts it, with the time in which the host ran others; "
            "what the host spent on the guest is VM"
        )
    if any(row.means["device_wakes"] is not None for row in comparison.rows):
        notes.append(
            "the device also counts what driver and supervisor send when a session opens and ends"
        )
    return notes


def _jail_notes(comparison: Comparison) -> list[str]:
    """The jails of the workers, one line for each that differs."""
    jails: dict[str, list[str]] = {}
    for row in comparison.rows:
        if row.facts["jail"] != MISSING:
            jails.setdefault(row.facts["jail"], []).append(row.system)
    if len(jails) == 1:
        return [f"jail of every worker: {jail}" for jail in jails]
    return [f"jail under {', '.join(names)}: {jail}" for jail, names in jails.items()]


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """One table as Markdown."""
    lines = ["| " + " | ".join(table[0]) + " |", "|" + " --- |" + " ---: |" * (len(table[0]) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in table[1:]]
    return "\n".join(lines)


def _latex_text(text: str) -> str:
    """Text with LaTeX's own characters escaped, as pandas escapes cells."""
    return "".join({c: f"\\{c}" for c in "&%$#_{}"}.get(c, c) for c in text)


def interval_text(value: Interval | None) -> str:
    if value is None:
        return MISSING
    text = significant(value.estimate)
    if value.low is None or value.high is None:
        return text
    return f"{text} [{significant(value.low)}, {significant(value.high)}]"


def _interval_record(name: str, value: Interval | None) -> dict[str, float | None]:
    return {
        name: None if value is None else value.estimate,
        f"{name}_low": None if value is None else value.low,
        f"{name}_high": None if value is None else value.high,
    }


def significant(value: float) -> str:
    """Three or four significant digits without an exponent, where it is not tiny."""
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    if size >= 100:
        return f"{value:.1f}"
    if size >= 10:
        return f"{value:.2f}"
    if size >= 0.1 or size == 0:
        return f"{value:.3f}"
    return f"{value:.3g}"


def _count(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.0f}" if value >= 1000 or value == int(value) else f"{value:.2f}"
