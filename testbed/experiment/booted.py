"""A guest for the trials of one VM session: host server, VM, driver, stub library, workloads.

It is booted for the first trial of the session and ended after the last; whatever a trial needs is
copied into it before the trial begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.experiment.deploy import DEPLOY_TIMEOUT_S, deploy
from testbed.experiment.events import json_objects
from testbed.experiment.executor import GUEST_REPLAY, NativeParts, backend_of, guest_folder
from testbed.experiment.outcome import Attempt, HostTime
from testbed.experiment.prepare import kernel_cache_seed
from testbed.experiment.record import vm_log_name
from testbed.experiment.subject import Subject
from testbed.machine.erofs import Tree
from testbed.machine.guest import LIBRARY_PATH
from testbed.machine.host_python import GUEST_ROOT, MEMORY_MIB
from testbed.machine.host_server import HostServer, HostServerConfig
from testbed.machine.image import GuestImage
from testbed.machine.qemu_argv import Qemu, VmConfig
from testbed.machine.served_guest import (
    GUEST_STATS_PATH,
    Server,
    guest_of,
    served_guest,
)
from testbed.machine.server_guest import ServerGuest


@dataclass(frozen=True)
class GuestParts:
    """What every guest of a run is made of."""

    qemu: Qemu
    image: GuestImage
    native: NativeParts
    accelerator: str
    boot_timeout_s: float
    instrumented: bool
    logs: Path
    network: str = "auto"
    backend: str = "opencl"
    share: Tree | None = None  # the host's Python, where a workload runs on it
    server_guest: Callable[[], ServerGuest] | None = None  # of placement server-vm


class BootedGuest:
    """A `RunningGuest`.  Made by booting; `close` ends VM and host server."""

    def __init__(self, parts: GuestParts, name: str) -> None:
        self._parts = parts
        self._deployed: set[str] = set()
        folder = parts.logs / vm_log_name(name)
        with ExitStack() as stack:
            vm = VmConfig(name="trial", accelerator=parts.accelerator)
            if parts.share is not None:
                vm = replace(vm, share=parts.share, memory_mib=MEMORY_MIB)
            common = (
                parts.native.library,
                folder,
                parts.image,
                parts.qemu,
                parts.boot_timeout_s,
                not parts.instrumented,
            )
            if parts.server_guest is not None:
                place = guest_of(parts.server_guest(), vm, *common)
            else:
                config = HostServerConfig(
                    backend=parts.backend,
                    tcp=True,
                    network=parts.network,
                    worker=parts.native.worker,
                    vm="guest",
                )
                place = served_guest(vm, config, *common)
            self._served = stack.enter_context(place)
            self._stack = stack.pop_all()
        self._vm, self._server = self._served.vm, self._served.server

    @property
    def accelerator(self) -> str:
        """kvm or tcg."""
        return self._vm.facts.accelerator

    @property
    def server(self) -> Server:
        """The supervisor that serves this guest."""
        return self._server

    @property
    def boot_s(self) -> float:
        """Seconds from QEMU's start to SSH."""
        return self._vm.facts.boot_s

    def info(self) -> dict[str, Any]:
        """The guest's facts, see guest_agent/agent.py."""
        return self._vm.guest.info()

    def deploy(self, subject: Subject, form: str) -> None:
        """Copy what a trial of this form needs, once a guest; its sessions get its kernels."""
        if isinstance(self._server, HostServer):
            self._server.use_kernels(kernel_cache_seed(subject.workload.name))
        key = f"{form}/{subject.bundle.key}"
        if key in self._deployed:
            return
        if form == "replay":
            assert subject.recorded is not None, "replays are recorded before the first trial"
            recording = guest_folder(subject) / subject.recorded.path.name
            self._vm.ssh.put(
                {
                    str(recording): subject.recorded.path,
                    GUEST_REPLAY: self._parts.native.replay,
                },
                timeout_s=DEPLOY_TIMEOUT_S,
            )
        else:
            deploy(subject.bundle, self._vm.ssh)
            if backend_of(subject.workload) == "cuda":
                self._vm.guest.install_cuda(self._parts.native.cuda)
        self._deployed.add(key)

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float,
        logs: Path,
        host_python: bool = False,
    ) -> Attempt:
        """Run a program as the guest's unprivileged user and collect what it left.

        `logs` gets what it printed besides its event lines.  With `host_python` it sees the host's
        Python as on the host.
        """
        if not self._vm.ssh.is_open:
            raise TestbedError("the guest is gone", f"see {self._vm.console_log}")
        lines: list[tuple[int, str]] = []
        self._vm.ssh.run(["rm", "-f", GUEST_STATS_PATH], timeout_s=30.0)
        counts, exits = self._served.device_counts(), self._vm.exits()
        begin_s = time.monotonic()
        done = self._vm.guest.run(
            argv,
            {"WORMHOLE_MARK_LIB": LIBRARY_PATH, **environment, "WORMHOLE_STATS": GUEST_STATS_PATH},
            cwd="/tmp",
            timeout_s=timeout_s,
            root=GUEST_ROOT if host_python else None,
            on_line=lambda stream, text: lines.append((time.monotonic_ns(), text)),
        )
        (logs / "stdout.log").write_text(done.stdout, encoding="utf-8")
        (logs / "stderr.log").write_text(done.stderr, encoding="utf-8")
        return Attempt(
            status=done.status,
            timed_out=done.reason == "timeout",
            user_s=done.user_s,
            system_s=done.system_s,
            max_rss_kib=done.max_rss_kib,
            wall_s=time.monotonic() - begin_s,
            where="guest",
            events=done.events,
            lines=lines,
            stub=self._stub_lines(),
            complaint=done.complaint,
            facts={
                "boot_s": round(self.boot_s, 2),
                "instrumented": self._parts.instrumented,
                "device": {
                    name: after - counts[name]
                    for name, after in self._served.device_counts().items()
                },
                "exits": {
                    name: after - exits.get(name, 0) for name, after in self._vm.exits().items()
                },
            },
        )

    def host_times(self) -> list[HostTime]:
        """Processor seconds of the supervisor and of the VM so far."""
        server, vm = self._server.cpu_seconds(), self._vm.cpu_seconds()
        vcpus = self._vm.vcpu_seconds()
        times = [
            HostTime("supervisor", server.user_s, server.system_s),
            HostTime("vm", vm.user_s, vm.system_s),
            HostTime("vcpus", vcpus.user_s, vcpus.system_s),
        ]
        if isinstance(self._server, ServerGuest):
            serving = self._server.vm.cpu_seconds()
            times.append(HostTime("server-vm", serving.user_s, serving.system_s))
        return times

    def close(self) -> None:
        """End the VM, and the host server that is its own."""
        self._stack.close()
        # The server is gone, and its secret need not stay among the results.
        (self._server.run_dir / "token").unlink(missing_ok=True)

    def _stub_lines(self) -> list[dict[str, Any]]:
        """The counters that the stub wrote; none if the program never loaded it."""
        read = self._vm.ssh.run(["cat", GUEST_STATS_PATH], timeout_s=30.0)
        if read.status != 0:
            return []
        return json_objects(read.stdout.decode("utf-8", errors="replace"))
