"""`bench.call`: what one call costs over every transport, beside the machine's own floor.

The null backend stands behind the worker, so forwarding alone is measured.  The systems take turns
in rounds, because a machine's pace changes from minute to minute.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.experiment.client import guest_variables, host_variables
from testbed.experiment.systems import (
    DEFAULT_SPIN_US,
    System,
    check_placement,
    system,
)
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import served_guest

ROUNDS = 3
BLOCKS = 5
RUN_LIMIT_S = 300.0
GUEST_BENCH = "/tmp/wormhole-bench"

Say = Callable[[str], None]
Environment = Mapping[str, str]


#: The systems that take turns, and the calls in a block of each: slow ones make fewer.
CALLS: Mapping[str, int] = {
    "wormhole": 20000,
    "wormhole-sync": 20000,
    "wormhole-notify": 2000,
    "tcp-sync": 1000,
}


@dataclass(frozen=True)
class Place:
    """Where the bench program runs: `run(arguments, environment)` gives its standard output.

    `reach` gives the variables by which it finds the server under a system.
    """

    run: Callable[[Sequence[str], Environment], str]
    reach: Callable[[System], dict[str, str]]
    counts: Callable[[], dict[str, int]]
    facts: Mapping[str, Any]


def bench_call(
    placement: str = "process",
    spin_us: int | None = None,
    say: Say = lambda text: None,
    network: str = "auto",
) -> dict[str, Any]:
    """Measure in a placement; figures are medians over blocks, in nanoseconds.

    `network` is the path of a guest's TCP (tap.py).
    In a guest a second, instrumented boot compares the device's counters with the senders'.
    Raises TestbedError if a part cannot be built or started.
    """
    check_placement(placement)
    spin = DEFAULT_SPIN_US if spin_us is None else spin_us
    systems = [system(name, [("spin_us", spin)]) for name in CALLS]
    with tempfile.TemporaryDirectory(prefix="wormhole-bench-") as directory:
        with _place(placement, Path(directory) / "timed", network) as where:
            runs = _rounds(where, systems, say)
            facts = dict(where.facts)
        figures = summarise(runs)
        if placement != "process":
            say("counting notifications with the device's own counters (an instrumented boot)")
            folder = Path(directory) / "instrumented"
            with _guest_place(placement, folder, network, ioeventfd=False) as where:
                figures["device"] = {
                    chosen.name: _device_counts(where, chosen)
                    for chosen in systems
                    if chosen.transport == "shm"
                }
    return {"placement": placement, "spin_us": spin, **facts, **figures}


def summarise(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Medians and quartiles over all blocks of all rounds, and notifications per call.

    `runs` maps a system's name to what the bench program printed in each round.
    """
    wormhole = runs["wormhole"]
    series = {
        "floor_ns": _samples(wormhole, "floor"),
        "sync_ns": _samples(wormhole, "sync"),
        "oneway_ns": _samples(wormhole, "oneway"),
        "tcp_sync_ns": _samples(runs["tcp-sync"], "sync"),
        "notify_ns": _samples(runs["wormhole-notify"], "sync"),
    }
    figures: dict[str, Any] = {name: statistics.median(values) for name, values in series.items()}
    figures["quartiles_ns"] = {
        name.removesuffix("_ns"): _quartiles(values) for name, values in series.items()
    }
    figures["blocks"] = {name.removesuffix("_ns"): len(values) for name, values in series.items()}
    figures["per_call"] = {
        name: {
            key: statistics.median(float(run[f"{key}_per_call"]) for run in rounds)
            for key in ("notifications", "wakes", "sleeps")
        }
        for name, rounds in runs.items()
    }
    figures["notifications_per_oneway"] = statistics.median(
        float(run["notifications_per_oneway"]) for run in wormhole
    )
    return figures


def call_ns(where: Place, chosen: System, calls: int, blocks: int) -> float:
    """Nanoseconds of a call that waits, in a session of its own: the median over its blocks."""
    arguments = ["--calls", str(calls), "--blocks", str(blocks), "--measure", "sync"]
    return float(_result(where, chosen, arguments)["sync_ns"])


def table(figures: Mapping[str, Any]) -> str:
    """The figures as lines for a terminal: time with quartiles, notifications each way per call."""
    rows = (
        ("floor", "bare shared memory, no call", None),
        ("sync", "call that waits", "wormhole"),
        ("oneway", "one-way call, cost to the caller", None),
        ("notify", "call with a notification each way", "wormhole-notify"),
        ("tcp_sync", "call over TCP", "tcp-sync"),
    )
    lines = [
        f"{figures['placement']} placement, spin bound {figures['spin_us']} us,"
        f" network {figures['network']}",
        f"{'':34}{'median ns':>11}{'quartiles':>21}{'notified':>10}{'woken':>8}",
    ]
    for name, text, counted in rows:
        first, third = figures["quartiles_ns"][name]
        line = f"{text:34}{figures[f'{name}_ns']:11.1f}{f'{first:.1f} - {third:.1f}':>21}"
        if counted is not None:
            per_call = figures["per_call"][counted]
            line += f"{per_call['notifications']:10.3f}{per_call['wakes']:8.3f}"
        lines.append(line)
    for name, counts in figures.get("device", {}).items():
        lines.append(
            f"device's counters, {name}: {counts['control_notifications']} notifications"
            f" ({counts['senders_notifications']} sent) and {counts['wakes']} wakes"
            f" for {counts['messages']} messages"
        )
    return "\n".join(lines)


def _samples(runs: Sequence[Mapping[str, Any]], series: str) -> list[float]:
    return [float(value) for run in runs for value in run[f"{series}_samples_ns"]]


def _quartiles(values: Sequence[float]) -> list[float]:
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, third]


def _rounds(where: Place, systems: Sequence[System], say: Say) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {chosen.name: [] for chosen in systems}
    for number in range(ROUNDS):
        # Every other round in reverse, so that a drift does not favour the first.
        order = systems if number % 2 == 0 else systems[::-1]
        for chosen in order:
            say(f"round {number + 1} of {ROUNDS}: {chosen.name}")
            runs[chosen.name].append(_run(where, chosen, BLOCKS))
    return runs


def _run(where: Place, chosen: System, blocks: int) -> dict[str, Any]:
    return _result(where, chosen, ["--calls", str(CALLS[chosen.name]), "--blocks", str(blocks)])


def _result(where: Place, chosen: System, arguments: Sequence[str]) -> dict[str, Any]:
    output = where.run(arguments, where.reach(chosen))
    try:
        result: dict[str, Any] = json.loads(output)
    except ValueError as error:
        raise TestbedError(
            f"the bench printed no result under {chosen.name}: {output!r}"
        ) from error
    return result


def _device_counts(where: Place, chosen: System) -> dict[str, float]:
    before = where.counts()
    result = _run(where, chosen, blocks=1)
    after = where.counts()
    counted = {name.replace("-", "_"): after[name] - before[name] for name in after}
    messages = max(1, int(result["messages"]))
    return {
        "messages": messages,
        "senders_notifications": int(result["notifications"]),
        **counted,
        "notifications_per_message": counted["control_notifications"] / messages,
        "wakes_per_round_trip": counted["wakes"] / max(1, int(result["round_trips"])),
    }


@contextmanager
def process_place(run_dir: Path) -> Iterator[Place]:
    """The bench on the host, with a server of its own that has the null backend."""
    build = native_build()

    def run(arguments: Sequence[str], environment: Environment) -> str:
        try:
            done = subprocess.run(
                [str(build.bench), *arguments],
                env={"PATH": os.environ.get("PATH", ""), **environment},
                capture_output=True,
                text=True,
                timeout=RUN_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TestbedError(f"the bench took more than {RUN_LIMIT_S:.0f} s") from None
        return _checked(done.returncode, done.stdout, done.stderr)

    config = HostServerConfig(backend="null", unix=True, tcp=True, worker=build.worker)
    with host_server(config, run_dir) as server:
        yield Place(
            run,
            lambda chosen: host_variables(chosen, server),
            lambda: {},
            {"network": "loopback"},
        )


def _place(placement: str, run_dir: Path, network: str) -> AbstractContextManager[Place]:
    if placement == "process":
        return process_place(run_dir)
    return _guest_place(placement, run_dir, network)


@contextmanager
def _guest_place(
    placement: str, run_dir: Path, network: str, ioeventfd: bool = True
) -> Iterator[Place]:
    build = native_build()
    config = HostServerConfig(backend="null", tcp=True, network=network, worker=build.worker)
    with served_guest(
        VmConfig(name="bench"),
        config,
        build.library,
        run_dir,
        ioeventfd=ioeventfd,
        placement=placement,
    ) as served:
        vm, server = served.vm, served.server
        vm.ssh.put({GUEST_BENCH: build.bench})

        def run(arguments: Sequence[str], environment: Environment) -> str:
            argv = [GUEST_BENCH, *arguments]
            done = vm.guest.run(argv, environment, cwd="/tmp", timeout_s=RUN_LIMIT_S)
            if done.reason == "timeout":
                raise TestbedError(f"the bench took more than {RUN_LIMIT_S:.0f} s in the guest")
            events = "\n".join(json.dumps(event) for event in done.events)
            return _checked(done.status, done.stdout or events, done.stderr)

        facts = {"network": server.network, "accelerator": vm.facts.accelerator}
        yield Place(
            run, lambda chosen: guest_variables(chosen, server), served.device_counts, facts
        )


def _checked(status: int, output: str, errors: str) -> str:
    if status != 0:
        last = errors.strip().splitlines()[-1:] or ["it said nothing"]
        raise TestbedError(f"the bench ended with status {status}: {last[0]}")
    return output
