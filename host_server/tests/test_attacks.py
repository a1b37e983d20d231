"""Attacks from inside a kernel, on everything that is not the session's own.

Each is tried in the jail, where it must fail, and without it, where it must succeed: an attack that
fails by itself would show nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.systems import PRESETS
from testbed.machine.host_server import HostServer, HostServerConfig, host_server
from testbed.machine.native_build import native_build

pytestmark = [
    pytest.mark.native,
    pytest.mark.opencl,
    pytest.mark.skipif(os.getuid() != 0, reason="needs a user of its own for each session"),
]

ATTACKER = Path(__file__).parent / "attacker.py"
ANSWER_LIMIT_S = 120.0
END_LIMIT_S = 20.0
SECRET = "kepthidden"
OPEN, KILL, SOCKET, READV, PTRACE, MMAP = 2, 62, 41, 310, 101, 9
WRITE_CREATE = os.O_WRONLY | os.O_CREAT
BAD_OPTIONS = (
    *("-save-temps", "-fplugin=/tmp/x.so", "-Xclang -load -Xclang /tmp/x.so", "@/etc/passwd"),
    *("-o /tmp/wormhole-attack", "-MF /tmp/wormhole-attack", "-include /etc/passwd"),
    *("-working-directory /etc", "-B/tmp", "%n%n%n%s"),
)


class Client:
    """A running attacker.py."""

    def __init__(self, server: HostServer, vendors: Path) -> None:
        before = workers(server)
        self.process = subprocess.Popen(
            [sys.executable, str(ATTACKER)],
            env=client_environment(os.environ, PRESETS["wormhole"], server, vendors),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.read() == {"ready": True}
        (self.worker,) = workers(server) - before

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request and its answer; {} if the client has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self.read()

    def call(self, number: int, *arguments: int | str) -> int:
        """What a system call gave inside the kernel."""
        return int(self.ask(call=[number, *arguments])["result"])

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(ANSWER_LIMIT_S), "the attacker does not answer"
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=END_LIMIT_S)


def workers(server: HostServer) -> set[int]:
    """Process ids of the sessions' workers."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return {pid for pid in map(int, children) if _name(pid) == "wormhole-worker"}


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def home_of(worker: int) -> Path:
    """The private directory of a worker's session."""
    environment = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
    (home,) = [entry[5:] for entry in environment if entry.startswith(b"HOME=")]
    return Path(os.fsdecode(home))


@contextlib.contextmanager
def clients(
    folder: Path, count: int, jail: bool, memory_mib: int | None = None
) -> Iterator[tuple[HostServer, list[Client]]]:
    """A server and clients of it."""
    built = native_build()
    vendors = vendor_folder(folder, built.library)
    config = HostServerConfig(
        unix=True, worker=built.worker, jail=jail, session_memory_mib=memory_mib
    )
    with host_server(config, folder / "server") as server, contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(Client(server, vendors))
            stack.callback(found[-1].end)
        yield server, found


def neighbour_memory(attacker: Client, neighbour: Client) -> bool:
    """Whether process_vm_readv gets at a neighbour's buffer."""
    address = int(neighbour.ask(local=1)["result"])
    place = int(attacker.ask(local=1)["result"]) + 1024
    # Two iovec: where to, in the attacker's own text buffer, and where from.
    own = ctypes.string_at((ctypes.c_ulong * 2)(place, 8), 16).decode("latin-1")
    other = ctypes.string_at((ctypes.c_ulong * 2)(address, 8), 16).decode("latin-1")
    return attacker.call(READV, neighbour.worker, own, 1, other, 1, 0) == 8


@pytest.mark.parametrize("jail", [True, False], ids=["in the jail", "without it"])
def test_a_kernel_reaches_nothing_but_its_session(tmp_path: Path, jail: bool) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.is_relative_to("/tmp/") and parent != Path("/tmp"):
            parent.chmod(0o755)
    canary = shared / "canary.h"
    canary.write_text(f"{SECRET} a b c;\n")
    with clients(tmp_path, 2, jail) as (server, (attacker, neighbour)):
        home = home_of(neighbour.worker)
        include = f'#define PLACE "{canary}"\n#include PLACE\n'
        got = {
            "reads a file of the host": attacker.call(OPEN, str(canary), os.O_RDONLY) >= 0,
            "writes a file of the host": attacker.call(
                OPEN, str(shared / "written"), WRITE_CREATE, 0o600
            )
            >= 0,
            "compiles a file of the host": SECRET in attacker.ask(build=[include, ""])["log"],
            "poisons a neighbour's kernel cache": attacker.call(
                OPEN, str(home / "pocl" / "poison"), WRITE_CREATE, 0o600
            )
            >= 0,
            "opens a neighbour's memory": attacker.call(
                OPEN, f"/proc/{neighbour.worker}/mem", os.O_RDWR
            )
            >= 0,
            "reads a neighbour's memory": neighbour_memory(attacker, neighbour),
            "signals a neighbour": attacker.call(KILL, neighbour.worker, 0) >= 0,
            "signals the supervisor": attacker.call(KILL, server.pid, 0) >= 0,
            "traces a neighbour": attacker.call(PTRACE, 0x4206, neighbour.worker, 0, 0) >= 0,
            "makes a socket": attacker.call(SOCKET, socket.AF_UNIX, socket.SOCK_STREAM, 0) >= 0,
        }
        assert got == dict.fromkeys(got, not jail)
        # The neighbour notices nothing.
        if jail:
            assert neighbour.call(39) > 0


def test_build_options_do_not_reach_the_host(tmp_path: Path) -> None:
    with clients(tmp_path, 1, jail=True) as (_, (attacker,)):
        for options in BAD_OPTIONS:
            answer = attacker.ask(build=["kernel void f() {}", options])
            assert answer["error"] != 0, options
            assert "root:" not in answer["log"], options
        assert not Path("/tmp/wormhole-attack").exists()
        # And the session goes on.
        assert attacker.call(39) > 0


def test_memory_outside_the_buffers_is_the_session_s_own_loss(tmp_path: Path) -> None:
    with clients(tmp_path, 2, jail=True) as (server, (attacker, neighbour)):
        address = int(attacker.ask(local=1)["result"])
        # Beside its buffer it finds its own process, and no further than that.
        assert "result" in attacker.ask(peek=address - 64)
        assert "result" not in attacker.ask(poke=[8, 1])
        (record,) = server.wait_sessions(1, END_LIMIT_S)
        assert record["exit_status"] != 0
        assert neighbour.call(39) > 0


def test_an_endless_kernel_ends_with_its_session(tmp_path: Path) -> None:
    with clients(tmp_path, 1, jail=True) as (server, (attacker,)):
        attacker.ask(loop=1)
        attacker.process.kill()
        server.wait_sessions(1, END_LIMIT_S)
        deadline_s = time.monotonic() + END_LIMIT_S
        while _name(attacker.worker) == "wormhole-worker":
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def test_memory_without_limit_ends_its_session(tmp_path: Path) -> None:
    with clients(tmp_path, 2, jail=True, memory_mib=600) as (server, (attacker, neighbour)):
        # 1 GiB, private and touched at once; the answer may come too late.
        attacker.ask(call=[MMAP, 0, 1 << 30, 3, 0x8022, -1, 0])
        (record,) = server.wait_sessions(1, END_LIMIT_S)
        assert "the limit is 600" in record["reason"]
        assert "MiB of memory" in server.log.read_text()
        assert neighbour.call(39) > 0
