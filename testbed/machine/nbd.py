"""Serves a read-only disk to QEMU over a connected socket, by NBD's protocol.

One thread a connection, requests in their order. Of the protocol there is what QEMU's client needs
of a server without options: the fixed handshake, `GO`, reads, and the end.
https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from testbed.machine.erofs import Tree, TreeReader

GREETING = struct.Struct(">8s8sH")
OPTION = struct.Struct(">8sII")
OPTION_REPLY = struct.Struct(">QIII")
EXPORT = struct.Struct(">HQH")
REQUEST = struct.Struct(">IHHQQI")
REPLY = struct.Struct(">IIQ")

OPTION_MAGIC = b"IHAVEOPT"
OPTION_REPLY_MAGIC = 0x3E889045565A9
REQUEST_MAGIC = 0x25609513
REPLY_MAGIC = 0x67446698
FIXED_NEWSTYLE, NO_ZEROES = 1, 2
OPTION_ABORT, OPTION_GO = 2, 7
REPLY_ACK, REPLY_INFO, REPLY_UNSUPPORTED = 1, 3, 0x80000001
INFO_EXPORT = 0
HAS_FLAGS, READ_ONLY = 1, 2
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
PERMISSION, IO, INVALID = 1, 5, 22  # errors, as the protocol numbers them
OPTION_BYTES_MAX = 1 << 16
READ_BYTES_MAX = 32 << 20


class ProtocolError(Exception):
    """The other side does not speak as agreed: the connection ends."""


def connect_disk(tree: Tree) -> socket.socket:
    """A connection to a disk, for QEMU; it is served until its other side is closed."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_serve, args=(tree, ours), name="host share", daemon=True)
    thread.start()
    return theirs


def _serve(tree: Tree, connection: socket.socket) -> None:
    reader = tree.reader()
    try:
        # The other side may go at any moment, by its own end or ours.
        with connection, suppress(OSError, ProtocolError):
            if _agree(connection, tree.size_bytes):
                while _answer(connection, tree.size_bytes, reader):
                    pass
    finally:
        reader.close()


def _agree(connection: socket.socket, size_bytes: int) -> bool:
    """The handshake; whether requests follow."""
    connection.sendall(GREETING.pack(b"NBDMAGIC", OPTION_MAGIC, FIXED_NEWSTYLE | NO_ZEROES))
    _take(connection, 4)  # the client's flags
    while True:
        magic, option, length = OPTION.unpack(_take(connection, OPTION.size))
        if magic != OPTION_MAGIC or length > OPTION_BYTES_MAX:
            raise ProtocolError
        _take(connection, length)  # an export's name: there is one
        if option == OPTION_GO:
            info = EXPORT.pack(INFO_EXPORT, size_bytes, HAS_FLAGS | READ_ONLY)
            head = OPTION_REPLY.pack(OPTION_REPLY_MAGIC, option, REPLY_INFO, len(info))
            connection.sendall(head + info)
        known = option in (OPTION_GO, OPTION_ABORT)
        answer = REPLY_ACK if known else REPLY_UNSUPPORTED
        connection.sendall(OPTION_REPLY.pack(OPTION_REPLY_MAGIC, option, answer, 0))
        if known:
            return bool(option == OPTION_GO)


def _answer(connection: socket.socket, size_bytes: int, reader: TreeReader) -> bool:
    """Take one request and answer it; False when there will be no more."""
    magic, _, kind, cookie, offset, length = REQUEST.unpack(_take(connection, REQUEST.size))
    if magic != REQUEST_MAGIC or kind == DISCONNECT:
        return False
    data, error = bytearray(), 0
    if kind == READ:
        if length > READ_BYTES_MAX or offset + length > size_bytes:
            error = INVALID
        else:
            try:
                data = reader.read(offset, length)
            except OSError:
                error = IO
    elif kind == WRITE:
        raise ProtocolError  # it was told that it cannot
    elif kind != FLUSH:
        error = INVALID
    connection.sendall(REPLY.pack(REPLY_MAGIC, error, cookie))
    connection.sendall(data)
    return True


def _take(connection: socket.socket, size_bytes: int) -> bytes:
    """Exactly so many bytes; ProtocolError if the other side ends before."""
    data = b""
    while len(data) < size_bytes:
        piece = connection.recv(size_bytes - len(data))
        if not piece:
            raise ProtocolError
        data += piece
    return data
