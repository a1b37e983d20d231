"""The session table of a VM: every way a slot can go, and what a hostile guest can write."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from host_server.device import Phase, Step, next_step
from host_server.layout import region_layout
from host_server.tests.conftest import StartServer
from host_server.tests.fake_device import GUEST, FakeDevice, expected_header
from testbed.errors import TestbedError
from testbed.machine.host_server import HostServer
from testbed.protocol.wire import view

REGION_BYTES = 64 << 20
SESSION_BYTES = 4 << 20
OPEN, CLOSED, FREE = GUEST["open"], GUEST["closed"], GUEST["free"]


def make_device(server: HostServer, count: int = 4) -> FakeDevice:
    return FakeDevice(server.device_socket, REGION_BYTES, SESSION_BYTES, count)


@pytest.fixture
def server(start_server: StartServer) -> HostServer:
    return start_server(device=True, session_count=4)


@pytest.fixture
def device(server: HostServer) -> Iterator[FakeDevice]:
    """A device whose driver has started."""
    with make_device(server) as fake:
        fake.hello()
        fake.start()
        yield fake


@pytest.mark.parametrize(
    ("phase", "own", "state", "guest", "fresh", "step"),
    [
        (Phase.FREE, 1, OPEN, 2, True, Step.OPEN),
        (Phase.FREE, 1, OPEN, 1, True, Step.NOTHING),
        (Phase.FREE, 1, OPEN, 2, False, Step.NOTHING),
        (Phase.FREE, 1, CLOSED, 1, True, Step.NOTHING),
        (Phase.FREE, 1, CLOSED, 2, True, Step.FREE),
        (Phase.LIVE, 2, OPEN, 2, True, Step.NOTHING),
        (Phase.LIVE, 2, CLOSED, 2, True, Step.END),
        (Phase.LIVE, 2, FREE, 2, True, Step.END),
        (Phase.LIVE, 2, OPEN, 3, True, Step.END),
        (Phase.LIVE, 2, 77, 2, True, Step.END),
        (Phase.ENDING, 2, OPEN, 3, True, Step.NOTHING),
        (Phase.ENDING, 2, CLOSED, 2, True, Step.NOTHING),
        (Phase.OVER, 2, OPEN, 2, True, Step.NOTHING),
        (Phase.OVER, 2, CLOSED, 2, True, Step.FREE),
        (Phase.OVER, 2, OPEN, 3, True, Step.FREE),
    ],
)
def test_rule_of_the_table(
    phase: Phase, own: int, state: int, guest: int, fresh: bool, step: Step
) -> None:
    assert next_step(phase, own, state, guest, fresh) is step


def test_slots_fill_the_region_and_never_leave_it() -> None:
    layout = region_layout(512 << 20, 64 << 20, 8)
    assert layout.session_count == 8
    assert layout.session_bytes % 4096 == 0
    end = layout.slot_offset(layout.session_count - 1) + layout.session_bytes
    assert end <= layout.region_bytes
    assert layout.slot_offset(0) >= layout.host_line(layout.session_count - 1) + 64
    with pytest.raises(TestbedError, match="cannot hold 8 sessions"):
        region_layout(1 << 20, 64 << 20, 8)


def test_header_is_published_and_withdrawn(device: FakeDevice) -> None:
    size = view("region_header").size_bytes
    found = view("region_header").unpack(device.map.read(0, size))
    assert {name: found[name] for name in expected_header(device.layout)} == expected_header(
        device.layout
    )
    epoch = device.header("epoch")
    device.stop()
    device.start()
    assert device.header("epoch") != epoch


def test_a_session_lives_and_its_memory_is_given_back(
    server: HostServer, device: FakeDevice
) -> None:
    slot = device.layout.slot_offset(1)
    device.open(1, 1)
    device.wait_host(1, "ready", 1)
    device.wait_wake()
    assert device.map.read(slot + 4096, 8) == b"LEFTOVER"
    device.close(1, 1)
    device.wait_host(1, "free", 1)
    assert device.map.read(slot + 4096, 8) == bytes(8)
    record = server.wait_sessions(1)[0]
    assert record["placement"] == "guest"
    assert record["client"] == {
        "pid": 42,
        "uid": 1000,
        "name": "prog",
        "slot": 1,
        "generation": 1,
    }
    assert record["spin_us"] == 7
    device.open(1, 2)
    device.wait_host(1, "ready", 2)


def test_slots_are_independent(device: FakeDevice) -> None:
    for index in range(4):
        device.open(index, 1)
    for index in range(4):
        device.wait_host(index, "ready", 1)
    device.close(2, 1)
    device.wait_host(2, "free", 1)
    assert [device.host(i)[0] for i in (0, 1, 3)] == ["ready"] * 3


def test_closed_before_it_was_seen_open_is_acknowledged(device: FakeDevice) -> None:
    set_epochs(device)
    device.close(0, 1)
    device.wait_host(0, "free", 1)


def test_a_dead_worker_is_reported_and_its_slot_reusable(
    server: HostServer, device: FakeDevice
) -> None:
    device.open(0, 1)
    device.wait_host(0, "ready", 1)
    os.kill(worker_pids(server)[0], signal.SIGKILL)
    device.wait_host(0, "dead", 1)
    assert device.session_word(0, "host_state") == 2
    device.wait_wake()
    device.close(0, 1)
    device.wait_host(0, "free", 1)
    device.open(0, 2)
    device.wait_host(0, "ready", 2)
    assert server.wait_sessions(1)[0]["exit_status"] == -signal.SIGKILL


def test_a_refused_session_can_be_closed(start_server: StartServer) -> None:
    server = start_server("refuse", device=True)
    with make_device(server, 8) as device:
        device.hello()
        device.start()
        device.open(0, 1)
        device.wait_host(0, "refused", 1)
        device.close(0, 1)
        device.wait_host(0, "free", 1)


def test_reset_ends_all_sessions(server: HostServer, device: FakeDevice) -> None:
    device.open(0, 1)
    device.open(1, 1)
    device.wait_host(0, "ready", 1)
    device.wait_host(1, "ready", 1)
    device.stop()
    assert len(server.wait_sessions(2)) == 2
    device.start()
    # The old sessions are not taken for new ones, and can be closed under the new epoch.
    assert device.host(0) in {("dead", 1), ("free", 1)}
    device.close(0, 1)
    device.wait_host(0, "free", 1)
    device.open(0, 2)
    device.wait_host(0, "ready", 2)


def test_a_stale_epoch_opens_nothing(server: HostServer, device: FakeDevice) -> None:
    device.open(0, 1, epoch=device.header("epoch") + 5)
    device.open(1, 1)
    device.wait_host(1, "ready", 1)
    assert device.host(0)[0] == "free"
    assert len(worker_pids(server)) == 1


def test_restarted_server_takes_the_region_over(
    start_server: StartServer, server: HostServer, device: FakeDevice
) -> None:
    device.open(0, 1)
    device.wait_host(0, "ready", 1)
    os.kill(server.pid, signal.SIGKILL)
    second = start_server(device=True, session_count=4)
    device.reconnect(second.device_socket)
    device.hello()
    device.start()
    device.wait_host(0, "dead", 1)
    assert device.session_word(0, "host_state") == 2
    device.close(0, 1)
    device.wait_host(0, "free", 1)
    device.open(0, 2)
    device.wait_host(0, "ready", 2)


def test_a_flood_of_opens_and_closes_is_survived(server: HostServer, device: FakeDevice) -> None:
    set_epochs(device)
    for generation in range(1, 2000):
        for index in range(4):
            state = OPEN if generation % 3 else CLOSED
            device.map.store_pair(device.layout.guest_line(index), state, generation)
        if generation % 50 == 0:
            device.notify()
    for index in range(4):
        device.close(index, 5000)
    for index in range(4):
        device.wait_host(index, "free", 5000)
    for index in range(4):
        device.open(index, 5001)
    for index in range(4):
        device.wait_host(index, "ready", 5001)
    server.check_alive()


def test_garbage_in_the_table_starts_nothing(server: HostServer, device: FakeDevice) -> None:
    table = os.urandom(4096)
    for index in range(4):
        # Any state but open: what random bytes hold nearly always.
        device.map.write(device.layout.guest_line(index), b"\x07" + table[index * 64 + 1 :][:63])
    device.notify()
    device.open(3, 9)
    device.wait_host(3, "ready", 9)
    assert len(worker_pids(server)) == 1


@pytest.mark.parametrize("case", ["magic", "size", "unsealed", "start first", "too small"])
def test_a_wrong_device_is_refused(server: HostServer, case: str) -> None:
    region_bytes = 4096 if case == "too small" else REGION_BYTES
    layout_bytes = max(region_bytes, REGION_BYTES)
    with FakeDevice(server.device_socket, layout_bytes, SESSION_BYTES, 4) as device:
        if case == "magic":
            device.hello(magic=1)
        elif case == "size":
            device.hello(region_bytes=REGION_BYTES * 2)
        elif case == "start first":
            device.send(2, [device.notify_fd])
        else:
            fd = os.memfd_create("plain", os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, region_bytes)
            device.send(1, [fd, device.wake_fd], region_bytes=region_bytes)
            os.close(fd)
        assert device.socket.recv(1) == b""
    server.check_alive()
    assert "device refused" in server.log.read_text()


def test_a_second_device_is_refused(server: HostServer, device: FakeDevice) -> None:
    with make_device(server) as second:
        assert second.socket.recv(1) == b""
    device.open(0, 1)
    device.wait_host(0, "ready", 1)


def test_the_device_leaving_ends_its_sessions(server: HostServer) -> None:
    with make_device(server) as device:
        device.hello()
        device.start()
        device.open(0, 1)
        device.wait_host(0, "ready", 1)
    assert server.wait_sessions(1)[0]["reason"] == "the device disconnected"
    with make_device(server) as again:
        again.hello()
        again.start()


def set_epochs(device: FakeDevice) -> None:
    """Make every line look as if it had been opened under the present epoch."""
    offset = view("table_guest").offset("epoch")
    for index in range(device.layout.session_count):
        device.map.store_word(device.layout.guest_line(index) + offset, device.header("epoch"))


def worker_pids(server: HostServer) -> list[int]:
    """Workers of a supervisor: its children that run the fake worker."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    found = []
    for pid in children:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if len(argv) > 1 and argv[1].endswith(b"fake_worker.py"):
            found.append(int(pid))
    return found
