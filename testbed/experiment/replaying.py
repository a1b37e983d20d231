"""Replays one recording by hand, outside any experiment, and says whether every byte was equal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from testbed.errors import TestbedError
from testbed.experiment.client import (
    client_environment,
    guest_variables,
    native_by_hand,
    vendor_folder,
)
from testbed.experiment.events import json_objects, read_json_objects
from testbed.experiment.gate import Verdict, check_replay
from testbed.experiment.program import complaint_of, run_program
from testbed.experiment.recording import Recording, read_recording
from testbed.experiment.systems import System, check_placement
from testbed.machine.guest import LIBRARY_PATH
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import NativeBuild, native_build
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import GUEST_STATS_PATH, served_guest

REPLAY_TIMEOUT_S = 600.0
GUEST_FOLDER = PurePosixPath("/opt/wormhole/replay")

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Replayed:
    """What came out: the verdict, the client's events and the stub's counters (none natively)."""

    recording: Recording
    verdict: Verdict
    events: Sequence[Event]
    stub: Sequence[Event]
    wall_s: float


@dataclass(frozen=True)
class _Run:
    status: int
    events: Sequence[Event]
    stub: Sequence[Event]
    complaint: str
    wall_s: float


def replay_recording(
    path: Path,
    chosen: System,
    placement: str,
    logs: Path,
    timeout_s: float = REPLAY_TIMEOUT_S,
    say: Callable[[str], None] = lambda text: None,
) -> Replayed:
    """Send a recording's calls again under a system; logs are left in `logs`.

    Raises TestbedError if the replay could not be carried out; outputs that differ are a verdict.
    """
    check_placement(placement, chosen)
    recording = read_recording(path)
    native = native_build()
    logs.mkdir(parents=True, exist_ok=True)
    if placement == "guest":
        run = _in_guest(recording, chosen, native, logs, timeout_s, say)
    else:
        run = _on_host(recording, chosen, native, logs, timeout_s)
    result = next((event for event in run.events if event.get("event") == "result"), None)
    if result is None:
        raise TestbedError(
            f"the replay of {path} ended with status {run.status}: "
            f"{run.complaint or 'it said nothing'}",
            f"try ./inv exec --system {chosen.name} --placement {placement} -- clinfo -l",
        )
    verdict = check_replay(result, recording.calls)
    if verdict.passed and run.status != 0:
        verdict = Verdict(False, verdict.compared, f"the replay ended with status {run.status}")
    return Replayed(recording, verdict, run.events, run.stub, run.wall_s)


def _on_host(
    recording: Recording, chosen: System, native: NativeBuild, logs: Path, timeout_s: float
) -> _Run:
    argv = [str(native.replay), str(recording.path.absolute()), "--json"]
    stdout, stderr, stats = logs / "stdout.log", logs / "stderr.log", logs / "stub.jsonl"
    stats.unlink(missing_ok=True)
    with _host_environment(chosen, native, logs, stats) as environment:
        end = run_program(argv, environment, logs, stdout, stderr, timeout_s)
    if end.timed_out:
        raise _too_slow(recording, timeout_s)
    return _Run(
        end.status,
        read_json_objects(stdout),
        read_json_objects(stats),
        complaint_of(stderr),
        end.wall_s,
    )


@contextlib.contextmanager
def _host_environment(
    chosen: System, native: NativeBuild, logs: Path, stats: Path
) -> Iterator[dict[str, str]]:
    """The environment of a client on the host, with the server that it needs."""
    if chosen.is_native:
        yield native_by_hand(os.environ)
        return
    tcp = chosen.transport == "tcp"
    vendors = vendor_folder(logs, native.library)
    config = HostServerConfig(unix=not tcp, tcp=tcp, worker=native.worker)
    with host_server(config, logs / "server") as server:
        yield {
            **client_environment(os.environ, chosen, server, vendors),
            "WORMHOLE_MARK_LIB": str(native.library),
            "WORMHOLE_STATS": str(stats),
        }


def _in_guest(
    recording: Recording,
    chosen: System,
    native: NativeBuild,
    logs: Path,
    timeout_s: float,
    say: Callable[[str], None],
) -> _Run:
    tcp = chosen.transport == "tcp"
    config = HostServerConfig(tcp=tcp, worker=native.worker)
    say("booting a guest")
    with served_guest(VmConfig(name="replay"), config, native.library, logs) as served:
        vm, server = served.vm, served.server
        say(f"guest up in {vm.facts.boot_s:.0f} s ({vm.facts.accelerator.upper()})")
        calls, client = GUEST_FOLDER / "calls.whrec", GUEST_FOLDER / "wormhole-replay"
        vm.ssh.put({str(calls): recording.path, str(client): native.replay})
        begin_s = time.monotonic()
        done = vm.guest.run(
            [str(client), str(calls), "--json"],
            {
                **guest_variables(chosen, server),
                "WORMHOLE_MARK_LIB": LIBRARY_PATH,
                "WORMHOLE_STATS": GUEST_STATS_PATH,
            },
            cwd="/tmp",
            timeout_s=timeout_s,
        )
        wall_s = time.monotonic() - begin_s
        if done.reason == "timeout":
            raise _too_slow(recording, timeout_s)
        stub = vm.ssh.run(["cat", GUEST_STATS_PATH]).stdout.decode("utf-8", errors="replace")
    return _Run(done.status, done.events, json_objects(stub), done.complaint, wall_s)


def _too_slow(recording: Recording, timeout_s: float) -> TestbedError:
    return TestbedError(
        f"the replay of {recording.path} was stopped at its limit of {timeout_s:.0f} s",
        "is the machine busy with something else? Record fewer steps otherwise",
    )
