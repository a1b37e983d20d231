"""QEMU as a bundle carries it: with the few libraries that it needs beside the C library."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from testbed.errors import TestbedError
from testbed.machine.artifacts import artifact
from testbed.machine.qemu_build import qemu_bundle

LDD_LIMIT_S = 30.0
# Of the C library, which every machine has itself and which must fit its kernel and loader.
SYSTEM_LIBRARIES = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libresolv)\.so")
# The libraries must reach no other program, so they are not set for the whole testbed.
START = """\
#!/bin/sh
here=${0%/*}
LD_LIBRARY_PATH="$here/lib" exec "$here/qemu.elf" "$@"
"""


def qemu_part() -> Path:
    """A folder like that of `qemu_bundle`, whose program brings its libraries; from the cache."""
    qemu = qemu_bundle()
    libraries = {
        name: path
        for name, path in loaded_libraries(qemu.binary).items()
        if not SYSTEM_LIBRARIES.match(name)
    }
    inputs: dict[str, str | bytes | Path] = {
        "qemu": qemu.binary.parent.name,
        "start": START,
        **{f"library {name}": path for name, path in libraries.items()},
    }

    def build(directory: Path) -> None:
        shutil.copytree(qemu.data_dir, directory / "data")
        shutil.copy(qemu.binary.parent / "bundle.json", directory / "bundle.json")
        shutil.copy(qemu.binary, directory / "qemu.elf")
        (directory / qemu.binary.name).write_text(START, encoding="utf-8")
        (directory / qemu.binary.name).chmod(0o755)
        (directory / "lib").mkdir()
        for name, path in libraries.items():
            copy_library(path, directory / "lib" / name)

    return artifact("qemu-portable", inputs, build)


def loaded_libraries(program: Path) -> dict[str, Path]:
    """The shared libraries of a program, by the names under which it asks for them."""
    done = subprocess.run(
        ["ldd", str(program)], capture_output=True, text=True, timeout=LDD_LIMIT_S, check=False
    )
    lost = re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE)
    if done.returncode != 0 or lost:
        raise TestbedError(
            f"{program} misses libraries: {', '.join(lost) or done.stderr.strip()}",
            "install what ./inv doctor names",
        )
    found = re.findall(r"^\s*(\S+) => (/\S+)", done.stdout, re.MULTILINE)
    return {name: Path(path) for name, path in found}


def copy_library(source: Path, target: Path) -> None:
    """Copy a library itself, under the name by which it is asked for, whatever links lead to it."""
    shutil.copy(source.resolve(), target)
