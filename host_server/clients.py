"""Clients that are host processes: the Unix socket (shared memory) and TCP.

A client says hello; what it says is checked before anything is started for it. On the Unix socket
the connection is the session's life; over TCP the worker owns the connections.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import hmac
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from host_server.layout import Mapping, SessionMemory
from host_server.loop import Loop
from host_server.sessions import (
    Sessions,
    clean_name,
    clean_spin_us,
    mismatch,
    new_session_name,
    wants_notify_always,
)
from host_server.wake import wake
from host_server.worker_process import SessionOrder, Worker, log
from testbed.errors import TestbedError
from testbed.protocol.wire import constant, enum, hash_of_specs, view

HELLO_LIMIT_S = 5.0
UNREADY_MAX = 64
BACKLOG = 64
SEND_FLAGS = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
UNIX_PATH_BYTES_MAX = 107
# Linux's numbers; Python's fcntl names them only from 3.13 on.
F_ADD_SEALS = 1033
F_SEAL_SEAL = 1
F_SEAL_SHRINK = 2
F_SEAL_GROW = 4


@dataclass(frozen=True)
class Hello:
    """A checked hello."""

    session: int
    spin_us: int
    notify_always: bool
    pid: int
    name: str


def listen_unix(path: Path) -> socket.socket:
    """A listening socket at a path. A dead socket there is replaced, a live one is an error."""
    if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
        raise TestbedError(
            f"the socket path {path} is longer than {UNIX_PATH_BYTES_MAX} bytes",
            "choose a shorter run directory",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise TestbedError(f"cannot use {path} as a socket: {error.strerror}") from error
        else:
            raise TestbedError(
                f"another supervisor listens at {path}", "end it or choose another run directory"
            )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise TestbedError(
            f"cannot create the socket {path}: {error.strerror}", "check the directory"
        ) from error
    finally:
        os.umask(mask)
    listener.listen(BACKLOG)
    return listener


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes any."""
    try:
        listener = socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise TestbedError(
            f"cannot listen on {host}:{port}: {error.strerror}", "choose another port, or 0 for any"
        ) from error
    listener.setblocking(False)
    return listener


class Greeter:
    """Accepts connections and reads their hello without ever waiting for one of them."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        token: bytes | None,
        accepted: Callable[[socket.socket, Hello], None],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._token = token
        self._accepted = accepted
        self._unready: set[_Unready] = set()
        loop.watch(listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting and drop who has not said hello."""
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
        for unready in list(self._unready):
            unready.drop()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                log(f"accepting a connection failed: {error.strerror}")
            return
        connection.setblocking(False)
        if len(self._unready) >= UNREADY_MAX:
            connection.close()
            return
        self._unready.add(_Unready(self, connection))

    # Used by _Unready only.
    @property
    def loop(self) -> Loop:
        """The event loop."""
        return self._loop

    def forget(self, unready: _Unready) -> None:
        """A connection has said hello or is gone."""
        self._unready.discard(unready)

    def judge(self, connection: socket.socket, data: bytes) -> None:
        """Check a whole hello; refuse it, with both values in the log, or pass it on."""
        fields = view("hello").unpack(data)
        number = {name: value for name, value in fields.items() if isinstance(value, int)}
        wrong = mismatch(number["magic"], number["version"], number["spec_hash"])
        name = clean_name(bytes(data[view("hello").offset("name") :][:16]))
        if wrong is None and self._token is not None:
            shown = data[view("hello").offset("token") :][: constant("token_bytes")]
            if not hmac.compare_digest(shown, self._token):
                wrong = "token", "the token is not this server's"
        if wrong is not None:
            log(f"refused client {name!r} (pid {number['pid']}): {wrong[1]}")
            refuse(connection, wrong[0])
            return
        self._accepted(
            connection,
            Hello(
                number["session"],
                clean_spin_us(number["spin_us"]),
                wants_notify_always(number["switches"]),
                number["pid"],
                name,
            ),
        )


class _Unready:
    """A connection whose hello is not complete."""

    def __init__(self, greeter: Greeter, connection: socket.socket) -> None:
        self._greeter = greeter
        self._connection = connection
        self._data = b""
        self._timer = greeter.loop.after(HELLO_LIMIT_S, self.drop)
        greeter.loop.watch(connection.fileno(), self._read)

    def drop(self) -> None:
        """Close without an answer."""
        self._leave()
        self._connection.close()

    def _leave(self) -> None:
        self._timer.cancel()
        self._greeter.loop.unwatch(self._connection.fileno())
        self._greeter.forget(self)

    def _read(self) -> None:
        wanted = view("hello").size_bytes - len(self._data)
        try:
            data = self._connection.recv(wanted)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop()
            return
        self._data += data
        if len(self._data) == view("hello").size_bytes:
            self._leave()
            self._greeter.judge(self._connection, self._data)


def welcome(status: str, session: int = 0, session_bytes: int = 0) -> bytes:
    """The answer to a hello."""
    return view("welcome").pack(
        magic=constant("magic"),
        version=constant("protocol_version"),
        status=enum("hello_status")[status],
        spec_hash=hash_of_specs(),
        session=session,
        session_bytes=session_bytes,
    )


def refuse(connection: socket.socket, status: str) -> None:
    """Send a status that is not ok, and close."""
    with contextlib.suppress(OSError):
        connection.send(welcome(status), SEND_FLAGS)
    connection.close()


class UnixClient:
    """One session of the `process` placement: a memfd of its own with one slot at offset 0."""

    def __init__(
        self,
        sessions: Sessions,
        connection: socket.socket,
        hello: Hello,
        on_end: Callable[[UnixClient], None],
    ) -> None:
        self._sessions = sessions
        self._connection = connection
        self._on_end = on_end
        self._session = new_session_name()
        size_bytes = sessions.limits.session_bytes
        self._mapping = _session_memfd(size_bytes)
        self._memory = SessionMemory(self._mapping, 0, size_bytes)
        self._memory.initialise()
        self._notify_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        order = SessionOrder(
            session=f"{self._session:016x}",
            placement="process",
            client={"pid": hello.pid, "name": hello.name},
            transport="shm",
            spin_us=hello.spin_us,
            notify_always=hello.notify_always,
            region_fd=self._mapping.fd,
            offset=0,
            size_bytes=size_bytes,
            notify_fd=self._notify_fd,
            wake_fd=self._wake_fd,
        )
        try:
            self._worker = sessions.start(order, self._ready, self._ended)
        except BaseException:
            self._release()
            raise
        sessions.loop.watch(connection.fileno(), self._client_spoke)

    def _ready(self, error: str) -> None:
        if error:
            log(f"session {self._session:016x} refused: {error}")
            with contextlib.suppress(OSError):
                self._connection.send(welcome("failed"), SEND_FLAGS)
            return
        rights = array.array("i", [self._mapping.fd, self._notify_fd, self._wake_fd])
        answer = welcome("ok", self._session, self._memory.size_bytes)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        try:
            self._connection.sendmsg([answer], ancillary, SEND_FLAGS)
        except OSError:
            self._worker.end("the client left before it was welcomed")

    def _client_spoke(self) -> None:
        """After the hello a client has nothing to say: data or the end of it end the session."""
        try:
            data = self._connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._sessions.loop.unwatch(self._connection.fileno())
        self._worker.end("the client broke the protocol" if data else "the client left")

    def _ended(self) -> None:
        self._memory.mark_dead(0)
        wake(self._wake_fd)
        self._sessions.loop.unwatch(self._connection.fileno())
        self._release()
        self._on_end(self)

    def _release(self) -> None:
        self._connection.close()
        self._mapping.close()
        os.close(self._notify_fd)
        os.close(self._wake_fd)


def _session_memfd(size_bytes: int) -> Mapping:
    """A memfd whose size nobody can change: a shrunk one would kill whoever touches it."""
    fd = os.memfd_create("wormhole-session", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
        return Mapping(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise


class Door:
    """Lets clients in one after the other: a flood waits its turn, within bounds."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._waiting = 0

    def enter(
        self, connection: socket.socket, hello: Hello, start: Callable[[], None], wait: int = 0
    ) -> None:
        """Call `start` now or when the rate allows it; refuse when there are too many."""
        self._waiting -= wait
        if self._sessions.full() or self._waiting >= UNREADY_MAX:
            log(f"refused client {hello.name!r}: {self._sessions.count} sessions are the limit")
            refuse(connection, "limit")
            return
        delay_s = self._sessions.start_delay_s()
        if delay_s > 0.0:
            self._waiting += 1
            self._sessions.loop.after(delay_s, lambda: self.enter(connection, hello, start, 1))
            return
        start()


class UnixServer:
    """Serves clients on the Unix socket."""

    def __init__(self, sessions: Sessions, listener: socket.socket) -> None:
        self._sessions = sessions
        self._clients: set[UnixClient] = set()
        self._door = Door(sessions)
        self._greeter = Greeter(sessions.loop, listener, None, self._open)

    def close(self) -> None:
        """Accept nobody any more; live sessions are ended by Sessions."""
        self._greeter.close()

    def _open(self, connection: socket.socket, hello: Hello) -> None:
        self._door.enter(connection, hello, lambda: self._start(connection, hello))

    def _start(self, connection: socket.socket, hello: Hello) -> None:
        try:
            self._clients.add(UnixClient(self._sessions, connection, hello, self._clients.discard))
        except (OSError, TestbedError) as error:
            log(f"cannot open a session for {hello.name!r}: {error}")
            refuse(connection, "failed")


class TcpServer:
    """Serves clients over TCP: the first connection opens a session, later ones join it."""

    def __init__(self, sessions: Sessions, listener: socket.socket, token: bytes) -> None:
        self._sessions = sessions
        self._workers: dict[int, Worker] = {}
        self._door = Door(sessions)
        self._greeter = Greeter(sessions.loop, listener, token, self._open)

    def close(self) -> None:
        """Accept nobody any more; live sessions are ended by Sessions."""
        self._greeter.close()

    def _open(self, connection: socket.socket, hello: Hello) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The flag belongs to the open file, which the worker gets: it expects a blocking socket.
        connection.setblocking(True)
        if hello.session != 0:
            self._join(connection, hello)
            return
        self._door.enter(connection, hello, lambda: self._start(connection, hello))

    def _start(self, connection: socket.socket, hello: Hello) -> None:
        session = new_session_name()
        order = SessionOrder(
            session=f"{session:016x}",
            placement="tcp",
            client={"pid": hello.pid, "name": hello.name},
            transport="tcp",
            spin_us=hello.spin_us,
            notify_always=hello.notify_always,
            socket_fd=connection.fileno(),
        )

        def ready(error: str) -> None:
            if error:
                log(f"session {session:016x} refused: {error}")
                refuse(connection, "failed")
                return
            with contextlib.suppress(OSError):
                connection.send(welcome("ok", session), SEND_FLAGS)
            # From here on the worker owns the connection.
            connection.close()

        def ended() -> None:
            self._workers.pop(session, None)

        try:
            self._workers[session] = self._sessions.start(order, ready, ended)
        except (OSError, TestbedError) as error:
            log(f"cannot open a session for {hello.name!r}: {error}")
            refuse(connection, "failed")

    def _join(self, connection: socket.socket, hello: Hello) -> None:
        worker = self._workers.get(hello.session)
        if worker is None:
            log(f"refused client {hello.name!r}: there is no session {hello.session:016x}")
            refuse(connection, "session")
            return
        try:
            connection.send(welcome("ok", hello.session), SEND_FLAGS)
            worker.pass_connection(connection)
        except OSError as error:
            log(f"session {hello.session:016x}: cannot pass a connection: {error.strerror}")
        connection.close()
