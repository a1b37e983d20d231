"""Runs trials for real: a fresh client and a fresh worker each time, on the host or in a guest.

In `process` placement every trial has a host server of its own.  In `guest` placement a guest and
its host server serve all trials of a VM session (a round, unless the experiment says otherwise);
each trial still has its own client process and with it its own worker.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from testbed.analysis.measure import own_cpu_s
from testbed.errors import TestbedError
from testbed.experiment.client import (
    client_environment,
    cuda_variables,
    guest_cuda_variables,
    guest_variables,
    kept_environment,
    vendor_folder,
)
from testbed.experiment.deploy import GUEST_DIRECTORY
from testbed.experiment.events import read_json_objects
from testbed.experiment.noise import NoiseWatch
from testbed.experiment.outcome import Attempt, HostTime, assemble, raw_events
from testbed.experiment.plan import Trial
from testbed.experiment.prepare import kernel_cache_seed, native_environment
from testbed.experiment.program import complaint_of, run_program
from testbed.experiment.runner import TrialFiles, TrialOutcome
from testbed.experiment.subject import Subject
from testbed.experiment.systems import System, system
from testbed.experiment.workload import Command, Workload
from testbed.machine.guest import CUDA_PATH
from testbed.machine.gvirtus import find_gvirtus, gvirtus_backend
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.served_guest import Server

GUEST_REPLAY = "/opt/wormhole/bin/wormhole-replay"
SESSIONS_LIMIT_S = 60.0
TIMEOUT_GRACE_S = 2.0
FILE_LIMIT_BYTES = 1 << 30  # of a file that a trial's program writes: it must not fill the disk

Event = dict[str, Any]


class NativeParts(Protocol):
    """The native code that trials need; see testbed/machine/native_build.py."""

    @property
    def worker(self) -> Path: ...

    @property
    def library(self) -> Path: ...

    @property
    def replay(self) -> Path: ...

    @property
    def cuda(self) -> Path: ...

    @property
    def cuda_runtime(self) -> Path: ...


class RunningGuest(Protocol):
    """A booted guest with the driver loaded, as the executor needs it."""

    @property
    def accelerator(self) -> str: ...

    @property
    def server(self) -> Server: ...

    def deploy(self, subject: Subject, form: str) -> None: ...

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float,
        logs: Path,
        host_python: bool = False,
    ) -> Attempt: ...

    def host_times(self) -> list[HostTime]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Settings:
    """What all trials of a run have in common; native code may be None if no trial needs it."""

    native: NativeParts | None
    subjects: Mapping[str, Subject]
    accelerator: str
    boot: Callable[[str], RunningGuest] | None


class Executor:
    """The real `TrialExecutor`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guest: RunningGuest | None = None
        self._vm = ""

    def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome:
        """Run one trial and judge it; see `runner.TrialExecutor`."""
        subject = self._settings.subjects[trial.workload.label]
        chosen = system(trial.system.preset, trial.system.overrides, trial.system.name)
        guest = self._guest_for(trial)
        if guest is not None:
            with self._guest_ends_with_an_error():
                guest.deploy(subject, trial.form)
        watch = NoiseWatch(with_guest=guest is not None)
        begin_s = time.process_time()
        if guest is not None:
            attempt = self._in_guest_or_end_it(guest, trial, chosen, subject, files)
        elif chosen.is_native:
            attempt = self._native(trial, subject, files)
        elif chosen.is_gvirtus:
            attempt = self._by_gvirtus(trial, subject, files)
        else:
            attempt = self._forwarded(trial, chosen, subject, files)
        # What this process itself used, mostly for SSH, is not foreign either.
        ours_s = time.process_time() - begin_s + own_cpu_s(raw_events(trial, attempt))
        noise = watch.result(ours_s)
        return assemble(trial, subject.expectation(trial.form), attempt, noise.to_json())

    def close(self) -> None:
        """End the guest that is up, if any."""
        guest, self._guest, self._vm = self._guest, None, ""
        if guest is not None:
            guest.close()

    @property
    def _parts(self) -> NativeParts:
        native = self._settings.native
        assert native is not None, "an experiment that forwards or replays has native code"
        return native

    def _guest_for(self, trial: Trial) -> RunningGuest | None:
        """The trial's guest, booted if it is not the one that is up; none for host trials."""
        if trial.vm == self._vm:
            return self._guest
        self.close()
        if trial.vm:
            boot = self._settings.boot
            if boot is None:
                raise TestbedError(
                    f"{trial.id} needs a guest, and none can be booted here", "see ./inv doctor"
                )
            self._guest = boot(trial.vm)
            self._vm = trial.vm
        return self._guest

    def _native(self, trial: Trial, subject: Subject, files: TrialFiles) -> Attempt:
        environment = native_environment(subject.bundle)
        return self._on_host(trial, subject, files, environment, {"network": "none"})

    def _forwarded(
        self, trial: Trial, chosen: System, subject: Subject, files: TrialFiles
    ) -> Attempt:
        tcp = chosen.transport == "tcp"
        backend = backend_of(subject.workload)
        cuda = backend == "cuda"
        config = HostServerConfig(
            backend=backend,
            unix=not tcp,
            tcp=tcp,
            worker=self._parts.worker,
            vm="process",
        )
        with host_server(config, files.log_directory / "server") as server:
            server.use_kernels(kernel_cache_seed(subject.workload.name))
            base = {
                **kept_environment(),
                **subject.bundle.environment(subject.bundle.directory),
            }
            vendors = vendor_folder(files.log_directory, self._parts.library)
            environment = {
                **client_environment(base, chosen, server, vendors),
                "WORMHOLE_MARK_LIB": str(self._parts.library),
                **(self._cuda_variables(base) if cuda else {}),
                "WORMHOLE_STATS": str(files.log_directory / "stub.jsonl"),
                **_instrument(trial),
            }
            facts = {"network": "loopback" if tcp else "none", "switches": chosen.switches()}
            attempt = self._on_host(trial, subject, files, environment, facts)
            sessions = _sessions(server, 0, attempt)
            times = server.cpu_seconds()
        # The server is gone, and its secret need not stay among the results.
        (files.log_directory / "server" / "token").unlink(missing_ok=True)
        host = [HostTime("supervisor", times.user_s, times.system_s)]
        stub = read_json_objects(files.log_directory / "stub.jsonl")
        return _completed(attempt, stub, sessions, host)

    def _by_gvirtus(self, trial: Trial, subject: Subject, files: TrialFiles) -> Attempt:
        install = find_gvirtus()
        with gvirtus_backend(install, files.log_directory / "server") as backend:
            base = {
                **kept_environment(),
                **subject.bundle.environment(subject.bundle.directory),
            }
            facts = {"network": "loopback", "gvirtus": install.facts()}
            environment = backend.client_environment(base)
            attempt = self._on_host(trial, subject, files, environment, facts)
            times = backend.cpu_seconds()
            if attempt.status == 0:
                backend.check_used()
        return replace(attempt, host=[HostTime("supervisor", times.user_s, times.system_s)])

    def _cuda_variables(self, base: Mapping[str, str]) -> dict[str, str]:
        parts = self._parts
        return {
            **cuda_variables(base, parts.cuda),
            "WORMHOLE_MARK_LIB": str(parts.cuda_runtime),
        }

    def _on_host(
        self,
        trial: Trial,
        subject: Subject,
        files: TrialFiles,
        environment: Mapping[str, str],
        facts: Mapping[str, Any],
    ) -> Attempt:
        stdout, stderr = files.log_directory / "stdout.log", files.log_directory / "stderr.log"
        argv = self._argv(trial, subject, subject.bundle.directory)
        end = run_program(
            argv,
            environment,
            subject.bundle.directory,
            stdout,
            stderr,
            trial.timeout_s,
            timed_lines=trial.form == "application" and subject.expectation(trial.form).reads_lines,
        )
        return Attempt(
            status=end.status,
            timed_out=end.timed_out,
            user_s=end.user_s,
            system_s=end.system_s,
            max_rss_kib=end.max_rss_kib,
            wall_s=end.wall_s,
            where="host",
            events=read_json_objects(stdout),
            lines=end.lines,
            complaint=complaint_of(stderr),
            facts={**facts, "argv": argv},
        )

    def _argv(
        self, trial: Trial, subject: Subject, folder: Path | PurePosixPath, in_guest: bool = False
    ) -> list[str]:
        """The client's command line; `folder` is where its workload lies."""
        if trial.form == "application":
            ours = not in_guest or uses_host_python(subject.workload, trial.form)
            return subject.bundle.argv(folder, sys.executable if ours else "python3")
        assert subject.recorded is not None, "replays are recorded before the first trial"
        if in_guest:
            return [GUEST_REPLAY, str(folder / subject.recorded.path.name), "--json"]
        return [str(self._parts.replay), str(subject.recorded.path), "--json"]

    def _in_guest_or_end_it(
        self,
        guest: RunningGuest,
        trial: Trial,
        chosen: System,
        subject: Subject,
        files: TrialFiles,
    ) -> Attempt:
        """Run a trial in a guest; one in which a program hung gets no further trial."""
        with self._guest_ends_with_an_error():
            attempt = self._in_guest(guest, trial, chosen, subject, files)
        if attempt.timed_out:
            self.close()
        return attempt

    @contextmanager
    def _guest_ends_with_an_error(self) -> Iterator[None]:
        """A guest in which something broke gets no further trial: the next one boots its own."""
        try:
            yield
        except TestbedError:
            self.close()
            raise

    def _in_guest(
        self,
        guest: RunningGuest,
        trial: Trial,
        chosen: System,
        subject: Subject,
        files: TrialFiles,
    ) -> Attempt:
        tcp = chosen.transport == "tcp"
        server = guest.server
        folder = guest_folder(subject)
        environment = {
            **subject.bundle.environment(folder),
            **guest_variables(chosen, server),
            **_instrument(trial),
        }
        if backend_of(subject.workload) == "cuda":
            environment |= guest_cuda_variables(self._parts.cuda)
            environment["WORMHOLE_MARK_LIB"] = str(CUDA_PATH / self._parts.cuda_runtime.name)
        before, seen = guest.host_times(), len(server.sessions())
        argv = self._argv(trial, subject, folder, in_guest=True)
        host_python = uses_host_python(subject.workload, trial.form)
        logs = files.log_directory
        attempt = guest.run(argv, environment, trial.timeout_s, logs, host_python)
        sessions = _sessions(server, seen, attempt)
        host = _difference(before, guest.host_times())
        facts = {
            **attempt.facts,
            "network": server.network if tcp else "none",
            "accelerator": guest.accelerator,
            "switches": chosen.switches(),
            "argv": argv,
        }
        return _completed(attempt, attempt.stub, sessions, host, facts)


def backend_of(workload: Workload) -> str:
    """What the server behind a workload's trials has: opencl or cuda."""
    return workload.task.api if isinstance(workload.task, Command) else "opencl"


def uses_host_python(workload: Workload, form: str) -> bool:
    """Whether a trial of this form runs on the host's own Python in a guest, too."""
    task = workload.task
    return form == "application" and isinstance(task, Command) and task.host_python


def guest_folder(subject: Subject) -> PurePosixPath:
    """Where a bundle lies in a guest; bundles that differ lie apart."""
    return GUEST_DIRECTORY / f"{subject.workload.name}-{subject.bundle.key}"


def _instrument(trial: Trial) -> dict[str, str]:
    """What makes the stub, and through it the worker, take the time of calls apart."""
    return {"WORMHOLE_INSTRUMENT": "1"} if trial.instrument == "breakdown" else {}


def _completed(
    attempt: Attempt,
    stub: Sequence[Event],
    sessions: Sequence[Event],
    host: Sequence[HostTime],
    facts: Mapping[str, Any] | None = None,
) -> Attempt:
    return replace(
        attempt,
        stub=list(stub),
        sessions=list(sessions),
        host=list(host),
        facts=attempt.facts if facts is None else facts,
    )


def _sessions(server: Server, seen: int, attempt: Attempt) -> list[Event]:
    """The sessions that the trial opened; its worker ends a moment after its client.

    A program that failed may never have opened one.
    """
    server.check_alive()
    if attempt.status != 0:
        time.sleep(TIMEOUT_GRACE_S)
        return server.sessions()[seen:]
    return server.wait_sessions(seen + 1, SESSIONS_LIMIT_S)[seen:]


def _difference(before: Sequence[HostTime], after: Sequence[HostTime]) -> list[HostTime]:
    return [
        HostTime(new.what, new.user_s - old.user_s, new.system_s - old.system_s)
        for old, new in zip(before, after, strict=True)
    ]
