"""Starts and stops a supervisor (host_server/supervisor.py) and reads what it recorded.

The supervisor holds one end of a pipe of ours: when we go, however we go, it ends and takes its
workers with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.machine.artifacts import cache_dir, last_lines
from testbed.machine.native_build import SPECS_FOLDER, native_build
from testbed.machine.opencl import chosen_vendors, loader_variables
from testbed.machine.processes import CpuSeconds, cpu_seconds
from testbed.machine.qemu_argv import HOST_ADDRESS
from testbed.machine.tap import Tap, tap, wants_tap
from testbed.protocol.spec import SPECS_VARIABLE
from testbed.protocol.wire import constant, enum, hash_of_specs, view
from testbed.root import ROOT

START_LIMIT_S = 20.0
STOP_LIMIT_S = 10.0
SESSIONS_LIMIT_S = 10.0
POLL_S = 0.02
CONNECT_LIMIT_S = 40.0
LOG_NAME = "supervisor.log"
RECORDS_NAME = "sessions.jsonl"
KERNELS_NAME = "kernels"
IMAGES_NAME = "device-code"
MIB = 1 << 20

NO_JAIL = "WORMHOLE_NO_JAIL"  # 1: workers without their jail, for debugging; every record says so

Record = dict[str, Any]


@dataclass(frozen=True)
class HostServerConfig:
    """What can be chosen about a supervisor. `worker` None takes the built one.

    `vendors` None is what was chosen for all (`opencl.py`). `gpu` auto opens a GPU's device files
    to workers if what they load is a GPU's. `report_refused` makes workers name refused system
    calls in the log.
    `session_memory_mib` None is the supervisor's own: three quarters of the machine's memory.
    `network` is the path of a guest's TCP: auto, tap or user (tap.py).
    `vm` names whose device code is kept for the next run: the same name is the same VM. Without a
    name it is kept as long as the supervisor lives; `images_mib` None is the supervisor's bound.
    """

    backend: str = "opencl"
    unix: bool = False
    device: bool = False
    tcp: bool = False
    network: str = "auto"
    session_bytes: int = 2048 * MIB
    session_count: int = 8
    session_memory_mib: int | None = None
    worker: Path | None = None
    vendors: Path | None = None
    cuda: tuple[Path, ...] = ()
    jail: bool = True
    gpu: str = "auto"
    report_refused: bool = False
    vm: str = ""
    images_mib: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


class HostServer:
    """A running supervisor."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        run_dir: Path,
        said: dict[str, Any],
        guest_tap: Tap | None,
    ) -> None:
        self._process = process
        self._said = said
        self.run_dir = run_dir
        self.tap = guest_tap

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """The supervisor's log; what workers print is in it too."""
        return self.run_dir / LOG_NAME

    @property
    def unix_url(self) -> str:
        """WORMHOLE_SERVER for shared memory in `process` placement."""
        return f"unix:{self._need('unix')}"

    @property
    def device_socket(self) -> Path:
        """The socket for QEMU's chardev."""
        return Path(self._need("device"))

    @property
    def guest_host(self) -> str:
        """The address at which a guest finds this server's TCP port."""
        return self.tap.host_address if self.tap is not None else HOST_ADDRESS

    @property
    def network(self) -> str:
        """The path of a guest's TCP."""
        return self.tap.kind if self.tap is not None else "user"

    @property
    def tcp_port(self) -> int:
        """The TCP port, on the loopback address or the TAP interface's."""
        return int(self._need("tcp").rpartition(":")[2])

    @property
    def tcp_url(self) -> str:
        """WORMHOLE_SERVER for TCP from the host; a guest uses another address of the host."""
        return f"tcp:{self._need('tcp')}"

    @property
    def token(self) -> str:
        """WORMHOLE_TOKEN for TCP, as hex."""
        return Path(self._need("token_file")).read_text(encoding="ascii").strip()

    def url(self, transport: str) -> str:
        """The server's address for a host process, by the transport's name (shm or tcp)."""
        return self.tcp_url if transport == "tcp" else self.unix_url

    def sessions(self) -> list[Record]:
        """Records of the sessions that have ended, oldest first: CPU seconds, jail, statistics."""
        path = self.run_dir / RECORDS_NAME
        if not path.exists():
            return []
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait_sessions(self, count: int, timeout_s: float = SESSIONS_LIMIT_S) -> list[Record]:
        """Wait until `count` sessions have ended since the run directory was made.

        A worker is collected a moment after its client is gone. Raises TestbedError at the limit.
        """
        return wait_for_sessions(self.sessions, count, timeout_s, lambda: self.log)

    def use_kernels(self, seed: Path) -> None:
        """From now on each new session gets a private copy of this kernel cache, and of no other.

        Before the first call sessions begin with no kernels.
        """
        link = self.run_dir / KERNELS_NAME
        new = link.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.symlink_to(seed.absolute())
        new.replace(link)

    def cpu_seconds(self) -> CpuSeconds:
        """CPU time of the supervisor itself, without its workers.  TestbedError if it has ended."""
        self.check_alive()
        return cpu_seconds(self.pid)

    def check_alive(self) -> None:
        """Raises TestbedError if the supervisor has ended."""
        if self._process.poll() is not None:
            raise TestbedError(
                f"the host server ended with status {self._process.returncode}", f"see {self.log}"
            )

    def _need(self, name: str) -> str:
        value = self._said.get(name)
        if not value:
            raise TestbedError(f"this host server was started without {name}")
        return str(value)


def wait_for_sessions(
    sessions: Callable[[], list[Record]], count: int, timeout_s: float, log: Callable[[], Path]
) -> list[Record]:
    """Ask until `count` sessions have ended. Raises TestbedError, naming the log, at the limit."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        records = sessions()
        if len(records) >= count:
            return records
        if time.monotonic() > deadline_s:
            raise TestbedError(
                f"{len(records)} of {count} sessions had ended after {timeout_s:.0f} s",
                f"see {log()}",
            )
        time.sleep(POLL_S)


@contextlib.contextmanager
def host_server(config: HostServerConfig, run_dir: Path) -> Iterator[HostServer]:
    """Run a supervisor while the context lasts; its log and records stay in `run_dir`.

    Raises TestbedError, with the log's last lines, if it does not come up.
    """
    run_dir = run_dir.absolute()
    run_dir.mkdir(parents=True, exist_ok=True)
    lifeline_read, lifeline_write = os.pipe()
    process: subprocess.Popen[bytes] | None = None
    with contextlib.ExitStack() as stack:
        guest_tap: Tap | None = None
        try:
            if config.device and config.tcp and wants_tap(config.network):
                guest_tap = stack.enter_context(tap())
            tcp_address = guest_tap.host_address if guest_tap is not None else "127.0.0.1"
            process = _start(config, run_dir, lifeline_read, tcp_address)
            os.close(lifeline_read)
            lifeline_read = -1
            yield HostServer(process, run_dir, _announcement(process, run_dir), guest_tap)
        finally:
            if process is not None:
                _stop(process)
            if lifeline_read >= 0:
                os.close(lifeline_read)
            os.close(lifeline_write)
            (run_dir / KERNELS_NAME).unlink(missing_ok=True)


def _start(
    config: HostServerConfig, run_dir: Path, lifeline_fd: int, tcp_address: str
) -> subprocess.Popen[bytes]:
    worker = _worker(config)
    specs = worker.parent / SPECS_FOLDER
    environment = {SPECS_VARIABLE: str(specs)} if specs.is_dir() else {}
    with (run_dir / LOG_NAME).open("ab") as log:
        return subprocess.Popen(
            supervisor_argv(config, run_dir, lifeline_fd, worker, tcp_address),
            env={**os.environ, **loader_variables(), **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[lifeline_fd],
            start_new_session=True,
        )


def supervisor_argv(
    config: HostServerConfig,
    run_dir: Path,
    lifeline_fd: int,
    worker: Path,
    tcp_address: str,
) -> list[str]:
    """The supervisor's command line."""
    argv = [sys.executable, "-m", "host_server.supervisor"]
    argv += ["--run-dir", str(run_dir), "--worker", str(worker), "--backend", config.backend]
    argv += ["--log", str(run_dir / LOG_NAME), "--lifeline-fd", str(lifeline_fd)]
    argv += ["--session-bytes", str(config.session_bytes)]
    argv += ["--session-count", str(config.session_count)]
    if config.session_memory_mib is not None:
        argv += ["--session-memory-mib", str(config.session_memory_mib)]
    if config.unix:
        argv += ["--unix", "auto"]
    if config.device:
        argv += ["--device-socket", "auto"]
    if config.tcp:
        argv += ["--tcp", f"{tcp_address}:0", "--token-file", str(run_dir / "token")]
    vendors = config.vendors or chosen_vendors()
    if vendors is not None:
        argv += ["--opencl-vendors", str(vendors)]
    argv += ["--pocl-cache-seed", str(run_dir / KERNELS_NAME)]
    argv += ["--gpu", config.gpu]
    if config.report_refused:
        argv += ["--report-refused"]
    if config.cuda:
        argv += ["--cuda-libraries", ":".join(map(str, config.cuda))]
    if not config.jail or os.environ.get(NO_JAIL) == "1":
        argv += ["--no-jail"]
    if config.vm and config.backend == "cuda":
        argv += ["--images", str(cache_dir() / IMAGES_NAME / config.vm)]
    if config.images_mib is not None:
        argv += ["--images-mib", str(config.images_mib)]
    for name, value in config.environment.items():
        argv += ["--worker-env", f"{name}={value}"]
    return argv


def _worker(config: HostServerConfig) -> Path:
    return config.worker if config.worker is not None else native_build().worker


def _announcement(process: subprocess.Popen[bytes], run_dir: Path) -> dict[str, Any]:
    """The supervisor's one line; raises TestbedError if it does not come."""
    assert process.stdout is not None
    line = b""
    deadline_s = time.monotonic() + START_LIMIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                break
            data = os.read(process.stdout.fileno(), 4096)
            if not data:
                break
            line += data
    try:
        said: dict[str, Any] = json.loads(line)
    except ValueError:
        lines = [text for text in last_lines(run_dir / LOG_NAME) if text.startswith("error: ")]
        reason = f"it was not ready within {START_LIMIT_S:.0f} s"
        if process.poll() is not None:
            reason = lines[-1].removeprefix("error: ") if lines else "it did not say why"
        raise TestbedError(
            f"the host server did not start: {reason}", f"see {run_dir / LOG_NAME}"
        ) from None
    return said


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        # Its workers die with it and its janitor removes the rest.
        process.kill()
        process.wait(timeout=STOP_LIMIT_S)
    if process.stdout is not None:
        process.stdout.close()


def open_session(
    url: str, name: str = "probe", **changes: int | bytes
) -> tuple[socket.socket, dict[str, int | bytes], list[int]]:
    """Say hello on a Unix socket (`unix:PATH`) and return connection, welcome and descriptors.

    `changes` replace fields of the hello. For checks; programs open their sessions by the stub.
    """
    fields: dict[str, int | bytes] = {
        "magic": constant("magic"),
        "version": constant("protocol_version"),
        "spec_hash": hash_of_specs(),
        "pid": os.getpid(),
        "name": name.encode(),
    }
    fields.update(changes)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_LIMIT_S)
        connection.connect(url.removeprefix("unix:"))
        connection.sendall(view("hello").pack(**fields))
        data, fds, _, _ = socket.recv_fds(connection, view("welcome").size_bytes, 4)
        if len(data) != view("welcome").size_bytes:
            raise TestbedError("the host server closed the connection without a welcome")
        return connection, view("welcome").unpack(data), fds
    except OSError as error:
        connection.close()
        raise TestbedError(f"cannot open a session at {url}: {error}") from error


def probe_jail(worker: Path | None = None, gpu: str = "off") -> dict[str, Any]:
    """The report of a worker's jail here: its level and parts, with `gpu` on its device files too.

    Starts a worker with the null backend; builds it first if need be. Raises TestbedError.
    """
    with tempfile.TemporaryDirectory(prefix="wormhole-probe-") as directory:
        config = HostServerConfig(
            backend="null", unix=True, worker=worker, session_count=1, gpu=gpu
        )
        with host_server(config, Path(directory)) as server:
            connection, welcome, fds = open_session(server.unix_url)
            connection.close()
            for fd in fds:
                os.close(fd)
            if welcome["status"] != enum("hello_status")["ok"]:
                raise TestbedError(f"a worker could not be started: {last_lines(server.log)[-1]}")
            report: dict[str, Any] = server.wait_sessions(1)[0]["jail"]
            return report


def jail_states(jail: Any) -> dict[str, str]:
    """The parts of a session's jail report as name -> "reached" or the reason."""
    if not isinstance(jail, dict) or not isinstance(jail.get("parts"), dict):
        return {"jail": "the worker did not report"}
    return {
        str(name): "reached" if part.get("reached") else str(part.get("how"))
        for name, part in jail["parts"].items()
    }
