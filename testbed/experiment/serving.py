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
from testbed.experiment.events import Trajectory, read_events
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
        self._native_runs: list[Path] = []
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
            for native in self._native_runs:
                _put_kernels(self._server, native)
        return self._server

    def subjects(self, subjects: Mapping[str, Subject]) -> dict[str, Subject]:
        """The workloads with what is native in the server guest: losses and recorded calls.

        Raises TestbedError.
        """
        found = {}
        for label, subject in subjects.items():
            self._say(f"{label} in the server guest: from the cache, or recorded (minutes)")
            native = _native_in(self.running(), subject.bundle)
            self._native_runs.append(native)
            _put_kernels(self.running(), native)
            losses = _losses(native)
            path = _recorded_in(self.running(), subject.bundle, self._native.library, losses)
            recording = read_recording(path)
            found[label] = replace(
                subject, trajectory=losses, recorded=recorded_file(path, recording.calls)
            )
        return found

    def close(self) -> None:
        """End the server guest."""
        self._server = None
        self._stack.close()


def _native_in(server: ServerGuest, bundle: Bundle) -> Path:
    """The folder with what a bundle computes natively in the server guest, and its built kernels.

    Made there, or from the cache.  Building the kernels takes most of the time, and what is
    forwarded later is no input of it.
    """

    def build(directory: Path) -> None:
        events = _run(server, bundle, {"POCL_CACHE_DIR": str(CACHE_SEED)})
        (directory / EVENTS_NAME).write_text("\n".join(events), encoding="utf-8")
        kernels = server.vm.ssh.run(
            ["tar", "-c", "-C", str(CACHE_SEED), "-f", "-", "."],
            timeout_s=COPY_LIMIT_S,
            check=True,
        )
        (directory / KERNELS_NAME).write_bytes(kernels.stdout)

    return artifact(f"native-in-guest-{bundle.workload.name}", _inputs(server, bundle), build)


def _recorded_in(server: ServerGuest, bundle: Bundle, library: Path, native: Trajectory) -> Path:
    """The calls of a bundle, recorded in the server guest forwarded to its own supervisor.

    Made there, or from the cache.
    """

    def build(directory: Path) -> None:
        ssh = server.vm.ssh
        ssh.put({LIBRARY: library, f"{VENDORS}/wormhole.icd": f"{LIBRARY}\n".encode()})
        environment = {
            **system("tcp-sync").environment(server.own_url, server.token),
            "OCL_ICD_VENDORS": f"{VENDORS}/",
            "WORMHOLE_MARK_LIB": LIBRARY,
            "WORMHOLE_RECORD": MADE,
        }
        forwarded = read_events(_run(server, bundle, environment))
        if [step.loss for step in forwarded.steps] != [step.loss for step in native.steps]:
            raise TestbedError(
                f"{bundle.workload.name} does not give the same losses forwarded as natively in "
                "the server guest, so its calls are no reference",
                "run it by hand: ./inv exec --placement server-vm",
            )
        (directory / RECORDING_NAME).write_bytes(ssh.get(MADE, COPY_LIMIT_S))
        read_recording(directory / RECORDING_NAME)
        ssh.run(["rm", "-f", MADE])

    inputs = {
        **_inputs(server, bundle),
        "library": library,
        "spec": f"{hash_of_specs():016x}",
    }
    name = f"recording-in-guest-{bundle.workload.name}"
    return artifact(name, inputs, build) / RECORDING_NAME


def _inputs(server: ServerGuest, bundle: Bundle) -> dict[str, str | bytes | Path]:
    facts = server.vm.guest.info()
    return {
        "bundle": bundle.key,
        "image": server.packages_sha256,
        "accelerator": server.vm.facts.accelerator,
        "processor": str(facts["cpu_model"]),
        "maker": Path(__file__),
    }


def _losses(native: Path) -> Trajectory:
    return read_events((native / EVENTS_NAME).read_text(encoding="utf-8").splitlines())


def _put_kernels(server: ServerGuest, native: Path) -> None:
    """Put built kernels where every session gets a copy: no system waits for the compiler."""
    server.vm.ssh.run(
        ["tar", "-x", "-C", str(CACHE_SEED), "-f", "-"],
        stdin=(native / KERNELS_NAME).read_bytes(),
        timeout_s=COPY_LIMIT_S,
        check=True,
    )


def _run(server: ServerGuest, bundle: Bundle, environment: Mapping[str, str]) -> list[str]:
    """Run a bundle's program in the server guest; returns its event lines."""
    folder = deploy(bundle, server.vm.ssh)
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
    return [json.dumps(event) for event in done.events]
