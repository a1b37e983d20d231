"""What a program printed, read as the course of its training: one value and one time per step.

An event line is one JSON object with the key `event`:

    {"event": "start", "data_sha256": "...", ...}
    {"event": "step", "step": 0, "t_ns": 123, "loss": 2.3, "loss_bits": "40133333"}
    {"event": "end", ...}

`t_ns` is the program's own CLOCK_MONOTONIC in nanoseconds; `loss_bits` the bits of the float32 loss
in hexadecimal, most significant first, and `loss` the same value for people.  All other lines are
the program's own business.  Programs that print no event lines are read with a pattern.

A program that measures several workloads one after another puts an event in front of each:

    {"event": "leg", "leg": "lenet", "first_step": 48, "steps": 40, "warmup_steps": 8,
     "data_sha256": "..."}

Its steps are numbered through; a leg's are `steps` from `first_step` on.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.analysis.measure import Leg, leg_of
from testbed.analysis.rundir import OWN_METRIC
from testbed.errors import TestbedError
from testbed.experiment.workload import OwnMetric

LINE_LIMIT = 1 << 16
OUTPUT_LIMIT_BYTES = 64 << 20
STEPS_LIMIT = 1_000_000


@dataclass(frozen=True)
class Step:
    """One step: its number, when it ended (ns, one clock for all steps), the loss and its bits."""

    index: int
    t_ns: int
    loss: float | None
    loss_bits: str | None


@dataclass(frozen=True)
class Trajectory:
    """The steps in order, what the start and end events said, and the legs if there are any."""

    steps: tuple[Step, ...]
    start: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] = field(default_factory=dict)
    legs: tuple[Leg, ...] = ()

    def of_leg(self, leg: Leg) -> Trajectory:
        """The course of one leg, its steps numbered from 0 and its event in the start's place."""
        steps = [s for s in self.steps if 0 <= s.index - leg.first_step < leg.steps]
        numbered = tuple(replace(s, index=s.index - leg.first_step) for s in steps)
        return Trajectory(numbered, leg.facts)

    def durations_ns(self, warmup_steps: int) -> list[int]:
        """Time of each step after the warm-up: from the end of the step before to its own end."""
        times = [step.t_ns for step in self.steps]
        first = max(warmup_steps, 1)
        return [times[index] - times[index - 1] for index in range(first, len(times))]


def json_objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects among the lines of a program's output; the rest is its own business."""
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
    return found


def read_json_objects(path: Path) -> list[dict[str, Any]]:
    """`json_objects` of a file's first `OUTPUT_LIMIT_BYTES`; none if there is no file."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as source:
        return json_objects(source.read(OUTPUT_LIMIT_BYTES).decode("utf-8", errors="replace"))
    return []


def read_events(lines: Iterable[str]) -> Trajectory:
    """Read event lines.  Raises TestbedError naming the line if one is malformed.

    The program may be anything, so its output is checked: numbers must be numbers, steps must
    count up from 0 and time must not run backwards.
    """
    start: Mapping[str, Any] = {}
    end: Mapping[str, Any] = {}
    steps: list[Step] = []
    legs: list[Leg] = []
    for number, line in enumerate(lines, 1):
        event = _event(number, line)
        if event is None:
            continue
        if event["event"] == "start":
            start = event
        elif event["event"] == "end":
            end = event
        elif event["event"] == "leg":
            legs.append(_leg(number, event, legs))
        elif event["event"] == "step":
            steps.append(_step(number, event))
            _check_order(number, steps)
    return Trajectory(steps=tuple(steps), start=start, end=end, legs=tuple(legs))


def read_pattern(timed_lines: Iterable[tuple[int, str]], pattern: str) -> Trajectory:
    """Read steps with a regular expression from lines with the time (ns) at which each was read.

    Group `loss` is the loss; group `step` must count up from its first value.  Raises TestbedError
    naming the line if a matched value is not a number or the steps have a gap.
    """
    expression = re.compile(pattern)
    steps: list[Step] = []
    first: int | None = None
    for number, (t_ns, line) in enumerate(timed_lines, 1):
        match = expression.search(line[:LINE_LIMIT])
        if match is None:
            continue
        groups = match.groupdict()
        index = len(steps)
        if groups.get("step") is not None:
            said = _number(number, "step", groups["step"])
            first = int(said) if first is None else first
            index = int(said) - first
        loss = None if groups.get("loss") is None else _number(number, "loss", groups["loss"])
        bits = None if loss is None else struct.pack(">d", loss).hex()
        steps.append(Step(index=index, t_ns=t_ns, loss=loss, loss_bits=bits))
        _check_order(number, steps)
    return Trajectory(steps=tuple(steps))


def read_metrics(
    timed_lines: Iterable[tuple[int, str]], wanted: Sequence[OwnMetric]
) -> dict[str, float]:
    """The figures that a program printed, by name; the last line that matches counts.

    Raises TestbedError naming the metric that no line gives, or the line without a finite number.
    """
    found: dict[str, float] = {}
    expressions = [(metric.name, re.compile(metric.pattern)) for metric in wanted]
    for number, (_, line) in enumerate(timed_lines, 1):
        for name, expression in expressions:
            match = expression.search(line[:LINE_LIMIT])
            if match is not None:
                found[name] = _number(number, name, match["value"] or "")
                if not math.isfinite(found[name]):
                    raise _error(number, f"has {match['value']!r} for `{name}`")
    for metric in wanted:
        if metric.name not in found:
            raise TestbedError(
                f"no line of the program's output gives the metric `{metric.name}`",
                f"its pattern is {metric.pattern!r}; see the trial's log",
            )
    return {f"{OWN_METRIC}{name}": value for name, value in found.items()}


def _event(number: int, line: str) -> dict[str, Any] | None:
    """The event on a line, or None for a line that is none."""
    if not line.startswith("{") or '"event"' not in line:
        return None
    if len(line) > LINE_LIMIT:
        raise _error(number, f"is longer than {LINE_LIMIT} characters")
    try:
        event = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _error(number, f"is no JSON object: {error}") from error
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise _error(number, "has no text under `event`")
    return event


def _leg(number: int, event: Mapping[str, Any], before: Sequence[Leg]) -> Leg:
    """A leg, which begins where the one before it ends and has a name of its own."""
    leg = leg_of(event)
    if leg is None:
        raise _error(number, f"announces a leg that cannot be: {event}")
    expected = before[-1].first_step + before[-1].steps if before else 0
    if leg.first_step != expected or leg.name in [other.name for other in before]:
        raise _error(number, f"has the leg {leg.name} at step {leg.first_step}, not at {expected}")
    return leg


def _step(number: int, event: Mapping[str, Any]) -> Step:
    index, t_ns, bits = event.get("step"), event.get("t_ns"), event.get("loss_bits")
    for key, value in (("step", index), ("t_ns", t_ns)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _error(number, f"has {value!r} under `{key}`, not a whole number")
    assert isinstance(index, int) and isinstance(t_ns, int)
    if bits is not None:
        if not isinstance(bits, str) or not re.fullmatch(r"[0-9a-f]{8}", bits):
            raise _error(number, f"has {bits!r} under `loss_bits`, not 8 hexadecimal digits")
        loss: float | None = struct.unpack(">f", bytes.fromhex(bits))[0]
    else:
        said = event.get("loss")
        if said is not None and (not isinstance(said, int | float) or isinstance(said, bool)):
            raise _error(number, f"has {said!r} under `loss`, not a number")
        loss = None if said is None else float(said)
        bits = None if loss is None else struct.pack(">d", loss).hex()
    return Step(index=index, t_ns=t_ns, loss=loss, loss_bits=bits)


def _check_order(number: int, steps: list[Step]) -> None:
    if len(steps) > STEPS_LIMIT:
        raise _error(number, f"is one step too many (limit {STEPS_LIMIT})")
    if steps[-1].index != len(steps) - 1:
        raise _error(number, f"is step {steps[-1].index}, expected {len(steps) - 1}")
    if len(steps) > 1 and steps[-1].t_ns < steps[-2].t_ns:
        raise _error(number, "is earlier than the step before it")


def _number(number: int, group: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise _error(number, f"has {text!r} for `{group}`, not a number") from error
    if group == "step" and not math.isfinite(value):
        raise _error(number, f"has {text!r} for `step`")
    return value


def _error(number: int, problem: str) -> TestbedError:
    return TestbedError(
        f"line {number} of the program's output {problem}",
        "see the trial's log; events are described in testbed/experiment/events.py",
    )
