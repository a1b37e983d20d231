"""The main job in one call: build what is needed, run the comparison, leave tables and figures.

A profile is an experiment of that name in `workloads/experiments/`.  The table of `process`
placement is printed as soon as it is there; the guest part follows.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.analysis.rundir import TRIALS, read_lines, read_manifest
from testbed.errors import TestbedError
from testbed.experiment.conduct import RESULTS, Conducted, Request, conduct
from testbed.experiment.conduct import dry_run as plan_text
from testbed.progress import format_duration, say

if TYPE_CHECKING:
    from testbed.analysis.report import Report

Print = Callable[[str], None]


def run_or_plan(
    experiment: str,
    dry_run: bool,
    resume: str,
    out: str,
    placement: str,
    changed_source: bool = False,
    limit_s: float = 0.0,
    report: bool = True,
) -> None:
    """Run an experiment (or go on with a stopped run) and print its tables, or print its plan.

    Empty words and no time stand for what was not asked for.  Raises TestbedError with one clear
    line, also if a trial was not ok; nothing is left running, and what was measured is kept.
    """
    request = Request(
        experiment,
        out=Path(out) if out else RESULTS,
        resume=Path(resume) if resume else None,
        placements=(placement,) if placement else None,
        changed_source=changed_source,
        limit_s=limit_s or None,
        report=report,
    )
    if dry_run:
        print(plan_text(request))
    else:
        require_success(run_experiment(request))


def run_experiment(request: Request, print_line: Print = print) -> Conducted:
    """Run one experiment (by name or path), printing its tables as they become known."""
    begin_s = time.monotonic()

    def tell(line: str) -> None:
        say(f"[{format_duration(time.monotonic() - begin_s)}] {line}")

    def show(placement: str, report: Report) -> None:
        from testbed.analysis.tables import terminal

        tell(f"{placement} placement is measured")
        shown = [c for c in report.comparisons if c.group.placement == placement]
        print_line(terminal(shown))
        if report.breakdown(placement):
            print_line(report.breakdown(placement))
        print_line("")

    done = conduct(request, tell, show)
    if done.report is not None and done.report.has_counterpart:
        print_line(f"{done.report.paper}\n")
    print_line(closing_words(done, time.monotonic() - begin_s))
    return done


def require_success(done: Conducted) -> None:
    """Raises TestbedError if a trial of the finished run, now or before, was not ok."""
    trials = read_lines(done.path / TRIALS)
    bad = [trial for trial in trials if trial["status"] != "ok"]
    if bad:
        first = bad[0]
        raise TestbedError(
            f"{len(bad)} of {len(trials)} trials were not ok, first {first['id']}: "
            f"{first['status']}, {' '.join(str(first['detail']).split())}",
            f"see {done.path / str(first['logs'])}; the tables show the others",
        )


def closing_words(done: Conducted, wall_s: float) -> str:
    """Where everything is, and what went wrong, if anything did."""
    counts = ", ".join(
        f"{count} {status}" for status, count in sorted(done.summary.by_status.items())
    )
    skipped = f", {done.summary.skipped} from before" if done.summary.skipped else ""
    lines = [
        f"{done.summary.ran} trials ({counts or 'none'}{skipped}) in {format_duration(wall_s)}"
    ]
    if done.summary.left:
        name = read_manifest(done.path).get("experiment", {}).get("name", "EXPERIMENT")
        lines.append(f"raw data and manifest: {done.path}")
        lines.append(
            f"{done.summary.left} trials are left, as the time limit said;"
            f" go on with: ./inv run {name} --resume {shlex.quote(str(done.path))}"
        )
    elif done.report is None:
        lines.append(f"raw data and manifest: {done.path}")
        lines.append("take this folder home; there: ./inv plot FOLDER; ./inv report FOLDER")
    else:
        from testbed.analysis.report import PAGE

        lines.append(f"report: {done.path / PAGE}")
        lines.append(f"tables, figures, raw data and manifest: {done.path}")
    return "\n".join(lines)
