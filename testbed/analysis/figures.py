"""Draws the charts of a run as figures for print: PNG, SVG, PDF, and their data as CSV.

A system has the same colour, hatch, line and marker in every figure of a run.  Colours are those of
seaborn's colour-blind palette; hatches, lines and markers tell them apart in grey.  Each figure
says what it shows, with units, and its caption gives the number of trials, the machine and the
commit.
"""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image  # matplotlib needs it itself

from testbed.analysis.charts import Chart, Panel, Record
from testbed.analysis.samples import Run

HATCHES = ("", "//", "\\\\", "xx", "..", "++", "oo", "--", "**", "||")
LINES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
MARKERS = "osD^vPX<>*"
RESOLUTION_DPI = 160
PNG_COLOURS = 128
PANEL_INCHES = (4.8, 3.4)
PANELS_LIMIT = 6  # of one figure; more are continued in another
PANELS_LIMITS = {"ladder": 4, "functions": 4}  # of these
LOG_RATIO = 30  # ratios further apart than this are drawn on a logarithmic axis
BAR_INCHES = 0.17
PANEL_BARS = 18  # more bars than these make a panel wider
CAPTION_COLUMNS = 84  # per panel side by side
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Look:
    """How one system, or one part, is drawn wherever it appears."""

    colour: Any
    hatch: str
    line: Any
    marker: str


@dataclass(frozen=True)
class Drawn:
    """A figure as written: its files, the last of which holds its data."""

    name: str
    title: str
    caption: str
    records: tuple[Record, ...]
    files: tuple[Path, ...]

    @property
    def svg(self) -> Path:
        return next(file for file in self.files if file.suffix == ".svg")


def draw(run: Run, charts: Sequence[Chart], out: Path) -> tuple[Drawn, ...]:
    """Write all figures of a run into `out`, and nothing else there."""
    out.mkdir(parents=True, exist_ok=True)
    # Names written into an SVG must not depend on the time or on chance.  Type 42 fonts are what
    # publishers take.
    matplotlib.rcParams.update({"svg.hashsalt": "wormhole-testbed", "pdf.fonttype": 42})
    seaborn.set_theme(style="whitegrid", context="paper")
    looks = system_looks(run)
    drawn = [one for chart in charts for one in _draw_chart(run, chart, looks, out)]
    # A figure of data that the run no longer has would be taken for its own.
    written = {file for one in drawn for file in one.files}
    for file in out.iterdir():
        if file not in written and file.suffix in {*(f".{kind}" for kind in FORMATS), ".csv"}:
            file.unlink()
    return tuple(drawn)


def system_looks(run: Run) -> dict[str, Look]:
    """A look for every system, the experiment's order first."""
    names = [str(s["name"]) for s in run.experiment.get("systems", [])]
    names += [name for group in run.groups for name in group.systems]
    return _looks(tuple(dict.fromkeys(names)))


def caption(run: Run, chart: Chart) -> str:
    """n, what the marks are, machine and commit, from the manifest."""
    counts = chart.trials
    trials = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0] if counts else 0}"
    host = _mapping(run.manifest, "host")
    commit = _mapping(run.manifest, "commit")
    accelerator = _mapping(run.manifest, "accelerator")
    device = _mapping(run.manifest, "opencl")
    words = [
        f"n = {trials} trials a system; {chart.what}." if counts else f"{chart.what}.",
        f"Host: {host.get('cpu_model', 'unknown processor')}, {host.get('cores', '?')} cores;"
        f" guests: {str(accelerator.get('kind', 'none')).upper()};"
        f" device: {device.get('device', 'unknown')}.",
        f"Experiment {run.experiment.get('name', '?')}, commit {commit.get('short', '?')}"
        + (" with local changes" if commit.get("dirty") else "")
        + f", {run.manifest.get('started_utc', '')}.",
    ]
    return "\n".join(words)


def _draw_chart(run: Run, chart: Chart, looks: Mapping[str, Look], out: Path) -> list[Drawn]:
    drawn = []
    if chart.kind in _KINDS:
        # What is continued in another figure looks there as it does here.
        looks = _looks(tuple(dict.fromkeys(_KINDS[chart.kind](r) for r in chart.records)))
    limit = PANELS_LIMITS.get(chart.kind, PANELS_LIMIT)
    for index in range(0, len(chart.panels), limit):
        panels = chart.panels[index : index + limit]
        number = index // limit + 1
        name = chart.kind if number == 1 else f"{chart.kind}-{number}"
        text = caption(run, chart)
        figure = _DRAWERS[chart.kind](panels, looks, run.baseline)
        title = _title(chart, panels)
        _finish(figure, title, text, len(panels))
        records = tuple(record for panel in panels for record in panel.records)
        files = (*_save(figure, out / name), _save_data(records, out / f"{name}.csv"))
        drawn.append(Drawn(name, title, text, records, files))
    return drawn


def _title(chart: Chart, panels: Sequence[Panel]) -> str:
    """What a figure shows; the baseline's name where all its panels have the same one."""
    found = {record.get("baseline") for panel in panels for record in panel.records}
    if chart.kind == "speedup" and len(found) == 1:
        return f"Speed relative to {found.pop()}"
    return chart.title


def _speedup(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    bars = max(len(panel.records) for panel in panels)
    figure, grid = _grid(len(panels), bars)
    several = any(len(_values(panel, "workload")) > 1 for panel in panels)
    for axes, panel in zip(grid, panels, strict=True):
        workloads, systems = _values(panel, "workload"), _values(panel, "system")
        where: dict[tuple[str, str], float] = {}
        for group, workload in enumerate(workloads):
            for index, system in enumerate(systems):
                # One workload: a bar at each tick.  Several: a group of bars at each tick.
                where[workload, system] = (
                    group + (index - (len(systems) - 1) / 2) * 0.84 / len(systems)
                    if several
                    else index
                )
        width = 0.84 / len(systems) if several else 0.8
        bottom = 1.0 if _far_apart(panel) else 0.0
        for record in panel.records:
            at = where[record["workload"], record["system"]]
            _ratio_bar(axes, at, width, bottom, record, looks[record["system"]], small=several)
        axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        _ratio_axis(axes, panel)
        axes.set_title(panel.title if several else f"{workloads[0]}, {panel.title}", fontsize=9)
        _name_ticks(axes, workloads if several else systems, "workload" if several else "system")
    if several:
        systems = list(dict.fromkeys(s for panel in panels for s in _values(panel, "system")))
        _legend(figure, {system: looks[system] for system in systems}, "system")
    return figure


def _ends(panel: Panel) -> list[float]:
    """Every ratio and end of an interval."""
    values = [record[key] for record in panel.records for key in ("ratio", "low", "high")]
    return [float(value) for value in values if value is not None]


def _far_apart(panel: Panel) -> bool:
    """Whether small ratios would vanish beside large ones on an axis that begins at nought."""
    ends = _ends(panel)
    return bool(ends) and max(ends) > LOG_RATIO * min(*ends, 1.0)


def _ratio_axis(axes: Axes, panel: Panel) -> None:
    """From nought; or logarithmic, with bars that begin at 1."""
    name = f"steps/s over steps/s of {panel.records[0]['baseline']}"
    if not _far_apart(panel):
        axes.margins(y=0.15)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"{name} (ratio)")
        return
    axes.set_yscale("log")
    ends = _ends(panel)
    low, high = min(*ends, 0.9), max(ends)
    axes.set_ylim(low / 1.1, high * (high / low) ** 0.12)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(f"{name} (ratio, log)")


def _ratio_bar(
    axes: Axes, at: float, width: float, bottom: float, record: Record, look: Look, small: bool
) -> None:
    size = 6 if small else 8
    if record["ratio"] is None:
        axes.annotate(
            record["status"], (at, bottom), rotation=90, ha="center", va="bottom", fontsize=size
        )
        return
    axes.bar(
        at,
        record["ratio"] - bottom,
        width,
        bottom=bottom,
        yerr=_error(record["ratio"], record),
        capsize=2 if small else 4,
        color=look.colour,
        edgecolor="black",
        linewidth=0.6 if small else 1.0,
        hatch=look.hatch,
    )
    _annotate(
        axes,
        f"{record['ratio']:.3g}" if small else f"{record['ratio']:.2f}",
        at,
        record["high"] if record["high"] is not None else record["ratio"],
        size,
        90 if small else 0,
    )


def _ladder(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    figure, grid = _grid(len(panels), 0)
    for axes, panel in zip(grid, panels, strict=True):
        names = [panel.records[0]["from"]]
        _waterfall_bar(axes, 0, 1.0, 1.0, Look("white", "", "", ""))
        size = 7 if len(panel.records) < 5 else 6
        for index, record in enumerate(panel.records, start=1):
            low, high = sorted((record["speed_before"], record["speed_after"]))
            _waterfall_bar(axes, index, low, high, looks[_switch(record)])
            axes.plot(
                [index - 1.4, index + 0.4],
                [record["speed_before"]] * 2,
                color="black",
                linewidth=0.7,
                linestyle=":",
            )
            text = f"×{record['factor']:.2f}"
            if record["low"] is not None:
                text += f"\n[{record['low']:.2f}, {record['high']:.2f}]"
            _annotate(axes, text, index, high, size)
            names.append(textwrap.fill(f"+ {_switch(record)}", 13))
        total = panel.records[-1]["speed_after"]
        _waterfall_bar(
            axes, len(names), min(1.0, total), max(1.0, total), Look("white", "", "", "")
        )
        _annotate(axes, f"×{total:.2f}", len(names), max(1.0, total), size)
        names.append(f"= {panel.records[-1]['system']}")
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_yscale("log")
        speeds = [s for r in panel.records for s in (r["speed_before"], r["speed_after"])]
        axes.set_ylim(min(speeds) / 1.25, max(speeds) * max(speeds) ** 0.12 * 1.35)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"speed relative to {panel.records[0]['from']} (log)")
        axes.set_title(panel.title, fontsize=9)
        axes.set_xticks(range(len(names)), names, fontsize=size)
        axes.grid(axis="x", visible=False)
    return figure


def _shown(panels: Sequence[Panel], looks: Mapping[str, Look], key: str) -> dict[str, Look]:
    """The looks that a figure needs, in their own order."""
    needed = {record[key] for panel in panels for record in panel.records}
    return {name: look for name, look in looks.items() if name in needed}


def _switch(record: Record) -> str:
    return str(record["cause"] or record["system"])


def _waterfall_bar(axes: Axes, at: float, low: float, high: float, look: Look) -> None:
    # A bar without height still shows where it stands.
    high = max(high, low * 1.004)
    axes.bar(
        at,
        high - low,
        0.8,
        bottom=low,
        color=look.colour,
        edgecolor="black",
        hatch=look.hatch,
    )


def _breakdown(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    figure, grid = _grid(len(panels), 0)
    for axes, panel in zip(grid, panels, strict=True):
        systems = _values(panel, "system")
        for index, system in enumerate(systems):
            records = [record for record in panel.records if record["system"] == system]
            bottom = 0.0
            for record in records:
                _stacked(axes, index, record["seconds"], bottom, looks[record["part"]])
                bottom += record["seconds"]
            share = records[0]["extra_share"]
            if share is not None:
                _annotate(axes, f"extra {100 * share:.0f} %", index, bottom, 8)
        _room_above(axes)
        axes.set_ylabel("time of all forwarded calls (s)")
        axes.set_title(panel.title, fontsize=9)
        _name_ticks(axes, systems, "system")
    _legend(figure, _shown(panels, looks, "part"), "part")
    return figure


def _functions(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    figure, grid = _grid(len(panels), 0)
    for axes, panel in zip(grid, panels, strict=True):
        names = _values(panel, "function")
        for index, name in enumerate(names):
            left = 0.0
            for record in (r for r in panel.records if r["function"] == name):
                look = looks[record["part"]]
                axes.barh(
                    index,
                    record["seconds"],
                    0.8,
                    left=left,
                    color=look.colour,
                    edgecolor="black",
                    linewidth=0.6,
                    hatch=look.hatch,
                )
                left += record["seconds"]
            share = sum(r["share"] or 0.0 for r in panel.records if r["function"] == name)
            axes.annotate(
                f"{100 * share:.0f} %",
                (left, index),
                xytext=(2, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.invert_yaxis()
        axes.margins(x=0.14)
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("time of all calls (s)")
        axes.set_title(panel.title, fontsize=9)
    _legend(figure, _shown(panels, looks, "part"), "part")
    return figure


def _notifications(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    figure, grid = _grid(len(panels), 0)
    width = 0.8 / len(looks)
    for axes, panel in zip(grid, panels, strict=True):
        systems = _values(panel, "system")
        for record in panel.records:
            index = list(looks).index(record["way"])
            at = systems.index(record["system"]) + (index - (len(looks) - 1) / 2) * width
            height = record["for_each_api_call"]
            _bar(axes, at, width, height, looks[record["way"]])
            _annotate(axes, f"{height:.3f}" if height else "0", at, height, 6, 90)
        axes.margins(y=0.2)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("notifications for each API call")
        axes.set_title(panel.title, fontsize=9)
        _name_ticks(axes, systems, "system")
    _legend(figure, _shown(panels, looks, "way"), "notified")
    return figure


def _exits(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    figure, grid = _grid(len(panels), 0)
    for axes, panel in zip(grid, panels, strict=True):
        systems = _values(panel, "system")
        for index, system in enumerate(systems):
            bottom = 0.0
            for record in (r for r in panel.records if r["system"] == system):
                look = looks[record["reason"]]
                _stacked(axes, index, record["for_each_api_call"], bottom, look)
                bottom += record["for_each_api_call"]
            _annotate(axes, f"{bottom:.3g}", index, bottom, 8)
        _room_above(axes)
        axes.set_ylabel("VM exits for each API call")
        axes.set_title(panel.title, fontsize=9)
        _name_ticks(axes, systems, "system")
    _legend(figure, _shown(panels, looks, "reason"), "reason of exit")
    return figure


def _processor(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    figure, grid = _grid(len(panels), 0)
    for axes, panel in zip(grid, panels, strict=True):
        systems = _values(panel, "system")
        for index, system in enumerate(systems):
            bottom = 0.0
            for record in (r for r in panel.records if r["system"] == system):
                look = looks[record["process"]]
                _stacked(axes, index, record["user_s"], bottom, look)
                bottom += record["user_s"]
                _stacked(axes, index, record["kernel_s"], bottom, look, alpha=0.45)
                bottom += record["kernel_s"]
        axes.set_ylabel("user + kernel time (s)")
        axes.set_title(panel.title, fontsize=9)
        _name_ticks(axes, systems, "system")
    _legend(figure, _shown(panels, looks, "process"), "process")
    return figure


def _latency(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    figure, grid = _grid(len(panels), 0)
    for axes, panel in zip(grid, panels, strict=True):
        for system in _values(panel, "system"):
            records = [record for record in panel.records if record["system"] == system]
            look = looks[system]
            axes.plot(
                [record["ms"] for record in records],
                [record["share_of_steps"] for record in records],
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                markevery=20,
                markersize=4,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("time of a step (ms, log)")
        axes.set_ylabel("share of steps")
        axes.set_title(panel.title, fontsize=9)
    _line_legend(figure, panels, looks)
    return figure


def _batch(panels: Sequence[Panel], looks: Mapping[str, Look], baseline: str) -> Figure:
    figure, grid = _grid(len(panels), 0)
    for axes, panel in zip(grid, panels, strict=True):
        systems = _values(panel, "system")
        for index, system in enumerate(systems):
            # A little beside each other, so that no whisker hides another.
            aside = 2.0 ** (0.06 * (index - (len(systems) - 1) / 2))
            records = sorted(
                (record for record in panel.records if record["system"] == system),
                key=lambda record: int(record["batch"]),
            )
            errors = [_error(r["samples_per_s"], r) or [[0.0], [0.0]] for r in records]
            look = looks[system]
            axes.errorbar(
                [record["batch"] * aside for record in records],
                [record["samples_per_s"] for record in records],
                yerr=[[error[side][0] for error in errors] for side in (0, 1)],
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                markersize=5,
                capsize=3,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks([int(size) for size in sorted(set(_numbers(panel, "batch")))])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batch size (samples, log)")
        axes.set_ylabel("samples/s")
        axes.set_title(panel.title, fontsize=9)
    _line_legend(figure, panels, looks)
    return figure


#: Kind of a chart whose marks are not systems -> what each record's mark stands for.
_KINDS: dict[str, Callable[[Record], str]] = {
    "ladder": _switch,
    "breakdown": lambda record: str(record["part"]),
    "functions": lambda record: str(record["part"]),
    "notifications": lambda record: str(record["way"]),
    "exits": lambda record: str(record["reason"]),
    "processor_time": lambda record: str(record["process"]),
}

_DRAWERS: dict[str, Callable[[Sequence[Panel], Mapping[str, Look], str], Figure]] = {
    "speedup": _speedup,
    "ladder": _ladder,
    "breakdown": _breakdown,
    "functions": _functions,
    "notifications": _notifications,
    "exits": _exits,
    "processor_time": _processor,
    "latency": _latency,
    "batch": _batch,
}


def _bar(axes: Axes, at: float, width: float, height: float, look: Look) -> None:
    axes.bar(
        at,
        height,
        width,
        color=look.colour,
        edgecolor="black",
        linewidth=0.6,
        hatch=look.hatch,
    )


def _stacked(
    axes: Axes, at: float, height: float, bottom: float, look: Look, alpha: float = 1.0
) -> None:
    axes.bar(
        at,
        height,
        0.8,
        bottom=bottom,
        color=(*look.colour[:3], alpha),
        edgecolor="black",
        linewidth=0.6,
        hatch=look.hatch,
    )


def _room_above(axes: Axes) -> None:
    """Room for words above stacked bars, which a part of no height on top would take away."""
    axes.use_sticky_edges = False
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)


def _annotate(axes: Axes, text: str, at: float, top: float, size: int, rotation: int = 0) -> None:
    axes.annotate(
        text,
        (at, top),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=size,
        rotation=rotation,
    )


def _error(estimate: float, record: Record) -> list[list[float]] | None:
    """Lengths of the whiskers below and above, or None without an interval."""
    low, high = record["low"], record["high"]
    if low is None or high is None:
        return None
    return [[max(0.0, estimate - low)], [max(0.0, high - estimate)]]


def _grid(count: int, bars: int) -> tuple[Figure, list[Axes]]:
    """Axes for `count` panels, wider where one has many bars."""
    wide = PANEL_INCHES[0] + max(0, bars - PANEL_BARS) * BAR_INCHES
    columns = 1 if wide > 1.6 * PANEL_INCHES[0] else min(count, 2)
    lines = -(-count // columns)
    figure, grid = pyplot.subplots(
        lines,
        columns,
        squeeze=False,
        figsize=(wide * max(columns, 1.4), PANEL_INCHES[1] * lines + 1.0),
        layout="constrained",
    )
    panels = list(grid.flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _name_ticks(axes: Axes, names: Sequence[str], label: str) -> None:
    many = len(names) > 8
    axes.set_xticks(range(len(names)), names, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", labelrotation=45 if many else 25, labelsize=7 if many else 8)
    axes.set_xlabel(label)
    axes.grid(axis="x", visible=False)


def _legend(figure: Figure, looks: Mapping[str, Look], title: str) -> None:
    handles = [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="black", label=name)
        for name, look in looks.items()
    ]
    figure.legend(handles=handles, title=title, loc="outside right upper", handleheight=1.6)


def _line_legend(figure: Figure, panels: Sequence[Panel], looks: Mapping[str, Look]) -> None:
    systems = dict.fromkeys(system for panel in panels for system in _values(panel, "system"))
    handles = [
        Line2D(
            [],
            [],
            color=looks[name].colour,
            linestyle=looks[name].line,
            marker=looks[name].marker,
            label=name,
        )
        for name in systems
    ]
    figure.legend(handles=handles, title="system", loc="outside right upper", handlelength=3.6)


def _finish(figure: Figure, title: str, text: str, panels: int) -> None:
    columns = max(int(CAPTION_COLUMNS * figure.get_figwidth() / PANEL_INCHES[0]), 1)
    figure.suptitle(title)
    lines = "\n".join(textwrap.fill(line, columns) for line in text.split("\n"))
    figure.supxlabel(lines, fontsize=7, x=0.01, ha="left")


def _looks(names: Sequence[str]) -> dict[str, Look]:
    colours = seaborn.color_palette("colorblind", max(len(names), 1))
    return {
        name: Look(
            colours[index],
            # Ten colours: beyond them the hatches go on out of step, so that no look comes twice.
            HATCHES[(index + index // len(HATCHES)) % len(HATCHES)],
            LINES[index % len(LINES)],
            MARKERS[index % len(MARKERS)],
        )
        for index, name in enumerate(names)
    }


def _values(panel: Panel, key: str) -> list[str]:
    return list(dict.fromkeys(str(record[key]) for record in panel.records))


def _numbers(panel: Panel, key: str) -> list[float]:
    return [float(record[key]) for record in panel.records]


def _save(figure: Figure, base: Path) -> list[Path]:
    files = []
    # The layout takes as long as the drawing, and is the same in every format.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    without_time = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    for kind in FORMATS:
        path = base.with_name(f"{base.name}.{kind}")
        figure.savefig(path, dpi=RESOLUTION_DPI, metadata=without_time.get(kind))
        if kind == "png":
            _reduce(path)
        files.append(path)
    pyplot.close(figure)
    return files


def _reduce(path: Path) -> None:
    """Keep as many colours of a PNG as such a figure needs: a third of the bytes."""
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(PNG_COLOURS, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True, dpi=(RESOLUTION_DPI, RESOLUTION_DPI))


def _save_data(records: Sequence[Record], path: Path) -> Path:
    with path.open("w", encoding="utf-8", newline="") as sink:
        writer = csv.DictWriter(sink, fieldnames=list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return path


def _mapping(manifest: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = manifest.get(key)
    return value if isinstance(value, Mapping) else {}
