"""`./inv bundle`: one file with all that a run needs on a machine without network or compiler.

It holds the part of the testbed that runs and records, Python packages as wheels, the native code,
QEMU with its libraries, the guest, and prepared workloads. `run` in it is `./inv` there, for the
tasks that need nothing else; tables, figures and reports are made at home from the records.

What is built is taken from the cache like everywhere, so the bundle runs where this machine's
programs run: x86_64, a C library not older than `GLIBC_NEEDED`, Python of `PYTHONS`.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.experiment import EXPERIMENTS, find_experiment, load_experiment
from testbed.experiment.plan import make_plan
from testbed.experiment.prepare import READY_FACTS, base_bundle, ready_name
from testbed.experiment.provenance import commit, utc_now
from testbed.experiment.workload import Workload, find_workload
from testbed.machine.artifacts import artifact, cache_dir, log_path, run_logged
from testbed.machine.guest_part import guest_part
from testbed.machine.native_build import SPECS_FOLDER, NativeBuild, native_build
from testbed.machine.prebuilt import FACTS_NAME, FOLDER_NAME
from testbed.machine.qemu_part import copy_library, loaded_libraries, qemu_part
from testbed.progress import say
from testbed.root import ROOT

LIMIT_BYTES = 60 << 20
TOP = "wormhole-bundle"
DEFAULT_EXPERIMENTS = "quick,opencl-gpu"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC_NEEDED = (2, 34)

# What runs and records; tables and figures are made at home.
CODE = (
    *(
        "tasks.py",
        "LICENSE",
        "testbed/**/*.py",
        "testbed/**/*.yaml",
        "testbed/**/*.json",
        "host_server/*.py",
    ),
    *("guest_agent/__init__.py", "guest_agent/agent.py", "workloads/**/*"),
)
PACKAGES = (
    *("attrs", "bcrypt", "cffi", "cryptography", "invoke", "jsonschema"),
    *("jsonschema-specifications", "paramiko", "PyNaCl", "PyYAML", "qemu.qmp", "referencing"),
    *("rpds-py", "typing_extensions"),
)
# Wheels are asked for by exact tags: those of C libraries up to the one needed anyway.
PLATFORMS = tuple(
    f"{name}_x86_64"
    for name in ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
)
SITE_VERSION = "1"  # raise when packages are unpacked in another way
DOWNLOAD_LIMIT_S = 300.0
PACK_LIMIT_S = 900.0
STRIP_LIMIT_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """The file, its size, and what each part takes in it before compression, in bytes."""

    path: Path
    size_bytes: int
    part_bytes: dict[str, int]


def make_bundle(out: Path, experiments: Sequence[str], guest: bool, quick: bool, say: Say) -> Made:
    """Write a bundle for some experiments; without `guest` for process placement alone.

    `quick` compresses less, for tests. Raises TestbedError if a part cannot be made, or if the
    file would be larger than `LIMIT_BYTES`.
    """
    out = out.absolute()
    with _staging() as staging:
        tree = staging / TOP
        tree.mkdir()
        _copy_code(tree)
        say("Python packages: from the cache, or fetched as wheels")
        shutil.copytree(_site(), tree / "site")
        parts = {"native": _add(tree, "native", _stripped(native_build()))}
        parts["opencl"] = _add(tree, "opencl", _opencl())
        if guest:
            say("QEMU and the guest: from the cache, or built (about 4 min)")
            parts["qemu"] = _add(tree, "qemu", qemu_part())
            parts["guest"] = _add(tree, "guest", guest_part())
        for workload in _workloads(experiments):
            say(f"preparing {workload.name}, {workload.steps} steps")
            name = ready_name(workload)
            _add_workload(tree / FOLDER_NAME / name, workload)
            parts[name] = name
        _write_facts(tree, parts, experiments)
        sizes = {part.name: _used_bytes(part) for part in sorted((tree / FOLDER_NAME).iterdir())}
        sizes["code and packages"] = _used_bytes(tree) - sum(sizes.values())
        say("compressing (up to 2 min)")
        partial = out.with_name(f"{out.name}.partial")
        _pack(staging, partial, quick)
    size_bytes = partial.stat().st_size
    if size_bytes > LIMIT_BYTES:
        partial.unlink()
        shown = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items())
        raise TestbedError(
            f"the bundle takes {size_bytes / 2**20:.1f} MiB, more than {LIMIT_BYTES >> 20} "
            f"(before compression: {shown})",
            "name fewer --experiments, or leave the guest out with --no-guest",
        )
    partial.rename(out)
    return Made(out, size_bytes, sizes)


def run_bundle(out: Path, experiments: str, guest: bool) -> None:
    """Make a bundle and say what is in it.  Raises TestbedError."""
    names = [word for word in (experiments or DEFAULT_EXPERIMENTS).split(",") if word]
    made = make_bundle(out, names, guest, quick=False, say=say)
    for part, size in made.part_bytes.items():
        say(f"{size / 1e6:7.1f} MB  {part} (before compression)")
    print(f"{made.path}: {made.size_bytes / 2**20:.1f} MiB (limit {LIMIT_BYTES >> 20})")
    say(f"there: tar -xf {made.path.name} && cd {TOP} && ./run doctor")


@contextmanager
def _staging() -> Iterator[Path]:
    """A folder beside the artifacts, so that they are linked and not copied where that works."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=cache_dir()) as folder:
        yield Path(folder)


def _copy_code(tree: Path) -> None:
    for pattern in CODE:
        for source in sorted(ROOT.glob(pattern)):
            place = source.relative_to(ROOT)
            if source.is_file() and not {"tests", "__pycache__"} & set(place.parts):
                target = tree / place
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    shutil.copy(ROOT / "testbed" / "experiment" / "bundle_run.sh", tree / "run")
    (tree / "run").chmod(0o755)


def _workloads(experiments: Sequence[str]) -> list[Workload]:
    """The workloads of some experiments in the sizes that they run, each once."""
    found: dict[str, Workload] = {}
    for name in experiments:
        experiment = load_experiment(find_experiment(name, EXPERIMENTS))
        for trial in make_plan(experiment, "kvm"):
            choice = trial.workload
            sized = find_workload(choice.name).resized(choice.batch, choice.steps, choice.mode)
            found.setdefault(ready_name(sized), sized)
    return list(found.values())


def _add_workload(folder: Path, workload: Workload) -> None:
    bundle = base_bundle(workload)
    _link_tree(bundle.directory, folder / "files")
    facts = {"key": bundle.key, "data_sha256": bundle.data_sha256}
    (folder / READY_FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _add(tree: Path, part: str, source: Path) -> str:
    """Put an artifact into the tree; returns its name there."""
    _link_tree(source, tree / FOLDER_NAME / source.name)
    return source.name


def _write_facts(tree: Path, parts: dict[str, str], experiments: Sequence[str]) -> None:
    source = commit()
    facts = {
        "made_utc": utc_now(),
        "commit": {"id": source.id, "changes_sha256": source.changes_sha256},
        "experiments": list(experiments),
        "pythons": list(PYTHONS),
        "parts": parts,
    }
    (tree / FACTS_NAME).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _pack(staging: Path, target: Path, quick: bool) -> None:
    """Compress with tar and xz, which Python's tarfile reads; holes of the guest's disk stay so."""
    log = log_path("bundle", {"target": str(target)})
    level = "-1" if quick else "-8"
    argv = ["tar", "--create", "--sparse", "--sort=name", "--numeric-owner"]
    argv += ["--owner=0", "--group=0", f"--use-compress-program=xz -T0 {level}"]
    target.parent.mkdir(parents=True, exist_ok=True)
    run_logged([*argv, "--file", str(target), "-C", str(staging), TOP], log, PACK_LIMIT_S)


# ---- parts ----


def _stripped(native: NativeBuild) -> Path:
    """The programs of a run, without what debuggers need."""
    programs = [native.worker, native.library, native.replay, native.bench, native.bench_copy]
    # What stands in for a vendor's libraries lies in folders, under the vendor's names.
    programs += sorted(native.directory.glob("*/lib*.so*"))
    inputs: dict[str, str | bytes | Path] = {
        "native": native.directory.name,
        "programs": " ".join(str(path.relative_to(native.directory)) for path in programs),
    }
    log = log_path("native-stripped", inputs)

    def build(directory: Path) -> None:
        for path in programs:
            target = directory / path.relative_to(native.directory)
            target.parent.mkdir(exist_ok=True)
            run_logged(["strip", "--strip-debug", "-o", target, path], log, STRIP_LIMIT_S)
        shutil.copytree(native.directory / SPECS_FOLDER, directory / SPECS_FOLDER)

    return artifact("native-stripped", inputs, build)


def _opencl() -> Path:
    """The OpenCL loader and clinfo: servers with a GPU's driver often have neither."""
    clinfo = shutil.which("clinfo")
    if clinfo is None or ctypes.util.find_library("OpenCL") is None:
        raise TestbedError(
            "a bundle takes clinfo and the OpenCL loader of this machine with it",
            "apt-get install clinfo ocl-icd-libopencl1",
        )
    loader = loaded_libraries(Path(clinfo))["libOpenCL.so.1"]
    inputs: dict[str, str | bytes | Path] = {"clinfo": Path(clinfo), "loader": loader}

    def build(directory: Path) -> None:
        shutil.copy(clinfo, directory / "clinfo")
        copy_library(loader, directory / "libOpenCL.so.1")

    return artifact("opencl-loader", inputs, build)


def _site() -> Path:
    """The Python packages for all of `PYTHONS`, in the versions that the testbed runs with here.

    `all/` holds those that any of them can load, `cp312/` and so on what is made for one.
    """
    pins = [f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES]
    inputs: dict[str, str | bytes | Path] = {
        "pins": " ".join(pins),
        "pythons": " ".join(PYTHONS),
        "platforms": " ".join(PLATFORMS),
        "maker": SITE_VERSION,
    }
    log = log_path("bundle-site", inputs)

    def build(directory: Path) -> None:
        wheels = directory / ".wheels"
        wheels.mkdir()
        for version in PYTHONS:
            run_logged(_download_argv(version, pins, wheels), log, DOWNLOAD_LIMIT_S)
        for wheel in sorted(wheels.glob("*.whl")):
            unpack_wheel(wheel, directory)
        shutil.rmtree(wheels)

    return artifact("bundle-site", inputs, build)


def _download_argv(version: str, pins: Sequence[str], wheels: Path) -> list[str]:
    tag = f"cp{version.replace('.', '')}"
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    argv += ["--no-deps", "--only-binary", ":all:", "--implementation", "cp"]
    argv += ["--python-version", version]
    for abi in (tag, "abi3", "none"):
        argv += ["--abi", abi]
    for platform in PLATFORMS:
        argv += ["--platform", platform]
    return [*argv, "-d", str(wheels), *pins]


def unpack_wheel(wheel: Path, directory: Path) -> None:
    """Unpack a wheel under `all/`, or under the one Python that can load it."""
    _, python, abi, _ = wheel.stem.rsplit("-", 3)  # NAME-VERSION-PYTHON-ABI-PLATFORM
    # PyYAML does without its native part, and its Python is the same for all.
    plain = wheel.name.lower().startswith("pyyaml-")
    folder = directory / ("all" if plain or abi in ("none", "abi3") else python)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if (plain and name.endswith(".so")) or re.search(r"(^|/)tests?/", name):
                continue
            archive.extract(name, folder)


# ---- helpers ----


def _link_tree(source: Path, target: Path) -> None:
    """Copy a folder; artifacts never change, so their files are linked where that works."""

    def link(from_path: str, to_path: str) -> None:
        try:
            os.link(from_path, to_path)
        except OSError:
            shutil.copy(from_path, to_path)

    shutil.copytree(source, target, copy_function=link, symlinks=True)


def _used_bytes(folder: Path) -> int:
    """What the files of a folder take on the disk, holes and double names not counted."""
    seen: dict[int, int] = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            seen[status.st_ino] = status.st_blocks * 512
    return sum(seen.values())
