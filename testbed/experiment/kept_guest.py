"""Guests that outlive the command that booted them: `./inv vm.boot`, `vm.shell`, `vm.stop`.

A keeper process owns such a guest and its host server. It ends when the guest ends or when it is
told to; with it ends everything it started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.machine.artifacts import last_lines
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.image import guest_image
from testbed.machine.native_build import native_build
from testbed.machine.qemu_argv import CONSOLE_NAME, VmConfig, check_config
from testbed.machine.qemu_build import qemu_bundle
from testbed.machine.served_guest import device_region, equip
from testbed.machine.vm import (
    VmFacts,
    attach,
    boot_detached,
    detached_vm,
    detached_vms,
    state_dir,
    stop_detached,
)
from testbed.progress import say

STOP_LIMIT_S = 20.0
POLL_S = 0.2


def start(name: str, memory_mib: int, cpus: int) -> VmFacts:
    """Boot a guest with device, driver and stub in place; returns when SSH answers.

    Raises TestbedError if the name is taken or the guest does not come up.
    """
    if any(facts.name == name for facts in detached_vms()):
        raise TestbedError(
            f"a VM named {name} is running", f"./inv vm.stop --name {name}, or use another name"
        )
    # Checked before its name becomes a directory's.
    check_config(VmConfig(name=name, memory_mib=memory_mib, cpus=cpus))
    # Built here, where progress is seen; the keeper then finds everything in the cache.
    native_build()
    qemu_bundle(say)
    guest_image()
    folder = keeper_dir(name)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "keeper.log"
    ready_read, ready_write = os.pipe()
    with os.fdopen(ready_read) as ready, log.open("wb") as output:
        keeper = subprocess.Popen(
            [
                *(sys.executable, "-m", "testbed.experiment.kept_guest"),
                *("--name", name, "--memory-mib", str(memory_mib), "--cpus", str(cpus)),
                *("--ready-fd", str(ready_write)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[ready_write],
            start_new_session=True,
        )
        os.close(ready_write)
        try:
            # The keeper's end closes the pipe, so this read ends in every case.
            answer = ready.readline()
        except BaseException:
            keeper.terminate()
            keeper.wait(STOP_LIMIT_S)
            raise
    if answer.strip() != "ready":
        raise TestbedError(
            f"the guest {name} did not come up: {' | '.join(last_lines(log, 3))}", f"see {log}"
        )
    return detached_vm(name)


def stop(name: str) -> None:
    """End a kept guest and its host server.  Raises TestbedError if there is none."""
    detached_vm(name)
    file = keeper_dir(name) / "keeper.json"
    try:
        pid = int(json.loads(file.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        # The keeper died without its guest: the guest alone is left to end.
        stop_detached(name)
        return
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while file.exists():
        if time.monotonic() > deadline_s:
            raise TestbedError(f"the keeper of {name} (pid {pid}) does not end", f"kill -9 {pid}")
        time.sleep(POLL_S)


def rows() -> list[dict[str, Any]]:
    """The kept guests that run."""
    return [
        {
            "name": facts.name,
            "pid": facts.pid,
            "ssh_port": facts.ssh_port,
            "accelerator": facts.accelerator,
            "boot_s": round(facts.boot_s, 1),
            "log": str(facts.run_dir / CONSOLE_NAME),
        }
        for facts in detached_vms()
    ]


def listing(found: Sequence[Mapping[str, Any]]) -> str:
    """The guests as lines for a terminal."""
    if not found:
        return "no guest is running: ./inv vm.boot starts one"
    table = [list(found[0]), *([str(value) for value in row.values()] for row in found)]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def keeper_dir(name: str) -> Path:
    """Where a keeper has its log, its host server's files and its process id."""
    return state_dir() / "keepers" / name


def keep(name: str, memory_mib: int, cpus: int, ready_fd: int) -> None:
    """Own one guest until it ends or SIGTERM arrives."""
    folder = keeper_dir(name)
    file = folder / "keeper.json"
    with ExitStack() as stack:
        build = native_build()
        image = guest_image()
        config = HostServerConfig(device=True, worker=build.worker)
        server = stack.enter_context(host_server(config, folder / "server"))
        facts = boot_detached(
            VmConfig(
                name=name,
                memory_mib=memory_mib,
                cpus=cpus,
                region=device_region(server),
            ),
            image,
        )
        stack.callback(_stop_if_running, name)
        with attach(facts) as vm:
            equip(vm, image, build.library)
        file.write_text(json.dumps({"pid": os.getpid()}))
        stack.callback(file.unlink, missing_ok=True)
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
        while any(vm_facts.name == name for vm_facts in detached_vms()):
            time.sleep(1.0)


def _stop_if_running(name: str) -> None:
    if any(facts.name == name for facts in detached_vms()):
        stop_detached(name)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--memory-mib", type=int, required=True)
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    chosen = parser.parse_args()

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    try:
        keep(chosen.name, chosen.memory_mib, chosen.cpus, chosen.ready_fd)
    except TestbedError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    _main()
