"""Figures of a run as PNG and SVG: speed-up over the baseline, and the processor time it costs.

Bars differ in hatch as well as in colour, and the colours differ in lightness (the colour-blind
palette of seaborn), so that the figures survive grey printing.  Each figure says what it shows,
with units, and its caption gives the number of trials, the machine and the commit.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import seaborn
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from testbed.analysis.samples import Run
from testbed.analysis.tables import PROCESSOR, Comparison, Row

HATCHES = ("", "//", "\\\\", "xx", "..", "++", "oo", "--", "**", "||")
RESOLUTION_DPI = 160
PANEL_INCHES = (4.6, 3.6)
CAPTION_COLUMNS = 82  # per panel side by side
FORMATS = ("png", "svg")

Look = tuple[Any, str]


def draw(run: Run, comparisons: Sequence[Comparison], out: Path) -> list[Path]:
    """Write all figures of a run into `out`; returns the files.  A group without data has none."""
    out.mkdir(parents=True, exist_ok=True)
    # Names written into an SVG must not depend on the time or on chance.
    matplotlib.rcParams["svg.hashsalt"] = "wormhole-testbed"
    seaborn.set_theme(style="whitegrid", context="paper")
    files: list[Path] = []
    with_ratio = [c for c in comparisons if any(row.ratio for row in c.rows)]
    if with_ratio:
        files += _save(_speedup_figure(run, with_ratio), out / "speedup")
    with_times = [c for c in comparisons if any(_processor_parts(row) for row in c.rows)]
    if with_times:
        files += _save(_processor_figure(run, with_times), out / "processor_time")
    return files


def caption(run: Run, comparisons: Sequence[Comparison], what: str) -> str:
    """n, what the bars are, machine and commit, from the manifest."""
    rows = [row for comparison in comparisons for row in comparison.rows]
    counts = sorted({row.ok for row in rows if row.speed is not None})
    trials = (
        f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "0"
    )
    host = _mapping(run.manifest, "host")
    commit = _mapping(run.manifest, "commit")
    accelerator = _mapping(run.manifest, "accelerator")
    device = _mapping(run.manifest, "opencl")
    words = [
        f"n = {trials} trials a system; {what}.",
        f"Host: {host.get('cpu_model', 'unknown processor')}, {host.get('cores', '?')} cores;"
        f" guests: {str(accelerator.get('kind', 'none')).upper()};"
        f" device: {device.get('device', 'unknown')}.",
        f"Experiment {run.experiment.get('name', '?')}, commit {commit.get('short', '?')}"
        + (" with local changes" if commit.get("dirty") else "")
        + f", {run.manifest.get('started_utc', '')}.",
    ]
    width = CAPTION_COLUMNS * min(max(len(comparisons), 1), 2)
    return "\n".join(textwrap.fill(line, width) for line in words)


def _speedup_figure(run: Run, comparisons: Sequence[Comparison]) -> Figure:
    figure, panels = _panels(len(comparisons))
    names = dict.fromkeys(row.system for comparison in comparisons for row in comparison.rows)
    looks = {
        name: (colour, HATCHES[index % len(HATCHES)])
        for index, (name, colour) in enumerate(zip(names, _colours(len(names)), strict=True))
    }
    for axes, comparison in zip(panels, comparisons, strict=True):
        _speedup_bars(axes, comparison, looks)
    _finish(
        figure,
        f"Training speed relative to {run.baseline}",
        caption(
            run,
            comparisons,
            "bars: geometric mean of the ratios of each round; whiskers: 95 % bootstrap interval "
            "(none with fewer than 3 rounds)",
        ),
    )
    return figure


def _speedup_bars(axes: Axes, comparison: Comparison, looks: Mapping[str, Look]) -> None:
    """One bar a system; `looks` gives a system the same look in every panel."""
    for index, row in enumerate(comparison.rows):
        colour, hatch = looks[row.system]
        if row.ratio is None:
            axes.annotate(row.status, (index, 0), rotation=90, ha="center", va="bottom", fontsize=8)
            continue
        ratio = row.ratio
        error = None
        if ratio.low is not None and ratio.high is not None:
            error = [
                [max(0.0, ratio.estimate - ratio.low)],
                [max(0.0, ratio.high - ratio.estimate)],
            ]
        axes.bar(
            index,
            ratio.estimate,
            yerr=error,
            capsize=4,
            color=colour,
            edgecolor="black",
            hatch=hatch,
        )
        top = ratio.high if ratio.high is not None else ratio.estimate
        axes.annotate(
            f"{ratio.estimate:.2f}",
            (index, top),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
        )
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"steps/s over steps/s of {comparison.baseline} (ratio)")
    _name_systems(axes, comparison)


def _processor_figure(run: Run, comparisons: Sequence[Comparison]) -> Figure:
    figure, panels = _panels(len(comparisons))
    names = [
        name
        for name in PROCESSOR
        if any(
            name in _processor_parts(row) for comparison in comparisons for row in comparison.rows
        )
    ]
    looks = {
        name: (colour, HATCHES[index])
        for index, (name, colour) in enumerate(zip(names, _colours(len(names)), strict=True))
    }
    for axes, comparison in zip(panels, comparisons, strict=True):
        _processor_bars(axes, comparison, looks)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="black", label=name)
        for name, (colour, hatch) in looks.items()
    ]
    figure.legend(handles=handles, title="process", loc="outside right upper")
    what = (
        "bars: mean user + system time of each process, from its start to its end;"
        " in a guest the client's is part of the VM's"
    )
    _finish(figure, "Processor time of a whole trial", caption(run, comparisons, what))
    return figure


def _processor_bars(axes: Axes, comparison: Comparison, looks: Mapping[str, Look]) -> None:
    """One bar a system, stacked from its processes."""
    for index, row in enumerate(comparison.rows):
        bottom = 0.0
        for name, seconds in _processor_parts(row).items():
            colour, hatch = looks[name]
            axes.bar(index, seconds, bottom=bottom, color=colour, edgecolor="black", hatch=hatch)
            bottom += seconds
    axes.set_ylabel("user + system time (s)")
    _name_systems(axes, comparison)


def _processor_parts(row: Row) -> dict[str, float]:
    """Host seconds by process.  A client in a guest runs inside the VM: its time is there."""
    found = {}
    for name, pair in PROCESSOR.items():
        values = [row.means.get(key) for key in pair]
        if any(value is not None for value in values):
            found[name] = sum(value for value in values if value is not None)
    if "VM" in found:
        found.pop("client", None)
    return found


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, 2)
    lines = -(-count // columns)
    figure, grid = pyplot.subplots(
        lines,
        columns,
        squeeze=False,
        figsize=(PANEL_INCHES[0] * max(columns, 1.4), PANEL_INCHES[1] * lines + 1.0),
        layout="constrained",
    )
    panels = list(grid.flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _name_systems(axes: Axes, comparison: Comparison) -> None:
    names = [row.system for row in comparison.rows]
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right")
    axes.set_xlabel("system")
    axes.set_title(comparison.group.title, fontsize=9)
    axes.grid(axis="x", visible=False)


def _finish(figure: Figure, title: str, text: str) -> None:
    figure.suptitle(title)
    figure.supxlabel(text, fontsize=7, x=0.01, ha="left")


def _colours(count: int) -> list[Any]:
    return list(seaborn.color_palette("colorblind", max(count, 1)))[:count]


def _save(figure: Figure, base: Path) -> list[Path]:
    files = []
    for kind in FORMATS:
        path = base.with_suffix(f".{kind}")
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(path, dpi=RESOLUTION_DPI, metadata=metadata)
        files.append(path)
    pyplot.close(figure)
    return files


def _mapping(manifest: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = manifest.get(key)
    return value if isinstance(value, Mapping) else {}
