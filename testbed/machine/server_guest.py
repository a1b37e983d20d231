"""The paper's arrangement: the accelerator and its server in a guest of their own.

Two VMs have one region (broker.py). In the server guest the same supervisor and the same workers
run as on a host; what stands for the memfd and the eventfds there is the driver's node.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from testbed.errors import TestbedError
from testbed.machine.broker import Broker, broker
from testbed.machine.host_server import wait_for_sessions
from testbed.machine.image import SERVER_PACKAGES, GuestImage, guest_image
from testbed.machine.native_build import SPECS_FOLDER
from testbed.machine.processes import CpuSeconds
from testbed.machine.qemu_argv import HOST_ADDRESS, Qemu, VmConfig
from testbed.machine.tap import Tap
from testbed.machine.vm import Vm, boot, free_port
from testbed.protocol.spec import SPECS_VARIABLE
from testbed.protocol.wire import constant
from testbed.root import ROOT

REGION_BYTES = 512 << 20
SESSION_COUNT = 4
FOLDER = PurePosixPath("/opt/wormhole/server")
RUN_FOLDER = PurePosixPath("/run/wormhole-server")
CACHE_SEED = PurePosixPath("/var/cache/wormhole-seed")
NODE = "/dev/wormhole-serve0"
TCP_PORT = 7001
START_LIMIT_S = 60.0
SESSIONS_LIMIT_S = 30.0
SSH_LIMIT_S = 60.0
POLL_S = 0.1
#: What the supervisor imports; nothing else of the testbed is in the guest.
SOURCES = ("host_server", "testbed/__init__.py", "testbed/errors.py", "testbed/protocol")

Record = dict[str, Any]


@dataclass(frozen=True)
class ServerParts:
    """What a server guest is made of: `worker` is the host's own program."""

    worker: Path
    backend: str = "opencl"
    tcp: bool = True


class ServerGuest:
    """A running server guest: what `HostServer` is for a server on the host."""

    def __init__(
        self, vm: Vm, devices: Broker, parts: ServerParts, tcp_port: int, packages_sha256: str
    ) -> None:
        self.vm = vm
        self.packages_sha256 = packages_sha256
        self.devices = devices
        self.tap: Tap | None = None  # both guests' TCP goes through their user networks
        self.guest_host = HOST_ADDRESS
        self.network = "user"
        self.token = secrets.token_hex(constant("token_bytes"))
        self.tcp_port = tcp_port
        self._parts = parts
        self._deploy()
        self._pid = self._start()

    @property
    def run_dir(self) -> Path:
        """Where the server VM's logs are, on this machine."""
        return self.vm.facts.run_dir

    @property
    def log(self) -> Path:
        """The supervisor's log as it is now, copied from the guest."""
        path = self.run_dir / "supervisor.log"
        path.write_bytes(self._read(RUN_FOLDER / "supervisor.log"))
        return path

    def sessions(self) -> list[Record]:
        """Records of the sessions that have ended, oldest first."""
        text = self._read(RUN_FOLDER / "sessions.jsonl").decode()
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    def wait_sessions(self, count: int, timeout_s: float = SESSIONS_LIMIT_S) -> list[Record]:
        """Wait until `count` sessions have ended. Raises TestbedError at the limit."""
        return wait_for_sessions(self.sessions, count, timeout_s, lambda: self.log)

    def cpu_seconds(self) -> CpuSeconds:
        """CPU time of the supervisor, as its guest counts. TestbedError if it has ended."""
        fields = self._read(PurePosixPath(f"/proc/{self._pid}/stat")).decode().rpartition(")")[2]
        if not fields:
            raise TestbedError("the supervisor in the server guest has ended", f"see {self.log}")
        ticks = fields.split()
        return CpuSeconds(user_s=int(ticks[11]) / 100.0, system_s=int(ticks[12]) / 100.0)

    def check_alive(self) -> None:
        """Raises TestbedError if VM or supervisor have ended."""
        self.cpu_seconds()

    @property
    def own_url(self) -> str:
        """WORMHOLE_SERVER for TCP from inside the server guest."""
        return f"tcp:127.0.0.1:{TCP_PORT}"

    def _deploy(self) -> None:
        files: dict[str, Path | bytes] = {str(FOLDER / name): ROOT / name for name in SOURCES}
        files[str(FOLDER / "wormhole-worker")] = self._parts.worker
        specs = self._parts.worker.parent / SPECS_FOLDER
        if specs.is_dir():
            files[str(FOLDER / SPECS_FOLDER)] = specs
        files[str(RUN_FOLDER / "token")] = f"{self.token}\n".encode()
        self.vm.ssh.put(files)
        self._run(["mkdir", "-p", str(CACHE_SEED)])

    def _start(self) -> int:
        """Start the supervisor in the background; returns its process id in the guest."""
        argv = ["python3", "-m", "host_server.supervisor", "--run-dir", str(RUN_FOLDER)]
        argv += ["--worker", str(FOLDER / "wormhole-worker"), "--backend", self._parts.backend]
        argv += ["--log", str(RUN_FOLDER / "supervisor.log"), "--serve", NODE]
        argv += ["--session-count", str(SESSION_COUNT)]
        argv += ["--pocl-cache-seed", str(CACHE_SEED)]
        if self._parts.tcp:
            argv += ["--tcp", f"0.0.0.0:{TCP_PORT}", "--token-file", str(RUN_FOLDER / "token")]
        said = RUN_FOLDER / "said"
        script = f'cd {FOLDER} && setsid "$@" >{said} 2>{RUN_FOLDER}/errors </dev/null & '
        specs = f"{SPECS_VARIABLE}={FOLDER / SPECS_FOLDER}"
        self._run(["sh", "-c", script, "sh", "env", specs, *argv])
        deadline_s = time.monotonic() + START_LIMIT_S
        while True:
            line = self._read(said)
            if line.endswith(b"\n"):
                return int(json.loads(line)["pid"])
            errors = self._read(RUN_FOLDER / "errors").decode(errors="replace").strip()
            if errors or time.monotonic() > deadline_s:
                raise TestbedError(
                    f"the supervisor in the server guest did not start: "
                    f"{errors.splitlines()[-1] if errors else 'it did not say why'}",
                    f"see {self.vm.console_log}",
                )
            time.sleep(POLL_S)

    def _run(self, argv: Sequence[str], timeout_s: float = SSH_LIMIT_S) -> None:
        done = self.vm.ssh.run(argv, timeout_s=timeout_s)
        if done.status != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise TestbedError(
                f"{argv[0]} in the server guest ended with status {done.status}: "
                f"{said[-1] if said else 'it said nothing'}",
                f"see {self.vm.console_log}",
            )

    def _read(self, path: PurePosixPath) -> bytes:
        """A file of the guest; empty if there is none."""
        return self.vm.ssh.run(["cat", str(path)], timeout_s=SSH_LIMIT_S).stdout


@contextmanager
def server_guest(
    config: VmConfig,
    parts: ServerParts,
    run_dir: Path,
    qemu: Qemu | None = None,
    timeout_s: float | None = None,
    ioeventfd: bool = True,
) -> Iterator[ServerGuest]:
    """Boot a server guest with a supervisor that waits for a client guest; end it on leaving.

    A client guest is a VM whose region is `devices.region("client")`, one at a time.  Raises
    TestbedError if it does not come up.
    """
    image: GuestImage = guest_image(SERVER_PACKAGES)
    with ExitStack() as stack:
        devices = stack.enter_context(broker(REGION_BYTES))
        port = free_port()
        config = replace(
            config,
            region=devices.region("server", ioeventfd),
            forwards=((port, TCP_PORT),) if parts.tcp else (),
        )
        vm = stack.enter_context(boot(config, run_dir, image, qemu, timeout_s))
        vm.guest.load_driver(image.driver)
        yield ServerGuest(vm, devices, parts, port, image.packages_sha256)
