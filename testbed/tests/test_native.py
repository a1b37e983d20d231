"""The native call runtime against real workers: the C cases, sanitized, over both transports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.machine import native_build as native_build_module
from testbed.machine.host_server import HostServer, HostServerConfig, host_server
from testbed.machine.native_build import NativeBuild, native_build
from testbed.protocol.wire import view

pytestmark = pytest.mark.native

CASE_LIMIT_S = 300.0
DEATH_LIMIT_S = 20.0
SANITIZER_OPTIONS = {
    # Arena locations and buffers are checked by the cases; leaks of a killed session are no fault.
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:alloc_dealloc_mismatch=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}
MALFORMED = (
    "size_zero",
    "size_unaligned",
    "size_beyond_head",
    "size_huge",
    "head_jump",
    "head_back",
    "head_unaligned",
    "slot",
    "sequence_zero",
    "no_arguments",
    "location_outside",
    "location_wraps",
    "location_header",
    "location_unaligned",
    "blob_longer",
    "inline_longer",
    "inline_wraps",
    "out_huge",
    "out_outside",
    "count_longer",
)


@dataclass(frozen=True)
class Bench:
    """Sanitized programs and a supervisor whose workers are sanitized too."""

    build: NativeBuild
    server: HostServer

    def environment(self, transport: str, **switches: str) -> dict[str, str]:
        """The stub's environment for a client of this supervisor."""
        environment = {
            "PATH": os.environ["PATH"],
            "WORMHOLE_SERVER": self.server.url(transport),
            "WORMHOLE_TOKEN": self.server.token,
            **SANITIZER_OPTIONS,
        }
        return {**environment, **{f"WORMHOLE_{name}": value for name, value in switches.items()}}

    def argv(self, *words: str) -> list[str]:
        """The command line of a case."""
        return [str(self.build.test_program("test_runtime")), *words]

    def run(self, *words: str, transport: str = "shm", **switches: str) -> str:
        """Run a case; its standard error. Fails the test unless it says ok."""
        done = subprocess.run(
            self.argv(*words),
            env=self.environment(transport, **switches),
            capture_output=True,
            text=True,
            timeout=CASE_LIMIT_S,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr + self.log_tail()
        return done.stderr

    def log_tail(self) -> str:
        """The end of the supervisor's log, where workers' sanitizers speak."""
        return self.server.log.read_text(errors="replace")[-4000:]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A supervisor with sanitized workers; no jail, which a sanitizer does not survive."""
    build = native_build("address", tests=True)
    config = HostServerConfig(
        backend="null",
        unix=True,
        tcp=True,
        session_bytes=128 << 20,
        worker=build.worker,
        jail=False,
        environment=SANITIZER_OPTIONS,
    )
    with host_server(config, tmp_path_factory.mktemp("server")) as server:
        yield Bench(build, server)
    log = server.log.read_text(errors="replace")
    assert "ERROR: AddressSanitizer" not in log, log[-4000:]
    assert "runtime error" not in log, log[-4000:]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    "case",
    ["basic", "sizes", "too_large", "threads", "order", "blocked", "many_blocked", "bulk", "fork",
     "habit", "unknown_opcode"],
)  # fmt: skip
def test_case(bench: Bench, case: str, transport: str) -> None:
    bench.run(case, transport=transport)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("case", ["threads", "order", "sizes"])
def test_case_that_always_sleeps(bench: Bench, case: str, transport: str) -> None:
    bench.run(case, transport=transport, SPIN_US="0")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_call_waits_when_oneway_is_off(bench: Bench, transport: str, tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    bench.run("threads", transport=transport, ONEWAY="0", STATS=str(stats))
    (line,) = stats.read_text().splitlines()
    counters = json.loads(line)
    assert counters["oneway"] == 0
    assert counters["round_trips"] == counters["messages"] > 80000


def test_no_wake_up_is_lost_around_the_spin_bound(bench: Bench) -> None:
    bench.run("pingpong", SPIN_US="20")


def test_notifications_always(bench: Bench) -> None:
    bench.run("always", NOTIFICATIONS="always")


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_request_ends_its_own_session_only(bench: Bench, kind: str) -> None:
    before = len(faults(bench.server))
    stderr = bench.run("malformed", kind)
    assert "the host ended it" in stderr
    deadline_s = time.monotonic() + DEATH_LIMIT_S
    while len(faults(bench.server)) != before + 1:
        assert time.monotonic() < deadline_s, "the worker did not end with status 3"
        time.sleep(0.02)
    assert "the session ends: its client sent" in bench.log_tail()
    bench.run("basic")


def test_full_ring_holds_the_client_back(bench: Bench) -> None:
    wait_for_no_worker(bench.server)
    with subprocess.Popen(
        bench.argv("ring_full"),
        env=bench.environment("shm"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None and client.stdout is not None
        assert client.stdout.readline() == "stop\n"
        (worker,) = workers(bench.server)
        os.kill(worker, signal.SIGSTOP)
        try:
            client.stdin.write("\n")
            client.stdin.flush()
            time.sleep(1.0)
            assert client.poll() is None
        finally:
            os.kill(worker, signal.SIGCONT)
        assert client.stdout.read() == "ok\n"
        assert client.wait(CASE_LIMIT_S) == 0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_killed_worker_ends_waiting_and_later_calls(bench: Bench, transport: str) -> None:
    wait_for_no_worker(bench.server)
    with subprocess.Popen(
        bench.argv("killed_worker"),
        env=bench.environment(transport),
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "kill\n"
        (worker,) = workers(bench.server)
        os.kill(worker, signal.SIGKILL)
        assert client.stdout.read() == "ok\n"
        assert client.wait(DEATH_LIMIT_S) == 0
    bench.run("basic", transport=transport)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_hung_worker_ends_waiting_and_later_calls(bench: Bench, transport: str) -> None:
    wait_for_no_worker(bench.server)
    with (
        subprocess.Popen(
            bench.argv("killed_worker"),
            env=bench.environment(transport),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as client,
        hung_worker(bench.server, client),
    ):
        stdout, stderr = client.communicate(timeout=CASE_LIMIT_S)
        assert (client.returncode, stdout) == (0, "ok\n"), stderr
        assert "the session with the host server is lost: the worker" in stderr
        assert "10 s" in stderr
    bench.run("basic", transport=transport)


def test_hung_worker_ends_sending(bench: Bench) -> None:
    wait_for_no_worker(bench.server)
    with (
        subprocess.Popen(
            bench.argv("stopped_before_bulk"),
            env=bench.environment("tcp"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as client,
        hung_worker(bench.server, client),
    ):
        stdout, stderr = client.communicate("\n", timeout=CASE_LIMIT_S)
        assert (client.returncode, stdout) == (0, "ok\n"), stderr
        assert "the worker has sent nothing for 10 s" in stderr


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_busy_worker_is_not_taken_for_a_hung_one(bench: Bench, transport: str) -> None:
    bench.run("busy", transport=transport)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_killed_client_leaves_no_worker(bench: Bench, transport: str) -> None:
    for _ in range(3):
        with subprocess.Popen(
            bench.argv("victim"),
            env=bench.environment(transport),
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "kill\n"
            client.kill()
        wait_for_no_worker(bench.server)


def test_marks_carry_counters_and_stay_json(bench: Bench, tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    bench.run("marks", STATS=str(stats))
    lines = [json.loads(line) for line in stats.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["mark", "mark", "exit"]
    assert [line["label"] for line in lines] == ["step 1", "step _2__", ""]
    assert lines[0]["messages"] == 0
    assert lines[1]["messages"] == 5
    assert lines[1]["api_calls"] == 10
    assert lines[1]["local_answers"] == 5
    assert lines[1]["t_ns"] > lines[0]["t_ns"]


def test_record_holds_every_request_reply_and_mark(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "record"
    bench.run("marks", transport="tcp", ONEWAY="0", LOCAL="0", RECORD=str(path))
    request, reply = view("request_header"), view("reply_header")
    entries = record_entries(path)
    pending = {}
    for kind, body in entries:
        if kind == 1:
            at = request.offset("sequence")
            pending[int.from_bytes(body[at : at + 4], "little")] = body
        elif kind == 2:
            at = reply.offset("ready")
            sequence = int.from_bytes(body[at : at + 4], "little")
            assert pending.pop(sequence)[16:24] == (1).to_bytes(8, "little")
            assert body[-8:] == (2).to_bytes(8, "little")
    assert [kind for kind, _ in entries] == [3, *[1, 2] * 5, 3]
    assert not pending


def test_record_holds_no_heartbeats(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "record"
    bench.run("slow", transport="tcp", ONEWAY="0", LOCAL="0", RECORD=str(path))
    at = view("reply_header").offset("ready")
    entries = record_entries(path)
    assert [kind for kind, _ in entries] == [1, 2] * 5
    replies = [body for kind, body in entries if kind == 2]
    assert [int.from_bytes(body[at : at + 4], "little") for body in replies] == [1, 2, 3, 4, 5]


def test_without_a_server_one_line_says_where(bench: Bench, tmp_path: Path) -> None:
    done = subprocess.run(
        bench.argv("connect_refused"),
        env={**bench.environment("shm"), "WORMHOLE_SERVER": f"unix:{tmp_path}/none"},
        capture_output=True,
        text=True,
        timeout=CASE_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"cannot reach the host server at unix:{tmp_path}/none" in done.stderr


def test_wrong_token_is_refused(bench: Bench) -> None:
    done = subprocess.run(
        bench.argv("connect_refused"),
        env={**bench.environment("tcp"), "WORMHOLE_TOKEN": "00" * 32},
        capture_output=True,
        text=True,
        timeout=CASE_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the token is wrong" in done.stderr


def test_units_of_the_worker(bench: Bench) -> None:
    done = subprocess.run(
        [bench.build.test_program("test_units")],
        env=SANITIZER_OPTIONS,
        capture_output=True,
        text=True,
        timeout=CASE_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_kept_device_code_of_the_worker(bench: Bench, tmp_path: Path) -> None:
    done = subprocess.run(
        [bench.build.test_program("test_images"), tmp_path],
        env=SANITIZER_OPTIONS,
        capture_output=True,
        text=True,
        timeout=CASE_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_arena_against_a_model(bench: Bench) -> None:
    done = subprocess.run(
        [bench.build.test_program("test_arena")],
        env=SANITIZER_OPTIONS,
        capture_output=True,
        text=True,
        timeout=CASE_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_library_exports_only_what_it_must() -> None:
    library = native_build().library
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    names = {line.split()[-1] for line in shown.stdout.splitlines()}
    assert names <= {
        "clIcdGetPlatformIDsKHR",
        "clGetExtensionFunctionAddress",
        "clGetPlatformInfo",
        "wormhole_mark",
    }
    assert {"clIcdGetPlatformIDsKHR", "wormhole_mark"} <= names


def test_native_code_needs_libc_alone() -> None:
    build = native_build()
    for program in (build.library, build.worker, build.bench):
        shown = subprocess.run(
            ["objdump", "-p", str(program)], capture_output=True, text=True, timeout=60, check=True
        )
        needed = {line.split()[1] for line in shown.stdout.splitlines() if "NEEDED" in line}
        assert needed <= {"libc.so.6", "ld-linux-x86-64.so.2"}, program


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build_module, "COMPILER", "no-such-compiler")
    with pytest.raises(TestbedError, match="no-such-compiler"):
        native_build()


def faults(server: HostServer) -> list[dict[str, object]]:
    """Sessions that ended because their client broke the protocol."""
    return [record for record in server.sessions() if record["exit_status"] == 3]


def workers(server: HostServer) -> list[int]:
    """Process ids of the supervisor's workers."""
    shown = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(server.pid)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    rows = [line.split(None, 1) for line in shown.stdout.splitlines()]
    return [int(pid) for pid, name in rows if name.strip() == "wormhole-worker"]


def record_entries(path: Path) -> list[tuple[int, bytes]]:
    """Kind (1 request, 2 reply, 3 mark) and body of each entry of a record."""
    data = path.read_bytes()
    assert data[:8] == (0x4452434552484F57).to_bytes(8, "little")
    entries, position = [], 32
    while position < len(data):
        kind, _, size, _ = (
            int.from_bytes(data[position + at : position + at + width], "little")
            for at, width in ((0, 4), (4, 4), (8, 8), (16, 8))
        )
        entries.append((kind, data[position + 24 : position + 24 + size]))
        position += 24 + (size + 7) // 8 * 8
    return entries


@contextmanager
def hung_worker(server: HostServer, client: subprocess.Popen[str]) -> Iterator[None]:
    """Stop the only worker when the client asks for it; kills it at the end."""
    assert client.stdout is not None
    assert client.stdout.readline() == "kill\n"
    (worker,) = workers(server)
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGKILL)
    wait_for_no_worker(server)


def wait_for_no_worker(server: HostServer) -> None:
    """Fails the test if a worker is still there after the limit."""
    deadline_s = time.monotonic() + DEATH_LIMIT_S
    while workers(server):
        assert time.monotonic() < deadline_s, "a worker outlived its client"
        time.sleep(0.05)
