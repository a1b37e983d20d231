"""What a run was made of: the manifest.

Everything that could explain a figure later is written down before the first trial: commit,
contract, host, accelerator, device, versions, switches, seeds, hashes.  What cannot be learnt is
recorded as such (`null` or a word), never guessed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.experiment import noise
from testbed.experiment.experiment import Experiment
from testbed.machine.opencl import chosen_opencl, clinfo_program, native_variables
from testbed.machine.prebuilt import bundle_facts
from testbed.protocol.wire import constant, hash_of_specs
from testbed.root import ROOT

FORMAT = 1
COMMAND_LIMIT_S = 30.0

PACKAGES = (
    "invoke",
    "matplotlib",
    "numpy",
    "pandas",
    "paramiko",
    "pyyaml",
    "qemu.qmp",
    "scikit-learn",
    "scipy",
    "seaborn",
    "torch",
)

#: Keys of the manifest that must be equal for a run to be resumed: unlike things are never mixed.
RESUME_KEYS = (
    ("commit", "id"),
    ("commit", "changes_sha256"),
    ("spec_hash",),
    ("experiment", "sha256"),
    ("host", "cpu_model"),
    ("host", "cores"),
    ("host", "kernel"),
    ("opencl", "device"),
    ("opencl", "driver"),
    ("gpu", "devices"),
    ("gpu", "driver"),
)


EXPORTED = "COMMIT"  # file in a tree without git: the commit that it was taken from


@dataclass(frozen=True)
class Commit:
    """The state of the source: commit id, and a hash over uncommitted changes (empty if none)."""

    id: str
    changes_sha256: str

    @property
    def short(self) -> str:
        return self.id[:7]

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "short": self.short,
            "dirty": bool(self.changes_sha256),
            "changes_sha256": self.changes_sha256,
        }


def commit(root: Path = ROOT) -> Commit:
    """The commit that the source stands at; that of an offline bundle is written in it.

    `nogit` where there is no git or no repository.
    """
    facts = bundle_facts()
    if facts is not None and root == ROOT:
        return Commit(facts["commit"]["id"], facts["commit"]["changes_sha256"])
    head = _output(["git", "rev-parse", "HEAD"], root)
    if not re.fullmatch(r"[0-9a-f]{40,64}", head):
        # An exported tree may say where it is from.
        written = _read(root / EXPORTED)
        return Commit(written if re.fullmatch(r"[0-9a-f]{40,64}", written) else "nogit", "")
    changes = _output(["git", "status", "--porcelain", "--untracked-files=normal"], root)
    if not changes:
        return Commit(head, "")
    difference = _output(["git", "diff", "HEAD"], root)
    digest = hashlib.sha256(f"{changes}\0{difference}".encode()).hexdigest()
    return Commit(head, digest)


def describe_experiment(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain data."""
    return {
        "name": experiment.name,
        "doc": experiment.doc,
        "sha256": experiment.sha256,
        "seed": experiment.seed,
        "baseline": experiment.baseline,
        "rivals": list(experiment.rivals),
        "ladder": list(experiment.ladder),
        "minimum_effect": experiment.minimum_effect,
        "restart_guest": experiment.restart_guest,
        "instrumented": experiment.instrumented,
        "same": None if experiment.same is None else dataclasses.asdict(experiment.same),
        "trial_timeout_s": experiment.trial_timeout_s,
        "boot_timeout_s": experiment.boot_timeout_s,
        "systems": [
            {"name": system.name, "preset": system.preset, "overrides": dict(system.overrides)}
            for system in experiment.systems
        ],
        "parts": [
            {
                "name": part.name,
                "form": part.form,
                "workloads": [choice.label for choice in part.workloads],
                "systems": [system.name for system in part.systems],
                "placements": list(part.placements),
                "rounds": part.rounds,
                "warmup_rounds": part.warmup_rounds,
                "instrument": part.instrument,
                "network": part.network,
                "baseline": part.baseline,
                "rivals": list(part.rivals),
                "ladders": [list(steps) for steps in part.ladders],
            }
            for part in experiment.parts
        ],
    }


def new_manifest(experiment: Experiment, source: Commit) -> dict[str, Any]:
    """All of a manifest that is known before anything is built or booted."""
    return {
        "format": FORMAT,
        "state": "running",
        "started_utc": utc_now(),
        # Without the path of the program, which is a matter of this machine.
        "command_line": ["testbed", *sys.argv[1:]],
        "commit": source.to_json(),
        "protocol_version": constant("protocol_version"),
        "spec_hash": f"{hash_of_specs():016x}",
        "experiment": describe_experiment(experiment),
        "host": host(),
        "opencl": opencl(),
        "gpu": gpu(),
        "python": {"version": platform.python_version(), "packages": packages()},
        "accelerator": {"kind": "none", "reason": "no guest has been asked for yet"},
        "noise_rule": noise.RULE,
        "artifacts": {},
        "workloads": {},
    }


def resume_conflicts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between a stopped run and the present, where it may not: `key: old, now new`."""
    conflicts = []
    for path in RESUME_KEYS:
        before, now = _at(old, path), _at(new, path)
        if before != now:
            conflicts.append(f"{'.'.join(path)}: {before}, now {now}")
    return conflicts


def host() -> dict[str, Any]:
    """The machine that measures."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    times = noise.cpu_times()
    return {
        "cpu_model": cpu_model(_read(Path("/proc/cpuinfo"))),
        "cores": len(os.sched_getaffinity(0)),
        "cores_online": os.cpu_count(),
        "memory_mib": memory_bytes >> 20,
        "kernel": platform.release(),
        "system": _system_name(),
        "container": container(),
        "governor": _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) or None,
        "turbo_off": _read(Path("/sys/devices/system/cpu/intel_pstate/no_turbo")) or None,
        "load_before": list(os.getloadavg()),
        "steal_share_since_boot": round(times.steal_s / max(times.total_s, 1e-9), 5),
        "uid": os.geteuid(),
    }


def cpu_model(cpuinfo: str) -> str:
    """The first model name of /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def container() -> str | None:
    """The kind of container that we are in, or None."""
    if Path("/run/systemd/container").is_file():
        return _read(Path("/run/systemd/container")) or "unknown"
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    environ = _read(Path("/proc/1/environ"))
    found = re.search(r"(?:^|\0)container=([^\0]+)", environ)
    return found.group(1) if found else None


def opencl() -> dict[str, Any]:
    """The first OpenCL platform and device of the host, as clinfo names them.

    `chosen` is the vendor that was asked for by name (`--opencl`), null for all that there are.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OCL_ICD")}
    argv = [clinfo_program() or "clinfo", "--raw"]
    facts = parse_clinfo(_output(argv, ROOT, {**environment, **native_variables()}))
    facts["chosen"] = chosen_opencl() or None
    facts["packages"] = _debian_packages(["pocl-opencl-icd", "libpocl2", "ocl-icd-libopencl1"])
    return facts


def gpu() -> dict[str, Any] | None:
    """NVIDIA's GPUs by name, their driver and which they are; None where there are none."""
    query = "name,driver_version,uuid"
    text = _output(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], ROOT)
    lines = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    cards = [line for line in lines if len(line) == len(query.split(","))]
    if not cards:
        return None
    return {
        "devices": [name for name, _, _ in cards],
        "driver": cards[0][1],
        "uuids": [uuid for _, _, uuid in cards],
    }


def parse_clinfo(text: str) -> dict[str, Any]:
    """Platform, device and driver of the first device in `clinfo --raw`."""
    wanted = {
        "CL_PLATFORM_NAME": "platform",
        "CL_PLATFORM_VERSION": "platform_version",
        "CL_DEVICE_NAME": "device",
        "CL_DEVICE_VERSION": "device_version",
        "CL_DRIVER_VERSION": "driver",
    }
    facts: dict[str, Any] = dict.fromkeys(wanted.values())
    for line in text.splitlines():
        found = re.match(r"(?:\[[^\]]*\])?\s*(CL_[A-Z_]+)\s+(.+)$", line)
        if found and found.group(1) in wanted and facts[wanted[found.group(1)]] is None:
            facts[wanted[found.group(1)]] = found.group(2).strip()
    return facts


def packages() -> dict[str, str | None]:
    """Versions of the Python packages that can touch a figure."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def file_sha256(path: Path) -> str | None:
    """Hash of a file, or None if it is not there."""
    try:
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError:
        return None


def _debian_packages(names: Sequence[str]) -> dict[str, str]:
    text = _output(["dpkg-query", "-W", "-f=${Package} ${Version}\\n", *names], ROOT)
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _at(manifest: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = manifest
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _output(argv: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints, or nothing if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
