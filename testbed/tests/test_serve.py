"""`./inv serve` and `./inv top`, as a user runs them: what is printed is true, nothing is left."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed import top
from testbed.errors import TestbedError
from testbed.experiment.serve import serve
from testbed.machine.host_server import HostServerConfig, host_server, open_session
from testbed.machine.native_build import native_build
from testbed.root import ROOT

LIMIT_S = 60.0

#: Asks the device list again and again, until its standard input ends.
CLIENT = """
import ctypes, select, sys
cl = ctypes.CDLL("libOpenCL.so.1")
platform, device = ctypes.c_void_p(), ctypes.c_void_p()
assert cl.clGetPlatformIDs(1, ctypes.byref(platform), None) == 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.001)[0]:
    every = ctypes.c_ulong(0xFFFFFFFF)
    assert cl.clGetDeviceIDs(platform, every, 1, ctypes.byref(device), None) == 0
"""


@contextmanager
def inv(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A task in a process of its own, ended with the context."""
    argv = [sys.executable, "-m", "testbed", *words]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], LIMIT_S)[0], "it said nothing"
    return process.stdout.readline()


@contextmanager
def client(variables: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A client that keeps asking with every message sent to the server."""
    environment = {"PATH": os.environ["PATH"], **variables, "WORMHOLE_LOCAL": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert line_of(process) == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.native
@pytest.mark.opencl
def test_clients_by_hand_are_served_and_shown_and_ctrl_c_leaves_nothing() -> None:
    with inv("serve", "--json") as server:
        said = json.loads(line_of(server))
        offers = said["environment"]
        assert set(offers) == {"wormhole", "tcp-sync"}
        with client(offers["wormhole"]) as shm, client(offers["tcp-sync"]) as tcp:
            rows = {row["client"]["pid"]: row for row in shown(said["pid"])}
            assert set(rows) == {shm.pid, tcp.pid}
            for process, placement in ((shm, "process"), (tcp, "tcp")):
                row = rows[process.pid]
                assert row["placement"] == placement
                assert row["messages_per_s"] > 1
                assert row["messages_per_s"] == pytest.approx(row["replies_per_s"], rel=0.2)
                assert row["bytes_received_per_s"] > row["messages_per_s"] * 16
                assert row["bytes_sent_per_s"] > row["replies_per_s"] * 16
                assert row["private_bytes"] > 1 << 20
                assert row["cpu_share"] is not None
            assert rows[shm.pid]["shared_bytes"] > 0
        vendors = Path(offers["wormhole"]["OCL_ICD_VENDORS"])
        socket = Path(offers["wormhole"]["WORMHOLE_SERVER"].removeprefix("unix:"))
        assert vendors.is_dir() and socket.exists()
        server.send_signal(signal.SIGINT)
        assert server.wait(LIMIT_S) == 0
    assert not vendors.exists() and not socket.parent.exists()
    assert not Path(f"/proc/{said['pid']}").exists()


def shown(supervisor: int) -> list[dict[str, Any]]:
    """What `./inv top --once --json` shows of one supervisor, when both sessions have rates."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        argv = [sys.executable, "-m", "testbed", "top", "--once", "--json"]
        done = subprocess.run(
            argv, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        rows = [
            row
            for row in json.loads(done.stdout)["sessions"]
            if row["supervisor_pid"] == supervisor
        ]
        if len(rows) == 2 and all(row["messages_per_s"] for row in rows):
            return rows
        assert time.monotonic() < deadline_s, rows


@pytest.mark.native
def test_sessions_that_end_between_looks_are_left_out(tmp_path: Path) -> None:
    config = HostServerConfig(backend="null", unix=True, worker=native_build().worker)
    parent = tmp_path / "state"
    parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(parent))
        with host_server(config, tmp_path / "run") as server:
            connection, _, fds = open_session(server.unix_url, name="short")
            before = top.look(parent)
            assert [one.said["client"]["name"] for one in before] == ["short"]
            connection.close()
            for fd in fds:
                os.close(fd)
            server.wait_sessions(1)
            assert top.rows_of(before, top.look(parent)) == []
        assert top.look(parent) == []
    assert "no live session" in top.table([])


def test_what_is_no_supervisor_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "wormhole-state-x"
    folder.mkdir()
    (folder / "control").write_text("{}")
    assert top.look(tmp_path) == []


def test_a_table_has_every_column_and_no_control_characters() -> None:
    counters = dict.fromkeys(top.RATES, 3072)
    now: dict[str, Any] = {
        "session": "0123456789abcdef",
        "placement": "guest",
        "transport": "shm",
        "client": {"pid": 7, "uid": 1000, "name": "a\x1b[Jb"},
        "age_s": 3.2,
        "spin_us": 50,
        "notify_always": False,
        "worker_pid": 11,
        "counters": {**counters, "at_ns": 3 * 10**9},
    }
    begun = {**dict.fromkeys(top.RATES, 0), "at_ns": 10**9}
    then = {**now, "age_s": 2.2, "counters": begun}
    rows = top.rows_of(
        [top.Look(5, then, 1.0, 1 << 20, 0)], [top.Look(5, now, 1.5, 1 << 20, 3 << 20)]
    )
    head, line, *_ = top.table(rows).splitlines()
    assert re.split(r"  +", head.strip()) == list(top.COLUMNS)
    cells = re.split(r"  +", line.strip())
    assert cells[:6] == ["01234567", "guest/shm", "a?[Jb", "7", "1000", "3"]
    assert cells[6:] == [
        *("1536", "1536", "1.5K", "1.5K", "1536", "1536"),
        *("50", "1.0M", "3.0M", "50", "adaptive"),
    ]
    first = top.table(top.rows_of([], [top.Look(5, now, 1.5, 0, 0)])).splitlines()[1]
    assert re.split(r"  +", first.strip())[6:13] == ["-"] * 7


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(TestbedError, match="interval"):
        top.run_top(once=True, as_json=False, interval_s=0.1)
    with pytest.raises(TestbedError, match="native"):
        serve("native", as_json=False)
