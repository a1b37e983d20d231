"""One real guest, the whole path: the host's device, native's losses, deaths that end well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment.client import guest_variables
from testbed.experiment.deploy import deploy
from testbed.experiment.events import read_events
from testbed.experiment.gate import check_trajectory
from testbed.experiment.prepare import kernel_cache_seed, prepare, reference
from testbed.experiment.systems import system
from testbed.experiment.workload import find_workload
from testbed.machine.double_build import ALLOWED
from testbed.machine.host_server import HostServer, HostServerConfig
from testbed.machine.native_build import native_build
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import ServedGuest, served_guest
from testbed.machine.tap import tap_problem
from testbed.tests.clients import compile_client, scenarios
from testbed.tests.cuda_double import CudaClient, compile_cuda_client, open_folder

pytestmark = [pytest.mark.vm, pytest.mark.native, pytest.mark.opencl]

LIMIT_S = 240.0
ALL_MESSAGES = {"WORMHOLE_LOCAL": "0"}

#: Asks the worker again and again; status 3 when the API's own error tells that it is gone.
CLIENT = """
import ctypes, json, os, sys, time
cl = ctypes.CDLL("libOpenCL.so.1")
platform, device = ctypes.c_void_p(), ctypes.c_void_p()
cl.clGetPlatformIDs(1, ctypes.byref(platform), None)
def ask():
    every = ctypes.c_ulong(0xFFFFFFFF)
    return cl.clGetDeviceIDs(platform, every, 1, ctypes.byref(device), None)
print(json.dumps({"event": "ready", "pid": os.getpid(), "status": ask()}), flush=True)
end_s = time.monotonic() + 60
while time.monotonic() < end_s:
    if ask() != 0:
        sys.exit(3)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def cuda() -> Iterator[CudaClient]:
    with open_folder() as folder:
        yield compile_cuda_client(folder)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, cuda: CudaClient) -> Iterator[ServedGuest]:
    build = native_build()
    config = HostServerConfig(
        tcp=True,
        worker=build.worker,
        cuda=(cuda.double,),
        environment=dict(ALLOWED),
    )
    folder = tmp_path_factory.mktemp("guest")
    with served_guest(VmConfig(name="path"), config, build.library, folder) as guest:
        yield guest


def test_a_guest_sees_the_hosts_device(served: ServedGuest) -> None:
    host = subprocess.run(
        ["clinfo", "--raw"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout
    seen = served.vm.guest.run(["clinfo", "--raw"], timeout_s=LIMIT_S)
    assert seen.status == 0, seen.stderr
    for name in ("CL_DEVICE_NAME", "CL_DEVICE_VERSION", "CL_DRIVER_VERSION", "CL_PLATFORM_NAME"):
        assert values(seen.stdout, name) == values(host, name), name
        assert values(seen.stdout, name), name


def test_tcp_takes_the_interface_that_is_recorded(served: ServedGuest) -> None:
    server = served.server
    assert isinstance(server, HostServer)
    assert (server.tap is None) == bool(tap_problem())
    before = packets(server)
    environment = guest_variables(system("tcp-sync"), server)
    seen = served.vm.guest.run(["clinfo", "-l"], environment, timeout_s=LIMIT_S)
    assert seen.status == 0, seen.stderr
    assert "Device #0" in seen.stdout
    if server.tap is None:
        assert server.network == "user"
    else:
        assert server.network.startswith("tap")
        assert server.tap.host_address in environment["WORMHOLE_SERVER"]
        assert packets(server) > before + 10


@pytest.mark.parametrize(
    ("name", "scenarios"),
    [
        ("opencl_devices", ("contexts", "largest")),
        ("opencl_images", ("shapes", "errors")),
        ("opencl_place", ("image_of_buffer", "image_maps_later")),
    ],
)
def test_a_program_prints_what_it_prints_natively(
    served: ServedGuest, name: str, scenarios: tuple[str, ...], tmp_path: Path
) -> None:
    program = compile_client(tmp_path, name)
    native = subprocess.run(
        [program, *scenarios], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout
    served.vm.ssh.put({f"/tmp/{name}": program})
    seen = served.vm.guest.run([f"/tmp/{name}", *scenarios], timeout_s=LIMIT_S)
    assert seen.status == 0, seen.stderr
    assert seen.stdout.splitlines() == native.splitlines()


def test_a_cuda_program_does_what_it_does_natively(served: ServedGuest, cuda: CudaClient) -> None:
    """On the double of a device."""
    libraries = {f"/tmp/cuda/{path.name}": path for path in native_build().cuda.glob("*.so*")}
    served.vm.ssh.put(libraries, timeout_s=LIMIT_S)
    for client in (cuda, cuda.breadth):
        cases = client.cases("fault", "sizes")
        served.vm.ssh.put({"/tmp/client": client.program}, timeout_s=LIMIT_S)
        seen = served.vm.guest.run(
            ["/tmp/client", *cases], {"LD_LIBRARY_PATH": "/tmp/cuda"}, timeout_s=LIMIT_S
        )
        assert seen.stdout.splitlines() == client.native(*cases).stdout.splitlines(), seen.stderr
        assert seen.status == 0


def test_an_application_trains_as_natively(served: ServedGuest) -> None:
    bundle = prepare(find_workload("mlp-digits"))
    assert isinstance(served.server, HostServer)
    served.server.use_kernels(kernel_cache_seed("mlp-digits"))
    folder = deploy(bundle, served.vm.ssh)
    done = served.vm.guest.run(
        bundle.argv(folder), bundle.environment(folder), cwd="/tmp", timeout_s=LIMIT_S
    )
    assert done.status == 0, done.stderr
    workload = bundle.workload
    trained = read_events(json.dumps(event) for event in done.events)
    native = reference(bundle)
    assert native is not None
    verdict = check_trajectory(native, trained, workload.tolerance, workload.steps)
    assert verdict.passed, verdict.reason
    assert verdict.compared == workload.steps


def test_callbacks_and_printing_kernels(served: ServedGuest, tmp_path: Path) -> None:
    calls = compile_client(tmp_path, "opencl_callbacks")
    printer = compile_client(tmp_path, "opencl_print")
    served.vm.ssh.put({"/tmp/calls": calls, "/tmp/printer": printer}, timeout_s=LIMIT_S)
    served.vm.ssh.run(["chmod", "755", "/tmp/calls", "/tmp/printer"], timeout_s=LIMIT_S, check=True)
    names = [*scenarios(calls), "ends_in_callback"]
    done = served.vm.guest.run(["/tmp/calls", *names], timeout_s=LIMIT_S)
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} ok" for name in names]
    for scenario in ("lines", "unbuffered", "end"):
        native = subprocess.run(
            [printer, scenario], capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        done = served.vm.guest.run(["/tmp/printer", scenario], timeout_s=LIMIT_S)
        assert done.status == 0, done.stderr
        assert done.stdout == native.stdout, scenario


def test_a_forked_child_has_what_was_mapped(served: ServedGuest, tmp_path: Path) -> None:
    served.vm.ssh.put({"/tmp/hard": compile_client(tmp_path, "opencl_hard")})
    done = served.vm.guest.run(["/tmp/hard", "fork_sees_maps"], timeout_s=LIMIT_S)
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == ["fork_sees_maps ok"]


def test_a_library_that_is_loaded_again_keeps_its_session(
    served: ServedGuest, tmp_path: Path
) -> None:
    """The objects of an unloaded library live on; a thousand loads take one slot, until the end."""
    client = compile_client(tmp_path, "opencl_unload", "-Wl,--as-needed")
    served.vm.ssh.put({"/tmp/unload": client})
    names = scenarios(client)
    done = served.vm.guest.run(["/tmp/unload", *names], timeout_s=LIMIT_S)
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} ok" for name in names]
    again = ["sh", "-c", "yes | /tmp/unload reload"]
    done = served.vm.guest.run(again, timeout_s=LIMIT_S)
    assert done.status == 0, done.stderr
    wait_until_unused(served)


def test_programs_include_the_guests_files_alone(served: ServedGuest, tmp_path: Path) -> None:
    """The headers of `includes` are made in the guest; one that only the host has is missing."""
    client = compile_client(tmp_path, "opencl_programs")
    header = tmp_path / "host.h"
    header.write_text("#define X 1\n", encoding="utf-8")
    served.vm.ssh.put({"/tmp/programs": client}, timeout_s=LIMIT_S)
    served.vm.ssh.run(["chmod", "755", "/tmp/programs"], timeout_s=LIMIT_S, check=True)
    native = subprocess.run(
        [client, "compiles", "includes"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    done = served.vm.guest.run(
        ["/tmp/programs", "compiles", "includes"], cwd="/tmp", timeout_s=LIMIT_S
    )
    assert done.status == 0, done.stderr
    assert done.stdout == native.stdout
    done = served.vm.guest.run(
        ["/tmp/programs", "absent"], {"ABSENT": str(header)}, cwd="/tmp", timeout_s=LIMIT_S
    )
    assert "absolute: -11, leaves 0" in done.stdout
    assert f"'{header}' file not found" in done.stdout
    assert "directory: -11, leaves 0" in done.stdout
    assert "'host.h' file not found" in done.stdout


def test_a_killed_application_leaves_nothing(served: ServedGuest) -> None:
    def kill(event: Mapping[str, Any]) -> None:
        assert event["status"] == 0
        served.vm.ssh.run(["kill", "-9", str(event["pid"])], timeout_s=LIMIT_S)

    done = served.vm.guest.run(
        ["python3", "-c", CLIENT], ALL_MESSAGES, timeout_s=LIMIT_S, on_event=kill
    )
    assert done.status == -signal.SIGKILL
    wait_until_unused(served)


def test_a_killed_worker_is_an_error_and_the_next_program_works(served: ServedGuest) -> None:
    def kill(event: Mapping[str, Any]) -> None:
        assert event["status"] == 0
        (worker,) = workers(served)
        os.kill(worker, signal.SIGKILL)

    done = served.vm.guest.run(
        ["python3", "-c", CLIENT], ALL_MESSAGES, timeout_s=LIMIT_S, on_event=kill
    )
    assert done.status == 3, done.stderr
    wait_until_unused(served)
    again = served.vm.guest.run(["clinfo", "-l"], timeout_s=LIMIT_S)
    assert again.stdout.count("Platform #") == 1


def values(text: str, name: str) -> list[str]:
    """What clinfo prints for a property, one for each line."""
    return [line.split(name, 1)[1].strip() for line in text.splitlines() if f" {name} " in line]


def workers(served: ServedGuest) -> list[int]:
    """Process ids of the worker processes of this guest's host server."""
    found = []
    assert isinstance(served.server, HostServer)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            program = (folder / "cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue  # it has ended meanwhile
        if parent == served.server.pid and program.endswith(b"wormhole-worker"):
            found.append(int(folder.name))
    return found


def wait_until_unused(served: ServedGuest) -> None:
    """Wait until the driver holds no slot and the host has no worker."""
    slots = "/sys/class/misc/wormhole0/slots_held"
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        held = served.vm.ssh.run(["cat", slots], timeout_s=LIMIT_S).stdout.strip()
        if held == b"0" and not workers(served):
            return
        time.sleep(0.2)
    pytest.fail(f"{held.decode()} slots and {len(workers(served))} workers are left")


def packets(server: HostServer) -> int:
    """What the host has received from the guest over TAP; 0 without it."""
    if server.tap is None:
        return 0
    return int(Path(f"/sys/class/net/{server.tap.name}/statistics/rx_packets").read_text())
