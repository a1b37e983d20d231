"""Memory that client and server both see: natively, and where there is much, little or none."""

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

SOURCE = Path(__file__).resolve().parent / "opencl_place.c"
LIMIT_S = 300.0
LARGE, SMALL = 2 << 30, 8 << 20
# In a small session some buffers find no room in the arena, and transfers go in pieces.
PLACES = (
    (System("wormhole", "shm"), LARGE),
    (System("wormhole", "shm"), SMALL),
    (System("shm-all-messages", "shm", oneway=False, local=False), SMALL),
    (System("tcp-sync", "tcp", oneway=False, local=False), LARGE),
    (System("tcp-oneway-local", "tcp"), LARGE),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, linked with the system's loader."""
    return _compile(tmp_path_factory.mktemp("client"))


def _compile(folder: Path, *flags: str) -> Path:
    program = folder / "opencl_place"
    argv = ["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", *flags]
    argv += ["-o", str(program), str(SOURCE), "-l:libOpenCL.so.1"]
    subprocess.run(argv, check=True, timeout=LIMIT_S)
    return program


def _check(client: Path, environment: dict[str, str]) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [client, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    names = run().stdout.split()
    done = run(*names)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"{name} ok" for name in names]


def _forwarded(
    client: Path, chosen: System, session_bytes: int, folder: Path, build: str = "", **more: str
) -> None:
    built = native_build(build)
    tcp = chosen.transport == "tcp"
    # The sanitizers need /proc and more memory than the jail leaves.
    config = HostServerConfig(
        unix=not tcp, tcp=tcp, session_bytes=session_bytes, worker=built.worker, jail=not build
    )
    with host_server(config, folder / "server") as server:
        vendors = vendor_folder(folder, built.library)
        _check(client, client_environment(os.environ, chosen, server, vendors) | more)


def test_expectations_hold_natively(client: Path) -> None:
    _check(client, dict(os.environ))


@pytest.mark.parametrize(
    ("chosen", "session_bytes"), PLACES, ids=lambda value: getattr(value, "name", str(value))
)
def test_scenarios(client: Path, chosen: System, session_bytes: int, tmp_path: Path) -> None:
    _forwarded(client, chosen, session_bytes, tmp_path)


@pytest.mark.parametrize("session_bytes", [LARGE, SMALL])
def test_scenarios_under_sanitizers(session_bytes: int, tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak."""
    client = _compile(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    _forwarded(
        client, PLACES[0][0], session_bytes, tmp_path, "address", ASAN_OPTIONS="detect_leaks=0"
    )
