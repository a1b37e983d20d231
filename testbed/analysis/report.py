"""Rebuilds tables, figures and the report's page of a run from its raw record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.analysis import cuda_table, paper_table, tables
from testbed.analysis.breakdown import breakdown_text, collect, read_breakdown, write_breakdown
from testbed.analysis.charts import charts
from testbed.analysis.false_alarms import false_alarms
from testbed.analysis.false_alarms import records as alarm_records
from testbed.analysis.false_alarms import table as alarms_table
from testbed.analysis.findings import findings
from testbed.analysis.published import Beside, beside, has_counterpart, load_published
from testbed.analysis.samples import Run, load_run
from testbed.errors import TestbedError

if TYPE_CHECKING:
    from testbed.analysis.figures import Drawn

TABLES = "tables"
FIGURES = "figures"
PAGE = "report.html"


@dataclass(frozen=True)
class Report:
    """What was written: the text for the terminal and the files."""

    text: str
    run: Run
    comparisons: tuple[tables.Comparison, ...]
    published: tuple[Beside, ...]
    files: tuple[Path, ...]

    @property
    def paper(self) -> str:
        """The published figures beside ours, as text."""
        return paper_table.text(load_published(), self.published)

    @property
    def has_counterpart(self) -> bool:
        """Whether the run has the test that most of the figures were published for."""
        return has_counterpart(load_published(), self.run)

    def breakdown(self, placement: str) -> str:
        """What instrumented trials of a placement found, as text; empty if there were none."""
        entries, overheads = collect(self.run.path)
        return breakdown_text(
            [entry for entry in entries if entry.placement == placement], overheads
        )


def tabulate(path: Path) -> Report:
    """Write the tables beside the raw record, in every format.

    Raises TestbedError if the run cannot be read or the files cannot be written.
    """
    run = load_run(path)
    comparisons = tables.compare(run)
    text = tables.terminal(comparisons)
    rows = cuda_table.cuda_rows(run)
    if rows:
        text += f"\n\n{cuda_table.text(rows)}"
    alarms = false_alarms(run)
    if alarms:
        text += "\n\n" + "\n".join(tables.text_table(alarms_table(alarms)))
    files = []
    publication = load_published()
    with _write_errors(path):
        entries, _ = write_breakdown(path)
        published = beside(publication, run, comparisons, entries or read_breakdown(path))
        folder = path / TABLES
        folder.mkdir(exist_ok=True)
        for name, content in (
            ("table.txt", text + "\n"),
            ("table.md", tables.markdown(comparisons)),
            ("table.tex", tables.latex(comparisons)),
            ("table.csv", tables.csv_text(comparisons)),
            ("table.json", tables.json_text(comparisons)),
            ("published.txt", paper_table.text(publication, published) + "\n"),
            ("published.md", paper_table.markdown(publication, published) + "\n"),
            ("published.tex", paper_table.latex(publication, published)),
            ("published.csv", paper_table.csv_text(publication, published)),
            ("published.json", paper_table.json_text(publication, published)),
        ):
            (folder / name).write_text(content, encoding="utf-8")
            files.append(folder / name)
        if rows:
            for suffix, content in (
                ("txt", cuda_table.text(rows) + "\n"),
                ("md", cuda_table.markdown(rows)),
                ("json", cuda_table.json_text(rows)),
            ):
                (folder / f"cuda.{suffix}").write_text(content, encoding="utf-8")
                files.append(folder / f"cuda.{suffix}")
        if alarms:
            content = json.dumps(alarm_records(alarms), indent=2) + "\n"
            (folder / "false_alarms.json").write_text(content, encoding="utf-8")
            files.append(folder / "false_alarms.json")
    return Report(text, run, comparisons, published, tuple(files))


def plot(path: Path) -> Report:
    """Write tables and figures beside the raw record.  Raises as `tabulate` does."""
    done, _ = _draw(path)
    return done


def write_page(path: Path) -> Report:
    """Write tables, figures and the page that shows them all.  Raises as `tabulate` does."""
    from testbed.analysis.page import page

    done, drawn = _draw(path)
    table_files = [file for file in done.files if file.parent.name == TABLES]
    entries = read_breakdown(path)
    text = page(done.run, done.comparisons, done.published, entries, drawn, table_files)
    with _write_errors(path):
        (path / PAGE).write_text(text, encoding="utf-8")
    return replace(done, files=(*done.files, path / PAGE))


def run_report(path: Path, as_json: bool) -> None:
    """Write the page of a run and print its findings."""
    done = write_page(path)
    entries = read_breakdown(path)
    found = findings(done.run, done.comparisons, entries)
    if as_json:
        together = {
            "page": str(path / PAGE),
            "findings": [*found.main, *found.further],
            "published": paper_table.records(load_published(), done.published),
        }
        print(json.dumps(together, indent=2, ensure_ascii=False))
        return
    for sentence in found.main:
        print(f"* {sentence}")
    print(f"\n{done.paper}\n\nreport: {path / PAGE}")


def _draw(path: Path) -> tuple[Report, tuple[Drawn, ...]]:
    # Imported here: matplotlib takes a second, and most tasks draw nothing.
    from testbed.analysis.figures import draw

    done = tabulate(path)
    shown = charts(done.run, done.comparisons, read_breakdown(path))
    with _write_errors(path):
        drawn = draw(done.run, shown, path / FIGURES)
    figures = [file for figure in drawn for file in figure.files]
    return replace(done, files=(*done.files, *figures)), drawn


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TestbedError(
            f"cannot write tables, figures and report to {path}: {error.strerror or error}",
            "check free space and permissions there",
        ) from error
