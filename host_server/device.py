"""One VM: the device's socket, the region's header, and the session table.

The guest writes its table lines at any time and any way it likes. State and generation are read
and written together, as one 64-bit word, so that a state is never taken for one of another
generation; a slot moves on only by the rules of `next_step`, which needs nothing else.
"""

from __future__ import annotations

import contextlib
import enum as enumeration
import errno
import fcntl
import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from host_server.clients import F_SEAL_SHRINK
from host_server.layout import Mapping, RegionLayout, SessionMemory, region_layout
from host_server.loop import Loop, Timer
from host_server.sessions import (
    Sessions,
    clean_name,
    clean_spin_us,
    new_session_name,
    wants_notify_always,
)
from host_server.wake import wake
from host_server.worker_process import SessionOrder, Worker, log
from testbed.errors import TestbedError
from testbed.protocol.wire import constant, enum, hash_of_specs, view

DEVICE_MAGIC = constant("device_magic")
DEVICE_VERSION = constant("device_version")
HELLO, START, STOP = (enum("device_message_type")[name] for name in ("hello", "start", "stop"))
F_GET_SEALS = 1034
# While requests are notified one by one, the table is looked at this often and not at each of them.
SCAN_PAUSE_S = 0.01

GUEST = enum("guest_state")
HOST = enum("host_state")


class Phase(enumeration.Enum):
    """What the supervisor has made of a slot."""

    FREE = "free"
    LIVE = "live"  # a worker is starting or running
    ENDING = "ending"  # its worker has been told to end
    OVER = "over"  # refused or dead; waits until the guest closes it


class Step(enumeration.Enum):
    """What to do about a slot."""

    NOTHING = "nothing"
    OPEN = "open"
    END = "end"
    FREE = "free"


def next_step(
    phase: Phase, generation: int, guest_state: int, guest_generation: int, fresh: bool
) -> Step:
    """The rule of the session table.

    `generation` is the one that the phase belongs to; `fresh` is whether the guest's line names
    the region's present epoch. Unknown guest states count as closed.
    """
    is_open = guest_state == GUEST["open"]
    same = guest_generation == generation
    if phase is Phase.FREE:
        if same or not fresh:
            return Step.NOTHING
        # Closed before we ever saw it open: the driver still waits for its generation's FREE.
        return Step.OPEN if is_open else Step.FREE
    if phase is Phase.LIVE:
        return Step.NOTHING if is_open and same else Step.END
    if phase is Phase.OVER:
        return Step.NOTHING if is_open and same else Step.FREE
    return Step.NOTHING


@dataclass
class Slot:
    """The supervisor's own record of a session slot."""

    index: int
    memory: SessionMemory
    phase: Phase = Phase.FREE
    generation: int = 0
    worker: Worker | None = None


class Region:
    """A VM's mapped region with its table, from HELLO until the device disconnects."""

    def __init__(self, sessions: Sessions, memory_fd: int, wake_fd: int, size_bytes: int) -> None:
        self._sessions = sessions
        self._wake_fd = wake_fd
        self._notify_fd = -1
        self._closing = False
        limits = sessions.limits
        self.layout: RegionLayout = region_layout(
            size_bytes, limits.session_bytes, limits.session_count
        )
        self._map = Mapping(memory_fd, size_bytes)
        self._retry: Timer | None = None
        header = view("region_header")
        used = self._map.word(header.offset("magic")) != 0
        length = self.layout.session_bytes
        self._slots = [
            Slot(i, SessionMemory(self._map, self.layout.slot_offset(i), length, used))
            for i in range(self.layout.session_count)
        ]
        self._epoch = (self._map.word(header.offset("epoch")) + 1) & 0xFFFFFFFF
        # No driver can rely on a header that an earlier supervisor left.
        self._map.store_word(header.offset("state"), enum("region_state")["none"])

    @property
    def running(self) -> bool:
        """Whether the driver has started the device."""
        return self._notify_fd >= 0

    def start(self, notify_fd: int) -> None:
        """The driver is up: publish the header, take over the table, wake the guest."""
        self.stop("the driver started again")
        self._notify_fd = notify_fd
        header = view("region_header")
        self._epoch = (self._epoch + 1) & 0xFFFFFFFF
        fields = header.pack(
            magic=constant("magic"),
            version=constant("protocol_version"),
            spec_hash=hash_of_specs(),
            region_bytes=self.layout.region_bytes,
            table_offset=self.layout.table_offset,
            sessions_offset=self.layout.sessions_offset,
            session_bytes=self.layout.session_bytes,
            session_count=self.layout.session_count,
            epoch=self._epoch,
        )
        self._map.write(0, fields)
        for slot in self._slots:
            self._take_over(slot)
        self._map.store_word(header.offset("state"), enum("region_state")["ready"])
        log(
            f"driver started: epoch {self._epoch}, {self.layout.session_count} sessions "
            f"of {self.layout.session_bytes} bytes"
        )
        self.scan()
        self._wake()

    def stop(self, reason: str) -> None:
        """The driver is gone: all its sessions end."""
        self._map.store_word(view("region_header").offset("state"), enum("region_state")["none"])
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._notify_fd >= 0:
            os.close(self._notify_fd)
            self._notify_fd = -1
        for slot in self._slots:
            if slot.phase is Phase.LIVE and slot.worker is not None:
                slot.phase = Phase.ENDING
                slot.worker.end(reason)
            elif slot.phase is Phase.OVER:
                self._free(slot)

    def close(self, reason: str) -> None:
        """The device is gone. The mapping goes when the last worker has ended."""
        self._closing = True
        self.stop(reason)
        self._release_if_idle()

    @property
    def notify_fd(self) -> int:
        """The eventfd that the guest's notifications reach; -1 while the driver is down."""
        return self._notify_fd

    def scan(self) -> None:
        """Look at every slot once and do what its states ask for."""
        if not self.running:
            return
        for slot in self._slots:
            self._look(slot)

    def _look(self, slot: Slot) -> None:
        line = self.layout.guest_line(slot.index)
        fields = view("table_guest")
        state, generation = self._map.pair(line + fields.offset("guest_state"))
        fresh = self._map.word(line + fields.offset("epoch")) == self._epoch
        step = next_step(slot.phase, slot.generation, state, generation, fresh)
        if step is Step.OPEN:
            self._open(slot, generation)
        elif step is Step.END and slot.worker is not None:
            slot.phase = Phase.ENDING
            slot.worker.end("the guest closed the session")
        elif step is Step.FREE:
            if slot.phase is Phase.FREE:
                slot.generation = generation
            self._free(slot)

    def _open(self, slot: Slot, generation: int) -> None:
        delay_s = self._sessions.start_delay_s()
        if delay_s > 0.0:
            if self._retry is None:
                self._retry = self._sessions.loop.after(delay_s, self._scan_again)
            return
        raw = self._map.read(self.layout.guest_line(slot.index), view("table_guest").size_bytes)
        fields = view("table_guest").unpack(raw)
        number = {name: value for name, value in fields.items() if isinstance(value, int)}
        name = fields["name"]
        slot.phase = Phase.LIVE
        slot.generation = generation
        order = SessionOrder(
            session=f"{new_session_name():016x}",
            placement="guest",
            client={
                "pid": number["pid"],
                "uid": number["uid"],
                "name": clean_name(name if isinstance(name, bytes) else b""),
                "slot": slot.index,
                "generation": generation,
            },
            transport="shm",
            spin_us=clean_spin_us(number["spin_us"]),
            notify_always=wants_notify_always(number["switches"]),
            region_fd=self._map.fd,
            offset=slot.memory.offset,
            size_bytes=slot.memory.size_bytes,
            notify_fd=self._notify_fd,
            wake_fd=self._wake_fd,
        )
        try:
            slot.memory.initialise()
            slot.worker = self._sessions.start(
                order, lambda error: self._ready(slot, error), lambda: self._ended(slot)
            )
        except (OSError, TestbedError) as error:
            log(f"cannot open a session in slot {slot.index}: {error}")
            slot.phase = Phase.OVER
            self._tell(slot, "refused", errno.ENOMEM)

    def _scan_again(self) -> None:
        self._retry = None
        self.scan()

    def _ready(self, slot: Slot, error: str) -> None:
        if slot.phase is not Phase.LIVE:
            return
        if error:
            log(f"slot {slot.index} refused: {error}")
            slot.phase = Phase.OVER
            self._tell(slot, "refused", errno.EIO)
        else:
            self._tell(slot, "ready", 0)

    def _ended(self, slot: Slot) -> None:
        """The worker has been collected: only now may the slot get another owner."""
        slot.worker = None
        if slot.phase is Phase.ENDING:
            self._free(slot)
        elif slot.phase is Phase.LIVE:
            slot.phase = Phase.OVER
            slot.memory.mark_dead(errno.EPIPE)
            self._tell(slot, "dead", errno.EPIPE)
        if self._closing:
            self._release_if_idle()
        elif self.running:
            self._look(slot)

    def _free(self, slot: Slot) -> None:
        if slot.worker is not None:
            # A refused worker that has not been collected yet: _ended frees the slot.
            slot.phase = Phase.ENDING
            return
        slot.memory.clear()
        slot.phase = Phase.FREE
        self._store_host_line(slot, "free", 0)

    def _take_over(self, slot: Slot) -> None:
        """Make a slot's host line true under the new epoch; what was open before is dead."""
        line = self.layout.guest_line(slot.index)
        fields = view("table_guest")
        state, slot.generation = self._map.pair(line + fields.offset("guest_state"))
        fresh = self._map.word(line + fields.offset("epoch")) == self._epoch
        if slot.phase is Phase.ENDING:
            # An earlier session's worker has not been collected; _ended makes the line true.
            return
        if state == GUEST["open"] and not fresh:
            slot.phase = Phase.OVER
            slot.memory.mark_dead(errno.EPIPE)
            self._store_host_line(slot, "dead", errno.EPIPE)
            return
        slot.memory.clear()
        slot.phase = Phase.FREE
        self._store_host_line(slot, "free", 0)

    def _tell(self, slot: Slot, state: str, error: int) -> None:
        self._store_host_line(slot, state, error)
        self._wake()

    def _store_host_line(self, slot: Slot, state: str, error: int) -> None:
        """Error and epoch first, then state and generation together."""
        line = self.layout.host_line(slot.index)
        fields = view("table_host")
        self._map.store_word(line + fields.offset("error"), error)
        self._map.store_word(line + fields.offset("epoch"), self._epoch)
        self._map.store_pair(line + fields.offset("host_state"), HOST[state], slot.generation)

    def _wake(self) -> None:
        wake(self._wake_fd)

    def _release_if_idle(self) -> None:
        if all(slot.worker is None for slot in self._slots):
            self._map.close()
            os.close(self._wake_fd)


class NotifyWatch:
    """Calls back after notifications, then not again before a pause is over.

    Edge-triggered and never read: workers poll the same eventfds, and a read would take their
    wake-up away. The inner set is left unwatched during a pause.
    """

    def __init__(self, loop: Loop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._edges = select.epoll()
        self._fd = -1
        self._pause: Timer | None = None
        loop.watch(self._edges.fileno(), self._notified)

    def watch(self, notify_fd: int) -> None:
        """Watch another eventfd, which stays the caller's (-1: none)."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._edges.unregister(self._fd)
            os.close(self._fd)
        self._fd = -1
        if notify_fd >= 0:
            # An own descriptor, so that closing one never silently changes the set.
            self._fd = os.dup(notify_fd)
            self._edges.register(self._fd, select.EPOLLIN | select.EPOLLET)

    def close(self) -> None:
        """Watch nothing any more."""
        self.watch(-1)
        if self._pause is not None:
            self._pause.cancel()
        self._loop.unwatch(self._edges.fileno())
        self._edges.close()

    def _notified(self) -> None:
        self._edges.poll(0)
        self._callback()
        if self._pause is None:
            self._loop.unwatch(self._edges.fileno())
            self._pause = self._loop.after(SCAN_PAUSE_S, self._pause_over)

    def _pause_over(self) -> None:
        self._pause = None
        self._loop.watch(self._edges.fileno(), self._notified)


class DeviceServer:
    """The socket that QEMU's device connects to; one device at a time."""

    def __init__(self, sessions: Sessions, listener: socket.socket) -> None:
        self._sessions = sessions
        self._loop = sessions.loop
        self._listener = listener
        self._connection: socket.socket | None = None
        self._data = b""
        self._fds: list[int] = []
        self._region: Region | None = None
        self._watch = NotifyWatch(self._loop, self._scan)
        self._loop.watch(listener.fileno(), self._accept)

    def close(self) -> None:
        """Leave the device; sessions are told to end."""
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
        self._disconnect("the supervisor ends")
        self._watch.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if self._connection is not None:
            log("refused a second device: this supervisor serves one VM")
            connection.close()
            return
        connection.setblocking(False)
        self._connection = connection
        self._loop.watch(connection.fileno(), self._read)
        log("device connected")

    def _read(self) -> None:
        if self._connection is None:
            return
        size = view("device_message").size_bytes
        try:
            data, fds, _, _ = socket.recv_fds(self._connection, size - len(self._data), 4)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self._fds += fds
        self._data += data
        if not data:
            self._disconnect("the device disconnected")
            return
        if len(self._data) < size:
            return
        message, self._data = self._data, b""
        received, self._fds = self._fds, []
        try:
            self._handle(message, received)
        except (OSError, TestbedError) as error:
            log(f"device refused: {error}")
            for fd in received:
                os.close(fd)
            self._disconnect("the device broke the protocol")

    def _handle(self, message: bytes, fds: list[int]) -> None:
        """Act on one message; descriptors that it takes over are removed from `fds`."""
        fields = view("device_message").unpack(message)
        number = {name: value for name, value in fields.items() if isinstance(value, int)}
        if number["magic"] != DEVICE_MAGIC or number["version"] != DEVICE_VERSION:
            raise TestbedError(
                f"message with magic {number['magic']:#x}, version {number['version']}; "
                f"expected {DEVICE_MAGIC:#x}, {DEVICE_VERSION}"
            )
        kind = number["type"]
        if kind == HELLO and len(fds) == 2 and self._region is None:
            check_memory(fds[0], number["region_bytes"])
            self._region = Region(self._sessions, fds[0], fds[1], number["region_bytes"])
            fds.clear()
        elif kind == START and len(fds) == 1 and self._region is not None:
            notify_fd = fds.pop()
            self._watch.watch(notify_fd)
            self._region.start(notify_fd)
        elif kind == STOP and not fds and self._region is not None:
            self._watch.watch(-1)
            self._region.stop("the driver stopped")
            log("driver stopped")
        else:
            raise TestbedError(
                f"message type {kind} with {len(fds)} descriptors is out of place "
                f"({'after' if self._region else 'before'} HELLO)"
            )

    def _scan(self) -> None:
        if self._region is not None:
            self._region.scan()

    def _disconnect(self, reason: str) -> None:
        if self._connection is None:
            return
        log(f"device: {reason}")
        self._loop.unwatch(self._connection.fileno())
        self._connection.close()
        self._connection = None
        self._watch.watch(-1)
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        self._data = b""
        if self._region is not None:
            self._region.close(reason)
            self._region = None


def check_memory(fd: int, region_bytes: int) -> None:
    """Refuse a region that is not what the device says or that could shrink under us."""
    actual_bytes = os.fstat(fd).st_size
    if actual_bytes != region_bytes:
        raise TestbedError(
            f"the device's region has {actual_bytes} bytes, its message says {region_bytes}"
        )
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except OSError as error:
        raise TestbedError("the device's region is not a memfd") from error
    if not seals & F_SEAL_SHRINK:
        raise TestbedError(
            "the device's region is not sealed against shrinking",
            "use memory-backend-memfd with seal=on, its default",
        )
