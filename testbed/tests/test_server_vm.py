"""Client and accelerator in a guest each: the path between them, and ends on either side."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.machine.guest import Event
from testbed.machine.host_server import HostServerConfig
from testbed.machine.native_build import native_build
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import ServedGuest, guest_of, server_parts
from testbed.machine.server_guest import ServerGuest, server_guest
from testbed.tests.clients import compile_client
from testbed.tests.test_guest_path import CLIENT

pytestmark = [pytest.mark.vm, pytest.mark.native, pytest.mark.opencl]

LIMIT_S = 240.0


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerGuest]:
    parts = server_parts(HostServerConfig(tcp=True))
    folder = tmp_path_factory.mktemp("server")
    with server_guest(VmConfig(name="server"), parts, folder) as server:
        yield server


@pytest.fixture(scope="module")
def served(serving: ServerGuest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGuest]:
    folder = tmp_path_factory.mktemp("client")
    with guest_of(serving, VmConfig(name="client"), native_build().library, folder) as guest:
        yield guest


def test_each_guest_has_its_own_node(served: ServedGuest, serving: ServerGuest) -> None:
    def modes(argv: list[str], server: bool) -> str:
        ssh = serving.vm.ssh if server else served.vm.ssh
        return ssh.run(argv, check=True).stdout.decode()

    listing = ["sh", "-c", "stat -c '%a %u %n' /dev/wormhole*"]
    assert modes(listing, server=True).split() == ["600", "0", "/dev/wormhole-serve0"]
    assert modes(listing, server=False).split() == ["666", "0", "/dev/wormhole0"]


def test_a_program_prints_what_it_prints_in_the_server_guest(
    served: ServedGuest, serving: ServerGuest, tmp_path: Path
) -> None:
    program = compile_client(tmp_path, "opencl_devices")
    printed = []
    for vm in (serving.vm, served.vm):
        vm.ssh.put({"/tmp/opencl_devices": program})
        done = vm.guest.run(["/tmp/opencl_devices", "contexts"], timeout_s=LIMIT_S)
        assert done.status == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1] != ""
    record = serving.wait_sessions(1)[0]
    assert record["backend"] == "opencl"
    assert record["jail"]["level"] == "full"


def test_no_process_of_the_host_takes_part_in_a_wake(
    served: ServedGuest, serving: ServerGuest
) -> None:
    messages = serving.devices.messages
    before = {vm: int(vm.qmp.get("wormhole0", "wakes")) for vm in (serving.vm, served.vm)}
    environment = {"WORMHOLE_NOTIFICATIONS": "always", "WORMHOLE_ONEWAY": "0"}
    done = served.vm.guest.run(["clinfo", "-l"], environment, timeout_s=LIMIT_S)
    assert done.status == 0, done.stderr
    for vm, wakes in before.items():
        assert int(vm.qmp.get("wormhole0", "wakes")) > wakes
    assert serving.devices.messages == messages


def test_a_killed_client_leaves_nothing(served: ServedGuest, serving: ServerGuest) -> None:
    def kill(event: Event) -> None:
        served.vm.ssh.run(["kill", "-9", str(event["pid"])])

    seen = len(serving.sessions())
    client = ["python3", "-c", CLIENT]
    killed = served.vm.guest.run(client, {"WORMHOLE_LOCAL": "0"}, timeout_s=LIMIT_S, on_event=kill)
    assert killed.status == -signal.SIGKILL
    assert serving.wait_sessions(seen + 1)[-1]["reason"] == "the guest closed the session"
    left = serving.vm.ssh.run(["pgrep", "-c", "wormhole-worker"]).stdout.decode().strip()
    assert left == "0"


def test_a_new_client_guest_finds_the_server(
    serving: ServerGuest, served: ServedGuest, tmp_path: Path
) -> None:
    """One at a time: the second waits until the first has gone, as restarts between trials do."""
    os.kill(served.vm.pid, signal.SIGKILL)
    with guest_of(serving, VmConfig(name="next"), native_build().library, tmp_path) as guest:
        done = guest.vm.guest.run(["clinfo", "-l"], timeout_s=LIMIT_S)
        assert "Device" in done.stdout, done.stderr

        def kill_server(_event: object) -> None:
            os.kill(serving.vm.pid, signal.SIGKILL)

        begin_s = time.monotonic()
        lost = guest.vm.guest.run(
            ["python3", "-c", CLIENT], {"WORMHOLE_LOCAL": "0"}, timeout_s=60, on_event=kill_server
        )
        assert lost.status == 3, f"{lost.stderr} after {time.monotonic() - begin_s:.0f} s"
        again = guest.vm.guest.run(["clinfo", "-l"], timeout_s=LIMIT_S)
        assert "Device" not in again.stdout, "no server, and said so at once"
