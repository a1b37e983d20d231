"""`./inv doctor`: what this machine can do, and the command that mends each lack."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from host_server.libraries import find_library
from host_server.vendors import DRIVER
from testbed.machine.prebuilt import bundle_facts, has_prebuilt
from testbed.root import ROOT

DISK_NEEDED_GIB = 6.0
MEMORY_NEEDED_GIB = 3.0


@dataclass(frozen=True)
class Finding:
    """One line of the report. `ok` None: neither good nor bad, only worth knowing."""

    name: str
    ok: bool | None
    value: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Every finding, in the order of the report. A probe that fails becomes a finding itself."""
    probes: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("system", _system),
        ("packages", _packages if bundle_facts() is None else _bundle),
        ("OpenCL on the host", _opencl),
        ("GPU", _gpu),
        ("acceleration", _kvm),
        ("network", _network),
        ("artifacts", _artifacts),
        ("worker's jail", _jail),
    ]
    findings: list[Finding] = []
    for name, probe in probes:
        try:
            findings += probe()
        except Exception as error:
            # A doctor that dies of one organ helps nobody.
            findings.append(Finding(name, False, f"{type(error).__name__}: {error}"))
    return findings


def run_doctor(as_json: bool) -> None:
    """Print the report; lacks do not make the task fail, since many tasks work without."""
    findings = examine()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        sign = {True: "ok  ", False: "LACK", None: "    "}[finding.ok]
        print(f"{sign} {finding.name:<{width}}  {finding.value}")
        if finding.remedy and finding.ok is not True:
            print(f"     {'':<{width}}  -> {finding.remedy}")


def _system() -> list[Finding]:
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cache = _cache_dir()
    probe_at = next(path for path in (cache, *cache.parents) if path.exists())
    free_gib = shutil.disk_usage(probe_at).free / 2**30
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return [
        Finding("system", platform.machine() == "x86_64", f"{system}, {platform.machine()}"),
        Finding("kernel", None, platform.release()),
        Finding("container", None, _container() or "no"),
        Finding(
            "cores",
            cores >= 2,
            str(cores),
            "two cores are the least: client and worker run at once",
        ),
        Finding(
            "memory",
            memory_gib >= MEMORY_NEEDED_GIB,
            f"{memory_gib:.1f} GiB",
            f"guests need about {MEMORY_NEEDED_GIB:.0f} GiB in all",
        ),
        Finding(
            "disk for artifacts",
            free_gib >= DISK_NEEDED_GIB,
            f"{free_gib:.1f} GiB free at {cache}",
            f"{DISK_NEEDED_GIB:.0f} GiB are needed: set WORMHOLE_CACHE to a roomier place",
        ),
        Finding(
            "root",
            os.geteuid() == 0,
            "yes" if os.geteuid() == 0 else f"no (uid {os.geteuid()})",
            "run as root for the full jail of workers; process placement works without",
        ),
    ]


def _packages() -> list[Finding]:
    lines = (ROOT / "testbed" / "packages.txt").read_text().splitlines()
    groups: dict[str, list[str]] = {}
    for line in lines:
        if line and not line.startswith("#"):
            group, package, *_ = line.split()
            groups.setdefault(group, []).append(package)
    findings = []
    for group, packages in groups.items():
        lacking = [package for package in packages if not _installed(package)]
        findings.append(
            Finding(
                f"packages: {group}",
                not lacking,
                "all there" if not lacking else "missing: " + " ".join(lacking),
                "apt-get install --no-install-recommends " + " ".join(lacking),
            )
        )
    return findings


def _bundle() -> list[Finding]:
    """What this bundle is, and whether its programs run here: they need a C library of that age."""
    from testbed.machine.native_build import native_build

    facts = bundle_facts()
    assert facts is not None
    parts = [name for name in facts["parts"] if "/" not in name]
    findings = [
        Finding(
            "bundle",
            None,
            f"commit {facts['commit']['id'][:7]}, made {facts['made_utc']}, has {', '.join(parts)}",
        ),
        Finding("python", True, f"{platform.python_version()} ({sys.executable})"),
    ]
    done = subprocess.run(
        [str(native_build().worker)], capture_output=True, text=True, timeout=20, check=False
    )
    # Without arguments the worker says how it is used; a loader that cannot start it says why.
    runs = "GLIBC" not in done.stderr and done.returncode in (1, 2)
    findings.append(
        Finding(
            "native code",
            runs,
            "runs here" if runs else (done.stderr.strip().splitlines() or ["does not run"])[-1],
            "use a system whose C library is newer (Debian 12, Ubuntu 22.04, RHEL 9 or later)",
        )
    )
    return findings


def _installed(package: str) -> bool:
    query = ["dpkg-query", "-W", "-f=${Status}", package]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        return False
    return "ok installed" in done.stdout


def _opencl() -> list[Finding]:
    """Platforms that the host's loader shows, asked in a process of its own."""
    from testbed.machine.opencl import clinfo_program, native_variables

    variables = native_variables()
    if ctypes.util.find_library("OpenCL") is None and not variables:
        remedy = "apt-get install ocl-icd-libopencl1 pocl-opencl-icd"
        return [Finding("OpenCL on the host", False, "no loader", remedy)]
    clinfo = clinfo_program()
    if clinfo is None:
        return [Finding("OpenCL on the host", None, "clinfo is missing", "apt-get install clinfo")]
    done = subprocess.run(
        [clinfo, "-l"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
    )
    lines = [line.strip(" `-") for line in done.stdout.splitlines() if line.strip()]
    return [
        Finding(
            "OpenCL on the host",
            bool(lines),
            "; ".join(lines) or "no platform",
            "apt-get install pocl-opencl-icd",
        )
    ]


def _gpu(devices: Path = Path("/dev")) -> list[Finding]:
    """NVIDIA's device files: a jailed worker must find them there, made and open to it.

    The driver's library would make and open them itself with a program that is set-uid root, which
    no worker can run.
    """
    needed = ("nvidiactl", "nvidia-uvm")
    gpus = sorted(devices.glob("nvidia[0-9]*"))
    if not gpus and find_library(DRIVER) is None:
        return [Finding("GPU", None, "no NVIDIA GPU here")]
    missing = [name for name in needed if not (devices / name).exists()]
    if not gpus or missing:
        return [
            Finding(
                "GPU",
                False,
                f"missing in {devices}: {', '.join([*([] if gpus else ['nvidia0']), *missing])}",
                "nvidia-modprobe -c 0 -u (as root): workers cannot make device files",
            )
        ]
    closed = [
        f"{path} ({path.stat().st_mode & 0o777:o})"
        for path in (*gpus, *(devices / name for name in needed))
        if not workers_may_use(path.stat())
    ]
    shown = ", ".join(str(path) for path in gpus)
    if closed:
        return [
            Finding(
                "GPU",
                False,
                f"{shown}; closed to users other than root: {', '.join(closed)}",
                "set NVreg_DeviceFileMode=0666 for the nvidia module, or chmod 0666 these files",
            )
        ]
    return [Finding("GPU", True, f"{shown}, open to jailed workers")]


def workers_may_use(status: os.stat_result) -> bool:
    """Whether a session's own user may open a device file; its group is given to the worker."""
    for_all = status.st_mode & 0o006 == 0o006
    for_group = status.st_mode & 0o060 == 0o060 and status.st_gid != 0
    return for_all or for_group


def _kvm() -> list[Finding]:
    """KVM counts as working only when the guest's kernel was seen to start under it."""
    from testbed.machine.image import guest_image, guest_image_is_built
    from testbed.machine.probe import KVM_DEVICE, kvm_is_unusable, kvm_works
    from testbed.machine.qemu_build import qemu_bundle

    slower = "nothing to do: guests run under TCG, slower, and ratios hold"
    unusable = kvm_is_unusable(KVM_DEVICE)
    if unusable:
        return [Finding("KVM", None, unusable, slower)]
    if not (
        guest_image_is_built()
        and (list(_cache_dir().glob("qemu-[0-9a-f]*")) or has_prebuilt("qemu"))
    ):
        return [Finding("KVM", None, "not tried yet: it takes QEMU and a kernel", "./inv vm.boot")]
    verdict = kvm_works(qemu_bundle(), guest_image())
    return [Finding("KVM", verdict.works or None, verdict.reason, "" if verdict.works else slower)]


def _network() -> list[Finding]:
    from testbed.machine.tap import REMEDY, VHOST_DEVICE, tap, tap_problem

    problem = tap_problem()
    if problem:
        return [Finding("TAP", None, f"{problem}: guests' TCP over QEMU's user network", REMEDY)]
    with tap() as made:
        packets = f"with {VHOST_DEVICE}" if made.vhost else f"without {VHOST_DEVICE}"
    return [Finding("TAP", True, f"works, {packets}: guests' TCP goes over it")]


def _artifacts() -> list[Finding]:
    cache = _cache_dir()
    built = sorted(path.name for path in cache.iterdir() if path.is_dir()) if cache.exists() else []
    value = f"{len(built)} in {cache}" if built else f"none yet in {cache}"
    return [Finding("artifacts", None, value, "" if built else "./inv reproduce builds them")]


def _jail() -> list[Finding]:
    from testbed.machine.host_server import jail_states, probe_jail
    from testbed.machine.opencl import opencl_is_a_gpus

    said = probe_jail(gpu="on" if opencl_is_a_gpus() else "off")
    report = jail_states(said)
    reached = [name for name, state in report.items() if state == "reached"]
    lacking = [f"{name} ({state})" for name, state in report.items() if state != "reached"]
    value = "reached: " + ", ".join(reached)
    if lacking:
        value += "; not reached: " + ", ".join(lacking)
    if "devices" in said:
        value += f"; open: {said['devices']}"
    return [Finding("worker's jail", not lacking or None, value)]


def _container() -> str:
    """The kind of container this runs in, or an empty string."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    environ = Path("/proc/1/environ")
    try:
        for item in environ.read_bytes().split(b"\0"):
            if item.startswith(b"container="):
                return item.partition(b"=")[2].decode()
    except OSError:
        pass
    return ""


def _cache_dir() -> Path:
    from testbed.machine.artifacts import cache_dir

    return cache_dir()
