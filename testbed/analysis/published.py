"""A run's own figures beside the published ones (`published.yaml`), as one table.

Every published figure has its row, also where the run has no counterpart.  A row shows what was
measured in each placement, on one workload in one form; where several parts of a run measured
the same, the part of the result's own experiment counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from testbed import yamlfile
from testbed.analysis.breakdown import (
    APART,
    Entry,
    by_part,
    divide,
    extra_seconds,
    measured,
    opcode_names,
    select,
)
from testbed.analysis.measure import EXITS
from testbed.analysis.samples import Run, Sample
from testbed.analysis.statistics import Interval, mean_interval, paired_ratio, rate_interval
from testbed.analysis.tables import MISSING, Comparison, interval_text, speeds_of

FILE = Path(__file__).with_name("published.yaml")
NOT_REPORTED = "not reported"
PLACEMENTS = ("process", "guest", "server-vm")

#: The systems that stand for the publication's (see README.md, "What is compared").
WORMHOLE, GVIRTUS, WITH_EXITS, WITHOUT_EXITS = (
    "wormhole",
    "tcp-sync",
    "wormhole-notify",
    "wormhole-sync",
)
TRAINING = "A1"
BEST = "speedup-best"

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Figure:
    """One published figure; `note` is a key of the publication's notes, or empty."""

    id: str
    what: str
    figure: str
    derived: str
    source: str
    ours: str
    note: str


@dataclass(frozen=True)
class Publication:
    """All of them, and how they were measured."""

    publication: str
    setting: str
    counterpart: str
    experiments: tuple[str, ...]
    notes: Mapping[str, str]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Ours:
    """What a run measured in one placement: `on` names the workload where the row does not."""

    value: Interval
    part: str
    on: str = ""

    @property
    def text(self) -> str:
        return interval_text(self.value) + (f" ({self.on})" if self.on else "")


@dataclass(frozen=True)
class Beside:
    """A published figure and ours by placement; `where` and `ours` are empty without any."""

    figure: Figure
    where: str
    ours: Mapping[str, Ours]
    systems: str
    command: str

    @property
    def published(self) -> str:
        return MISSING if self.figure.figure == NOT_REPORTED else self.figure.figure

    @property
    def source(self) -> str:
        derived = self.figure.derived
        return f"{self.figure.source}: {derived}" if derived else self.figure.source


@dataclass(frozen=True)
class Source:
    """What measures are taken from: parts of calls' time pooled, and in each instrumented trial.

    `speeds` are those of instrumented trials: part, place and system -> round -> steps/s.
    """

    entries: Sequence[Entry]
    rounds: Mapping[tuple[tuple[str, str, str], str], Mapping[int, Mapping[str, float]]]
    speeds: Mapping[tuple[str, tuple[str, str, str], str], Mapping[int, float]]


def load_published(path: Path = FILE) -> Publication:
    """Read the published figures.  Raises TestbedError naming file, line and key."""
    section = yamlfile.load(path)
    notes = section.text_map("notes")
    figures = []
    for item in section.sections("figures"):
        figures.append(
            Figure(
                id=item.text("id"),
                what=item.text("what"),
                figure=item.text("figure", NOT_REPORTED),
                derived=item.text("derived", ""),
                source=item.text("source"),
                ours=item.choice("ours", tuple(_MEASURES)),
                note=item.choice("note", tuple(notes), ""),
            )
        )
        item.finish()
    publication = Publication(
        publication=section.text("publication"),
        setting=section.text("setting"),
        counterpart=section.text("counterpart"),
        experiments=section.texts("experiments"),
        notes=notes,
        figures=tuple(figures),
    )
    section.finish()
    return publication


def beside(
    publication: Publication,
    run: Run,
    comparisons: Sequence[Comparison],
    entries: Sequence[Entry],
) -> tuple[Beside, ...]:
    """Every published figure, once for each workload and form that the run has of it."""
    source = Source(entries, _divided_rounds(run), _instrumented_speeds(run))
    tested = has_counterpart(publication, run)
    rows: list[Beside] = []
    for figure in publication.figures:
        fitting = [c for c in comparisons if _fits(publication, run, figure, c, tested)]
        found: dict[str, dict[str, Ours]] = {}
        for comparison in fitting:
            value = _MEASURES[figure.ours].of(source, comparison)
            if value is None:
                continue
            group = comparison.group
            best = figure.ours == BEST
            where = group.form if best else f"{group.workload}, {group.form}"
            ours = Ours(value, group.part, _on(figure, comparison))
            cells = found.setdefault(where, {})
            before = cells.get(group.placement)
            if before is None or _better(figure, ours, before):
                cells[group.placement] = ours
        systems = _MEASURES[figure.ours].systems
        for where, cells in found.items():
            parts = dict.fromkeys(ours.part for ours in cells.values())
            commands = dict.fromkeys(_command(publication, run, part) for part in parts)
            rows.append(Beside(figure, where, cells, systems, ", ".join(commands)))
        if not found and figure.figure != NOT_REPORTED:
            rows.append(Beside(figure, "", {}, systems, ""))
    return tuple(rows)


def _on(figure: Figure, comparison: Comparison) -> str:
    """What the row does not say: the best model, and a setting of the baseline's of its own."""
    if figure.ours not in (BEST, "speedup"):
        return ""
    words = [comparison.group.workload] if figure.ours == BEST else []
    if comparison.baseline in comparison.settings[1:]:
        words.append(f"over {comparison.baseline}")
    return ", ".join(words)


def _fits(
    publication: Publication, run: Run, figure: Figure, comparison: Comparison, tested: bool
) -> bool:
    """Whether what a group ran is what the figure was published for."""
    workload = comparison.group.workload
    facts = run.workload(workload)
    counterpart = facts.get("name", workload) == publication.counterpart
    if figure.id != TRAINING:
        return counterpart or not tested
    # The test of A2 to A5 trains no model.
    return facts.get("mode") != "inference" and not (counterpart and figure.ours == BEST)


def _better(figure: Figure, ours: Ours, before: Ours) -> bool:
    """Which of two measurements of the same stands in the table."""
    if figure.ours == BEST and ours.on != before.on:
        return ours.value.estimate > before.value.estimate
    own = [one.part.split("-")[0] == figure.id.lower() for one in (ours, before)]
    if own[0] != own[1]:
        return own[0]
    return ours.value.count > before.value.count


def _command(publication: Publication, run: Run, part: str) -> str:
    prefix = part.split("-")[0]
    names = [name for name in publication.experiments if name.split("-")[0] == prefix]
    return f"./inv run {names[0] if names else run.experiment.get('name', '?')}"


def has_counterpart(publication: Publication, run: Run) -> bool:
    """Whether the run has the test that A2 to A5 were published for."""
    names = (run.workload(group.workload).get("name", group.workload) for group in run.groups)
    return publication.counterpart in names


def _divided_rounds(
    run: Run,
) -> dict[tuple[tuple[str, str, str], str], dict[int, dict[str, float]]]:
    """(place, system) -> round -> seconds by part, of the instrumented trials that count."""
    names = opcode_names()
    found: dict[tuple[tuple[str, str, str], str], dict[int, dict[str, float]]] = {}
    if not any(sample.counts for sample in run.instrumented_trials):
        return found
    for trial, warmup_steps, events in measured(run.path, instrumented=True):
        parts: dict[str, float] = {}
        for (_, part), (_, ns) in divide(events, warmup_steps, names).items():
            parts[part] = parts.get(part, 0.0) + ns / NS_PER_S
        if parts:
            place = str(trial["workload"]), str(trial["form"]), str(trial["placement"])
            found.setdefault((place, str(trial["system"])), {})[int(trial["round"])] = parts
    return found


def _instrumented_speeds(
    run: Run,
) -> dict[tuple[str, tuple[str, str, str], str], dict[int, float]]:
    found: dict[tuple[str, tuple[str, str, str], str], dict[int, float]] = {}
    for sample in run.instrumented_trials:
        speed = sample.number("steps_per_s")
        if sample.counts and speed:
            place = sample.workload, sample.form, sample.placement
            found.setdefault((sample.part, place, sample.system), {})[sample.round] = speed
    return found


@dataclass(frozen=True)
class Measure:
    """How a figure is measured, and the systems it is measured on."""

    of: Callable[[Source, Comparison], Interval | None]
    systems: str


def _ratio(above: str, below: str, systems: str) -> Measure:
    """Speed over speed, paired by round; the baseline's in its fastest setting."""

    def measure(_: Source, comparison: Comparison) -> Interval | None:
        lower = comparison.baseline if below in comparison.settings else below
        over, under = (speeds_of(comparison.group.of(name)) for name in (above, lower))
        rows = {row.system for row in comparison.rows if row.speed is not None}
        return paired_ratio(over, under) if {above, lower} <= rows else None

    return Measure(measure, systems)


def _use(system: str, processes: Sequence[str], kind: str) -> Measure:
    """Processor use of the first of `processes` that the system's trials have."""

    def one(sample: Sample) -> float | None:
        total_s = sample.number("client_wall_s")
        for process in processes:
            user_s = sample.number(f"{process}_user_s")
            kernel_s = sample.number(f"{process}_system_s")
            if total_s and user_s is not None and kernel_s is not None:
                return {
                    "total": total_s,
                    "user": user_s,
                    "kernel": kernel_s,
                    "utilisation": 100 * (user_s + kernel_s) / total_s,
                }[kind]
        return None

    return Measure(lambda _, c: _mean_over_trials(c, system, one), system)


def _per_call(system: str, metrics: Sequence[str], calls: str) -> Measure:
    """The sum of counts that a trial has, by its API calls."""

    def one(sample: Sample) -> float | None:
        counts = [count for count in map(sample.number, metrics) if count is not None]
        total = sample.number(calls)
        return sum(counts) / total if counts and total else None

    return Measure(lambda _, c: _mean_over_trials(c, system, one), system)


def _mean_over_trials(
    comparison: Comparison, system: str, one: Callable[[Sample], float | None]
) -> Interval | None:
    samples = [s for s in comparison.group.of(system) if s.counts]
    values = [value for value in map(one, samples) if value is not None]
    return _mean(values) if values else None


def _mean(values: Sequence[float]) -> Interval:
    """The mean of what cannot be negative, so that its interval need not be either."""
    low, high = mean_interval(np.array(values))
    low = None if low is None else max(low, 0.0)
    return Interval(sum(values) / len(values), low, high, len(values))


def _share(system: str, parts: Sequence[str]) -> Measure:
    """Some parts of all forwarded time in percent: of all trials, with their interval."""

    def share(found: Mapping[str, float]) -> float | None:
        total_s = sum(seconds for part, seconds in found.items() if part not in APART)
        if total_s <= 0:
            return None
        wanted_s = sum(found.get(part, 0.0) for part in parts) if parts else extra_seconds(found)
        return 100 * wanted_s / total_s

    def measure(source: Source, comparison: Comparison) -> Interval | None:
        pooled = share(_parts(source, comparison, system))
        if pooled is None:
            return None
        rounds = source.rounds.get((_place(comparison), system), {}).values()
        shares = [value for value in map(share, rounds) if value is not None]
        if not shares:
            return Interval(pooled, None, None, 0)
        mean = _mean(shares)
        high = None if mean.high is None else min(mean.high, 100.0)
        return Interval(pooled, mean.low, high, mean.count)

    return Measure(measure, system)


def _extra_over(above: str, below: str) -> Measure:
    """Extra cost over extra cost: paired by round where the trials are there."""

    def measure(source: Source, comparison: Comparison) -> Interval | None:
        over, under = (extra_seconds(_parts(source, comparison, s)) for s in (above, below))
        if over <= 0 or under <= 0:
            return None
        place = _place(comparison)
        tops, bottoms = (
            {k: extra_seconds(parts) for k, parts in source.rounds.get((place, s), {}).items()}
            for s in (above, below)
        )
        both = [k for k in tops if tops[k] > 0 and bottoms.get(k, 0.0) > 0]
        if not both:
            return Interval(over / under, None, None, 0)
        return rate_interval([tops[k] / bottoms[k] for k in both])

    return Measure(measure, f"{above} over {below}")


def _instrumenting(system: str) -> Measure:
    """Time of a step with the parts measured, over the plain trial's of the same round."""

    def measure(source: Source, comparison: Comparison) -> Interval | None:
        group = comparison.group
        speeds = source.speeds.get((group.part, _place(comparison), system), {})
        return paired_ratio(speeds_of(group.of(system)), speeds)

    return Measure(measure, system)


_NOTIFICATIONS = ("notifications_to_host_per_step", "notifications_to_client_per_step")
_CALLS = "api_calls_per_step"

_MEASURES: Mapping[str, Measure] = {
    BEST: _ratio(WORMHOLE, GVIRTUS, f"{WORMHOLE} over {GVIRTUS}"),
    "speedup": _ratio(WORMHOLE, GVIRTUS, f"{WORMHOLE} over {GVIRTUS}"),
    # What the host spent on a side that runs in a guest is the VM's.
    **{
        f"use-{name}-{kind}": _use(system, processes, kind)
        for name, system, processes in (
            ("native", "native", ("client",)),
            ("tcp-backend", GVIRTUS, ("server-vm", "worker")),
            ("tcp-frontend", GVIRTUS, ("vm", "client")),
            ("wormhole-backend", WORMHOLE, ("server-vm", "worker")),
            ("wormhole-frontend", WORMHOLE, ("vm", "client")),
        )
        for kind in ("total", "user", "kernel", "utilisation")
    },
    "extra-wormhole": _share(WORMHOLE, ()),
    "extra-tcp": _share(GVIRTUS, ()),
    "copies-wormhole": _share(WORMHOLE, ("copy",)),
    "switch-wormhole": _share(WORMHOLE, ("publish", "reply")),
    "codec-wormhole": _share(WORMHOLE, ("encode", "take")),
    "instrumenting-wormhole": _instrumenting(WORMHOLE),
    "instrumenting-tcp": _instrumenting(GVIRTUS),
    "none": Measure(lambda _, __: None, MISSING),
    "extra-ratio": _extra_over(GVIRTUS, WORMHOLE),
    "notified-wormhole": _per_call(WORMHOLE, _NOTIFICATIONS, _CALLS),
    "notified-notify": _per_call(WITH_EXITS, _NOTIFICATIONS, _CALLS),
    "exits-wormhole": _per_call(WORMHOLE, (f"{EXITS}exits",), "trial_api_calls"),
    "exits-notify": _per_call(WITH_EXITS, (f"{EXITS}exits",), "trial_api_calls"),
    "exits-tcp": _per_call(GVIRTUS, (f"{EXITS}exits",), "trial_api_calls"),
    # Time over time is speed over speed, the other way round.
    "exits-total": _ratio(WITHOUT_EXITS, WITH_EXITS, f"{WITH_EXITS} over {WITHOUT_EXITS}"),
    "exits-communication": _extra_over(WITH_EXITS, WITHOUT_EXITS),
}


def _place(comparison: Comparison) -> tuple[str, str, str]:
    group = comparison.group
    return group.workload, group.form, group.placement


def _parts(source: Source, comparison: Comparison, system: str) -> dict[str, float]:
    return by_part(select(source.entries, _place(comparison), system))
