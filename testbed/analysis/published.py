"""A run's own figures beside the published ones (`published.yaml`), where it has a counterpart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed import yamlfile
from testbed.analysis.breakdown import (
    APART,
    Entry,
    by_part,
    extra_seconds,
    extra_share,
    select,
)
from testbed.analysis.samples import Run
from testbed.analysis.statistics import paired_ratio
from testbed.analysis.tables import Comparison, Row, interval_text, speeds_of

FILE = Path(__file__).with_name("published.yaml")
NOT_REPORTED = "not reported"

#: The systems that stand for the publication's (see README.md, "What is compared").
WORMHOLE, GVIRTUS, WITH_EXITS, WITHOUT_EXITS = (
    "wormhole",
    "tcp-sync",
    "wormhole-notify",
    "wormhole-sync",
)


@dataclass(frozen=True)
class Figure:
    """One published figure."""

    id: str
    what: str
    figure: str
    derived: str
    source: str
    ours: str


@dataclass(frozen=True)
class Publication:
    """All of them, and how they were measured."""

    publication: str
    setting: str
    counterpart: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Beside:
    """A published figure and ours, in one place of the run."""

    id: str
    what: str
    published: str
    source: str
    where: str
    ours: str


def load_published(path: Path = FILE) -> Publication:
    """Read the published figures.  Raises TestbedError naming file, line and key."""
    section = yamlfile.load(path)
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
            )
        )
        item.finish()
    publication = Publication(
        publication=section.text("publication"),
        setting=section.text("setting"),
        counterpart=section.text("counterpart"),
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
    """Every published figure that the run has a counterpart of, once for each place that has it."""
    found = []
    tested = has_counterpart(publication, run)
    for figure in publication.figures:
        for comparison in comparisons:
            group = comparison.group
            facts = run.workload(group.workload)
            if figure.id == "A1":
                fits = facts.get("mode") != "inference"
            else:
                fits = not tested or facts.get("name", group.workload) == publication.counterpart
            if not fits:
                continue
            ours = _MEASURES[figure.ours](comparison, entries)
            if ours:
                source = f"{figure.source}; {figure.derived}" if figure.derived else figure.source
                found.append(
                    Beside(figure.id, figure.what, figure.figure, source, group.title, ours)
                )
    return tuple(found)


def has_counterpart(publication: Publication, run: Run) -> bool:
    """Whether the run has the test that A2 to A5 were published for."""
    names = (run.workload(group.workload).get("name", group.workload) for group in run.groups)
    return publication.counterpart in names


def missing(publication: Publication, found: Sequence[Beside]) -> tuple[str, ...]:
    """What was published and has no counterpart in the run."""
    present = {(item.id, item.what) for item in found}
    return tuple(
        f"{figure.id} ({figure.what})"
        for figure in publication.figures
        if (figure.id, figure.what) not in present and figure.figure != NOT_REPORTED
    )


Measure = Callable[[Comparison, Sequence[Entry]], str]


def _speedup(comparison: Comparison, _: Sequence[Entry]) -> str:
    return _ratio(comparison, WORMHOLE, GVIRTUS)


def _exits(comparison: Comparison, _: Sequence[Entry]) -> str:
    # Time over time is speed over speed, the other way round.
    return _ratio(comparison, WITHOUT_EXITS, WITH_EXITS)


def _ratio(comparison: Comparison, above: str, below: str) -> str:
    rows = [_row(comparison, name) for name in (above, below)]
    if any(row is None or row.speed is None for row in rows):
        return ""
    speeds = [speeds_of(comparison.group.of(name)) for name in (above, below)]
    ratio = paired_ratio(speeds[0], speeds[1])
    return f"{interval_text(ratio)} times" if ratio is not None else ""


def _use(system: str, processes: Sequence[str]) -> Measure:
    """Total, user, kernel and utilisation of the first of `processes` that the system has."""

    def measure(comparison: Comparison, _: Sequence[Entry]) -> str:
        row = _row(comparison, system)
        total_s = row.means.get("client_wall_s") if row is not None else None
        if row is None or not total_s:
            return ""
        for process in processes:
            user_s, kernel_s = (row.means.get(f"{process}_{kind}_s") for kind in ("user", "system"))
            if user_s is not None and kernel_s is not None:
                return (
                    f"total {total_s:.3f} s, user {user_s:.3f} s, kernel {kernel_s:.3f} s,"
                    f" utilisation {100 * (user_s + kernel_s) / total_s:.1f} %"
                )
        return ""

    return measure


def _extra(system: str) -> Measure:
    def measure(comparison: Comparison, entries: Sequence[Entry]) -> str:
        share = extra_share(_parts(comparison, entries, system))
        return "" if share is None else f"{100 * share:.1f} %"

    return measure


def _copies(comparison: Comparison, entries: Sequence[Entry]) -> str:
    parts = _parts(comparison, entries, WORMHOLE)
    total_s = sum(seconds for part, seconds in parts.items() if part not in APART)
    return f"{100 * parts['copy'] / total_s:.2f} %" if total_s > 0 and "copy" in parts else ""


def _extra_over(above: str, below: str) -> Measure:
    def measure(comparison: Comparison, entries: Sequence[Entry]) -> str:
        over, under = (extra_seconds(_parts(comparison, entries, s)) for s in (above, below))
        return f"{over / under:.1f} times" if over > 0 and under > 0 else ""

    return measure


def _notified(system: str) -> Measure:
    """Notifications both ways for each API call."""

    def measure(comparison: Comparison, _: Sequence[Entry]) -> str:
        row = _row(comparison, system)
        if row is None:
            return ""
        out, back, calls = (
            row.means.get(key)
            for key in (
                "notifications_to_host_per_step",
                "notifications_to_client_per_step",
                "api_calls_per_step",
            )
        )
        return f"{(out + (back or 0.0)) / calls:.3f}" if out is not None and calls else ""

    return measure


_MEASURES: Mapping[str, Measure] = {
    "speedup": _speedup,
    "use-native": _use("native", ("client",)),
    # What the host spent on a side that runs in a guest is the VM's.
    "use-tcp-backend": _use(GVIRTUS, ("server-vm", "worker")),
    "use-tcp-frontend": _use(GVIRTUS, ("vm", "client")),
    "use-wormhole-backend": _use(WORMHOLE, ("server-vm", "worker")),
    "use-wormhole-frontend": _use(WORMHOLE, ("vm", "client")),
    "extra-wormhole": _extra(WORMHOLE),
    "extra-tcp": _extra(GVIRTUS),
    "copies-wormhole": _copies,
    "extra-ratio": _extra_over(GVIRTUS, WORMHOLE),
    "notified-wormhole": _notified(WORMHOLE),
    "notified-notify": _notified(WITH_EXITS),
    "exits-total": _exits,
    "exits-communication": _extra_over(WITH_EXITS, WITHOUT_EXITS),
}


def _row(comparison: Comparison, system: str) -> Row | None:
    return next((row for row in comparison.rows if row.system == system), None)


def _parts(comparison: Comparison, entries: Sequence[Entry], system: str) -> dict[str, float]:
    group = comparison.group
    return by_part(select(entries, (group.workload, group.form, group.placement), system))
