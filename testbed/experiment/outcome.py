"""From what a trial left behind to its outcome: raw events, gate, metrics.  Pure.

Whoever ran the program, on the host or in a guest, hands over an `Attempt`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from testbed.analysis.measure import (
    Metric,
    legs_in,
    legs_of,
    measure,
    of_source,
    step_times,
    window,
)
from testbed.errors import TestbedError
from testbed.experiment.events import Trajectory, read_events, read_metrics, read_pattern
from testbed.experiment.gate import Verdict, check_legs, check_replay, check_trajectory
from testbed.experiment.plan import Trial
from testbed.experiment.record import TrialResult
from testbed.experiment.runner import TrialOutcome
from testbed.experiment.workload import Command, OwnMetric, Workload
from testbed.machine.guest import LIBRARY_PREFIX

Event = dict[str, Any]

DETAIL_LIMIT = 500


@dataclass(frozen=True)
class HostTime:
    """Processor seconds of one of the host's processes during the trial: `supervisor` or `vm`.

    `vcpus` are the threads of `vm` that run the guest's processors: a part, not counted again.
    """

    what: str
    user_s: float
    system_s: float


@dataclass(frozen=True)
class Attempt:
    """What running a trial's program left behind.

    `events` are the program's event lines, `lines` its output with the time (ns) of each line where
    that was asked for; `stub` the guest library's counter lines; `sessions` the host server's.
    """

    status: int
    timed_out: bool
    user_s: float
    system_s: float
    max_rss_kib: int
    wall_s: float
    where: str
    events: Sequence[Event]
    lines: Sequence[tuple[int, str]] = ()
    stub: Sequence[Event] = ()
    sessions: Sequence[Event] = ()
    host: Sequence[HostTime] = ()
    complaint: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Expectation:
    """What must come out: native's trajectory, or the number of calls of the recording."""

    workload: Workload
    reference: Trajectory | None = None
    replayed_calls: int | None = None

    @property
    def pattern(self) -> str | None:
        """How steps are found in the output of a program that prints no event lines."""
        task = self.workload.task
        return task.step_pattern if isinstance(task, Command) else None

    @property
    def own_metrics(self) -> tuple[OwnMetric, ...]:
        """The figures that are looked for in the program's output."""
        task = self.workload.task
        return task.metrics if isinstance(task, Command) else ()

    @property
    def reads_lines(self) -> bool:
        """Whether the program's lines are needed, besides its event lines."""
        return self.pattern is not None or bool(self.own_metrics)


def assemble(
    trial: Trial, expectation: Expectation, attempt: Attempt, noise: Mapping[str, Any]
) -> TrialOutcome:
    """Judge an attempt.  A program's malformed output is a failed trial, not an error."""
    events = _without_times(raw_events(trial, attempt), expectation.workload.warmup_steps)
    verdict: Verdict | None = None
    trajectory: Trajectory | None = None
    try:
        trajectory = _trajectory(trial, expectation, attempt)
        if trajectory is not None and trial.form == "application":
            events = _with_steps(events, trajectory, expectation)
        status, detail, verdict = _judge(trial, expectation, attempt, trajectory)
    except TestbedError as error:
        status, detail = "failed", str(error)
    warmup_steps = expectation.workload.warmup_steps
    legs = _legs(expectation, attempt, trajectory) if trial.form == "application" else {}
    metrics = _metrics(events, warmup_steps, bool(legs))
    own = expectation.own_metrics if trial.form == "application" else ()
    if status == "ok":
        try:
            metrics.update(read_metrics(attempt.lines, own))
        except TestbedError as error:
            status, detail = "failed", str(error)
    if status == "ok" and not any(key.endswith("steps_per_s") for key in metrics) and not own:
        status, detail = "failed", "it printed too few steps to have a speed"
    return TrialOutcome(
        TrialResult(status, detail[:DETAIL_LIMIT], attempt.wall_s, metrics),
        events,
        noise,
        {
            "warmup_steps": warmup_steps,
            "gate": verdict.to_json() if verdict is not None else None,
            **({"legs": legs} if legs else {}),
        },
    )


def _metrics(events: Sequence[Event], warmup_steps: int, has_legs: bool) -> dict[str, Metric]:
    """A trial's metrics; of one with legs those of the process, and the speed of each leg."""
    if not has_legs:
        return measure(events, warmup_steps)
    found = measure([e for e in events if _is_of_the_process(e)], 0)
    del found["steps"]
    for name, warmup, own in legs_of(events, "", warmup_steps):
        speed = measure(own, warmup).get("steps_per_s")
        found.update({f"{name}.steps_per_s": speed} if speed is not None else {})
    return found


def _is_of_the_process(event: Event) -> bool:
    """Whether an event tells of a whole process: neither a step nor a mark."""
    source = event.get("source")
    return source != "program" and (source != "stub" or event.get("event") == "exit")


def _legs(
    expectation: Expectation, attempt: Attempt, trajectory: Trajectory | None
) -> dict[str, dict[str, str]]:
    """Status and detail of each leg: one that ran to its end counts, whatever came after it."""
    observed = trajectory or Trajectory(())
    reference = expectation.reference or Trajectory((), legs=observed.legs)
    verdicts: Mapping[str, Verdict] = {}
    if expectation.reference is not None:
        verdicts = check_legs(reference, observed, expectation.workload.tolerance)
    ran = {leg.name for leg in observed.legs if len(observed.of_leg(leg).steps) == leg.steps}
    ended = "timeout" if attempt.timed_out else "failed"
    found = {}
    for name in (leg.name for leg in reference.legs):
        verdict = verdicts.get(name)
        if name not in ran:
            found[name] = {"status": ended, "detail": "it did not run to its end"}
        elif verdict is not None and not verdict.passed:
            found[name] = {"status": "mismatch", "detail": verdict.reason[:DETAIL_LIMIT]}
        else:
            found[name] = {"status": "ok", "detail": verdict.reason if verdict else ""}
    return found


def _without_times(events: list[Event], warmup_steps: int) -> list[Event]:
    """Events without the rows of an instrumented run between the two marks that count."""
    program = of_source(events, "program")
    legs = legs_in(program)
    ends = {number for leg in legs for number in leg.bounds}
    labels = {f"step {number}" for number in ends or window(step_times(program), warmup_steps)}
    return [e for e in events if e.get("event") != "times" or e.get("label") in labels]


def raw_events(trial: Trial, attempt: Attempt) -> list[Event]:
    """Everything that was heard, with its source."""
    runner = {"event": "trial", "id": trial.id, **attempt.facts}
    if trial.instrument:
        runner["instrument"] = trial.instrument
    client = {
        "event": "exit",
        "where": attempt.where,
        "status": attempt.status,
        "timed_out": attempt.timed_out,
        "user_s": attempt.user_s,
        "system_s": attempt.system_s,
        "max_rss_kib": attempt.max_rss_kib,
        "wall_s": attempt.wall_s,
    }
    return [
        {"source": "runner", **runner},
        *({"source": "program", **event} for event in attempt.events),
        *({"source": "stub", **event} for event in attempt.stub),
        {"source": "client", **client},
        *({"source": "worker", **session} for session in attempt.sessions),
        *(
            {
                "source": "part" if h.what == "vcpus" else "host",
                **{"what": h.what, "user_s": h.user_s, "system_s": h.system_s},
            }
            for h in attempt.host
        ),
    ]


def _judge(
    trial: Trial, expectation: Expectation, attempt: Attempt, trajectory: Trajectory | None
) -> tuple[str, str, Verdict | None]:
    """Status, detail and the gate's verdict."""
    if attempt.timed_out:
        return "timeout", f"ended at its limit after {attempt.wall_s:.0f} s", None
    if trial.form == "replay":
        result = next((e for e in attempt.events if e.get("event") == "result"), {})
        verdict = check_replay(result, expectation.replayed_calls)
        # A replay exits with 1 when outputs differ; without a result it did not get so far.
        if attempt.status != 0 and not result:
            return "failed", _ended(attempt), None
    else:
        if attempt.status != 0:
            return "failed", _ended(attempt), None
        if expectation.reference is None or trajectory is None:
            return "ok", "", None
        verdict = _check(expectation.workload, expectation.reference, trajectory)
    if not verdict.passed:
        # What our library says, a lost session for instance, is the cause of what differs.
        cause = f"{attempt.complaint}; " if attempt.complaint.startswith(LIBRARY_PREFIX) else ""
        return "mismatch", f"{cause}{verdict.reason}", verdict
    if attempt.status != 0:
        return "failed", _ended(attempt), verdict
    return "ok", "", verdict


def _check(workload: Workload, reference: Trajectory, observed: Trajectory) -> Verdict:
    """The verdict over a whole program; over its legs the first that did not pass."""
    if not reference.legs:
        return check_trajectory(reference, observed, workload.tolerance, workload.steps)
    verdicts = check_legs(reference, observed, workload.tolerance)
    compared = sum(verdict.compared for verdict in verdicts.values())
    for name, verdict in verdicts.items():
        if not verdict.passed:
            return Verdict(False, compared, f"{name}: {verdict.reason}")
    return Verdict(True, compared, f"{compared} losses of {len(verdicts)} legs equal")


def _trajectory(trial: Trial, expectation: Expectation, attempt: Attempt) -> Trajectory | None:
    if trial.form == "replay":
        return None
    if expectation.pattern is not None:
        return read_pattern(attempt.lines, expectation.pattern)
    return read_events([json.dumps(event) for event in attempt.events])


def _with_steps(
    events: list[Event], trajectory: Trajectory, expectation: Expectation
) -> list[Event]:
    """Add the steps that a pattern found, as if the program had printed them."""
    if expectation.pattern is None:
        return events
    steps = [
        {
            "source": "program",
            "event": "step",
            "step": step.index,
            "t_ns": step.t_ns,
            "loss": step.loss,
        }
        for step in trajectory.steps
    ]
    return [*events, *steps]


def _ended(attempt: Attempt) -> str:
    how = f"signal {-attempt.status}" if attempt.status < 0 else f"exit status {attempt.status}"
    said = f": {attempt.complaint}" if attempt.complaint else ""
    return f"the program ended with {how}{said}"
