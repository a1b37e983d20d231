"""Uses of OpenCL that forwarding gets wrong: natively, and under several systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.experiment.systems import PRESETS, System
from testbed.tests.clients import (
    SANITIZERS,
    compile_client,
    expect_ok,
    run_client,
    scenarios,
    serving,
)

pytestmark = [pytest.mark.native, pytest.mark.opencl]

NAME = "opencl_hard"
SYSTEMS = (
    System("wormhole", "shm"),
    System("tcp-sync", "tcp", oneway=False, local=False),
    System("shm-all-messages", "shm", local=False),
    System("no-spinning", "shm", spin_us=0),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, linked with the system's loader."""
    return compile_client(tmp_path_factory.mktemp("client"), NAME)


def _check(client: Path, chosen: System, folder: Path, build: str = "", **more: str) -> None:
    names = scenarios(client)
    with serving(chosen, folder, build) as environment:
        expect_ok(run_client([client, *names], environment | more), names)


def test_expectations_hold_natively(client: Path, tmp_path: Path) -> None:
    _check(client, PRESETS["native"], tmp_path)


@pytest.mark.parametrize("chosen", SYSTEMS, ids=lambda chosen: chosen.name)
def test_scenarios(client: Path, chosen: System, tmp_path: Path) -> None:
    _check(client, chosen, tmp_path)


def test_reads_held_back_have_a_limit(client: Path, tmp_path: Path) -> None:
    name = "too_many_gated_reads"
    with serving(PRESETS["tcp-sync"], tmp_path) as environment:
        expect_ok(run_client([client, name], environment), [name])


def test_scenarios_under_sanitizers(tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak."""
    client = compile_client(tmp_path, NAME, *SANITIZERS)
    _check(client, SYSTEMS[0], tmp_path, "address", ASAN_OPTIONS="detect_leaks=0")
