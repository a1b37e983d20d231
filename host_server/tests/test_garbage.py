"""Garbage at every door of the supervisor: it is refused, and the next client is served."""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from pathlib import Path

import pytest

from host_server.tests.conftest import StartServer
from host_server.tests.fake_device import FakeDevice
from host_server.tests.test_supervisor import close_all, tcp_hello
from testbed.machine.host_server import HostServer, open_session
from testbed.machine.native_build import native_build
from testbed.protocol.wire import constant, enum, hash_of_specs, view

LIMIT_S = 20.0
ROUNDS = 60
MIB = 1 << 20
OK = enum("hello_status")["ok"]


def odd_number(chance: random.Random) -> int:
    return chance.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, chance.getrandbits(64)])


def odd_hello(chance: random.Random) -> bytes:
    """A hello that is right but for some fields, or not one at all."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(200))
    fields = {"magic": constant("magic"), "version": 1, "spec_hash": hash_of_specs()}
    hello = bytearray(view("hello").pack(**fields))
    for _ in range(chance.randrange(4)):
        place = chance.randrange(len(hello) // 8) * 8
        hello[place : place + 8] = struct.pack("<Q", odd_number(chance))
    return bytes(hello[: chance.randrange(1, len(hello) + 1)])


def knock(connection: socket.socket, data: bytes) -> None:
    """Say it, hear what comes, and go; whether anybody answers is theirs."""
    connection.settimeout(0.02)
    try:
        connection.sendall(data)
        connection.recv(256)
    except OSError:
        pass
    connection.close()


def serves_unix(server: HostServer) -> bool:
    connection, welcome, fds = open_session(server.unix_url)
    close_all(connection, fds)
    return welcome["status"] == OK


def test_hellos_on_the_unix_socket(start_server: StartServer) -> None:
    server = start_server(unix=True)
    chance = random.Random(1)
    for _ in range(ROUNDS):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(server.unix_url.removeprefix("unix:"))
        knock(connection, odd_hello(chance))
    server.check_alive()
    deadline_s = time.monotonic() + LIMIT_S
    while not serves_unix(server):
        # Hellos that were right by chance have opened sessions, which end in a moment.
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_hellos_over_tcp(start_server: StartServer) -> None:
    server = start_server(tcp=True)
    chance = random.Random(2)
    for _ in range(ROUNDS):
        knock(socket.create_connection(("127.0.0.1", server.tcp_port)), odd_hello(chance))
    server.check_alive()
    connection, welcome = tcp_hello(server)
    connection.close()
    assert welcome["status"] == OK


@pytest.mark.native
def test_garbage_ends_a_tcp_session_and_no_other(start_server: StartServer) -> None:
    server = start_server(tcp=True, worker=native_build().worker)
    good, _ = tcp_hello(server)
    good.settimeout(LIMIT_S)
    chance = random.Random(3)
    for _ in range(10):
        bad, welcome = tcp_hello(server)
        assert welcome["status"] == OK
        bad.sendall(b"\xff" * 16 + chance.randbytes(500))
        bad.close()
    records = server.wait_sessions(10, LIMIT_S)
    assert {record["exit_status"] for record in records} == {3}
    said = [line for line in server.log.read_text().splitlines() if "its client sent" in line]
    assert len(said) == 10
    header = view("request_header").pack(size_bytes=32, opcode=1, flags=1, sequence=1)
    good.sendall(header + struct.pack("<QQ", 41, 0))
    reply = good.recv(256)
    assert struct.unpack_from("<Q", reply, view("reply_header").size_bytes)[0] == 42
    good.close()


def test_a_device_that_talks_nonsense(start_server: StartServer) -> None:
    server = start_server(device=True, session_count=3)
    chance = random.Random(4)
    for _ in range(ROUNDS // 3):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(LIMIT_S)
        connection.connect(str(server.device_socket))
        fds = [os.eventfd(0) for _ in range(chance.randrange(4))]
        try:
            for _ in range(chance.randrange(1, 4)):
                message = view("device_message").pack(
                    magic=0x4B4E4857 if chance.random() < 0.8 else 1,
                    version=1,
                    type=chance.randrange(6),
                    region_bytes=odd_number(chance),
                )
                socket.send_fds(connection, [message[: chance.randrange(1, 25)]], fds)
            # Until it has let go of us: it serves one device at a time.
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        except OSError:
            pass
        for fd in fds:
            os.close(fd)
        connection.close()
    server.check_alive()
    descriptors = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    with FakeDevice(server.device_socket, 16 * MIB, 4 * MIB, 3) as device:
        device.hello()
        device.start()
        device.open(0, 1)
        device.wait_host(0, "ready", 1)
    assert descriptors < 40


def test_a_session_table_full_of_nonsense(start_server: StartServer) -> None:
    server = start_server(device=True, session_count=3)
    chance = random.Random(5)
    with FakeDevice(server.device_socket, 16 * MIB, 4 * MIB, 3) as device:
        device.hello()
        device.start()
        for _ in range(2000):
            place = chance.randrange(constant("page_bytes"), 2 * constant("page_bytes")) & ~7
            device.map.store_pair(place, odd_number(chance), odd_number(chance))
            if chance.random() < 0.1:
                # States that mean something, in the present epoch.
                device.open(chance.randrange(3), chance.getrandbits(32))
            if chance.random() < 0.2:
                device.notify()
        server.check_alive()
        for slot in range(3):
            device.close(slot, 7)
            wait_line(device, slot, "free", 7)
            device.open(slot, 8)
            wait_line(device, slot, "ready", 8)


def wait_line(device: FakeDevice, slot: int, state: str, generation: int) -> None:
    """As wait_host, where the line may hold nonsense of ours."""
    wanted = (enum("host_state")[state], generation)
    line = device.layout.host_line(slot)
    device.wait(lambda: device.map.pair(line) == wanted, f"{state} {generation}")


def test_a_wake_that_would_block_holds_up_nobody(start_server: StartServer) -> None:
    server = start_server(unix=True)
    connection, _, fds = open_session(server.unix_url)
    # The supervisor's write at the session's end would wait for ever.
    os.set_blocking(fds[2], True)
    os.eventfd_write(fds[2], 2**64 - 2)
    close_all(connection, fds[:2])
    server.wait_sessions(1, LIMIT_S)
    assert serves_unix(server)
    os.close(fds[2])
