"""Builds the tests' double of a CUDA device: libraries that do CUDA's calls on the host's memory.

It is for tests and the fuzzer alone. A worker takes it only where `ALLOWED` is in its environment,
so that it never passes for a device.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from host_server.cuda_libraries import CUDA_VARIABLE
from testbed.machine.artifacts import run_logged
from testbed.machine.native_build import native_build
from testbed.protocol.spec import load_api
from testbed.root import ROOT

DOUBLE = ROOT / "host_server/tests/refcuda"
RUNTIME = "libcudart.so.13"
MATHEMATICAL = ("cublas", "cublaslt", "cudnn")
FATBIN_MAGIC = 0xBA55ED50
COMPILE_LIMIT_S = 120.0
FLAGS = ("-g", "-O1", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-fPIC", "-pthread")
ALLOWED = {"WORMHOLE_TEST_DOUBLE": "1"}


@dataclass(frozen=True)
class DeviceDouble:
    """The folder of the libraries, and the test kernels: a shared library, and as device code."""

    libraries: Path
    kernels: Path
    code: Path

    def variables(self) -> dict[str, str]:
        """What lets a worker take it."""
        return {CUDA_VARIABLE: str(self.libraries), **ALLOWED}


def double_flags() -> list[str]:
    """How the double, and programs that call it, are compiled."""
    generated = native_build().directory / "generated/include"
    return [*FLAGS, f"-I{generated}", f"-I{ROOT / 'testbed/protocol/c'}"]


def build_double(folder: Path, mathematical: bool) -> DeviceDouble:
    """Compile the runtime's double, and with `mathematical` those of the libraries on top of it.

    Raises TestbedError where it does not compile.
    """
    libraries = folder / "double"
    libraries.mkdir()
    log = folder / "double.log"
    shared = ["gcc", *double_flags(), "-fvisibility=hidden", "-shared"]
    versions = f"-Wl,-soname,{RUNTIME},--version-script={DOUBLE / 'refcuda.map'}"
    runtime = libraries / RUNTIME
    sources = [DOUBLE / "refcuda.c", DOUBLE / "refgraph.c"]
    _compile([*shared, "-o", runtime, *sources, versions, "-ldl"], log)
    kernels = folder / "kernels.so"
    _compile([*shared, "-o", kernels, DOUBLE / "kernels.c"], log)
    code = folder / "kernels.fatbin"
    code.write_bytes(device_code(kernels.read_bytes()))
    for name in MATHEMATICAL if mathematical else ():
        library = load_api(name).library
        assert library is not None
        script = folder / f"{name}.map"
        script.write_text(f"{library.node} {{\n    global:\n        *;\n}};\n", encoding="utf-8")
        versions = f"-Wl,-soname,{library.soname},--version-script={script}"
        source = DOUBLE / f"ref{name}.c"
        built = libraries / library.soname
        _compile([*shared, "-o", built, source, versions, runtime, "-lm"], log)
    return DeviceDouble(libraries, kernels, code)


def device_code(kernels: bytes) -> bytes:
    """What a compiler would have put into a program: the kernels behind a fat binary's header."""
    return struct.pack("<IHHQ", FATBIN_MAGIC, 1, 16, len(kernels)) + kernels


def _compile(argv: Sequence[str | Path], log: Path) -> None:
    run_logged(argv, log, COMPILE_LIMIT_S)
