"""A host server for the driver's tests that does as it is told: answer, refuse, be silent, die.

The real supervisor (host_server/) must never do the wrong things that a driver has to survive. This
double follows the same table protocol (guest_agent/driver/README.md) and answers words instead of
calls: a session's request word is copied to its reply word and the guest is woken.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from testbed.protocol.wire import constant, enum, hash_of_specs, view

HELLO, START, STOP = 1, 2, 3
REQUEST_OFFSET = 4096
REPLY_OFFSET = 4160
POLL_S = 0.05

Policy = Literal["answer", "refuse", "silent"]


class HostDouble:
    """Serves one VM's device socket from a thread until `die` or the end of the context.

    `policy` decides what an opening process gets. `opened` and `closed` count what the driver
    told, `lines` are the guest's lines of the sessions that were opened.
    """

    def __init__(self, path: Path, session_bytes: int = 4 << 20, session_count: int = 8) -> None:
        self.policy: Policy = "answer"
        self.session_bytes = session_bytes
        self.session_count = session_count
        self.opened = 0
        self.closed = 0
        self.stops = 0
        self.ready = False
        self.lines: list[dict[str, int | bytes]] = []
        self.header_changes: dict[str, int] = {}
        self._path = path
        self._lock = threading.Lock()
        self._ending = False
        self._map: mmap.mmap | None = None
        self._fds: list[int] = []
        self._wake_fd = -1
        self._states: dict[int, tuple[int, int]] = {}
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, name="host-double", daemon=True)
        self._thread.start()

    def __enter__(self) -> HostDouble:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def die(self) -> None:
        """Go without a word, as a killed server does: the region stays as it is."""
        self._ending = True
        self._thread.join(timeout=10.0)
        for sock in (self._connection, self._listener):
            if sock is not None:
                sock.close()
        self._selector.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        if self._map is not None:
            self._map.close()
            self._map = None
        self._path.unlink(missing_ok=True)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
        """Whether the condition came true in time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if condition():
                return True
            time.sleep(0.01)
        return condition()

    def live(self) -> int:
        """Sessions that are ready and not closed."""
        with self._lock:
            return sum(state == enum("host_state")["ready"] for state, _ in self._states.values())

    def kill_session(self, index: int) -> None:
        """What the supervisor does about a dead worker."""
        with self._lock:
            _, generation = self._states[index]
            self._answer(index, "dead", generation, errno.EPIPE)

    def _serve(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(POLL_S):
                key.data()

    def _accept(self) -> None:
        if self._connection is None:
            self._connection, _ = self._listener.accept()
            self._selector.register(self._connection, selectors.EVENT_READ, self._receive)

    def _receive(self) -> None:
        assert self._connection is not None
        message = view("device_message")
        data, fds, _, _ = socket.recv_fds(self._connection, message.size_bytes, 4)
        self._fds += fds
        if len(data) < message.size_bytes:
            self._selector.unregister(self._connection)
            return
        kind = message.load(data, 0, "type")
        if kind == HELLO:
            self._map = mmap.mmap(fds[0], message.load(data, 0, "region_bytes"))
            self._wake_fd = fds[1]
        elif kind == START:
            self._publish()
            self._selector.register(fds[0], selectors.EVENT_READ, lambda: self._notified(fds[0]))
        elif kind == STOP:
            self.stops += 1
            self._store_header("state", enum("region_state")["none"])
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fd, int) and key.fileobj in self._fds:
                    self._selector.unregister(key.fileobj)

    # ---- the region ----

    def _publish(self) -> None:
        """Take the region over: a new epoch, all lines of ours free."""
        assert self._map is not None
        header = view("region_header")
        epoch = header.load(self._map[:64], 0, "epoch") + 1
        self._store_header("state", enum("region_state")["none"])
        values: dict[str, int] = {
            "magic": constant("magic"),
            "version": constant("protocol_version"),
            "spec_hash": hash_of_specs(),
            "region_bytes": len(self._map),
            "table_offset": constant("page_bytes"),
            "sessions_offset": 2 * constant("page_bytes"),
            "session_bytes": self.session_bytes,
            "session_count": self.session_count,
            "epoch": epoch,
        }
        with self._lock:
            self._epoch = epoch
            self._states = {}
            for index in range(self.session_count):
                _, generation = self._pair(self._line(index))
                self._answer(index, "free", generation, 0)
        self._map[: header.size_bytes] = header.pack(**(values | self.header_changes))
        self._store_header("state", enum("region_state")["ready"])
        self.ready = True

    def _load(self, offset: int) -> int:
        assert self._map is not None
        with memoryview(self._map) as all_bytes, all_bytes.cast("I") as words:
            return words[offset // 4]

    def _store(self, offset: int, value: int) -> None:
        """Store a word in one access; struct.pack_into would show a zero on the way."""
        assert self._map is not None
        with memoryview(self._map) as all_bytes, all_bytes.cast("I") as words:
            words[offset // 4] = value

    def _store_header(self, name: str, value: int) -> None:
        self._store(view("region_header").offset(name), value)

    def _line(self, index: int) -> int:
        return constant("page_bytes") + index * 2 * constant("line_bytes")

    def _slot(self, index: int) -> int:
        return 2 * constant("page_bytes") + index * self.session_bytes

    def _pair(self, offset: int) -> tuple[int, int]:
        assert self._map is not None
        with memoryview(self._map) as all_bytes, all_bytes.cast("Q") as words:
            word = words[offset // 8]
        return word & 0xFFFFFFFF, word >> 32

    def _answer(self, index: int, state: str, generation: int, error: int) -> None:
        """Store a host line and wake the guest; the caller holds the lock."""
        assert self._map is not None
        number = enum("host_state")[state]
        line = self._line(index) + constant("line_bytes")
        self._store(line + view("table_host").offset("error"), error)
        self._store(line + view("table_host").offset("epoch"), self._epoch)
        with memoryview(self._map) as all_bytes, all_bytes.cast("Q") as words:
            words[line // 8] = generation << 32 | number
        self._states[index] = (number, generation)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake_fd, 1)

    def _notified(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):  # a notification of before a STOP
            os.eventfd_read(fd)
        with self._lock:
            for index in range(self.session_count):
                self._look(index)

    def _look(self, index: int) -> None:
        assert self._map is not None
        guest = enum("guest_state")
        host = enum("host_state")
        state, generation = self._pair(self._line(index))
        known_state, known_generation = self._states[index]
        slot = self._slot(index)
        if state == guest["open"] and generation != known_generation:
            self._open(index, generation)
        elif state != guest["open"] and (
            known_state != host["free"] or generation != known_generation
        ):
            self._map[slot : slot + self.session_bytes] = bytes(self.session_bytes)
            self.closed += 1
            self._answer(index, "free", generation, 0)
        elif known_state == host["ready"]:
            request, reply = (
                self._load(slot + offset) for offset in (REQUEST_OFFSET, REPLY_OFFSET)
            )
            if request != reply:
                self._store(slot + REPLY_OFFSET, request)
                self._wake()

    def _open(self, index: int, generation: int) -> None:
        assert self._map is not None
        guest_line = view("table_guest")
        line = self._line(index)
        self.lines.append(guest_line.unpack(self._map[line : line + guest_line.size_bytes]))
        self.opened += 1
        slot = self._slot(index)
        self._map[slot : slot + self.session_bytes] = bytes(self.session_bytes)
        if self.policy == "refuse":
            self._answer(index, "refused", generation, errno.ENOSPC)
        elif self.policy == "silent":
            self._states[index] = (-1, generation)
        else:
            state_offset = slot + view("session_header").offset("host_state")
            self._store(state_offset, enum("host_state")["ready"])
            self._answer(index, "ready", generation, 0)
