"""Images, samplers, sub-devices: what a program prints natively it prints forwarded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.systems import System
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build

pytestmark = [pytest.mark.native, pytest.mark.opencl]

SOURCE = Path(__file__).resolve().parent / "opencl_images.c"
LIMIT_S = 120.0
SYSTEMS = (
    System("wormhole", "shm"),
    System("tcp-sync", "tcp", oneway=False, local=False),
    System("shm-all-messages", "shm", local=False),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, linked with the system's loader."""
    return _compile(tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def native(client: Path) -> list[str]:
    """What the machine's own OpenCL does."""
    return _run(client, dict(os.environ))


def _compile(folder: Path, *flags: str) -> Path:
    program = folder / SOURCE.stem
    argv = ["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *flags]
    argv += ["-o", str(program), str(SOURCE), "-l:libOpenCL.so.1"]
    subprocess.run(argv, check=True, timeout=LIMIT_S)
    return program


def _run(client: Path, environment: dict[str, str]) -> list[str]:
    names = subprocess.run(
        [client], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout.split()
    done = subprocess.run(
        [client, *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    return done.stdout.splitlines()


def _forwarded(
    client: Path, chosen: System, folder: Path, build: str = "", **more: str
) -> list[str]:
    built = native_build(build)
    tcp = chosen.transport == "tcp"
    # The sanitizers need /proc and more memory than the jail leaves.
    config = HostServerConfig(unix=not tcp, tcp=tcp, worker=built.worker, jail=not build)
    with host_server(config, folder / "server") as server:
        vendors = vendor_folder(folder, built.library)
        return _run(client, client_environment(os.environ, chosen, server, vendors) | more)


@pytest.mark.parametrize("chosen", SYSTEMS, ids=lambda chosen: chosen.name)
def test_forwarded_as_native(
    client: Path, native: list[str], chosen: System, tmp_path: Path
) -> None:
    assert len(native) > 1000
    assert _forwarded(client, chosen, tmp_path) == native


def test_forwarded_as_native_under_sanitizers(native: list[str], tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak."""
    client = _compile(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    forwarded = _forwarded(client, SYSTEMS[0], tmp_path, "address", ASAN_OPTIONS="detect_leaks=0")
    assert forwarded == native
