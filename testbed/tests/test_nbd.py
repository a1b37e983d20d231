"""The disk's server: what QEMU asks for, what is refused, and that nothing is left."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path

import pytest

from testbed.machine.erofs import Tree, host_tree
from testbed.machine.nbd import connect_disk

LIMIT_S = 20.0
READ, WRITE, DISCONNECT, FLUSH, TRIM = 0, 1, 2, 3, 4


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    place = tmp_path / "shared"
    place.mkdir(mode=0o755)
    (place / "file").write_bytes(bytes(range(256)) * 100)
    return host_tree([place])


class Client:
    """The other side, as QEMU speaks it."""

    def __init__(self, tree: Tree) -> None:
        self._socket = connect_disk(tree)
        self._socket.settimeout(LIMIT_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def option(self, number: int, data: bytes = b"") -> list[tuple[int, bytes]]:
        """Send an option; its replies up to the one that ends them."""
        self.send(b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data)
        replies = []
        while True:
            magic, option, kind, length = struct.unpack(">QIII", self.take(20))
            assert (magic, option) == (0x3E889045565A9, number)
            replies.append((kind, self.take(length)))
            if kind != 3:
                return replies

    def agree(self) -> int:
        """The handshake as QEMU makes it; returns the size of the disk."""
        assert self.take(18) == b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3)
        self.send(struct.pack(">I", 3))
        assert self.option(8) == [(0x80000001, b"")], "structured replies are not there"
        (kind, info), (last, _) = self.option(7, struct.pack(">I1sH", 1, b"x", 0))
        assert (kind, last) == (3, 1)
        number, size, flags = struct.unpack(">HQH", info)
        assert (number, flags) == (0, 3)
        return int(size)

    def ask(self, kind: int, offset: int, length: int, data: bytes = b"") -> tuple[int, bytes]:
        """A request; its error and data."""
        self.send(struct.pack(">IHHQQI", 0x25609513, 0, kind, 77, offset, length) + data)
        magic, error, cookie = struct.unpack(">IIQ", self.take(16))
        assert (magic, cookie) == (0x67446698, 77)
        return error, self.take(length) if kind == READ and not error else b""


def test_a_disk_is_read_as_it_is(tree: Tree) -> None:
    whole = bytes(tree.reader().read(0, tree.size_bytes))
    with Client(tree) as client:
        assert client.agree() == tree.size_bytes
        for offset, size in ((0, 4096), (1024, 128), (tree.size_bytes - 512, 512), (0, 0)):
            assert client.ask(READ, offset, size) == (0, whole[offset : offset + size])
        assert client.ask(FLUSH, 0, 0) == (0, b"")


def test_what_lies_outside_is_refused_and_the_disk_goes_on(tree: Tree) -> None:
    with Client(tree) as client:
        size = client.agree()
        for offset, length in ((size, 1), (size - 1, 2), ((1 << 64) - 1, 4096), (0, (1 << 32) - 1)):
            assert client.ask(READ, offset, length)[0] == 22
        assert client.ask(TRIM, 0, 4096)[0] == 22
        assert client.ask(READ, 0, 16)[0] == 0


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">IHHQQI", 0x25609513, 0, WRITE, 1, 0, 4) + b"data",
        struct.pack(">IHHQQI", 0xDEADBEEF, 0, READ, 1, 0, 4),
        struct.pack(">IHHQQI", 0x25609513, 0, DISCONNECT, 1, 0, 0),
    ],
)
def test_who_breaks_the_rules_or_says_goodbye_is_left(tree: Tree, said: bytes) -> None:
    with Client(tree) as client:
        client.agree()
        client.send(said)
        with pytest.raises((EOFError, ConnectionResetError)):
            client.take(1)


@pytest.mark.parametrize(
    "said",
    [b"GARBAGE!" + bytes(8), b"IHAVEOPT" + struct.pack(">II", 7, 1 << 31)],
)
def test_a_handshake_that_is_none_ends(tree: Tree, said: bytes) -> None:
    with Client(tree) as client:
        client.take(18)
        client.send(struct.pack(">I", 3) + said)
        with pytest.raises((EOFError, ConnectionResetError)):
            client.take(1)


def test_a_file_that_is_gone_is_an_error_of_its_reads_alone(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "shared" / "file").unlink()
    with Client(tree) as client:
        size = client.agree()
        assert client.ask(READ, size - 4096, 4096)[0] == 5
        assert client.ask(READ, 0, 4096)[0] == 0


def test_nothing_is_left_when_the_other_side_has_gone(tree: Tree) -> None:
    wait_for_servers()  # those of other tests
    threads, sockets = threading.active_count(), open_sockets()
    for _ in range(3):
        with Client(tree) as client:
            client.agree()
    wait_for_servers()
    assert (threading.active_count(), open_sockets()) == (threads, sockets)


def wait_for_servers() -> None:
    """Wait until no connection is served any more."""
    for thread in threading.enumerate():
        if thread.name == "host share":
            thread.join(LIMIT_S)


def open_sockets() -> int:
    """How many sockets this process has."""
    return sum(1 for path in Path("/proc/self/fd").iterdir() if "socket:" in str(_target(path)))


def _target(path: Path) -> Path:
    try:
        return path.readlink()
    except OSError:
        return Path()


def test_the_other_side_is_a_socket(tree: Tree) -> None:
    with connect_disk(tree) as connection:
        assert connection.family == socket.AF_UNIX
