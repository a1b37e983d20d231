"""SSH to a guest: connect with a pinned host key, run programs, copy trees."""

from __future__ import annotations

import io
import logging
import shlex
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from testbed.errors import TestbedError

CONNECT_TIMEOUT_S = 60.0
TRY_TIMEOUT_S = 15.0
CONNECT_POLL_S = 0.1
COPY_TIMEOUT_S = 120.0
BREAK_GRACE_S = 5.0  # what closing a channel may take beyond its limit
READ_BYTES = 65536
SEND_BYTES = 1 << 20
CHANNEL_POLL_S = 0.5

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]

# paramiko logs, with tracebacks, each attempt that meets a guest which is not up yet.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class KeyPair:
    """An ed25519 key pair in OpenSSH's formats."""

    private: bytes
    public: str

    @classmethod
    def from_private(cls, private: bytes) -> KeyPair:
        """The pair whose private half is given, in OpenSSH's format."""
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(private.decode()))
        return cls(private, f"{key.get_name()} {key.get_base64()}")

    def key(self) -> paramiko.Ed25519Key:
        """The pair as paramiko wants it."""
        return paramiko.Ed25519Key.from_private_key(io.StringIO(self.private.decode()))


def generate_key_pair() -> KeyPair:
    """A new key pair, made on the host where there is entropy and speed."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return KeyPair(private, public.decode())


class _NoAnswerError(Exception):
    """The other side let a limit pass without an answer."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"no answer for {limit_s:.0f} s")
        self.limit_s = limit_s


@dataclass(frozen=True)
class SshResult:
    """How a program in the guest ended; `status` is -1 if a signal or a lost link ended it."""

    status: int
    stdout: bytes
    stderr: bytes
    wall_s: float


class Ssh:
    """One authenticated connection; channels of several threads may share it."""

    def __init__(self, transport: paramiko.Transport, where: str) -> None:
        self._transport = transport
        self._where = where

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        on_output: OnOutput | None = None,
        stdin: bytes = b"",
        keep_stdin: bool = False,
        check: bool = False,
    ) -> SshResult:
        """Run a program and wait for its end.

        `on_output` gets every piece as it arrives; the result holds all of it too.  With
        `keep_stdin` the program's standard input stays open until it ends, so that a program can
        tell by its end that we are gone.  With `check` a non-zero status is an error.
        Raises TestbedError at the limit or if the connection breaks; the channel is closed then.
        If the guest does not even answer to that, the connection is ended for all its users.
        """
        words = [*(f"{key}={value}" for key, value in (env or {}).items()), *argv]
        command = shlex.join(["env", *words] if env else words)
        started_s = time.monotonic()
        try:
            with self._channel(timeout_s) as channel:
                channel.exec_command(command)
                _feed(channel, stdin, not keep_stdin)
                stdout, stderr = _collect(channel, started_s + timeout_s, on_output)
                status = channel.recv_exit_status() if channel.exit_status_ready() else -1
        except TimeoutError as error:
            raise TestbedError(
                f"`{_short(argv)}` in {self._where} was stopped at its limit of {timeout_s:.0f} s",
                "see the guest's console log",
            ) from error
        except _NoAnswerError as error:
            raise TestbedError(
                f"{self._where} did not answer for {error.limit_s:.0f} s when"
                f" `{_short(argv)}` was to run there",
                "it hangs or is gone: see the guest's console log",
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise TestbedError(
                f"the connection to {self._where} broke while `{_short(argv)}` ran: {error}",
                "see the guest's console log",
            ) from error
        result = SshResult(status, stdout, stderr, time.monotonic() - started_s)
        if check and status != 0:
            if status == -1 and not self.is_open:
                raise TestbedError(
                    f"the connection to {self._where} ended while `{_short(argv)}` ran",
                    "see the guest's console log",
                )
            said = (stderr or stdout).decode(errors="replace").strip().splitlines()
            raise TestbedError(
                f"`{_short(argv)}` in {self._where} failed with exit status {status}: "
                f"{said[-1] if said else 'it said nothing'}"
            )
        return result

    @contextmanager
    def _channel(self, timeout_s: float) -> Iterator[paramiko.Channel]:
        """A channel whose user has `timeout_s`; a little later the connection is ended.

        paramiko waits without limit for the answer to a request, and for its turn to write while
        a guest takes no data.  The end of the connection ends these waits, wherever they are.
        """
        opened: list[paramiko.Channel] = []
        ended = threading.Event()
        open_s = min(timeout_s, TRY_TIMEOUT_S)

        def end() -> None:
            ended.set()
            self._transport.close()
            for channel in opened:
                channel.event.set()  # for a wait that began just after the connection's end

        limit = threading.Timer(timeout_s + BREAK_GRACE_S, end)
        limit.daemon = True
        limit.start()
        try:
            with self._transport.open_session(timeout=open_s) as channel:
                opened.append(channel)
                yield channel
        except (paramiko.SSHException, OSError, EOFError) as error:
            if ended.is_set():
                raise _NoAnswerError(timeout_s) from error
            if not opened and self.is_open:
                raise _NoAnswerError(open_s) from error
            raise
        finally:
            limit.cancel()

    def put(self, files: Mapping[str, Path | bytes], timeout_s: float = COPY_TIMEOUT_S) -> None:
        """Copy files and directories to absolute paths in the guest, as one tar stream.

        Owned by root; executable files stay executable.  A directory's contents are copied into the
        target, `__pycache__` left out.
        """
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for target, source in files.items():
                _add(tar, target.lstrip("/"), source)
        extract = ["tar", "-x", "-C", "/", "--no-same-owner", "-f", "-"]
        self.run(extract, stdin=archive.getvalue(), timeout_s=timeout_s, check=True)

    def get(self, path: str, timeout_s: float = COPY_TIMEOUT_S) -> bytes:
        """Read one file of the guest."""
        return self.run(["cat", path], timeout_s=timeout_s, check=True).stdout

    @property
    def is_open(self) -> bool:
        """Whether the connection still stands, as far as this side knows."""
        return self._transport.is_active()

    def close(self) -> None:
        """Close the connection and all its channels."""
        self._transport.close()

    def __enter__(self) -> Ssh:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    host: str,
    port: int,
    user: str,
    key: KeyPair,
    host_key: str,
    timeout_s: float = CONNECT_TIMEOUT_S,
    give_up: Callable[[], None] = lambda: None,
) -> Ssh:
    """Connect, trying again until `timeout_s` is over.

    `host_key` is the one public key accepted (`ssh-ed25519 AAAA...`): another one is an error at
    once.  `give_up` is called between attempts and may raise, for instance because QEMU has ended.
    """
    deadline_s = time.monotonic() + timeout_s
    where = f"{user}@{host}:{port}"
    while True:
        give_up()
        left_s = deadline_s - time.monotonic()
        try:
            return Ssh(_attempt(host, port, user, key, host_key, min(left_s, TRY_TIMEOUT_S)), where)
        except paramiko.AuthenticationException as error:
            raise TestbedError(f"{where} refused our key: {error}") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            if time.monotonic() + CONNECT_POLL_S >= deadline_s:
                raise TestbedError(
                    f"no SSH to {where} within {timeout_s:.0f} s: {error or type(error).__name__}",
                    "see the guest's console log, or give a longer limit",
                ) from error
        time.sleep(CONNECT_POLL_S)


def _attempt(
    host: str, port: int, user: str, key: KeyPair, host_key: str, timeout_s: float
) -> paramiko.Transport:
    link = socket.create_connection((host, port), timeout=max(timeout_s, 0.1))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = paramiko.Transport(link)
    try:
        transport.banner_timeout = timeout_s
        transport.start_client(timeout=timeout_s)
        shown = transport.get_remote_server_key()
        if f"{shown.get_name()} {shown.get_base64()}" != " ".join(host_key.split()[:2]):
            raise TestbedError(
                f"{host}:{port} shows another host key than the VM we started",
                "another program has taken the port; start again",
            )
        answered = threading.Event()
        transport.auth_publickey(user, key.key(), answered)
        if not answered.wait(timeout_s):
            raise paramiko.SSHException("no answer to our key")
        if not transport.is_authenticated():
            # Only a guest that is still there has refused anything.
            refused = transport.is_active()
            kind = paramiko.AuthenticationException if refused else paramiko.SSHException
            raise kind(str(transport.get_exception() or "no reason given"))
    except BaseException:
        transport.close()
        raise
    return transport


def _feed(channel: paramiko.Channel, data: bytes, close: bool) -> None:
    """Send standard input in the background, as a program may answer before it has read all."""

    def send() -> None:
        try:
            # In pieces, as paramiko copies what is left of its argument for every packet.
            for begin in range(0, len(data), SEND_BYTES):
                channel.sendall(data[begin : begin + SEND_BYTES])
            if close:
                channel.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            pass  # the program ended without reading all: its status tells

    threading.Thread(target=send, name="ssh-stdin", daemon=True).start()


def _collect(
    channel: paramiko.Channel, deadline_s: float, on_output: OnOutput | None
) -> tuple[bytes, bytes]:
    """Read both streams to their ends, or raise TimeoutError at the deadline."""
    stdout = bytearray()
    stderr = bytearray()
    arrived = threading.Event()
    channel.in_buffer.set_event(arrived)
    channel.in_stderr_buffer.set_event(arrived)
    while True:
        arrived.clear()
        # Order matters: the end of the streams is looked at before they are emptied.
        ended = channel.closed or channel.eof_received
        moved = False
        while channel.recv_ready():
            moved = True
            piece = channel.recv(READ_BYTES)
            stdout += piece
            if on_output:
                on_output("stdout", piece)
        while channel.recv_stderr_ready():
            moved = True
            piece = channel.recv_stderr(READ_BYTES)
            stderr += piece
            if on_output:
                on_output("stderr", piece)
        left_s = deadline_s - time.monotonic()
        if ended and not moved:
            channel.status_event.wait(timeout=max(0.0, min(left_s, TRY_TIMEOUT_S)))
            return bytes(stdout), bytes(stderr)
        if left_s <= 0:
            raise TimeoutError
        if not moved and not ended:
            arrived.wait(timeout=min(left_s, CHANNEL_POLL_S))


def root_owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member of an archive as it shall lie in a guest: root's, readable by all."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def _add(tar: tarfile.TarFile, name: str, source: Path | bytes) -> None:
    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in member.name else root_owned(member)

    if isinstance(source, bytes):
        member = tarfile.TarInfo(name)
        member.size = len(source)
        member.mode = 0o644
        tar.addfile(member, io.BytesIO(source))
    else:
        tar.add(source, arcname=name, filter=plain)


def _short(argv: Sequence[str]) -> str:
    words = " ".join(argv[:4])
    return words if len(argv) <= 4 else f"{words} ..."
