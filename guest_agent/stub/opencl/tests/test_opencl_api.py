"""A real application on the forwarded OpenCL, under every combination of switches that matters."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.execute import execute
from testbed.experiment.systems import System
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.protocol.spec import load_api
from testbed.tests.clients import SANITIZERS, compile_client, expect_ok, scenarios

pytestmark = [pytest.mark.native, pytest.mark.opencl]

NAME = "opencl_client"
LIMIT_S = 120.0
FORWARDED_ONLY = ("stale", "fork")
# The presets, and what no preset combines.
SYSTEMS = (
    System("wormhole", "shm"),
    System("wormhole-sync", "shm", oneway=False),
    System("wormhole-notify", "shm", oneway=False, notifications="always"),
    System("tcp-sync", "tcp", oneway=False, local=False),
    System("shm-all-messages", "shm", local=False),
    System("tcp-oneway-local", "tcp"),
    System("no-spinning", "shm", spin_us=0),
)
ALLOWED_DIFFERENCES = (
    # Where the jail hides the file from which PoCL takes it, it is PoCL's own.
    "Device Vendor ID",
    # What is not forwarded is not declared (opencl.yaml: truth, extensions).
    *("Platform Extensions", "Device Extensions", "cl_"),
    *("Coarse-grained buffer sharing", "Fine-grained buffer sharing", "Atomics"),
    *("Command buffer capabilities", "Required queue properties for command buffer"),
    *("Out-of-order execution", "Profiling", "Run native kernels"),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, linked with the system's loader."""
    return compile_client(tmp_path_factory.mktemp("client"), NAME)


def _run(
    argv: list[str], chosen: System, folder: Path, build: str = "", **more: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """A program's end and the stub's counters."""
    built = native_build(build)
    vendors = vendor_folder(folder, built.library)
    stats = folder / "stats.jsonl"
    tcp = chosen.transport == "tcp"
    # The sanitizers need /proc and more memory than the jail leaves.
    config = HostServerConfig(unix=not tcp, tcp=tcp, worker=built.worker, jail=not build)
    with host_server(config, folder / "server") as server:
        environment = client_environment(os.environ, chosen, server, vendors)
        (folder / "supervisor.pid").write_text(str(server.pid), encoding="utf-8")
        environment |= {"WORMHOLE_STATS": str(stats), **more}
        environment["SUPERVISOR_PID_FILE"] = str(folder / "supervisor.pid")
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    lines = stats.read_text(encoding="utf-8").splitlines() if stats.exists() else []
    return done, [json.loads(line) for line in lines]


def test_expectations_hold_natively(client: Path) -> None:
    argv = [str(client), *scenarios(client)]
    assert execute(argv, "native", "process", timeout_s=LIMIT_S) == 0


@pytest.mark.parametrize("chosen", SYSTEMS, ids=lambda chosen: chosen.name)
def test_scenarios(client: Path, chosen: System, tmp_path: Path) -> None:
    names = [*scenarios(client), *FORWARDED_ONLY]
    done, _ = _run([str(client), *names], chosen, tmp_path)
    expect_ok(done, names)


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[3]], ids=lambda chosen: chosen.name)
def test_scenarios_under_sanitizers(chosen: System, tmp_path: Path) -> None:
    """Stub and worker both; leaks are not looked for: objects in use at exit are no leak."""
    client = compile_client(tmp_path, NAME, *SANITIZERS)
    names = [*scenarios(client), *FORWARDED_ONLY]
    done, _ = _run(
        [str(client), *names], chosen, tmp_path, "address", ASAN_OPTIONS="detect_leaks=0"
    )
    expect_ok(done, names)


def test_each_call_is_one_message_without_local_answers(client: Path, tmp_path: Path) -> None:
    done, lines = _run([str(client), "launch"], SYSTEMS[3], tmp_path)
    expect_ok(done, ("launch",))
    (counters,) = lines
    # The loader asks for the platform once more, which is no call of the application.
    assert counters["messages"] == counters["api_calls"] + 1
    assert counters["round_trips"] == counters["messages"]
    assert counters["local_answers"] == 0


def test_what_has_succeeded_goes_one_way(client: Path, tmp_path: Path) -> None:
    done, lines = _run([str(client), "launch"], SYSTEMS[0], tmp_path)
    expect_ok(done, ("launch",))
    (counters,) = lines
    assert counters["oneway"] > 300  # of about 200 launches and as many non-blocking transfers
    assert counters["local_answers"] > 700  # kernel arguments
    assert counters["messages"] == counters["round_trips"] + counters["oneway"]


def _clinfo(
    folder: Path, chosen: System | None, ignored: tuple[str, ...] = ALLOWED_DIFFERENCES
) -> list[str]:
    program = shutil.which("clinfo")
    assert program is not None, "apt-get install clinfo"
    if chosen is None:
        shown = subprocess.run(
            [program], capture_output=True, text=True, timeout=LIMIT_S, check=True
        ).stdout
    else:
        done, _ = _run([program], chosen, folder)
        assert done.returncode == 0, done.stderr
        shown = done.stdout
    return [line for line in shown.splitlines() if not line.strip().startswith(ignored)]


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[3]], ids=lambda chosen: chosen.name)
def test_clinfo_shows_the_real_device(chosen: System, tmp_path: Path) -> None:
    native = _clinfo(tmp_path, None)
    assert len(native) > 90
    assert _clinfo(tmp_path, chosen) == native


def test_only_forwarded_extensions_are_declared(tmp_path: Path) -> None:
    shown = [line.split() for line in _clinfo(tmp_path, SYSTEMS[0], ())]
    declared = {word for line in shown for word in line if word.startswith("cl_")}
    assert "cl_khr_byte_addressable_store" in declared
    assert declared <= set(load_api("opencl").extensions)
    assert ["Run", "native", "kernels", "No"] in shown
    assert ["Coarse-grained", "buffer", "sharing", "No"] in shown


def test_no_platform_without_a_server(client: Path, tmp_path: Path) -> None:
    vendors = vendor_folder(tmp_path, native_build().library)
    environment = {
        "PATH": os.environ["PATH"],
        "OCL_ICD_VENDORS": f"{vendors}/",
        "WORMHOLE_SERVER": f"unix:{tmp_path}/nobody",
    }
    done = subprocess.run(
        [str(client), "launch"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"{tmp_path}/nobody" in done.stderr
    assert "clGetPlatformIDs" in done.stderr


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[3]], ids=lambda chosen: chosen.name)
def test_a_dead_worker_is_an_api_error(client: Path, chosen: System, tmp_path: Path) -> None:
    """Waiting and later calls end soon, with an error of the API."""
    done, _ = _run([str(client), "lost"], chosen, tmp_path)
    expect_ok(done, ("lost",))
