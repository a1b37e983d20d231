"""What a program prints natively it prints forwarded: images, samplers, sub-devices, limits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.systems import System
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build

pytestmark = [pytest.mark.native, pytest.mark.opencl]

SOURCES = Path(__file__).resolve().parent
PROGRAMS = {"opencl_images": 1000, "opencl_devices": 40}  # and the lines that they print at least
LIMIT_S = 300.0
SYSTEMS = (
    System("wormhole", "shm"),
    System("tcp-sync", "tcp", oneway=False, local=False),
    System("shm-all-messages", "shm", local=False),
)
# What a device says and does that has neither shared virtual memory nor native kernels nor
# extensions with functions of their own.
RULES = """\
svm 0 execution 1 too small -30
command buffers -30
svm alloc 0
svm -59 -59 -59 -59 -59 -59
svm of no queue -36 of no kernel -48
exec info -59
native kernel -59
queue property -59
gl -59 -34
clCreateCommandBufferKHR 0
clSetContentSizeBufferPoCL 0
"""


@pytest.fixture(scope="module", params=PROGRAMS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An application, linked with the system's loader."""
    return _compile(request.param, tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def native(client: Path) -> list[str]:
    """What the machine's own OpenCL does."""
    lines = _run([client, *_scenarios(client)], dict(os.environ))
    assert len(lines) > PROGRAMS[client.name]
    return lines


def _compile(name: str, folder: Path, *flags: str) -> Path:
    program = folder / name
    argv = ["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *flags]
    argv += ["-o", str(program), str(SOURCES / f"{name}.c"), "-l:libOpenCL.so.1"]
    subprocess.run(argv, check=True, timeout=LIMIT_S)
    return program


def _scenarios(client: Path) -> list[str]:
    done = subprocess.run([client], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return done.stdout.split()


def _run(argv: Sequence[str | Path], environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    return done.stdout.splitlines()


def _forwarded(
    argv: Sequence[str | Path], chosen: System, folder: Path, build: str = "", **more: str
) -> list[str]:
    built = native_build(build)
    tcp = chosen.transport == "tcp"
    # The sanitizers need /proc and more memory than the jail leaves.
    config = HostServerConfig(unix=not tcp, tcp=tcp, worker=built.worker, jail=not build)
    with host_server(config, folder / "server") as server:
        vendors = vendor_folder(folder, built.library)
        return _run(argv, client_environment(os.environ, chosen, server, vendors) | more)


@pytest.mark.parametrize("chosen", SYSTEMS, ids=lambda chosen: chosen.name)
def test_forwarded_as_native(
    client: Path, native: list[str], chosen: System, tmp_path: Path
) -> None:
    assert _forwarded([client, *_scenarios(client)], chosen, tmp_path) == native


def test_forwarded_as_native_under_sanitizers(client: Path, tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak. Large data takes long here."""
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    checked = _compile(client.name, tmp_path, *flags)
    names = [name for name in _scenarios(client) if name not in ("large", "largest")]
    argv: list[str | Path] = [checked, *names]
    shown = _forwarded(argv, SYSTEMS[0], tmp_path, "address", ASAN_OPTIONS="detect_leaks=0")
    assert shown == _run([client, *names], dict(os.environ))


def test_answers_by_rule(tmp_path: Path) -> None:
    client = _compile("opencl_devices", tmp_path)
    assert _forwarded([client, "rules"], SYSTEMS[0], tmp_path) == RULES.splitlines()
