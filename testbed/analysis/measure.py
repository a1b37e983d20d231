"""From the raw events of a trial to its metrics.  Pure.

A trial's event file has one JSON object a line; `source` says who wrote it:

    program   the application or the replay client: start, step (with `t_ns`), end or result
    stub      the guest library's counters, at every mark and at the exit
    worker    one line a session from the host server: processor time, jail, its own counters
    client    how the program ended: exit status, processor time
    host      processor time of the supervisor or of the VM's process
    part      of the VM's processor time, that of the threads which run the guest's processors
    runner    what the trial was: warm-up steps, network path, environment

Speed is measured between the end of the last warm-up step and the end of the last step, and so are
the counters: `*_per_step` is the difference between the stub's marks of these two steps, divided by
the steps between them.  Processor seconds are those of whole processes, from start to end.

A program may measure several workloads one after another, each a *leg* of its trial, with an event
in front of it:

    {"event": "leg", "leg": "lenet", "first_step": 48, "steps": 40, "warmup_steps": 8, ...}

Steps are numbered through the whole program.  `legs_of` gives each leg's events as those of a trial
of its own, with its own warm-up; what belongs to the process as a whole (processor seconds) is left
out there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Event = Mapping[str, Any]
Metric = float | int | str | None

NS_PER_S = 1_000_000_000

#: Counter of the stub -> metric per step.
STUB_COUNTERS = {
    "api_calls": "api_calls_per_step",
    "local_answers": "local_answers_per_step",
    "messages": "messages_per_step",
    "round_trips": "round_trips_per_step",
    "oneway": "oneway_per_step",
    "bytes_sent": "bytes_to_host_per_step",
    "bytes_received": "bytes_to_client_per_step",
    "notifications_sent": "notifications_to_host_per_step",
    "notifications_received": "notifications_to_client_per_step",
    "sleeps": "sleeps_per_step",
}

#: Before the reason of a VM exit: `exit_io_exits`, and all of them as `exit_exits`.
EXITS = "exit_"


_OF_THE_PROCESS = ("user_s", "system_s", "stats")  # of a worker's event
_LEG_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
#: Event -> its key -> metric, of how a program with legs begins.
_BEGINNING = {
    "start": {"import_ns": "import_ns", "context_ns": "context_ns"},
    "leg": {
        "optimiser_steps": "optimiser_steps",
        "first_optimiser_step_ns": "first_step_ns",
    },
}
_STEP_LABEL = re.compile(r"step ([0-9]+)")


@dataclass(frozen=True)
class Leg:
    """One of the workloads that a program measures; `facts` is its whole event."""

    name: str
    first_step: int
    steps: int
    warmup_steps: int
    facts: Mapping[str, Any]

    @property
    def bounds(self) -> tuple[int, int]:
        """The steps, in the program's numbers, whose ends begin and finish the measured time."""
        return self.first_step + max(self.warmup_steps - 1, 0), self.first_step + self.steps - 1


def leg_of(event: Event) -> Leg | None:
    """The leg that an event announces; None if it announces none that could be."""
    name = event.get("leg")
    if not isinstance(name, str) or not _LEG_NAME.fullmatch(name):
        return None
    numbers = [event.get(key) for key in ("first_step", "steps", "warmup_steps")]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
    if len(whole) < len(numbers) or whole[2] >= whole[1]:
        return None
    return Leg(name, whole[0], whole[1], whole[2], event)


def legs_in(program: Iterable[Event]) -> tuple[Leg, ...]:
    """The legs that a program announced; none if it is one workload."""
    legs = [leg_of(event) for event in program if event.get("event") == "leg"]
    return tuple(leg for leg in legs if leg is not None)


def legs_of(
    events: Sequence[Event], workload: str, warmup_steps: int
) -> list[tuple[str, int, list[Event]]]:
    """Workload, warm-up steps and events of each leg; of a trial without legs, its own."""
    legs = legs_in(of_source(events, "program"))
    if not legs:
        return [(workload, warmup_steps, list(events))]
    return [(leg.name, leg.warmup_steps, _events_of(events, leg)) for leg in legs]


def _events_of(events: Iterable[Event], leg: Leg) -> list[Event]:
    """A leg's events, its steps numbered from 0."""
    numbers = range(leg.first_step, leg.first_step + leg.steps)
    found: list[Event] = []
    for event in events:
        source, kind = event.get("source"), event.get("event")
        if source == "program" and kind == "step":
            if event.get("step") in numbers:
                found.append({**event, "step": int(event["step"]) - leg.first_step})
        elif source == "program":
            if kind != "leg" or event.get("leg") == leg.name:
                found.append(event)
        elif source == "stub" and kind in ("mark", "times"):
            label = _label_in(str(event.get("label")), leg)
            if label is not None:
                found.append({**event, "label": label})
        elif source == "worker":
            found.append({k: v for k, v in event.items() if k not in _OF_THE_PROCESS})
        elif source == "runner":
            found.append(event)
    return found


def _label_in(label: str, leg: Leg) -> str | None:
    """A mark's label within a leg; None if it is another leg's."""
    step = _STEP_LABEL.fullmatch(label)
    if step is not None:
        number = int(step[1]) - leg.first_step
        return f"step {number}" if 0 <= number < leg.steps else None
    word, _, name = label.partition(" ")
    return word if name in ("", leg.name) else None


def measure(events: Sequence[Event], warmup_steps: int) -> dict[str, Metric]:
    """All metrics that the events allow; what they do not show is absent.

    `warmup_steps` steps at the start are left out of speeds and counters.
    """
    steps = step_times(of_source(events, "program"))
    metrics: dict[str, Metric] = {"steps": len(steps)}
    if len(steps) > warmup_steps + (0 if warmup_steps else 1):
        first, last = window(steps, warmup_steps)
        seconds = (steps[last] - steps[first]) / NS_PER_S
        if seconds > 0:
            metrics["measured_steps"] = last - first
            metrics["steps_per_s"] = (last - first) / seconds
            metrics["ms_per_step"] = 1000.0 * seconds / (last - first)
        metrics.update(_traffic(of_source(events, "stub"), first, last))
    metrics.update(_beginning(events))
    metrics.update(_processor_time(events))
    metrics.update(_session_facts(events))
    return metrics


def of_source(events: Iterable[Event], source: str) -> list[Event]:
    """The events of one writer, in order."""
    return [event for event in events if event.get("source") == source]


def step_times(program: Iterable[Event]) -> dict[int, int]:
    """Step number -> time of its end in ns; a program that runs the stream twice counts on."""
    times: dict[int, int] = {}
    for event in program:
        if event.get("event") == "step" and isinstance(event.get("t_ns"), int):
            times[len(times)] = int(event["t_ns"])
    return times


def window(steps: Mapping[int, int], warmup_steps: int) -> tuple[int, int]:
    """The steps whose ends begin and finish the measured time."""
    return max(warmup_steps - 1, 0), len(steps) - 1


def step_durations_ms(events: Iterable[Event], warmup_steps: int) -> tuple[float, ...]:
    """Milliseconds of each step after the warm-up."""
    ends = list(step_times(of_source(events, "program")).values())[max(warmup_steps - 1, 0) :]
    return tuple(1e-6 * (end - begin) for begin, end in pairwise(ends))


def own_cpu_s(events: Sequence[Event]) -> float:
    """Processor seconds of the host that everything belonging to the trial used."""
    serving = any(event.get("what") == "server-vm" for event in of_source(events, "host"))
    total = 0.0
    for event in events:
        source, what = event.get("source"), event.get("what")
        # What ran in a guest used its VM's processor time, which is counted already.
        in_client_guest = source == "client" and event.get("where") == "guest"
        in_server_guest = serving and (source == "worker" or what == "supervisor")
        if source in ("client", "worker", "host") and not in_client_guest and not in_server_guest:
            total += _number(event, "user_s") + _number(event, "system_s")
    return total


def _traffic(stub: Iterable[Event], first: int, last: int) -> dict[str, Metric]:
    marks = {str(event.get("label")): event for event in stub if event.get("event") == "mark"}
    begin, end = marks.get(f"step {first}"), marks.get(f"step {last}")
    if begin is None or end is None or last <= first:
        return {}
    found: dict[str, Metric] = {}
    for counter, metric in STUB_COUNTERS.items():
        if counter in begin and counter in end:
            found[metric] = (int(end[counter]) - int(begin[counter])) / (last - first)
    return found


def _beginning(events: Sequence[Event]) -> dict[str, Metric]:
    """What a user waits for before the first step, where the program says so, and what crossed.

    `start_*` is all until the device can be used, `first_step_*` the first optimiser step.
    """
    found: dict[str, Metric] = {}
    for event in of_source(events, "program"):
        for key, metric in _BEGINNING.get(str(event.get("event")), {}).items():
            if isinstance(event.get(key), int):
                found[metric] = int(event[key])
    marks = {e.get("label"): e for e in of_source(events, "stub") if e.get("event") == "mark"}
    for name, label, before in (("start", "context", ""), ("first_step", "first", "ready")):
        if label in marks and (not before or before in marks):
            for counter in ("bytes_sent", "bytes_received", "messages"):
                earlier = _number(marks[before], counter) if before else 0.0
                found[f"{name}_{counter}"] = int(_number(marks[label], counter) - earlier)
    return found


def _processor_time(events: Sequence[Event]) -> dict[str, Metric]:
    """User and system seconds of client, workers, supervisor and VM."""
    found: dict[str, Metric] = {}
    groups: dict[str, list[Event]] = {
        "client": of_source(events, "client"),
        "worker": of_source(events, "worker"),
    }
    for event in of_source(events, "host"):
        groups.setdefault(str(event.get("what")), []).append(event)
    for name, group in groups.items():
        if any("user_s" in event for event in group):
            for kind in ("user_s", "system_s"):
                found[f"{name}_{kind}"] = sum(_number(event, kind) for event in group)
    for event in of_source(events, "part"):
        for kind in ("user_s", "system_s"):
            vcpus_s = _number(event, kind)
            found[f"vcpus_{kind}"] = vcpus_s
            # The whole was looked at a moment before its part.
            found[f"qemu_{kind}"] = max(float(found.get(f"vm_{kind}") or 0.0) - vcpus_s, 0.0)
    if groups["client"]:
        found["client_wall_s"] = sum(_number(event, "wall_s") for event in groups["client"])
    return found


def _session_facts(events: Sequence[Event]) -> dict[str, Metric]:
    """What was in effect: spin bound, jail, network path, sessions."""
    found: dict[str, Metric] = {}
    sessions = of_source(events, "worker")
    exits = [event for event in of_source(events, "stub") if event.get("event") == "exit"]
    if exits:
        found["trial_api_calls"] = int(sum(_number(event, "api_calls") for event in exits))
        sent = sum(_number(event, "notifications_sent") for event in exits)
        found["sent_notifications_to_host"] = int(sent)
    if sessions:
        stats = [s["stats"] for s in sessions if isinstance(s.get("stats"), Mapping)]
        if stats:  # a leg has none: they are its process's
            found["sent_wakes"] = int(sum(_number(line, "wakes_sent") for line in stats))
        found["sessions"] = len(sessions)
        found["spin_us"] = int(_number(sessions[0], "spin_us"))
        found["jail"] = jail_text(sessions[0].get("jail"))
    for event in of_source(events, "runner"):
        for key in ("network", "accelerator"):
            if event.get(key) is not None:
                found[key] = str(event[key])
        # KVM has other counters of a processor too; under TCG there are none.
        counted = event.get("exits")
        if isinstance(counted, Mapping):
            reasons = [str(name) for name in counted if str(name).endswith("exits")]
            found.update({f"{EXITS}{r}": int(_number(counted, r)) for r in reasons})
        device = event.get("device")
        if isinstance(device, Mapping) and "wakes" in device:
            found["trial_wakes"] = int(_number(device, "wakes"))
        if isinstance(device, Mapping) and event.get("instrumented") is True:
            found["device_notifications_to_host"] = int(_number(device, "control-notifications"))
            found["device_wakes"] = int(_number(device, "wakes"))
    for event in of_source(events, "program"):
        if event.get("event") == "result":
            for key in ("calls", "compared_bytes", "mismatches"):
                if isinstance(event.get(key), int):
                    found[f"replay_{key}"] = int(event[key])
    return found


def jail_text(report: object) -> str:
    """The parts of the jail that a worker reached, and whether a GPU's device files are open."""
    parts = report.get("parts") if isinstance(report, Mapping) else None
    if not isinstance(parts, Mapping):
        return "not reported"
    reached = [
        str(name)
        for name, part in parts.items()
        if isinstance(part, Mapping) and part.get("reached") is True
    ]
    text = "+".join(reached) or "none"
    devices = report.get("devices") if isinstance(report, Mapping) else None
    return f"{text}, open: {devices}" if devices else text


def _number(event: Event, key: str) -> float:
    value = event.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
