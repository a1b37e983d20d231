"""The CUDA test program and the double of a device that it runs on, where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.experiment.client import host_variables
from testbed.experiment.systems import System
from testbed.machine.double_build import (
    ALLOWED,
    MATHEMATICAL,
    RUNTIME,
    build_double,
    double_flags,
)
from testbed.machine.host_server import HostServer, HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.protocol.spec import load_api
from testbed.root import ROOT

CLIENT = ROOT / "guest_agent/stub/cuda/tests"
LIMIT_S = 120.0


@dataclass(frozen=True)
class CudaClient:
    """The test program, and the folder whose libcudart is the double."""

    program: Path
    double: Path

    @property
    def breadth(self) -> CudaClient:
        """The same with the cases of what lies beside the plain ones."""
        return CudaClient(self.program.with_name("breadth"), self.double)

    def cases(self, *left_out: str) -> list[str]:
        """The names of its cases, but some."""
        done = self.native("--list")
        assert done.returncode == 0, done.stderr
        return [name for name in done.stdout.split() if name not in left_out]

    def native(self, *cases: str) -> subprocess.CompletedProcess[str]:
        """Run it on the double itself."""
        return run([self.program, *cases], {"LD_LIBRARY_PATH": str(self.double)})


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that workers can read in their jail; pytest's own are the tests' user's alone."""
    with tempfile.TemporaryDirectory(prefix="wormhole-double-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def compile_cuda_client(folder: Path) -> CudaClient:
    """Compile the double, with all its libraries, the kernels and the programs."""
    built = build_double(folder, mathematical=True)
    kernels = f'-DKERNELS="{built.kernels}"'
    for name in ("client", "breadth"):
        sources = [CLIENT / f"{name}.c", CLIENT / "image.c", built.libraries / RUNTIME]
        _gcc(["gcc", *double_flags(), kernels, f"-I{CLIENT}", "-o", folder / name, *sources])
    return CudaClient(folder / "client", built.libraries)


@dataclass(frozen=True)
class LibraryClients:
    """Test programs of the libraries on top of the runtime."""

    libraries: Path
    driver: Path
    image: Path  # the kernels, as a program loads them itself


def compile_library_clients(client: CudaClient, folder: Path) -> LibraryClients:
    """Compile the programs that use the libraries on top of the runtime."""
    sonames = [library.soname for name in MATHEMATICAL if (library := load_api(name).library)]
    doubles = [client.double / soname for soname in (RUNTIME, *sonames)]
    libraries = folder / "libraries"
    _gcc(["gcc", *double_flags(), "-o", libraries, CLIENT / "libraries.c", *doubles])
    driver = folder / "driver"
    ours = [native_build().cuda / "libcuda.so.1", native_build().cuda / RUNTIME]
    _gcc(["gcc", *double_flags(), "-o", driver, CLIENT / "driver.c", *ours])
    return LibraryClients(libraries, driver, client.double.parent / "kernels.fatbin")


def _gcc(argv: Sequence[str | Path]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def double_config(client: CudaClient) -> HostServerConfig:
    """A server whose workers have the double in the place of CUDA's runtime."""
    return HostServerConfig(
        backend="cuda",
        worker=native_build().worker,
        cuda=(client.double,),
        environment=dict(ALLOWED),
    )


@contextmanager
def cuda_serving(
    chosen: System, config: HostServerConfig, folder: Path
) -> Iterator[tuple[HostServer, dict[str, str]]]:
    """A server, and the environment of a program that finds our libraries and it."""
    tcp = chosen.transport == "tcp"
    config = HostServerConfig(**{**vars(config), "unix": not tcp, "tcp": tcp})
    with host_server(config, folder / "server") as server:
        yield (
            server,
            {
                **host_variables(chosen, server),
                "LD_LIBRARY_PATH": str(native_build().cuda),
            },
        )


def run(
    argv: Sequence[str | Path], environment: Mapping[str, str], limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """A program's end, with variables beside our own."""
    return subprocess.run(
        argv,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
