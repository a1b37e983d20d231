"""CUDA's runtime through stub, ring and worker, on a double of a device: as on the double."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.experiment.systems import system
from testbed.machine.native_build import native_build
from testbed.protocol.spec import CUDA_NAMES, exports, load_api
from testbed.tests.cuda_double import (
    CudaClient,
    compile_cuda_client,
    cuda_serving,
    double_config,
    open_folder,
    run,
)

pytestmark = pytest.mark.native
SYSTEMS = ("wormhole", "wormhole-sync", "wormhole-notify", "tcp-sync")

ASK = """
import ctypes, sys
library = ctypes.CDLL("libcudart.so.13")
library.cudaGetErrorName.restype = ctypes.c_char_p
print(getattr(library, sys.argv[1])(), library.cudaPeekAtLastError())
print(getattr(library, sys.argv[1])(), library.cudaGetLastError(), library.cudaGetLastError())
"""
#: Whether kernels may use the host's pointer to registered memory, by attribute and by property.
PROMISED = """
import ctypes
library = ctypes.CDLL("libcudart.so.13")
value = ctypes.c_int(7)
assert library.cudaDeviceGetAttribute(ctypes.byref(value), 91, 0) == 0
properties = ctypes.create_string_buffer(1008)
assert library.cudaGetDeviceProperties(properties, 0) == 0
print(value.value, int.from_bytes(properties.raw[664:668], "little"))
"""
LOADING = """
import _ctypes, ctypes
for _ in range(1000):
    _ctypes.dlclose(ctypes.CDLL("libcudart.so.13")._handle)
print("done")
"""


@pytest.fixture(scope="module")
def client() -> Iterator[CudaClient]:
    with open_folder() as folder:
        yield compile_cuda_client(folder)


@pytest.fixture(scope="module")
def native(client: CudaClient) -> str:
    done = client.native(*client.cases("fault"))
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_case_is_as_on_the_device(
    client: CudaClient, native: str, name: str, tmp_path: Path
) -> None:
    # Over TCP pinned memory is the client's alone, and kernels cannot reach it: it says so.
    left_out = ("fault", "mapped") if name == "tcp-sync" else ("fault",)
    with cuda_serving(system(name), double_config(client), tmp_path) as (_, environment):
        done = run([client.program, *client.cases(*left_out)], environment)
    wanted = [line for line in native.splitlines() if line.partition(":")[0] not in left_out]
    assert done.stdout.splitlines() == wanted, done.stderr[-2000:]
    assert done.returncode == 0


#: What needs memory that both sides share: host functions in graphs, and copies in graphs from and
#: to memory of the program's.
SHARED = ("graph_memory", "capture_memory", "graph_lives")


@pytest.fixture(scope="module")
def native_breadth(client: CudaClient) -> str:
    done = client.breadth.native()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_programs_take_for_granted_is_as_on_the_device(
    client: CudaClient, native_breadth: str, name: str, tmp_path: Path
) -> None:
    left_out = SHARED if name == "tcp-sync" else ()
    with cuda_serving(system(name), double_config(client), tmp_path) as (_, environment):
        done = run([client.breadth.program, *client.breadth.cases(*left_out)], environment)
    wanted = [line for line in native_breadth.splitlines() if line.split(":")[0] not in left_out]
    assert done.stdout.splitlines() == wanted, done.stderr[-2000:]
    assert done.returncode == 0


def test_a_graph_says_what_it_cannot_do_without_shared_memory(
    client: CudaClient, tmp_path: Path
) -> None:
    with cuda_serving(system("tcp-sync"), double_config(client), tmp_path) as (_, environment):
        done = run([client.breadth.program, "graph_memory"], environment)
    assert done.returncode == 1
    assert "is not forwarded yet: it returns 801" in done.stderr


@pytest.mark.parametrize("name", ["wormhole", "tcp-sync"])
def test_a_kernels_error_stays(client: CudaClient, name: str, tmp_path: Path) -> None:
    with cuda_serving(system(name), double_config(client), tmp_path) as (_, environment):
        done = run([client.program, "fault"], environment)
        after = run([client.program, "vector_add"], environment)
    assert (done.returncode, done.stdout) == (0, client.native("fault").stdout), done.stderr
    assert after.returncode == 0, "the next program has a context of its own"


def test_what_is_registered_costs_nothing_until_it_is_used(
    client: CudaClient, tmp_path: Path
) -> None:
    """Registering kernels, and loading and unloading the library, open no session."""
    with cuda_serving(system("wormhole"), double_config(client), tmp_path) as (server, environment):
        done = run([client.program, "--list"], environment)
        loaded = run([sys.executable, "-c", LOADING], environment)
        assert (done.returncode, loaded.returncode) == (0, 0), done.stderr + loaded.stderr
        assert loaded.stdout == "done\n"
        assert server.sessions() == []


def test_launches_do_not_wait(client: CudaClient, tmp_path: Path) -> None:
    """Eight threads launch 200 times each: one message a launch, few of them answered."""
    stats = tmp_path / "stats"
    with cuda_serving(system("wormhole"), double_config(client), tmp_path) as (_, environment):
        done = run([client.program, "threads"], {**environment, "WORMHOLE_STATS": str(stats)})
    assert done.returncode == 0, done.stdout
    counted = json.loads(stats.read_text(encoding="utf-8").splitlines()[-1])
    assert counted["oneway"] >= 8 * 200 - 8
    assert counted["messages"] <= 1.25 * 8 * 200
    assert counted["round_trips"] <= 0.15 * 8 * 200


def test_a_value_read_back_is_one_round_trip(client: CudaClient, tmp_path: Path) -> None:
    """The copy has waited for the stream: waiting for it once more asks nothing."""
    stats = tmp_path / "stats"
    with cuda_serving(system("wormhole"), double_config(client), tmp_path) as (_, environment):
        done = run([client.program, "read_backs"], {**environment, "WORMHOLE_STATS": str(stats)})
    assert done.returncode == 0, done.stdout
    counted = json.loads(stats.read_text(encoding="utf-8").splitlines()[-1])
    assert 100 <= counted["round_trips"] < 120


@pytest.mark.parametrize(
    "function", ["cudaGraphAddNode", "cudaMallocManaged", "cudaIpcGetMemHandle", "cudaMallocArray"]
)
def test_an_export_that_is_not_forwarded_says_so(
    client: CudaClient, function: str, tmp_path: Path
) -> None:
    with cuda_serving(system("wormhole"), double_config(client), tmp_path) as (_, environment):
        done = run([sys.executable, "-c", ASK, function], environment)
    assert done.stdout.split() == ["801", "801", "801", "801", "0"], done.stderr
    assert done.stderr.count(f"{function} of libcudart.so.13 is not forwarded yet") == 1


def test_the_device_promises_nothing_that_is_not_forwarded(
    client: CudaClient, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", PROMISED]
    native = run(argv, {"LD_LIBRARY_PATH": str(client.double)})
    with cuda_serving(system("wormhole"), double_config(client), tmp_path) as (_, environment):
        forwarded = run(argv, environment)
    assert (native.stdout.split(), forwarded.stdout.split()) == (["1", "1"], ["0", "0"]), (
        native.stderr + forwarded.stderr
    )


def test_a_worker_takes_no_double_by_itself(client: CudaClient, tmp_path: Path) -> None:
    """Nor our own library, which would forward to the worker again."""
    plain = replace(double_config(client), environment={})
    ours = client.double.parent / "ours"  # where the session's user can read it
    shutil.copytree(native_build().cuda, ours)
    for config, said in (
        (plain, "is the tests' double of a device"),
        (replace(plain, cuda=(ours,)), "is the testbed's own library"),
    ):
        with cuda_serving(system("wormhole"), config, tmp_path / said[:6]) as (server, environment):
            done = run([client.program, "vector_add"], environment)
            assert done.returncode == 1
            assert "cudaErrorDevicesUnavailable" in done.stdout
            assert said in server.log.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def symbols() -> Iterator[dict[str, set[str]]]:
    """What our libraries export, with versions, by spec."""
    folder = native_build().cuda
    found = {}
    for name in CUDA_NAMES:
        library = load_api(name).library
        assert library is not None
        path = str(folder / library.soname)
        nm = ["nm", "-D", "--defined-only", "--with-symbol-versions", path]
        listed = subprocess.run(nm, capture_output=True, text=True, timeout=60, check=True)
        found[name] = {
            line.split()[-1] for line in listed.stdout.splitlines() if line.split()[-2] == "T"
        }
    yield found


@pytest.mark.parametrize("name", CUDA_NAMES)
def test_our_library_exports_what_the_real_one_does(
    symbols: dict[str, set[str]], name: str
) -> None:
    library = load_api(name).library
    assert library is not None
    version = f"@@{library.node}" if library.node else ""
    wanted = {symbol + version for symbol in exports(name)}
    assert symbols[name] == wanted
