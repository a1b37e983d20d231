"""The supervisor with the real worker: the jail it reaches, and clients that die at any moment."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from host_server.tests.conftest import StartServer
from host_server.tests.test_supervisor import tcp_hello
from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.systems import PRESETS
from testbed.machine.host_server import HostServer, HostServerConfig, host_server, open_session
from testbed.machine.native_build import NativeBuild, native_build
from testbed.protocol.spec import SPEC_NAMES, SPECS_VARIABLE, load_api, spec_hash, spec_path
from testbed.protocol.wire import constant, enum, hash_of_specs, view

pytestmark = pytest.mark.native
LIMIT_S = 30.0
SESSIONS = 20
LONG_WAIT_MS = 60_000
INLINE = constant("inline")
WAIT_FOR_OUTPUT = enum("wait_for")["output"]
WAIT_OPCODE = next(f.opcode for f in load_api("core").functions if f.name == "whWait")

# A client that opens a session and stays, as one that is killed in mid-call does.
STAYING_CLIENT = (
    "import sys, time\n"
    "from testbed.machine.host_server import open_session\n"
    "session = open_session(sys.argv[1])\n"
    "print('open', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture(scope="module")
def build() -> NativeBuild:
    return native_build()


def close_session(server: HostServer) -> None:
    connection, _, fds = open_session(server.unix_url)
    connection.close()
    for fd in fds:
        os.close(fd)


def test_the_level_reached_is_recorded(start_server: StartServer, build: NativeBuild) -> None:
    server = start_server(unix=True, worker=build.worker)
    close_session(server)
    record = server.wait_sessions(1)[0]
    # Without root there is no own user; everything else needs no privileges.
    assert record["jail"]["level"] == ("full" if os.getuid() == 0 else "confined")
    assert record["exit_status"] == 0
    assert record["stats"]["messages"] == 0


def test_sessions_leave_no_descriptor_and_no_file(
    start_server: StartServer, build: NativeBuild
) -> None:
    server = start_server(unix=True, worker=build.worker)
    close_session(server)
    server.wait_sessions(1)
    descriptors = Path(f"/proc/{server.pid}/fd")
    baseline = len(list(descriptors.iterdir()))
    for _ in range(SESSIONS):
        close_session(server)
    server.wait_sessions(1 + SESSIONS)
    assert len(list(descriptors.iterdir())) == baseline
    state_dir = Path(server.unix_url.removeprefix("unix:")).parent
    assert {path.name for path in state_dir.iterdir()} == {"control", "unix"}


def test_a_killed_client_ends_its_session(start_server: StartServer, build: NativeBuild) -> None:
    server = start_server(unix=True, worker=build.worker)
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", STAYING_CLIENT, server.unix_url],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "open\n"
    finally:
        for client in clients:
            client.kill()
            client.communicate(timeout=LIMIT_S)
    assert len(server.wait_sessions(3)) == 3


def test_a_client_that_leaves_in_mid_wait_ends_its_session(
    start_server: StartServer, build: NativeBuild
) -> None:
    server = start_server(tcp=True, worker=build.worker)
    connection, welcome = tcp_hello(server)
    assert welcome["status"] == 0
    arguments = struct.pack("<QQQQ", WAIT_FOR_OUTPUT, LONG_WAIT_MS, 8, INLINE)
    header = view("request_header").pack(
        size_bytes=view("request_header").size_bytes + len(arguments),
        opcode=WAIT_OPCODE,
        flags=1,
        sequence=1,
    )
    connection.sendall(header + arguments)
    time.sleep(1.0)  # the worker is in the call
    connection.close()
    assert server.wait_sessions(1, LONG_WAIT_MS / 4000)[0]["exit_status"] == 0


@pytest.mark.opencl
def test_a_real_device_answers_from_inside_the_jail(build: NativeBuild, tmp_path: Path) -> None:
    vendors = vendor_folder(tmp_path, build.library)
    native = subprocess.run(
        ["clinfo", "--raw"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout
    config = HostServerConfig(unix=True, worker=build.worker)
    with host_server(config, tmp_path / "server") as server:
        environment = client_environment(os.environ, PRESETS["wormhole"], server, vendors)
        forwarded = subprocess.run(
            ["clinfo", "--raw"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        ).stdout
    names = [line.split()[-1] for line in native.splitlines() if "CL_DEVICE_NAME" in line]
    assert names
    assert all(name in forwarded for name in names)


def test_a_killed_worker_is_an_error_in_the_client(build: NativeBuild, tmp_path: Path) -> None:
    config = HostServerConfig(backend="null", unix=True, worker=build.worker)
    with host_server(config, tmp_path / "server") as server:
        environment = client_environment(os.environ, PRESETS["wormhole"], server, tmp_path)
        # Enough calls to be in the middle of them when the worker dies.
        bench = subprocess.Popen(
            [str(build.bench), "--calls", "1000", "--blocks", "1000"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
            deadline_s = time.monotonic() + LIMIT_S
            while len(children.read_text().split()) < 2:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            time.sleep(0.5)
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == "wormhole-worker":
                    os.kill(int(pid), signal.SIGKILL)
            bench.communicate(timeout=2 * LIMIT_S)
        finally:
            bench.kill()
            bench.communicate(timeout=LIMIT_S)
        assert bench.returncode not in (0, -signal.SIGKILL)
        assert server.wait_sessions(1)[0]["exit_status"] == -signal.SIGKILL


def test_specs_edited_in_mid_run_do_not_reach_the_supervisor(
    start_server: StartServer, build: NativeBuild, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in SPEC_NAMES:
        text = spec_path(name).read_text(encoding="utf-8")
        (tmp_path / f"{name}.yaml").write_text(f"{text}# edited since\n", encoding="utf-8")
    built_from = hash_of_specs()
    # What the supervisor's own environment would lead it to; the build's specs go before it.
    monkeypatch.setenv(SPECS_VARIABLE, str(tmp_path))
    assert spec_hash() != built_from
    server = start_server(unix=True, worker=build.worker)
    close_session(server)
    assert server.wait_sessions(1)[0]["exit_status"] == 0
