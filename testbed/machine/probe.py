"""Does KVM work here?  Found out by starting the real guest kernel under it, with a time limit.

That /dev/kvm can be opened proves little: inside some virtual machines it is there although the
processor offers no virtualisation, small guests run, and a stock kernel hangs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import TestbedError
from testbed.machine.artifacts import cache_dir

if TYPE_CHECKING:
    from testbed.machine.image import GuestImage
    from testbed.machine.qemu_argv import Qemu

KVM_DEVICE = Path("/dev/kvm")
PROBE_TIMEOUT_S = 10.0
POLL_S = 0.05
# A kernel without root or initramfs ends with this, after all of its own initialisation.
KERNEL_UP_TEXT = b"VFS: Unable to mount root fs"
OVERRIDE = "WORMHOLE_ACCEL"


@dataclass(frozen=True)
class Verdict:
    """Whether KVM works, and what shows it."""

    works: bool
    reason: str


def accelerator(qemu: Qemu, image: GuestImage) -> str:
    """`kvm` where it works, else `tcg`; $WORMHOLE_ACCEL (kvm, tcg) overrides.

    Raises TestbedError if the override is something else.
    """
    wanted = os.environ.get(OVERRIDE, "")
    if wanted in ("kvm", "tcg"):
        return wanted
    if wanted:
        raise TestbedError(f"{OVERRIDE} is {wanted!r}", "set it to kvm or tcg, or unset it")
    return "kvm" if kvm_works(qemu, image).works else "tcg"


def kvm_works(qemu: Qemu, image: GuestImage) -> Verdict:
    """Start the guest's kernel under KVM; the verdict is kept until the host boots again."""
    unusable = kvm_is_unusable(KVM_DEVICE)
    if unusable:
        return Verdict(False, unusable)
    file = cache_dir() / f"kvm-{_boot_id()}-{os.geteuid()}-{image.kernel_release}.json"
    cached = _read_verdict(file)
    if cached is not None:
        return cached
    verdict = _try_kernel(qemu, image)
    _write_verdict(file, verdict)
    return verdict


def kvm_is_unusable(device: Path) -> str:
    """Why KVM cannot even be tried, or "": no device, or no permission."""
    if not device.exists():
        return f"there is no {device}"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"no permission to use {device}"
    return ""


def judge(console: bytes, status: int | None, log: str, seconds: float) -> Verdict | None:
    """Judge a probe from what it has shown so far; None while that is open.

    `status` is QEMU's exit status, None while it runs; `seconds` is the time since its start.
    """
    if KERNEL_UP_TEXT in console:
        return Verdict(True, f"the guest's kernel started under KVM in {seconds:.1f} s")
    if status is not None:
        last = log.strip().splitlines()[-1:] or ["it said nothing"]
        return Verdict(False, f"QEMU ended with status {status} under KVM: {last[0]}")
    if seconds > PROBE_TIMEOUT_S:
        lines = console.decode(errors="replace").strip().splitlines()
        said = f"its last line was {lines[-1].strip()!r}" if lines else "it printed nothing"
        return Verdict(
            False, f"the guest's kernel hangs under KVM ({PROBE_TIMEOUT_S:.0f} s; {said})"
        )
    return None


def _try_kernel(qemu: Qemu, image: GuestImage) -> Verdict:
    from testbed.machine.vm import spawn

    directory = Path(tempfile.mkdtemp(prefix="wormhole-probe-"))
    console = directory / "console"
    log = directory / "log"
    argv = [
        str(qemu.binary),
        *("-L", str(qemu.data_dir), "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-machine", "q35", "-accel", "kvm", "-cpu", "host", "-smp", "2"),
        *("-m", "256M", "-kernel", str(image.kernel), "-serial", f"file:{console}"),
        *("-append", "console=ttyS0 panic=-1"),
    ]
    try:
        with log.open("wb") as output:
            process = spawn(argv, directory, output.fileno())
        started_s = time.monotonic()
        try:
            while True:
                status = process.poll()  # before the console is read, so that its end is seen
                verdict = judge(
                    console.read_bytes() if console.exists() else b"",
                    status,
                    log.read_text(errors="replace"),
                    time.monotonic() - started_s,
                )
                if verdict is not None:
                    return verdict
                time.sleep(POLL_S)
        finally:
            _kill(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    # One that is stuck in the kernel inside KVM is dead as soon as that lets go.
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5.0)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _read_verdict(file: Path) -> Verdict | None:
    try:
        return Verdict(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write_verdict(file: Path, verdict: Verdict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in file.parent.glob("kvm-*.json"):
        old.unlink(missing_ok=True)
    partial = file.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(asdict(verdict)))
    partial.rename(file)
