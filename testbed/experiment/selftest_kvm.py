"""What only KVM shows, in minutes and in one file: for owners of machines where it works.

works            whether a kernel starts under KVM at all, and why not
memory           type and place of the region as the guest's driver sees them
calls, counts    what bench.call finds in a guest
exits            the kernel's own exit counts by reason, a call, under each system; once more
                 with ioeventfd off, where each notification has to leave the guest for QEMU
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.experiment import provenance
from testbed.experiment.bench import CALLS, GUEST_BENCH, RUN_LIMIT_S, summarise
from testbed.experiment.client import guest_variables
from testbed.experiment.events import json_objects
from testbed.experiment.systems import system
from testbed.machine.host_server import HostServerConfig
from testbed.machine.image import guest_image
from testbed.machine.native_build import native_build
from testbed.machine.probe import kvm_works
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.qemu_build import qemu_bundle
from testbed.machine.served_guest import ServedGuest, served_guest

DRIVER = "/sys/class/misc/wormhole0"
ATTRIBUTES = ("region_address", "region_bytes", "memory_type")
BLOCKS = 3

Say = Callable[[str], None]


def selftest_kvm(out: Path, say: Say) -> dict[str, Any]:
    """Measure and write the file, which is there with the reason if KVM does not work.

    Raises TestbedError then, and if a guest does not come up.
    """
    verdict = kvm_works(qemu_bundle(), guest_image())
    found: dict[str, Any] = {
        "works": verdict.works,
        "reason": verdict.reason,
        "commit": provenance.commit().to_json(),
        "host": provenance.host(),
    }
    write(out, found)
    if not verdict.works:
        raise TestbedError(
            f"KVM does not work here: {verdict.reason}; {out} says so and nothing else",
            "run it where ./inv doctor finds KVM",
        )
    with tempfile.TemporaryDirectory(prefix="wormhole-selftest-") as directory:
        for ioeventfd in (True, False):
            say(f"booting a guest under KVM, ioeventfd {'on' if ioeventfd else 'off'}")
            name = "with_ioeventfd" if ioeventfd else "without_ioeventfd"
            found[name] = in_guest(Path(directory) / name, "kvm", ioeventfd, say)
            write(out, found)
    return found


def write(out: Path, found: Mapping[str, Any]) -> None:
    """Raises TestbedError if the file cannot be written."""
    try:
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise TestbedError(f"cannot write {out}: {error.strerror}", "use --out") from error


def in_guest(run_dir: Path, accelerator: str, ioeventfd: bool, say: Say) -> dict[str, Any]:
    """The measurements in one guest."""
    build = native_build()
    config = HostServerConfig(backend="null", tcp=True, worker=build.worker)
    vm_config = VmConfig(name="selftest", accelerator=accelerator)
    with served_guest(vm_config, config, build.library, run_dir, ioeventfd=ioeventfd) as served:
        served.vm.ssh.put({GUEST_BENCH: build.bench})
        results = {name: _bench(served, name, say) for name in CALLS}
        return {
            "accelerator": served.vm.facts.accelerator,
            "boot_s": served.vm.facts.boot_s,
            "guest": served.vm.guest.info(),
            "memory": {name: _attribute(served, name) for name in ATTRIBUTES},
            "calls": summarise({name: [result["bench"]] for name, result in results.items()}),
            "exits": {name: result["exits"] for name, result in results.items()},
            "device": {name: result["device"] for name, result in results.items()},
        }


def _attribute(served: ServedGuest, name: str) -> str:
    read = served.vm.ssh.run(["cat", f"{DRIVER}/{name}"], check=True)
    return read.stdout.decode().strip()


def _bench(served: ServedGuest, name: str, say: Say) -> dict[str, Any]:
    """Calls under a system, with what kernel and device counted meanwhile."""
    say(f"calls under {name}")
    argv = [GUEST_BENCH, "--calls", str(CALLS[name]), "--blocks", str(BLOCKS)]
    before, device = served.vm.exits(), served.device_counts()
    environment = guest_variables(system(name), served.server)
    done = served.vm.guest.run(argv, environment, cwd="/tmp", timeout_s=RUN_LIMIT_S)
    exits, after = served.vm.exits(), served.device_counts()
    lines = json_objects(done.stdout)
    if done.status != 0 or not lines:
        raise TestbedError(f"the bench ended with status {done.status}: {done.complaint}")
    bench = lines[-1]
    messages = max(1, int(bench["messages"]))
    return {
        "bench": bench,
        "exits": {
            "messages": messages,
            "total": {reason: exits[reason] - before.get(reason, 0) for reason in exits},
            "per_message": {
                reason: (exits[reason] - before.get(reason, 0)) / messages for reason in exits
            },
        },
        "device": {counter: after[counter] - device[counter] for counter in after},
    }
