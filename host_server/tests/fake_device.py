"""The other end of the device socket for tests: QEMU's device and the guest's driver in one."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import time
from pathlib import Path

from host_server.layout import Mapping, RegionLayout, region_layout
from testbed.protocol.wire import constant, enum, hash_of_specs, view

F_ADD_SEALS = 1033
SEALS = 1 | 2 | 4
WAIT_LIMIT_S = 20.0
GUEST = enum("guest_state")
HOST = {value: name for name, value in enum("host_state").items()}


class FakeDevice:
    """Context manager. The driver's half keeps to ARCHITECTURE.md, unless a test breaks it."""

    def __init__(self, path: Path, region_bytes: int, session_bytes: int, count: int) -> None:
        self.layout: RegionLayout = region_layout(region_bytes, session_bytes, count)
        self.region_bytes = region_bytes
        self.memory_fd = os.memfd_create("region", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.memory_fd, region_bytes)
        fcntl.fcntl(self.memory_fd, F_ADD_SEALS, SEALS)
        self.map = Mapping(os.dup(self.memory_fd), region_bytes)
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.notify_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_LIMIT_S)

    def __enter__(self) -> FakeDevice:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.map.close()
        for fd in (self.memory_fd, self.wake_fd, self.notify_fd):
            os.close(fd)

    def connect(self) -> None:
        """Connect as the chardev does."""
        self.socket.connect(str(self.path))

    def reconnect(self, path: Path) -> None:
        """The server went and another one came."""
        self.socket.close()
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_LIMIT_S)
        self.connect()

    def send(self, kind: int, fds: list[int], **changes: int) -> None:
        """One message of the device."""
        fields = {"magic": 0x4B4E4857, "version": 1, "type": kind}
        fields["region_bytes"] = self.region_bytes
        fields.update(changes)
        socket.send_fds(self.socket, [view("device_message").pack(**fields)], fds)

    def hello(self, **changes: int) -> None:
        """HELLO with memory and wake eventfd."""
        self.send(1, [self.memory_fd, self.wake_fd], **changes)

    def start(self) -> None:
        """START with the notify eventfd; waits until the header is published."""
        before = self.header("epoch")
        self.send(2, [self.notify_fd])
        self.wait(lambda: self.header("state") == 1 and self.header("epoch") != before, "ready")

    def stop(self) -> None:
        """STOP; waits until the header says so."""
        self.send(3, [])
        self.wait(lambda: self.header("state") == 0, "stopped")

    def header(self, name: str) -> int:
        """A word of the region header."""
        return self.map.word(view("region_header").offset(name))

    def notify(self) -> None:
        """The driver's available-buffer notification."""
        os.eventfd_write(self.notify_fd, 1)

    def open(self, index: int, generation: int, epoch: int | None = None) -> None:
        """The driver takes a slot."""
        line = self.layout.guest_line(index)
        fields = view("table_guest").pack(
            pid=42, uid=1000, spin_us=7, name=b"prog", epoch=epoch or self.header("epoch")
        )
        self.map.write(line + 8, fields[8:])
        self.map.store_pair(line, GUEST["open"], generation)
        self.notify()

    def close(self, index: int, generation: int) -> None:
        """The driver gives a slot back."""
        self.map.store_pair(self.layout.guest_line(index), GUEST["closed"], generation)
        self.notify()

    def host(self, index: int) -> tuple[str, int]:
        """State and generation of the supervisor's line."""
        state, generation = self.map.pair(self.layout.host_line(index))
        return HOST[state], generation

    def wait_host(self, index: int, state: str, generation: int) -> None:
        """Wait for the supervisor's line."""
        self.wait(lambda: self.host(index) == (state, generation), f"{state} {generation}", index)

    def wait_wake(self) -> None:
        """Wait for a wake, and take it."""
        assert select.select([self.wake_fd], [], [], WAIT_LIMIT_S)[0], "no wake came"
        os.eventfd_read(self.wake_fd)

    def session_word(self, index: int, name: str) -> int:
        """A word of a session header."""
        return self.map.word(self.layout.slot_offset(index) + view("session_header").offset(name))

    def wait(self, condition: object, what: str, index: int | None = None) -> None:
        """Wait for a condition with a limit that only a fault reaches."""
        assert callable(condition)
        deadline_s = time.monotonic() + WAIT_LIMIT_S
        while not condition():
            seen = self.host(index) if index is not None else ""
            assert time.monotonic() < deadline_s, f"waited for {what}, have {seen}"
            time.sleep(0.005)


def expected_header(layout: RegionLayout) -> dict[str, int]:
    """What a driver must find in a published header."""
    return {
        "magic": constant("magic"),
        "version": constant("protocol_version"),
        "spec_hash": hash_of_specs(),
        "region_bytes": layout.region_bytes,
        "table_offset": layout.table_offset,
        "sessions_offset": layout.sessions_offset,
        "session_bytes": layout.session_bytes,
        "session_count": layout.session_count,
    }
