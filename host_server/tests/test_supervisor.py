"""Sessions of host processes over the Unix socket and TCP, and that nothing is left behind."""

from __future__ import annotations

import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from host_server import libraries
from host_server import vendors as vendors_module
from host_server.cuda_libraries import CUDA_VARIABLE
from host_server.libraries import find_library
from host_server.sessions import RateLimit
from host_server.supervisor import main, read_token
from host_server.tests.conftest import FAKE_WORKER, StartServer
from host_server.tests.test_attacks import home_of
from host_server.tests.test_device import worker_pids
from host_server.vendors import library_directories, real_vendors, wants_gpu
from testbed.errors import TestbedError
from testbed.machine.host_server import HostServer, open_session
from testbed.protocol.wire import constant, enum, hash_of_specs, view

LIMIT_S = 20.0
STATUS = enum("hello_status")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited for {what}"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has: only its parent can take it away)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def tcp_hello(server: HostServer, **changes: int | bytes) -> tuple[socket.socket, dict[str, int]]:
    fields: dict[str, int | bytes] = {
        "magic": constant("magic"),
        "version": constant("protocol_version"),
        "spec_hash": hash_of_specs(),
        "token": bytes.fromhex(server.token),
    }
    fields.update(changes)
    connection = socket.create_connection(("127.0.0.1", server.tcp_port), LIMIT_S)
    connection.sendall(view("hello").pack(**fields))
    answer = view("welcome").unpack(connection.recv(view("welcome").size_bytes))
    return connection, {name: int(value) for name, value in answer.items()}


def close_all(connection: socket.socket, fds: list[int]) -> None:
    connection.close()
    for fd in fds:
        os.close(fd)


def test_two_clients_at_once_have_memory_of_their_own(start_server: StartServer) -> None:
    server = start_server(unix=True)
    first, welcome, first_fds = open_session(server.unix_url, "first")
    second, _, second_fds = open_session(server.unix_url, "second")
    assert welcome["status"] == STATUS["ok"]
    assert len(first_fds) == len(second_fds) == 3
    size = int(welcome["session_bytes"])
    one, two = mmap.mmap(first_fds[0], size), mmap.mmap(second_fds[0], size)
    header = view("session_header").unpack(one[: view("session_header").size_bytes])
    assert header["spec_hash"] == hash_of_specs()
    assert header["session_bytes"] == size
    assert int(header["arena_offset"]) + int(header["arena_bytes"]) == size
    one[-4:] = b"mine"
    assert two[-4:] == bytes(4)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(first_fds[0], 4096)
    one.close()
    two.close()
    close_all(first, first_fds)
    assert server.wait_sessions(1)[0]["client"]["name"] == "first"
    assert len(worker_pids(server)) == 1
    close_all(second, second_fds)
    records = server.wait_sessions(2)
    assert {record["reason"] for record in records} == {"the client left"}
    assert all(record["stats"] == {"connections": 0} for record in records)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"magic": 7}, "bad_magic", ["0x7"]),
        ({"version": 99}, "version", ["version 99", "server 1"]),
        ({"spec_hash": 0xABC}, "spec", ["0000000000000abc", f"{hash_of_specs():016x}"]),
    ],
)
def test_mismatch_is_refused_with_both_values(
    start_server: StartServer, changes: dict[str, int], status: str, words: list[str]
) -> None:
    server = start_server(unix=True)
    connection, welcome, fds = open_session(server.unix_url, "skewed", **changes)
    assert welcome["status"] == STATUS[status]
    assert welcome["spec_hash"] == hash_of_specs()
    assert fds == []
    assert connection.recv(1) == b""
    connection.close()
    for word in words:
        assert word in server.log.read_text()


def test_tcp_needs_the_token(start_server: StartServer) -> None:
    server = start_server(tcp=True)
    connection, welcome = tcp_hello(server, token=bytes(32))
    assert welcome["status"] == STATUS["token"]
    assert connection.recv(1) == b""
    connection.close()
    assert Path(server.run_dir / "token").stat().st_mode & 0o077 == 0
    assert worker_pids(server) == []


def test_tcp_connections_join_a_session(start_server: StartServer) -> None:
    server = start_server(tcp=True)
    first, welcome = tcp_hello(server)
    assert welcome["status"] == STATUS["ok"]
    second, joined = tcp_hello(server, session=welcome["session"])
    third, unknown = tcp_hello(server, session=welcome["session"] ^ 1)
    assert joined["status"] == STATUS["ok"]
    assert joined["session"] == welcome["session"]
    assert unknown["status"] == STATUS["session"]
    assert len(worker_pids(server)) == 1
    for connection in (first, second, third):
        connection.close()


def test_session_limit(start_server: StartServer) -> None:
    server = start_server(unix=True, session_count=1)
    first, _, fds = open_session(server.unix_url)
    second, welcome, _ = open_session(server.unix_url)
    assert welcome["status"] == STATUS["limit"]
    second.close()
    close_all(first, fds)
    server.wait_sessions(1)
    third, welcome, fds = open_session(server.unix_url)
    assert welcome["status"] == STATUS["ok"]
    close_all(third, fds)


def test_killed_worker_ends_the_connection(start_server: StartServer) -> None:
    server = start_server(unix=True)
    connection, welcome, fds = open_session(server.unix_url)
    os.kill(worker_pids(server)[0], signal.SIGKILL)
    assert connection.recv(1) == b""
    session = mmap.mmap(fds[0], int(welcome["session_bytes"]))
    dead = view("session_header").load(session[:4096], 0, "host_state")
    assert dead == enum("host_state")["dead"]
    assert os.eventfd_read(fds[2]) == 1
    session.close()
    close_all(connection, fds)
    assert server.wait_sessions(1)[0]["exit_status"] == -signal.SIGKILL


def test_worker_that_cannot_start_is_refused(start_server: StartServer) -> None:
    server = start_server("refuse", unix=True)
    connection, welcome, fds = open_session(server.unix_url)
    assert welcome["status"] == STATUS["failed"]
    close_all(connection, fds)
    assert "no device" in server.wait_sessions(1)[0]["reason"]


@pytest.mark.parametrize("manner", ["stay", "noise", "orphan"])
def test_unwilling_workers_are_ended(start_server: StartServer, manner: str) -> None:
    server = start_server(manner, unix=True)
    connection, _, fds = open_session(server.unix_url)
    children = f"/proc/{server.pid}/task/{server.pid}/children"
    close_all(connection, fds)
    server.wait_sessions(1)
    wait_until(lambda: len(Path(children).read_text().split()) == 1, "only the janitor")
    assert server.log.stat().st_size < 3 << 20


def test_environment_of_a_worker_is_clean(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD_NOT", "x")
    monkeypatch.setenv("SECRET", "x")
    server = start_server(unix=True)
    connection, _, fds = open_session(server.unix_url)
    environment = Path(f"/proc/{worker_pids(server)[0]}/environ").read_bytes().split(b"\0")
    names = {item.partition(b"=")[0].decode() for item in environment if item}
    expected = {"PATH", "LANG", "HOME", "TMPDIR", "POCL_CACHE_DIR", "XDG_CACHE_HOME"}
    # Where the machine has CUDA's libraries, a worker is told.
    assert names - {"LC_CTYPE", CUDA_VARIABLE} == expected | {"FAKE_MANNER"}
    close_all(connection, fds)


def test_a_session_gets_the_kernels_that_are_named_and_no_others(
    start_server: StartServer, tmp_path: Path
) -> None:
    for seed in ("one", "two"):
        (tmp_path / seed / "AB" / "kernel").mkdir(parents=True)
        (tmp_path / seed / "AB" / "kernel" / f"{seed}.so").write_bytes(b"code")
        (tmp_path / seed / "AB" / "program.bc").write_bytes(b"code")
        (tmp_path / seed / "AB" / "last_accessed").touch()
        (tmp_path / seed / "tempfile_x").touch()
        (tmp_path / seed / "outside.so").symlink_to("/etc/passwd")
    server = start_server(unix=True)

    def kernels() -> set[str]:
        connection, _, fds = open_session(server.unix_url)
        pocl = home_of(worker_pids(server)[0]) / "pocl"
        files = [path for path in pocl.rglob("*") if not path.is_dir()]
        for path in files:
            # The session may write what it got: it must not be the seed's file.
            path.write_bytes(b"poison")
            assert path.stat().st_nlink == 1
            assert path.stat().st_uid == pocl.stat().st_uid
        close_all(connection, fds)
        wait_until(lambda: not worker_pids(server), "the worker's end")
        return {str(path.relative_to(pocl)) for path in files}

    assert kernels() == set()
    server.use_kernels(tmp_path / "one")
    assert kernels() == {"AB/program.bc", "AB/kernel/one.so"}
    server.use_kernels(tmp_path / "two")
    assert kernels() == {"AB/program.bc", "AB/kernel/two.so"}
    assert (tmp_path / "one/AB/kernel/one.so").read_bytes() == b"code"
    server.use_kernels(tmp_path / "missing")
    assert kernels() == set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_ends(start_server: StartServer, number: int) -> None:
    server = start_server(unix=True, tcp=True)
    connection, _, fds = open_session(server.unix_url)
    other, _ = tcp_hello(server)
    workers = worker_pids(server)
    assert len(workers) == 2
    socket_path = Path(server.unix_url.removeprefix("unix:"))
    state_dir = socket_path.parent
    assert state_dir.is_dir()
    os.kill(server.pid, number)
    wait_until(lambda: all(is_gone(pid) for pid in workers), "the workers' end")
    wait_until(lambda: not state_dir.exists(), "the directory's end")
    assert connection.recv(1) == b""
    other.close()
    close_all(connection, fds)


def test_nothing_is_left_when_supervisor_and_janitor_were_stopped(
    start_server: StartServer,
) -> None:
    server = start_server(unix=True)
    state_dir = Path(server.unix_url.removeprefix("unix:")).parent
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    (janitor,) = (int(word) for word in children.split())
    os.kill(janitor, signal.SIGSTOP)
    os.kill(server.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(janitor) == state_of(server.pid) == "T", "both to stop")
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not state_dir.exists(), "the directory's end")
    wait_until(lambda: is_gone(janitor), "the janitor's end")


def state_of(pid: int) -> str:
    """A process's state as the kernel's letter."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from testbed.machine.host_server import *\n"
        "config = HostServerConfig(backend='null', unix=True, worker=Path(sys.argv[1]))\n"
        "with host_server(config, Path(sys.argv[2])) as server:\n"
        "    session = open_session(server.unix_url)\n"
        "    print(server.pid, server.unix_url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(FAKE_WORKER), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        pid, url = owner.stdout.readline().split()
    finally:
        owner.kill()
        owner.wait(LIMIT_S)
        owner.stdout.close() if owner.stdout else None
    wait_until(lambda: is_gone(int(pid)), "the supervisor's end")
    wait_until(lambda: not Path(url.removeprefix("unix:")).parent.exists(), "the directory's end")


def test_an_idle_supervisor_uses_no_cpu(start_server: StartServer) -> None:
    server = start_server(unix=True, tcp=True, device=True)
    connection, _, fds = open_session(server.unix_url)
    switches = context_switches(server.pid)
    time.sleep(1.0)
    # It may be woken by what was still under way, but not again and again.
    assert context_switches(server.pid) - switches <= 3
    close_all(connection, fds)


def context_switches(pid: int) -> int:
    """How often a process has given up its processor by itself: once per wait."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError("no such line")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "nothing to listen on"),
        (["--unix", "auto", "--session-bytes", "5000"], "session size 5000"),
        (["--unix", "auto", "--session-count", "99"], "99 sessions"),
        (["--tcp", "127.0.0.1:0"], "--token-file"),
        (["--tcp", "nonsense", "--token-file", "t"], "HOST:PORT"),
        (["--unix", "/tmp/" + "x" * 120], "longer than 107"),
    ],
)
def test_wrong_arguments_are_one_line(
    argv: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ["--run-dir", str(tmp_path), "--worker", str(FAKE_WORKER), "--backend", "null"]
    assert main([*fixed, *argv]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_port_in_use_is_named(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(tcp=True)
    argv = [sys.executable, "-m", "host_server.supervisor", "--run-dir", str(tmp_path)]
    argv += ["--worker", str(FAKE_WORKER), "--backend", "null"]
    argv += ["--tcp", f"127.0.0.1:{server.tcp_port}", "--token-file", str(tmp_path / "token")]
    result = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 1
    assert str(server.tcp_port) in result.stderr


def test_a_dead_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    from host_server.clients import listen_unix

    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listener = listen_unix(path)
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(TestbedError, match="another supervisor"):
        listen_unix(path)
    listener.close()


def test_token_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_token(path)
    assert read_token(path) == token
    assert len(token) == constant("token_bytes")
    path.write_text("12")
    with pytest.raises(TestbedError, match="has 1 bytes"):
        read_token(path)


def test_rate_limit() -> None:
    limit = RateLimit(rate=10.0, burst=2, now_s=0.0)
    assert limit.delay_s(0.0) == 0.0
    assert limit.delay_s(0.0) == 0.0
    assert limit.delay_s(0.0) == pytest.approx(0.1)
    assert limit.delay_s(0.1) == 0.0
    assert limit.delay_s(100.0) == 0.0
    assert limit.delay_s(100.0) == 0.0
    assert limit.delay_s(100.0) > 0.0


def test_our_own_library_is_never_a_vendor(tmp_path: Path) -> None:
    (tmp_path / "a.icd").write_text("libpocl.so.2\n")
    (tmp_path / "b.icd").write_text("/x/libwormhole_opencl.so\n")
    assert real_vendors(tmp_path) == {"a.icd": "libpocl.so.2"}
    (tmp_path / "a.icd").unlink()
    with pytest.raises(TestbedError, match="only the testbed's own"):
        real_vendors(tmp_path)
    renamed = tmp_path / "libother.so"
    renamed.write_bytes(b"...wormhole_mark...")
    (tmp_path / "b.icd").write_text(f"{renamed}\n")
    with pytest.raises(TestbedError, match="only the testbed's own"):
        real_vendors(tmp_path / "b.icd")
    with pytest.raises(TestbedError, match="no OpenCL vendor"):
        real_vendors(tmp_path / "none")


def test_directories_of_libraries_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "y.so").touch()
    vendors = {"a.icd": "libpocl.so.2", "b.icd": "/usr/lib/x.so", "c.icd": f"{tmp_path}/y.so"}
    assert library_directories(vendors) == [tmp_path.resolve()]


def test_a_driver_that_links_lead_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one machine has it: links in /usr/lib, which the jail opens, to /usr/local/nvidia."""
    mounted = tmp_path / "nvidia" / "lib64"
    mounted.mkdir(parents=True)
    (mounted / "libnvidia-opencl.so.1").touch()
    links = tmp_path / "lib"
    links.mkdir()
    (links / "libnvidia-opencl.so.1").symlink_to(mounted / "libnvidia-opencl.so.1")
    monkeypatch.setattr(vendors_module, "OPEN_DIRECTORIES", re.compile(f"{links}/"))
    monkeypatch.setattr(libraries, "STANDARD", (links,))
    monkeypatch.setattr(libraries, "_loader_cache", dict)
    assert library_directories({"n.icd": "libnvidia-opencl.so.1"}) == [mounted]


@pytest.mark.parametrize(
    ("place", "is_open"),
    [
        ("/usr/lib/x86_64-linux-gnu", True),
        ("/usr/lib64", True),
        ("/usr/local/lib", True),
        ("/lib", True),
        ("/usr/local/nvidia/lib64", False),
        ("/usr/local/cuda/targets/x86_64-linux/lib", False),
        ("/library", False),
    ],
)
def test_the_jail_opens_the_systems_libraries_alone(place: str, is_open: bool) -> None:
    assert (vendors_module.OPEN_DIRECTORIES.match(f"{place}/") is not None) is is_open


def test_a_driver_in_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As container runtimes mount it: found by LD_LIBRARY_PATH alone, and by name."""
    for name in ("libnvidia-opencl.so.1", "libcuda.so.1"):
        (tmp_path / name).touch()
    vendors = {"nvidia.icd": "libnvidia-opencl.so.1"}
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if find_library("libcuda.so.1") is not None:
        pytest.skip("this machine has the driver where everything finds it")
    assert library_directories(vendors) == []
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:relative")
    assert library_directories(vendors) == [tmp_path]
    assert library_directories({"pocl.icd": "libpocl.so.2"}) == []


@pytest.mark.parametrize(
    ("backend", "library", "wanted"),
    [
        ("opencl", "libpocl.so.2", False),
        ("opencl", "/usr/lib/oclgrind/liboclgrind-rt-icd.so", False),
        ("opencl", "libnvidia-opencl.so.1", True),
        ("opencl", "/opt/amdgpu/lib/libamdocl64.so", True),
        ("null", "", False),
        ("cuda", "", True),
    ],
)
def test_device_files_are_opened_for_a_gpu_alone(backend: str, library: str, wanted: bool) -> None:
    vendors = {"a.icd": library} if library else {}
    assert wants_gpu(backend, vendors) is wanted
