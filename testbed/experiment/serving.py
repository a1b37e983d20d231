"""The server guest of placement server-vm, over the trials of a run.

Its emulated or virtual processor is another OpenCL device than the host's: other names, other
limits, other binaries, perhaps other last digits. So what trials replay is recorded inside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.deploy import deploy
from testbed.experiment.events import read_events
from testbed.experiment.executor import NativeParts
from testbed.experiment.prepare import Bundle
from testbed.experiment.recording import read_recording
from testbed.experiment.subject import Subject, recorded_file
from testbed.experiment.systems import system
from testbed.machine.artifacts import artifact
from testbed.machine.host_server import HostServerConfig
from testbed.machine.qemu_argv import Qemu, VmConfig
from testbed.machine.served_guest import server_parts
from testbed.machine.server_guest import CACHE_SEED, ServerGuest, server_guest
from testbed.protocol.wire import hash_of_specs

RECORDING_NAME = "calls.whrec"
KERNELS_NAME = "kernels.tar"
EVENTS_NAME = "events.jsonl"
LIBRARY = "/opt/wormhole/server/libwormhole_opencl.so"
VENDORS = "/opt/wormhole/server/vendors"
MADE = "/tmp/made.whrec"
# Under TCG the application is traced and its kernels are compiled by emulated code, once.
RECORD_LIMIT_S = 1800.0
COPY_LIMIT_S = 120.0


class Serving:
    """One server guest for all client guests of a run; a new one if it has died."""

    def __init__(
        self,
        native: NativeParts,
        qemu: Qemu,
        accelerator: str,
        boot_timeout_s: float,
        ioeventfd: bool,
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        self._native = native
        self._say = say
        self._made: list[Path] = []
        self._config = VmConfig(name="server", accelerator=accelerator)
        self._parts = server_parts(HostServerConfig(tcp=True, worker=native.worker))
        self._qemu = qemu
        self._boot_timeout_s = boot_timeout_s
        self._ioeventfd = ioeventfd
        self._logs = logs
        self._stack = ExitStack()
        self._server: ServerGuest | None = None
        self._boots = 0

    def running(self) -> ServerGuest:
        """The server guest, booted if there is none that answers."""
        if self._server is not None:
            try:
                self._server.check_alive()
            except TestbedError:
                self.close()
        if self._server is None:
            self._boots += 1
            self._server = self._stack.enter_context(
                server_guest(
                    self._config,
                    self._parts,
                    self._logs / f"vm-server-{self._boots}",
                    self._qemu,
                    self._boot_timeout_s,
                    self._ioeventfd,
                )
            )
            for made in self._made:
                _put_kernels(self._server, made)
        return self._server

    def subjects(self, subjects: Mapping[str, Subject]) -> dict[str, Subject]:
        """The workloads with what is native in the server guest: losses and recorded calls.

        Raises TestbedError.
        """
        found = {}
        for label, subject in subjects.items():
            self._say(f"{label} in the server guest: from the cache, or recorded (minutes)")
            made = _recorded_in(self.running(), subject.bundle, self._native.library)
            self._made.append(made)
            _put_kernels(self.running(), made)
            lines = (made / EVENTS_NAME).read_text(encoding="utf-8").splitlines()
            recording = read_recording(made / RECORDING_NAME)
            found[label] = replace(
                subject,
                trajectory=read_events(lines),
                recorded=recorded_file(recording.path, recording.calls),
            )
        return found

    def close(self) -> None:
        """End the server guest."""
        self._server = None
        self._stack.close()


def _recorded_in(server: ServerGuest, bundle: Bundle, library: Path) -> Path:
    """Losses, calls and built kernels of a bundle on the server guest's own accelerator.

    Made there, or from the cache.
    """
    facts = server.vm.guest.info()
    inputs: dict[str, str | bytes | Path] = {
        "bundle": bundle.key,
        "library": library,
        "spec": f"{hash_of_specs():016x}",
        "image": server.packages_sha256,
        "accelerator": server.vm.facts.accelerator,
        "processor": str(facts["cpu_model"]),
        "maker": Path(__file__),
    }

    def build(directory: Path) -> None:
        _record(server, bundle, library, directory)
        read_recording(directory / RECORDING_NAME)

    return artifact(f"recording-in-guest-{bundle.workload.name}", inputs, build)


def _put_kernels(server: ServerGuest, made: Path) -> None:
    """Put built kernels where every session gets a copy: no system waits for the compiler."""
    server.vm.ssh.run(
        ["tar", "-x", "-C", str(CACHE_SEED), "-f", "-"],
        stdin=(made / KERNELS_NAME).read_bytes(),
        timeout_s=COPY_LIMIT_S,
        check=True,
    )


def _record(server: ServerGuest, bundle: Bundle, library: Path, directory: Path) -> None:
    """Run the application natively, which builds its kernels, then forwarded and recorded."""
    ssh = server.vm.ssh
    folder = deploy(bundle, ssh)
    ssh.put({LIBRARY: library, f"{VENDORS}/wormhole.icd": f"{LIBRARY}\n".encode()})
    native = {"POCL_CACHE_DIR": str(CACHE_SEED)}
    forwarded = {
        **system("tcp-sync").environment(server.own_url, server.token),
        "OCL_ICD_VENDORS": f"{VENDORS}/",
        "WORMHOLE_MARK_LIB": LIBRARY,
        "WORMHOLE_RECORD": MADE,
    }
    losses = []
    for environment in (native, forwarded):
        done = server.vm.guest.run(
            bundle.argv(folder),
            {**bundle.environment(folder), **environment},
            cwd="/tmp",
            timeout_s=RECORD_LIMIT_S,
            user="root",
        )
        if done.status != 0:
            raise TestbedError(
                f"{bundle.workload.name} ended with status {done.status} in the server guest: "
                f"{done.complaint or done.reason}",
                f"see {server.vm.console_log}",
            )
        lines = [json.dumps(event) for event in done.events]
        losses.append([step.loss for step in read_events(lines).steps])
        (directory / EVENTS_NAME).write_text("\n".join(lines), encoding="utf-8")
    if losses[0] != losses[1]:
        raise TestbedError(
            f"{bundle.workload.name} does not give the same losses forwarded as natively in the "
            "server guest, so its calls are no reference",
            "run it by hand: ./inv exec --placement server-vm",
        )
    (directory / RECORDING_NAME).write_bytes(ssh.get(MADE, COPY_LIMIT_S))
    kernels = ssh.run(
        ["tar", "-c", "-C", str(CACHE_SEED), "-f", "-", "."], timeout_s=COPY_LIMIT_S, check=True
    )
    (directory / KERNELS_NAME).write_bytes(kernels.stdout)
    ssh.run(["rm", "-f", MADE])
