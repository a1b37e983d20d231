"""CUDA's mathematical libraries and its driver API, forwarded, on doubles of a device."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.experiment.systems import system
from testbed.tests.cuda_double import (
    CudaClient,
    LibraryClients,
    compile_cuda_client,
    compile_library_clients,
    cuda_serving,
    double_config,
    open_folder,
    run,
)

pytestmark = pytest.mark.native
SYSTEMS = ("wormhole", "wormhole-sync", "tcp-sync")
#: Steps of the program between two marks: how many, and the calls of each.
STEPS = {"blas": (10, 5), "lt": (12, 10), "dnn": (10, 8), "graph": (10, 8)}


#: What PyTorch does when it counts devices and looks for a context.
QUESTIONS = """
import ctypes
ref = ctypes.byref
ml = ctypes.CDLL("libnvidia-ml.so.1")
count, device, name = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
memory, uuid = (ctypes.c_ulonglong * 3)(), ctypes.create_string_buffer(96)
print(ml.nvmlDeviceGetCount_v2(ref(count)))
print(ml.nvmlInit_v2(), ml.nvmlDeviceGetCount_v2(ref(count)), count.value)
print(ml.nvmlDeviceGetHandleByIndex_v2(1, ref(device)))
print(ml.nvmlDeviceGetHandleByIndex_v2(0, ref(device)))
print(ml.nvmlDeviceGetName(device, name, 96), name.value.decode())
whole = ml.nvmlDeviceGetUUID(device, uuid, 96)
print(whole, uuid.value.decode(), ml.nvmlDeviceGetUUID(device, uuid, 4))
print(ml.nvmlDeviceGetMemoryInfo(device, memory), memory[0] == memory[1] + memory[2] > 0)
print(ml.nvmlShutdown(), ml.nvmlShutdown())
runtime, driver = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libcuda.so.1")
function, status, active = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
find = runtime.cudaGetDriverEntryPointByVersion
print(find(b"cuMemAlloc", ref(function), 12000, ctypes.c_ulonglong(0), ref(status)))
print(function.value == ctypes.cast(driver.cuMemAlloc_v2, ctypes.c_void_p).value, status.value)
print(find(b"cuNone", ref(function), 12000, ctypes.c_ulonglong(0), ref(status)))
print(function.value, status.value)
print(runtime.cudaFree(None))
print(driver.cuDevicePrimaryCtxGetState(0, ref(ctypes.c_uint()), ref(active)))
"""
ANSWERS = [
    *("1", "0 0 1", "2", "0", "0 Reference device of the tests (no accelerator)"),
    *("0 GPU-00000000-0000-0000-0000-000000000000 7", "0 True", "0 1"),
    *("0", "True 0", "0", "None 1", "0", "0"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[CudaClient]:
    with open_folder() as folder:
        yield compile_cuda_client(folder)


@pytest.fixture(scope="module")
def programs(client: CudaClient, tmp_path_factory: pytest.TempPathFactory) -> LibraryClients:
    return compile_library_clients(client, tmp_path_factory.mktemp("libraries"))


def _marks(stats: Path) -> dict[str, dict[str, int]]:
    """What was counted so far, by mark."""
    lines = map(json.loads, stats.read_text(encoding="utf-8").splitlines())
    return {line["label"]: line for line in lines}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_library_is_as_on_the_device(
    client: CudaClient, programs: LibraryClients, name: str, tmp_path: Path
) -> None:
    native = run([programs.libraries], {"LD_LIBRARY_PATH": str(client.double)})
    assert native.returncode == 0, native.stdout[-2000:] + native.stderr[-2000:]
    with cuda_serving(system(name), double_config(client), tmp_path) as (_, environment):
        done = run([programs.libraries], environment)
    assert done.stdout.splitlines() == native.stdout.splitlines(), done.stderr[-2000:]
    assert done.returncode == 0


def test_an_execution_is_one_message(
    client: CudaClient, programs: LibraryClients, tmp_path: Path
) -> None:
    """Streams, workspaces, modes, descriptors, heuristics and variant packs cost none."""
    stats = tmp_path / "stats"
    with cuda_serving(system("wormhole"), double_config(client), tmp_path) as (_, environment):
        done = run([programs.libraries], {**environment, "WORMHOLE_STATS": str(stats)})
    assert done.returncode == 0, done.stdout[-2000:]
    marks = _marks(stats)
    for label, (steps, calls) in STEPS.items():
        begin, end = marks[label], marks[f"{label} end"]
        assert end["api_calls"] - begin["api_calls"] == steps * calls, label
        assert end["messages"] - begin["messages"] == steps, label
        assert end["round_trips"] == begin["round_trips"], label


def test_another_problem_waits_for_what_only_the_library_knows(
    client: CudaClient, programs: LibraryClients, tmp_path: Path
) -> None:
    """Making descriptors and setting attributes waits for nothing once the like has succeeded.

    Completing them, and what is asked, waits: nine calls of 38; six where it is the same again.
    """
    stats = tmp_path / "stats"
    with cuda_serving(system("wormhole"), double_config(client), tmp_path) as (_, environment):
        done = run([programs.libraries], {**environment, "WORMHOLE_STATS": str(stats)})
    assert done.returncode == 0, done.stdout[-2000:]
    marks = _marks(stats)
    for label, wanted in (("problem", 9), ("again", 6)):
        begin, end = marks[label], marks[f"{label} end"]
        calls = end["api_calls"] - begin["api_calls"]
        assert (calls, end["messages"] - begin["messages"]) == (38, 38), label
        assert end["round_trips"] - begin["round_trips"] == wanted, label


def test_every_call_is_a_round_trip_where_nothing_may_be_answered(
    client: CudaClient, programs: LibraryClients, tmp_path: Path
) -> None:
    """What other systems do: settings and descriptors are messages, too."""
    stats = tmp_path / "stats"
    with cuda_serving(system("tcp-sync"), double_config(client), tmp_path) as (_, environment):
        done = run([programs.libraries], {**environment, "WORMHOLE_STATS": str(stats)})
    assert done.returncode == 0, done.stdout[-2000:]
    marks = _marks(stats)
    for label, (steps, calls) in STEPS.items():
        begin, end = marks[label], marks[f"{label} end"]
        assert end["round_trips"] - begin["round_trips"] >= steps * calls, label


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_driver_api_stands_on_the_runtime(
    client: CudaClient, programs: LibraryClients, name: str, tmp_path: Path
) -> None:
    with cuda_serving(system(name), double_config(client), tmp_path) as (_, environment):
        done = run([programs.driver, programs.image], environment)
    assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stdout + done.stderr
    assert done.stderr.count("nvcc -cudart shared") == 1, "private tables, and what to do instead"


def test_devices_are_counted_and_driver_functions_found(client: CudaClient, tmp_path: Path) -> None:
    with cuda_serving(system("wormhole"), double_config(client), tmp_path) as (_, environment):
        done = run([sys.executable, "-c", QUESTIONS], environment)
    assert done.stdout.splitlines() == ANSWERS, done.stderr
