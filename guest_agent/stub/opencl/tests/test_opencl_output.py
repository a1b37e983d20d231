"""What a program prints natively it prints forwarded: images, samplers, sub-devices, limits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from testbed.experiment.systems import System
from testbed.tests.clients import (
    SANITIZERS,
    compile_client,
    expect_success,
    run_client,
    scenarios,
    serving,
)

pytestmark = [pytest.mark.native, pytest.mark.opencl]

PROGRAMS = {"opencl_images": 1000, "opencl_devices": 40}  # and the lines that they print at least
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
    return compile_client(tmp_path_factory.mktemp("client"), request.param)


@pytest.fixture(scope="module")
def native(client: Path) -> list[str]:
    """What the machine's own OpenCL does."""
    lines = _run([client, *scenarios(client)], os.environ)
    assert len(lines) > PROGRAMS[client.name]
    return lines


def _run(argv: Sequence[str | Path], environment: Mapping[str, str]) -> list[str]:
    done = run_client(argv, environment)
    expect_success(done)
    return done.stdout.splitlines()


def _forwarded(
    argv: Sequence[str | Path], chosen: System, folder: Path, build: str = "", **more: str
) -> list[str]:
    with serving(chosen, folder, build) as environment:
        return _run(argv, environment | more)


@pytest.mark.parametrize("chosen", SYSTEMS, ids=lambda chosen: chosen.name)
def test_forwarded_as_native(
    client: Path, native: list[str], chosen: System, tmp_path: Path
) -> None:
    assert _forwarded([client, *scenarios(client)], chosen, tmp_path) == native


def test_forwarded_as_native_under_sanitizers(client: Path, tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak. Large data takes long here."""
    checked = compile_client(tmp_path, client.name, *SANITIZERS)
    names = [name for name in scenarios(client) if name not in ("large", "largest")]
    argv: list[str | Path] = [checked, *names]
    shown = _forwarded(argv, SYSTEMS[0], tmp_path, "address", ASAN_OPTIONS="detect_leaks=0")
    assert shown == _run([client, *names], os.environ)


def test_answers_by_rule(tmp_path: Path) -> None:
    client = compile_client(tmp_path, "opencl_devices")
    assert _forwarded([client, "rules"], SYSTEMS[0], tmp_path) == RULES.splitlines()
