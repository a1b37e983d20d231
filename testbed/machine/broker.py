"""Introduces the devices of two VMs to each other: a client guest and one that serves it.

Both VMs have the same region. The broker is the server that their devices connect to
(qemu_patches/, `A server in a guest`): it passes the notify eventfd of each device to the other,
which then watches it itself. No message and no notification of the guests passes through here.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from testbed.machine.qemu_argv import Region
from testbed.protocol.wire import constant, enum, view

MAGIC = constant("device_magic")
VERSION = constant("device_version")
TYPES = enum("device_message_type")
SIDES = ("server", "client")
END_LIMIT_S = 5.0
SEND_LIMIT_S = 2.0


@dataclass
class _Side:
    """One VM's device: its socket, and what it has said."""

    name: str
    listener: socket.socket
    connection: socket.socket | None = None
    data: bytes = b""
    fds: list[int] = field(default_factory=list)
    notify_fd: int = -1  # while its driver is running


class Broker:
    """Serves both sockets in a thread of its own until it is closed."""

    def __init__(self, region_bytes: int) -> None:
        self.region_bytes = region_bytes
        self.messages = 0  # taken from the devices so far
        self.memory_fd = _sealed_memory(region_bytes)
        self._name = f"wormhole-broker-{secrets.token_hex(8)}"
        self._sides = {name: _Side(name, _listen(f"{self._name}-{name}")) for name in SIDES}
        self._selector = selectors.DefaultSelector()
        self._stop_read, self._stop_write = os.pipe()
        self._selector.register(self._stop_read, selectors.EVENT_READ, None)
        for side in self._sides.values():
            self._selector.register(side.listener, selectors.EVENT_READ, side)
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()

    def region(self, side: str, ioeventfd: bool = True) -> Region:
        """The device of the `server` or of the `client` VM."""
        return Region(
            self.region_bytes,
            Path(f"@{self._name}-{side}"),
            ioeventfd=ioeventfd,
            memory_fd=self.memory_fd,
            serves=side == "server",
        )

    def close(self) -> None:
        """End the thread, drop both devices, give the region's memory back."""
        os.write(self._stop_write, b"x")
        self._thread.join(END_LIMIT_S)
        for side in self._sides.values():
            self._drop(side)
            side.listener.close()
        self._selector.close()
        for fd in (self._stop_read, self._stop_write, self.memory_fd):
            os.close(fd)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                side = key.data
                if side is None:
                    return
                if key.fileobj is side.listener:
                    self._accept(side)
                elif side.connection is not None:
                    self._read(side)

    def _accept(self, side: _Side) -> None:
        connection, _ = side.listener.accept()
        if side.connection is not None or not _is_ours(connection):
            connection.close()  # a second VM of this side, or somebody else
            return
        connection.settimeout(SEND_LIMIT_S)
        side.connection = connection
        self._selector.register(connection, selectors.EVENT_READ, side)
        self._introduce(side)

    def _read(self, side: _Side) -> None:
        assert side.connection is not None
        size = view("device_message").size_bytes
        try:
            data, fds, _, _ = socket.recv_fds(side.connection, size - len(side.data), 4)
        except OSError:
            data, fds = b"", []
        side.data += data
        side.fds += fds
        if not data:
            self._lost(side)
        elif len(side.data) == size:
            message, side.data = side.data, b""
            received, side.fds = side.fds, []
            self._take(side, message, received)

    def _take(self, side: _Side, message: bytes, fds: list[int]) -> None:
        self.messages += 1
        fields = view("device_message").unpack(message)
        if fields["magic"] == MAGIC and fields["version"] == VERSION:
            if fields["type"] == TYPES["start"] and len(fds) == 1:
                self._started(side, fds.pop())
            elif fields["type"] == TYPES["stop"]:
                self._stopped(side)
        # HELLO's are not needed: the region is ours, and nobody here wakes a guest.
        for fd in fds:
            os.close(fd)

    def _started(self, side: _Side, notify_fd: int) -> None:
        self._forget(side)
        side.notify_fd = notify_fd
        self._introduce(self._other(side))
        # A peer that was there before this driver: only a running driver takes events.
        self._introduce(side)

    def _stopped(self, side: _Side) -> None:
        if side.notify_fd < 0:
            return
        self._forget(side)
        if side.name == "server":
            # As when a supervisor on the host goes: its clients' calls end, and no new session
            # waits for an answer of one that is not there.
            self._clear_state()
            client = self._sides["client"]
            if client.connection is not None:
                self._lost(client)
        else:
            self._introduce(self._other(side))

    def _lost(self, side: _Side) -> None:
        """The VM has ended or its device broke off; it may connect again."""
        self._drop(side)
        self._stopped(side)

    def _introduce(self, side: _Side) -> None:
        """Tell a device of the other's notify eventfd, or that there is none."""
        if side.connection is None:
            return
        other = self._other(side)
        message = view("device_message").pack(
            magic=MAGIC, version=VERSION, type=TYPES["peer"], region_bytes=self.region_bytes
        )
        fds = [other.notify_fd] if other.notify_fd >= 0 else []
        with contextlib.suppress(OSError):  # its end is read from the connection
            socket.send_fds(side.connection, [message], fds)

    def _other(self, side: _Side) -> _Side:
        return self._sides["client" if side.name == "server" else "server"]

    def _forget(self, side: _Side) -> None:
        if side.notify_fd >= 0:
            os.close(side.notify_fd)
            side.notify_fd = -1

    def _drop(self, side: _Side) -> None:
        if side.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(side.connection)
            side.connection.close()
            side.connection = None
        for fd in side.fds:
            os.close(fd)
        side.data, side.fds = b"", []

    def _clear_state(self) -> None:
        header = view("region_header")
        with mmap.mmap(self.memory_fd, mmap.PAGESIZE) as page:
            offset = header.offset("state")
            page[offset : offset + 4] = enum("region_state")["none"].to_bytes(4, "little")


@contextmanager
def broker(region_bytes: int) -> Iterator[Broker]:
    """A region and the sockets of the two devices that share it, while the context lasts."""
    made = Broker(region_bytes)
    try:
        yield made
    finally:
        made.close()


def _sealed_memory(size_bytes: int) -> int:
    """A memfd that nobody can shrink under those who map it."""
    fd = os.memfd_create("wormhole-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _listen(name: str) -> socket.socket:
    """An abstract socket: it is gone with us, however we end."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen(1)
    return listener


def _is_ours(connection: socket.socket) -> bool:
    """Whether the other end runs as our user: abstract names have no permissions."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return bool(uid == os.getuid())
