"""Runs a plan: each trial once, in order, each recorded before the next begins.

The runner knows nothing of servers and guests: it hands each trial to an executor and records what
comes back.  A trial that fails is recorded and the run goes on; an interruption ends what is
running, records nothing of it, and the run can be resumed.

A run may have a time limit, for machines that are lent for a while.  Then it stops before a round
that would not end in time: pairs lie within rounds, and what is measured after a pause, perhaps on
another machine of the kind, is another round.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from testbed.analysis.rundir import LOGS, TRIALS, read_lines
from testbed.errors import TestbedError
from testbed.experiment.plan import ESTIMATE_BOOT_S, Kind, Trial, estimate_s
from testbed.experiment.record import RunDirectory, TrialResult, vm_log_name
from testbed.progress import format_duration

#: A run whose trials all fail is a broken set-up, not a measurement: stop after this many in a row.
FAILURES_IN_A_ROW_LIMIT = 6

#: Seconds that a trial takes beside its program: a server's start, a look at the machine's noise.
AROUND_A_TRIAL_S = 2.0

Event = Mapping[str, Any]


@dataclass(frozen=True)
class TrialFiles:
    """Where an executor puts what its programs print."""

    log_directory: Path


@dataclass(frozen=True)
class TrialOutcome:
    """What an executor gives back: the result and the raw events it came from."""

    result: TrialResult
    events: Sequence[Event]
    noise: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


class TrialExecutor(Protocol):
    """Runs trials.  `run` ends everything that the trial started before it returns or raises.

    Trials that share a guest (`trial.vm`) come one after another; `close` ends the last guest.
    TestbedError from `run` means that this trial failed.
    """

    def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Summary:
    """Counts of a run that ended; `left` are trials that its time limit left out."""

    ran: int
    skipped: int
    by_status: Mapping[str, int]
    left: int = 0


def run_trials(
    trials: Sequence[Trial],
    executor: TrialExecutor,
    run: RunDirectory,
    say: Callable[[str], None],
    deadline_s: float | None = None,
) -> Summary:
    """Run the trials that the run does not have yet; returns what happened.

    `deadline_s` (of time.monotonic) is when to have stopped: no round is begun that would last
    longer, at the pace of like trials, and no trial after it.

    Raises TestbedError when nothing can work any more (full disk, every trial failing).  Whatever
    is raised, the executor is closed first.
    """
    finished = run.finished_ids()
    waiting = [trial for trial in trials if trial.id not in finished]
    skipped = len(trials) - len(waiting)
    if skipped:
        say(f"{skipped} of {len(trials)} trials are in the record already")
    counts: dict[str, int] = {}
    in_a_row = 0
    estimate = _Estimate(waiting)
    walls = _Walls(read_lines(run.path / TRIALS))
    ran = 0
    try:
        for index, trial in enumerate(waiting):
            if deadline_s is not None and _too_late(waiting, index, walls, deadline_s):
                break
            run.require_space()
            begin_s = time.monotonic()
            outcome = _run_one(trial, executor, run)
            _record(trial, outcome, run)
            result = outcome.result
            counts[result.status] = counts.get(result.status, 0) + 1
            in_a_row = 0 if result.status == "ok" else in_a_row + 1
            ran += 1
            estimate.add(trial, time.monotonic() - begin_s)
            walls.add(trial.kind, time.monotonic() - begin_s)
            left_s = estimate.left_s(waiting[index + 1 :])
            say(_progress_line(skipped + index + 1, len(trials), trial, outcome, left_s))
            if in_a_row >= FAILURES_IN_A_ROW_LIMIT and counts.get("ok", 0) == 0:
                raise TestbedError(
                    f"the first {in_a_row} trials all failed, the last with: {result.detail}",
                    f"see {run.path / 'logs'}; mend the cause, then go on with --resume",
                )
    finally:
        executor.close()
    return Summary(ran=ran, skipped=skipped, by_status=counts, left=len(waiting) - ran)


class _Walls:
    """How long trials of each kind took; one not seen yet as the longest of its part, or of all."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._seen: dict[Kind, list[float]] = {}
        for record in records:
            kind = tuple(str(record[key]) for key in ("part", "placement", "workload", "system"))
            self.add(kind, float(record["wall_s"]) + AROUND_A_TRIAL_S)

    def add(self, kind: Kind, wall_s: float) -> None:
        """Note what a trial took, with everything around it."""
        self._seen.setdefault(kind, []).append(wall_s)

    def guess_s(self, trial: Trial) -> float:
        """Seconds that a trial will take; 0 where nothing has run."""
        alike = [w for k, w in self._seen.items() if k == trial.kind]
        alike = alike or [w for k, w in self._seen.items() if k[0] == trial.part]
        return max((max(walls) for walls in alike or self._seen.values()), default=0.0)


def _too_late(trials: Sequence[Trial], index: int, walls: _Walls, deadline_s: float) -> bool:
    """Whether the trial at `index`, or the round that it begins, would not end in time."""
    now_s = time.monotonic()
    ahead = [trials[index]]
    if index == 0 or _round_of(trials[index - 1]) != _round_of(trials[index]):
        ahead = [trial for trial in trials[index:] if _round_of(trial) == _round_of(trials[index])]
    return now_s >= deadline_s or now_s + sum(map(walls.guess_s, ahead)) > deadline_s


def _round_of(trial: Trial) -> tuple[str, str, int]:
    return trial.part, trial.placement, trial.round


def _run_one(trial: Trial, executor: TrialExecutor, run: RunDirectory) -> TrialOutcome:
    logs = run.log_directory(trial.id)
    begin_s = time.monotonic()
    try:
        return executor.run(trial, TrialFiles(logs))
    except TestbedError as error:
        wall_s = time.monotonic() - begin_s
        detail = str(error)
    except Exception as error:
        # A fault of ours in one trial must not lose the trials that follow; its trace is kept.
        wall_s = time.monotonic() - begin_s
        (logs / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
        detail = f"{type(error).__name__}: {error}"
    return TrialOutcome(TrialResult("failed", detail=detail, wall_s=wall_s), events=[])


def _record(trial: Trial, outcome: TrialOutcome, run: RunDirectory) -> None:
    result = outcome.result
    events = run.append_events(trial.id, outcome.events)
    run.append_trial(
        {
            "id": trial.id,
            "part": trial.part,
            "form": trial.form,
            "workload": trial.workload.label,
            "system": trial.system.name,
            "placement": trial.placement,
            "round": trial.round,
            "warmup": trial.warmup,
            "instrument": trial.instrument,
            "vm": trial.vm,
            "status": result.status,
            "detail": result.detail,
            "wall_s": round(result.wall_s, 3),
            "ended_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "metrics": dict(result.metrics),
            "noise": dict(outcome.noise),
            **dict(outcome.extra),
            "events": str(events.relative_to(run.path)),
            "logs": f"{LOGS}/{events.stem}",
            "vm_logs": f"{LOGS}/{vm_log_name(trial.vm)}" if trial.vm else "",
        }
    )


def _progress_line(
    number: int, total: int, trial: Trial, outcome: TrialOutcome, left_s: float
) -> str:
    result = outcome.result
    rate = result.metrics.get("steps_per_s")
    parts = [f"[{number}/{total}] {trial.id}: {result.status}"]
    if isinstance(rate, int | float):
        parts.append(f"{rate:.2f} steps/s")
    if result.status != "ok" and result.detail:
        parts.append(result.detail)
    if outcome.noise.get("noisy"):
        parts.append("noisy")
    if number < total:
        parts.append(f"about {format_duration(left_s)} left")
    return ", ".join(parts)


class _Estimate:
    """Time left: the mean of like trials seen so far, or the plan's guess scaled by the pace.

    The first trial of a guest, which boots it, is like other first trials only.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        vms: set[str] = set()
        self._first: set[str] = set()
        for trial in trials:
            if trial.vm and trial.vm not in vms:
                vms.add(trial.vm)
                self._first.add(trial.id)
        self._seen: dict[tuple[str, ...], list[float]] = {}
        self._planned_s = 0.0
        self._real_s = 0.0

    def add(self, trial: Trial, wall_s: float) -> None:
        """Note what a trial took, with everything around it."""
        self._seen.setdefault(self._kind(trial), []).append(wall_s)
        self._planned_s += self._guess_s(trial)
        self._real_s += wall_s

    def left_s(self, trials: Sequence[Trial]) -> float:
        """Seconds that the trials will take."""
        total_s = 0.0
        pace = self._real_s / self._planned_s if self._planned_s > 0 else 1.0
        for trial in trials:
            seen = self._seen.get(self._kind(trial))
            total_s += sum(seen) / len(seen) if seen else pace * self._guess_s(trial)
        return total_s

    def _guess_s(self, trial: Trial) -> float:
        boot_s = 0.0 if not trial.vm or trial.id in self._first else ESTIMATE_BOOT_S
        return estimate_s([trial]) - boot_s

    def _kind(self, trial: Trial) -> tuple[str, ...]:
        if trial.id in self._first:
            return trial.form, trial.placement
        return trial.form, trial.placement, trial.system.name
