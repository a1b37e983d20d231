"""Runs any program under any system, by hand: `./inv exec --system S --placement P -- PROGRAM`.

Unlike a trial the program gets the user's own environment, terminal and directory (on the host),
apart from the variables that decide which accelerator library it finds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.client import (
    cleaned,
    client_environment,
    cuda_variables,
    guest_cuda_variables,
    guest_variables,
    native_by_hand,
    vendor_folder,
)
from testbed.experiment.systems import System, check_placement, system
from testbed.machine.gvirtus import find_gvirtus, gvirtus_backend
from testbed.machine.host_python import GUEST_ROOT, MEMORY_MIB, python_tree
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import GUEST_STATS_PATH, Server, served_guest

CUDA = "cuda"  # the backend that a program of CUDA's needs
BACKENDS = ("opencl", CUDA, "null")
END_LIMIT_S = 5.0
STATUS_TIME_LIMIT = 124
STATUS_SIGNAL = 128
COPY_LIMIT_S = 30.0


def execute(
    argv: Sequence[str],
    system_name: str,
    placement: str,
    spin_us: int | None = None,
    stats: Path | None = None,
    timeout_s: float = 3600.0,
    backend: str = "opencl",
    jail: bool = True,
    report_refused: bool = False,
    host_python: bool = False,
    share: str = "",
) -> int:
    """Run a program; returns its exit status (128 + n for signal n, 124 at the time limit).

    `stats` gets the stub's counters. The placements `guest` and `server-vm` boot guests for it,
    and the program must exist there: or be of the host's own Python, with `host_python`, which the
    guest then sees, with the folders named in `share` (separated by commas). For finding out why a
    driver fails: workers without `jail`, or ones that name the system calls they are refused.
    Raises TestbedError if it cannot be run.
    """
    if not argv:
        raise TestbedError(
            "no program given", "put it behind two dashes: ./inv exec --system wormhole -- clinfo"
        )
    if backend not in BACKENDS:
        raise TestbedError(f"there is no backend {backend!r}", f"use one of {', '.join(BACKENDS)}")
    overrides = [] if spin_us is None else [("spin_us", spin_us)]
    chosen = system(system_name, overrides)
    check_placement(placement, chosen)
    config = HostServerConfig(
        backend=backend, jail=jail, report_refused=report_refused, vm=placement
    )
    if placement == "process":
        return _in_process(argv, chosen, stats, timeout_s, config)
    vm = VmConfig(name="exec")
    if host_python or share:
        python = shutil.which("python3") or sys.executable
        argv = [python if argv[0] == "python3" else argv[0], *argv[1:]]
        folders = tuple(str(Path(word).absolute()) for word in share.split(",") if word)
        vm = replace(vm, share=python_tree(python, folders), memory_mib=MEMORY_MIB)
    return _in_guest(argv, chosen, placement, stats, timeout_s, config, vm)


def _in_process(
    argv: Sequence[str],
    chosen: System,
    stats: Path | None,
    timeout_s: float,
    config: HostServerConfig,
) -> int:
    if chosen.is_native:
        return _run(argv, native_by_hand(os.environ), timeout_s)
    if chosen.is_gvirtus:
        return _by_gvirtus(argv, timeout_s)
    build = native_build()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wormhole-exec-")))
        vendors = vendor_folder(directory, build.library)
        tcp = chosen.transport == "tcp"
        listening = replace(config, unix=not tcp, tcp=tcp, worker=build.worker)
        server = stack.enter_context(host_server(listening, directory / "server"))
        environment = client_environment(os.environ, chosen, server, vendors)
        if config.backend == CUDA:
            environment |= cuda_variables(environment, build.cuda)
        if stats is not None:
            environment["WORMHOLE_STATS"] = str(stats.absolute())
        status = _run(argv, environment, timeout_s)
        _show_failures(server)
        return status


def _by_gvirtus(argv: Sequence[str], timeout_s: float) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="wormhole-exec-") as folder,
        gvirtus_backend(find_gvirtus(), Path(folder)) as backend,
    ):
        status = _run(argv, backend.client_environment(cleaned(os.environ)), timeout_s)
        backend.check_alive()
        if status == 0:
            backend.check_used()
        return status


def _run(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> int:
    """Run a program on our own terminal."""
    if shutil.which(argv[0], path=environment.get("PATH")) is None:
        raise TestbedError(
            f"cannot start {argv[0]}: there is no such program",
            "give a program of PATH, or a path from the root or the checkout",
        )
    # setpriv makes the kernel kill the program when we die, in whatever way.
    words = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
    try:
        process = subprocess.Popen(words, env=dict(environment))
    except OSError as error:
        raise TestbedError(
            f"cannot start {argv[0]}: {error.strerror}", "run ./inv doctor to see what is missing"
        ) from error
    try:
        status = process.wait(timeout=timeout_s)
        return status if status >= 0 else STATUS_SIGNAL - status
    except subprocess.TimeoutExpired:
        print(f"{argv[0]} was ended at its limit of {timeout_s:g} s", file=sys.stderr)
        return STATUS_TIME_LIMIT
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_LIMIT_S)


def _show_failures(server: Server) -> None:
    """What the server refused or lost explains what the program could only call an error."""
    for line in server.log.read_text(encoding="utf-8", errors="replace").splitlines():
        if "refused" in line or "cannot open" in line or "the session ends" in line:
            print(f"host server: {line}", file=sys.stderr)


def _in_guest(
    argv: Sequence[str],
    chosen: System,
    placement: str,
    stats: Path | None,
    timeout_s: float,
    config: HostServerConfig,
    vm_config: VmConfig,
) -> int:
    build = native_build()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wormhole-exec-")))
        served = stack.enter_context(
            served_guest(
                vm_config,
                replace(config, tcp=True, worker=build.worker),
                build.library,
                directory,
                placement=placement,
            )
        )
        vm, server = served.vm, served.server
        environment = guest_variables(chosen, server)
        if config.backend == CUDA:
            vm.guest.install_cuda(build.cuda)
            environment |= guest_cuda_variables(build.cuda)
        if stats is not None:
            environment["WORMHOLE_STATS"] = GUEST_STATS_PATH
        done = vm.guest.run(
            argv,
            environment,
            timeout_s=timeout_s,
            root=GUEST_ROOT if vm_config.share is not None else None,
            on_line=_show,
            on_event=lambda event: print(json.dumps(event), flush=True),
        )
        if stats is not None:
            stats.write_bytes(vm.ssh.get(GUEST_STATS_PATH, COPY_LIMIT_S))
        _show_failures(server)
        if done.reason == "timeout":
            print(f"{argv[0]} was ended at its limit of {timeout_s:g} s", file=sys.stderr)
            return STATUS_TIME_LIMIT
        return done.status if done.status >= 0 else STATUS_SIGNAL - done.status


def _show(stream: str, text: str) -> None:
    print(text, file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)
