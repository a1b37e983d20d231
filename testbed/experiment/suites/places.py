"""Where a suite's programs run: on the host, natively or behind a host server, or in a guest."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Protocol

from testbed.errors import TestbedError
from testbed.experiment.client import (
    client_environment,
    guest_variables,
    kept_environment,
    vendor_folder,
)
from testbed.experiment.program import run_program
from testbed.experiment.suites.fetch import Kit
from testbed.experiment.suites.suite import Output, Step, Suite
from testbed.experiment.systems import System
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import NativeBuild
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import ServedGuest, served_guest

COPY_LIMIT_S = 1200.0  # an emulated guest unpacks 80 MB of Python packages
LINKER_LIMIT_S = 120.0
GUEST_FOLDER = PurePosixPath("/opt/wormhole/suite")
GUEST_MEMORY_MIB = 2048
# An emulated processor is this much slower than the host's, about.
GUEST_PATIENCE = 15
SESSIONS_AT_ONCE = 16
# No test needs what makes an environment, and it is a third of its files.
INSTALLERS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
# The guest has its own; the OpenCL loader must be its own.
GUEST_LIBRARIES = ("libc.so", "libm.so", "libOpenCL", "ld-linux", "libpthread", "libdl", "librt")


class Place(Protocol):
    """Runs the programs of one suite."""

    def run(self, step: Step, kit: Kit, work: Path) -> Output:
        """Run one program in the empty folder `work` and collect what it leaves."""


class Host:
    """Programs on the host, with a private home: no cache or setting of the user's."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def run(self, step: Step, kit: Kit, work: Path) -> Output:
        """Run one program on the host."""
        words = _words(kit, str(kit.python), str(kit.source), str(work))
        _write_files(step, words, work)
        out, err = work / ".stdout", work / ".stderr"
        home = {"HOME": str(work), "XDG_CACHE_HOME": str(work / ".cache")}
        argv = [_filled(word, words) for word in step.argv]
        if shutil.which(argv[0]) is None:
            raise TestbedError(f"there is no {argv[0]}", "install the suite's packages")
        end = run_program(
            argv,
            {**self._environment, **home, **_variables(step, words)},
            kit.source / step.in_source if step.in_source and kit.source else work,
            out,
            err,
            step.timeout_s,
        )
        result = work / step.result
        return Output(
            end.status,
            end.timed_out,
            out.read_text(encoding="utf-8", errors="replace"),
            err.read_text(encoding="utf-8", errors="replace"),
            result.read_bytes() if step.result and result.is_file() else b"",
        )


class InGuest:
    """Programs in a guest, which gets them with the libraries that it lacks."""

    def __init__(self, served: ServedGuest, environment: Mapping[str, str]) -> None:
        self._served = served
        self._environment = environment
        self._shipped: set[str] = set()

    def run(self, step: Step, kit: Kit, work: Path) -> Output:
        """Run one program in the guest."""
        ssh, guest = self._served.vm.ssh, self._served.vm.guest
        there = GUEST_FOLDER / "work" / step.name.replace(" ", "-").replace("/", "-")
        ssh.run(["install", "-d", "-m", "0777", str(there)], check=True)
        source = str(GUEST_FOLDER / "source")
        words = _words(kit, "python3", source, str(there))
        _write_files(step, words, work)
        ssh.put({f"{there}/{name}": work / name for name in step.files})
        variables = {
            "HOME": str(there),
            "LD_LIBRARY_PATH": str(GUEST_FOLDER / "lib"),
            "PYTHONPATH": str(GUEST_FOLDER / "packages"),
            "PATH": f"{GUEST_FOLDER}/bin:/usr/bin:/bin",
        }
        self._ship(step, kit)
        done = guest.run(
            [_filled(word, words) for word in step.argv],
            {**variables, **self._environment, **_variables(step, words)},
            cwd=f"{source}/{step.in_source}" if step.in_source else str(there),
            timeout_s=step.timeout_s * GUEST_PATIENCE,
        )
        result = b""
        if step.result and ssh.run(["test", "-f", f"{there}/{step.result}"]).status == 0:
            result = ssh.get(f"{there}/{step.result}", COPY_LIMIT_S)
        timed_out = done.reason == "timeout"
        return Output(done.status, timed_out, done.stdout, done.stderr, result)

    def _ship(self, step: Step, kit: Kit) -> None:
        """Copy what the step needs and the guest lacks; each thing once."""
        files: dict[str, Path | bytes] = {}
        if step.argv[0] == "{python}":
            programs = []
            for path in sorted(kit.packages.iterdir()) if kit.packages else ():
                if path.name not in INSTALLERS:
                    files[f"{GUEST_FOLDER}/packages/{path.name}"] = path
                    programs += [path] if path.suffix == ".so" else sorted(path.rglob("*.so"))
            if kit.source:
                files[f"{GUEST_FOLDER}/source"] = kit.source
        else:
            program = Path(shutil.which(step.argv[0]) or step.argv[0])
            files[f"{GUEST_FOLDER}/bin/{program.name}"] = program.resolve()
            programs = [program]
        for library in needed_libraries(programs):
            files[f"{GUEST_FOLDER}/lib/{library.name}"] = library.resolve()
        new = {target: path for target, path in files.items() if target not in self._shipped}
        if new:
            self._served.vm.ssh.put(new, COPY_LIMIT_S)
            self._shipped |= set(new)


@contextmanager
def place(
    chosen: System, placement: str, folder: Path, build: NativeBuild | None
) -> Iterator[Place]:
    """Where a system runs programs in a placement; `folder` gets the server's and VM's files.

    `build` None is for native alone.
    """
    if chosen.is_native or build is None:
        yield Host(kept_environment())
        return
    tcp = chosen.transport == "tcp"
    if placement == "guest":
        config = HostServerConfig(tcp=True, worker=build.worker)
        vm = VmConfig(name="suites", memory_mib=GUEST_MEMORY_MIB)
        with served_guest(vm, config, build.library, folder) as served:
            yield InGuest(served, guest_variables(chosen, served.server))
        return
    vendors = vendor_folder(folder, build.library)
    config = HostServerConfig(
        unix=not tcp, tcp=tcp, worker=build.worker, session_count=SESSIONS_AT_ONCE
    )
    with host_server(config, folder / "server") as server:
        yield Host(client_environment(kept_environment(), chosen, server, vendors))


def in_guest(suite: Suite) -> tuple[Step, ...]:
    """The steps of a suite that run in a guest."""
    return tuple(step for step in suite.steps if step.name in suite.guest)


def _words(kit: Kit, python: str, source: str, work: str) -> dict[str, str]:
    return {"{python}": python, "{source}": source if kit.source else "", "{work}": work}


def _filled(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(name, value)
    return text


def _variables(step: Step, words: Mapping[str, str]) -> dict[str, str]:
    return {name: _filled(value, words) for name, value in step.environment.items()}


def _write_files(step: Step, words: Mapping[str, str], work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    for name, text in step.files.items():
        (work / name).write_text(_filled(text, words), encoding="utf-8")


def needed_libraries(programs: Sequence[Path]) -> list[Path]:
    """The libraries of the system that programs or extension modules need.

    Without those that every guest has, and those that a Python package brings along.
    """
    if not programs:
        return []
    done = subprocess.run(
        ["ldd", *map(str, programs)],
        capture_output=True,
        text=True,
        timeout=LINKER_LIMIT_S,
        check=False,
    )
    found = set()
    for line in done.stdout.splitlines():
        _, arrow, rest = line.partition("=>")
        if arrow and rest.strip().startswith("/"):
            path = Path(rest.split()[0])
            if "site-packages" not in path.parts and not path.name.startswith(GUEST_LIBRARIES):
                found.add(path)
    return sorted(found)
