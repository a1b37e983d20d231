"""`./inv soak`: many clients, half of them killed at any instant, and nothing is left of them.

Everything that a client makes the host hold is counted before and after: processes and threads,
descriptors, memory of the supervisor and of the region, session users, directories, connections.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.experiment.client import client_environment, guest_variables, vendor_folder
from testbed.experiment.systems import PRESETS, System
from testbed.machine.artifacts import run_logged
from testbed.machine.host_server import HostServer, HostServerConfig, host_server
from testbed.machine.native_build import COMPILER, OPENCL_DEFINES, native_build
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import ServedGuest, served_guest
from testbed.progress import say
from testbed.root import ROOT

STRESS_DIR = ROOT / "guest_agent" / "stress"
SOURCE = STRESS_DIR / "opencl_stress.c"
RUNNER = STRESS_DIR / "clients.py"

COMPILE_LIMIT_S = 120.0
RUN_LIMIT_S = 3600.0
SETTLE_LIMIT_S = 30.0
POLL_S = 0.1
GUEST_FOLDER = "/tmp/wormhole-soak"
SLOTS_HELD = "/sys/class/misc/wormhole0/slots_held"
SESSIONS_MAX = 32  # more than run at once: those of killed clients need a moment to end
WARM_UP_CLIENTS = 16  # each kind, once killed and once not
#: The one figure that is not exact: an allocator keeps what it was given.
RSS = "supervisor_rss_kib"
RSS_SLACK_KIB = 4096

Figures = dict[str, int]


@dataclass(frozen=True)
class Soak:
    """What one placement and transport left.

    `before` is the fresh supervisor, but for its own memory: that is taken after some clients.
    """

    name: str
    clients: int
    completed: int
    killed: int
    sessions: int
    before: Figures
    after: Figures

    def leaks(self) -> list[str]:
        """Figures that are higher than they were."""
        return [
            f"{name} {self.before[name]} -> {value}"
            for name, value in self.after.items()
            if value > self.before[name] + (RSS_SLACK_KIB if name == RSS else 0)
        ]


def run_soak(clients: int, guest_clients: int, seed: int, as_json: bool) -> None:
    """All placements and transports; TestbedError if a client failed or something was left."""
    soaks = []
    for chosen in (PRESETS["wormhole"], PRESETS["tcp-sync"]):
        soaks.append(soak_process(chosen, clients, seed))
        if not as_json:
            print(table(soaks[-1]), flush=True)
    if guest_clients > 0:
        soaks.append(soak_guest(PRESETS["wormhole"], guest_clients, seed))
        if not as_json:
            print(table(soaks[-1]), flush=True)
    if as_json:
        print(json.dumps([{**asdict(s), "leaks": s.leaks()} for s in soaks], indent=2))
    left = [f"{soak.name}: {leak}" for soak in soaks for leak in soak.leaks()]
    if left:
        raise TestbedError(f"left behind: {'; '.join(left)}", "see host_server/README.md")


def table(soak: Soak) -> str:
    """The figures before and after, as text."""
    head = (
        f"{soak.name}: {soak.clients} clients, {soak.completed} completed, {soak.killed} killed, "
        f"{soak.sessions} sessions"
    )
    lines = [f"  {'':32} {'before':>10} {'after':>10}"]
    lines += [f"  {name:32} {soak.before[name]:10} {soak.after[name]:10}" for name in soak.after]
    return "\n".join([head, *lines])


def compile_client(folder: Path) -> Path:
    """The OpenCL program, linked with the system's loader. TestbedError if it does not compile."""
    program = folder / SOURCE.stem
    argv = [COMPILER, "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
    argv += [*OPENCL_DEFINES, "-o", str(program), str(SOURCE), "-l:libOpenCL.so.1"]
    run_logged(argv, folder / "compile.log", COMPILE_LIMIT_S)
    return program


def soak_process(chosen: System, clients: int, seed: int) -> Soak:
    """Clients that are host processes."""
    with temporary_folder() as folder:
        program = compile_client(folder)
        build = native_build()
        # The Unix socket is there for TCP too: its folder is where the state of sessions lies.
        config = HostServerConfig(
            unix=True,
            tcp=chosen.transport == "tcp",
            worker=build.worker,
            session_count=SESSIONS_MAX,
        )
        with host_server(config, folder / "server") as server:
            vendors = vendor_folder(folder, build.library)
            environment = client_environment(os.environ, chosen, server, vendors)

            def run(count: int, run_seed: int) -> dict[str, Any]:
                argv = [sys.executable, str(RUNNER), str(program), *_options(count, run_seed)]
                done = subprocess.run(
                    argv, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S
                )
                return _result(done.stdout, done.stderr)

            name = f"process, {chosen.transport}"
            return _soak(name, server, run, lambda: host_figures(server), clients, seed)


def soak_guest(chosen: System, clients: int, seed: int) -> Soak:
    """Clients in a guest; the region's memory and the driver's slots are counted too."""
    with temporary_folder() as folder:
        program = compile_client(folder)
        build = native_build()
        config = HostServerConfig(worker=build.worker)
        with served_guest(VmConfig(name="soak"), config, build.library, folder) as served:
            server = served.server
            assert isinstance(server, HostServer), "the host's figures are those of this server"
            served.vm.ssh.put({f"{GUEST_FOLDER}/{path.name}": path for path in (program, RUNNER)})
            environment = guest_variables(chosen, server)

            def run(count: int, run_seed: int) -> dict[str, Any]:
                argv = ["python3", f"{GUEST_FOLDER}/{RUNNER.name}"]
                argv += [f"{GUEST_FOLDER}/{program.name}", *_options(count, run_seed, life_s=8.0)]
                done = served.vm.guest.run(argv, environment, timeout_s=RUN_LIMIT_S)
                return _result(done.stdout, done.stderr)

            return _soak(
                f"guest, {chosen.transport}",
                server,
                run,
                lambda: {**host_figures(server), **guest_figures(served)},
                clients,
                seed,
            )


def _options(clients: int, seed: int, life_s: float = 1.0) -> list[str]:
    return ["--clients", str(clients), "--seed", str(seed), "--life-s", str(life_s)]


def _result(out: str, err: str) -> dict[str, Any]:
    """What the runner printed; TestbedError if a client failed that was not killed."""
    try:
        result: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise TestbedError("the runner of the clients failed", err[-500:]) from None
    if result["failures"]:
        raise TestbedError(
            f"{len(result['failures'])} of {result['clients']} clients failed",
            result["failures"][0],
        )
    return result


def _soak(
    name: str,
    server: HostServer,
    run: Callable[[int, int], dict[str, Any]],
    figures: Callable[[], Figures],
    clients: int,
    seed: int,
) -> Soak:
    say(f"{name}: {clients} clients, half of them killed")
    fresh = figures()
    run(WARM_UP_CLIENTS, seed + clients)
    before = {**fresh, RSS: _settled(figures, fresh)[RSS]}
    result = run(clients, seed)
    after = _settled(figures, before)
    sessions = len(server.sessions())
    return Soak(name, clients, result["completed"], result["killed"], sessions, before, after)


def _settled(figures: Callable[[], Figures], baseline: Figures) -> Figures:
    """The figures once they have come back to the baseline, or at the time limit."""
    deadline_s = time.monotonic() + SETTLE_LIMIT_S
    while True:
        now = figures()
        back = all(value <= baseline[name] for name, value in now.items() if name != RSS)
        if back or time.monotonic() > deadline_s:
            return now
        time.sleep(POLL_S)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that users of sessions may enter."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wormhole-soak-")))
        folder.chmod(0o755)
        yield folder


def host_figures(server: HostServer) -> Figures:
    """What the host holds for a supervisor and its sessions."""
    pid = server.pid
    descriptors = _descriptors(pid)
    children = _children(pid)
    names = [_read(f"/proc/{child}/comm") for child in children]
    status = dict(line.split(":", 1) for line in _read(f"/proc/{pid}/status").splitlines())
    state_dirs = {Path(path).parent for path in _sockets(pid)}
    return {
        "workers": names.count("wormhole-worker"),
        "other_children": len(children) - names.count("wormhole-worker"),
        "supervisor_descriptors": len(descriptors),
        "supervisor_memfds": sum("memfd:" in target for target in descriptors.values()),
        "supervisor_threads": int(status["Threads"]),
        RSS: int(status["VmRSS"].split()[0]),
        "memfd_kib": _memfd_kib(pid, descriptors),
        "leased_users": len(_leased_users(pid, descriptors)),
        "state_files": sum(_file_count(folder) for folder in state_dirs),
        "connections": sum(target.startswith("socket:") for target in descriptors.values()),
    }


def guest_figures(served: ServedGuest) -> Figures:
    """What the driver and the guest hold."""
    held = served.vm.ssh.run(["cat", SLOTS_HELD], timeout_s=COMPILE_LIMIT_S).stdout
    return {"guest_slots_held": int(held)}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _file_count(folder: Path) -> int:
    # Sessions that end remove theirs meanwhile: os.walk bears it, Path.rglob does not.
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


def _children(pid: int) -> list[int]:
    return [int(word) for word in _read(f"/proc/{pid}/task/{pid}/children").split()]


def _descriptors(pid: int) -> dict[int, str]:
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:
            continue  # closed meanwhile
    return found


def _memfd_kib(pid: int, descriptors: dict[int, str]) -> int:
    """Memory of the regions that the supervisor holds; a session's pages are punched at its end."""
    blocks = {}
    for number, target in descriptors.items():
        if "memfd:" in target:
            try:
                status = Path(f"/proc/{pid}/fd/{number}").stat()
            except OSError:
                continue
            blocks[status.st_ino] = status.st_blocks
    return sum(blocks.values()) // 2


def _unix_sockets(descriptors: dict[int, str]) -> list[str]:
    """Names of the Unix sockets behind a process's descriptors."""
    inodes = {target[8:-1] for target in descriptors.values() if target.startswith("socket:")}
    lines = [line.split() for line in _read("/proc/net/unix").splitlines()[1:]]
    return [line[7] for line in lines if len(line) > 7 and line[6] in inodes]


def _sockets(pid: int) -> list[str]:
    return [name for name in _unix_sockets(_descriptors(pid)) if name.startswith("/")]


def _leased_users(pid: int, descriptors: dict[int, str]) -> list[str]:
    return [name for name in _unix_sockets(descriptors) if "wormhole-session-user-" in name]
