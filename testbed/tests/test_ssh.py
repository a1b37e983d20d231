"""A peer that stops answering, at every point of a connection: each wait has a limit of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from testbed.errors import TestbedError
from testbed.machine import ssh
from testbed.machine.ssh import KeyPair, Ssh, SshResult, connect, generate_key_pair
from testbed.tests.limits import within

LIMIT_S = 60.0
SMALL_BUFFER_BYTES = 4096
BIG_BYTES = 64 << 20
WINDOW_BYTES = 2 * BIG_BYTES
PHASES = ("banner", "key exchange", "key", "channel", "request", "data", "end")


class Server(paramiko.ServerInterface):
    """Answers as sshd does, up to the phase in which it hangs like a stopped guest."""

    def __init__(self, link: socket.socket, host_key: KeyPair, hangs_in: str) -> None:
        self._hangs_in = hangs_in
        self._goes_on = threading.Event()
        self._link = link
        self.transport: Any = paramiko.Transport(link, default_window_size=WINDOW_BYTES)
        self.transport.add_server_key(host_key.key())
        if hangs_in == "key exchange":
            self._read_no_more()
        if hangs_in != "banner":
            self.transport.start_server(server=self, event=threading.Event())

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._reach("key")
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self._reach("channel")
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._reach("request")
        if command == b"true":
            threading.Thread(target=self._end, args=(channel,), daemon=True).start()
        elif self._hangs_in == "data":
            self._read_no_more()
        return True

    def go(self) -> None:
        """Let what hangs end."""
        self._goes_on.set()
        self.transport.close()
        self._link.close()

    def _reach(self, phase: str) -> None:
        if phase == self._hangs_in:
            self._goes_on.wait(LIMIT_S)

    def _read_no_more(self) -> None:
        def read_message() -> Any:
            self._goes_on.wait(LIMIT_S)
            raise EOFError

        self.transport.packetizer.read_message = read_message

    def _end(self, channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError, EOFError):
            channel.recv(1)  # the end of the input, which comes once the request is answered
            channel.send_exit_status(0)
            channel.close()


class Peer:
    """A listening socket whose connections get a `Server` each."""

    def __init__(self, hangs_in: str) -> None:
        self.host_key, self.key = generate_key_pair(), generate_key_pair()
        self._hangs_in = hangs_in
        self._servers: list[Server] = []
        self._listener = socket.socket()
        # As small as may be, so that it soon takes no more data.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        threading.Thread(target=self._accept, name="peer", daemon=True).start()

    def connect(self, timeout_s: float) -> Ssh:
        port = self._listener.getsockname()[1]
        return connect("127.0.0.1", port, "root", self.key, self.host_key.public, timeout_s)

    def close(self) -> None:
        # Its end wakes the accepting thread, which a mere close does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.vanish()

    def vanish(self) -> None:
        for server in self._servers:
            server.go()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                self._servers.append(Server(link, self.host_key, self._hangs_in))


@pytest.fixture
def peer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    monkeypatch.setattr(ssh, "BREAK_GRACE_S", 0.5)
    made = Peer(request.param)
    try:
        yield made
    finally:
        made.close()


def hangs_in(*phases: str) -> Callable[..., Any]:
    assert set(phases) <= set(PHASES)
    return pytest.mark.parametrize("peer", phases, indirect=True)


def limited(call: Callable[[], SshResult | Ssh | None]) -> str:
    """The error that must come, and within a limit."""
    with pytest.raises(TestbedError) as caught:
        within(LIMIT_S, call)
    return str(caught.value)


@hangs_in("banner", "key exchange", "key")
def test_no_connection_comes_about(peer: Peer) -> None:
    assert "no SSH to root@127.0.0.1" in limited(lambda: peer.connect(2.0))


@hangs_in("channel", "request")
def test_a_program_cannot_be_started(peer: Peer) -> None:
    with peer.connect(LIMIT_S) as connection:
        error = limited(lambda: connection.run(["true"], timeout_s=2.0))
        assert "127.0.0.1" in error and "did not answer for 2 s when `true`" in error


@hangs_in("data")
def test_nothing_more_is_taken(peer: Peer) -> None:
    with peer.connect(LIMIT_S) as connection:
        error = limited(lambda: connection.put({"/big": bytes(BIG_BYTES)}, timeout_s=2.0))
        assert "did not answer for 2 s" in error
        assert not connection.is_open


@hangs_in("end")
def test_a_program_that_does_not_end_leaves_the_connection_usable(peer: Peer) -> None:
    with peer.connect(LIMIT_S) as connection:
        error = limited(lambda: connection.run(["sleep", "600"], timeout_s=1.0))
        assert "was stopped at its limit of 1 s" in error
        assert within(LIMIT_S, lambda: connection.run(["true"])).status == 0


@hangs_in("end")
def test_a_peer_that_vanishes(peer: Peer) -> None:
    with peer.connect(LIMIT_S) as connection:
        vanishing = threading.Timer(0.5, peer.vanish)
        vanishing.start()
        sleep = ["sleep", "600"]
        error = limited(lambda: connection.run(sleep, timeout_s=LIMIT_S, check=True))
        assert "connection to root@127.0.0.1" in error and "ended while `sleep 600`" in error
        assert not connection.is_open
        assert "connection to root@127.0.0.1" in limited(lambda: connection.run(["true"]))
