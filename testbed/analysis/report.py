"""Rebuilds the tables and figures of a run from its raw record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.analysis import tables
from testbed.analysis.breakdown import read_breakdown
from testbed.analysis.charts import charts
from testbed.analysis.samples import Run, load_run
from testbed.errors import TestbedError

TABLES = "tables"
FIGURES = "figures"


@dataclass(frozen=True)
class Report:
    """What was written: the text for the terminal and the files."""

    text: str
    run: Run
    comparisons: tuple[tables.Comparison, ...]
    files: tuple[Path, ...]


def plot(path: Path, with_figures: bool = True) -> Report:
    """Write tables and figures beside the raw record, each in every format.

    Raises TestbedError if the run cannot be read or the files cannot be written.
    """
    run = load_run(path)
    comparisons = tables.compare(run)
    text = tables.terminal(comparisons)
    files: list[Path] = []
    try:
        folder = path / TABLES
        folder.mkdir(exist_ok=True)
        for name, content in (
            ("table.txt", text + "\n"),
            ("table.md", tables.markdown(comparisons)),
            ("table.tex", tables.latex(comparisons)),
            ("table.csv", tables.csv_text(comparisons)),
            ("table.json", tables.json_text(comparisons)),
        ):
            (folder / name).write_text(content, encoding="utf-8")
            files.append(folder / name)
        if with_figures:
            # Imported here: matplotlib takes a second, and most tasks draw nothing.
            from testbed.analysis.figures import draw

            figures = draw(run, charts(run, comparisons, read_breakdown(path)), path / FIGURES)
            files += [file for figure in figures for file in figure.files]
    except OSError as error:
        raise TestbedError(
            f"cannot write tables and figures to {path}: {error.strerror or error}",
            "check free space and permissions there",
        ) from error
    return Report(text, run, comparisons, tuple(files))
