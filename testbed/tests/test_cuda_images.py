"""Device code crosses once: kept by its digest for later processes and runs of one VM."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from host_server.image_store import STORE_NAME, ImageStore
from testbed.experiment.systems import system
from testbed.machine.artifacts import cache_dir
from testbed.machine.double_build import device_code
from testbed.machine.host_server import IMAGES_NAME, HostServerConfig
from testbed.tests.cuda_double import (
    CudaClient,
    compile_cuda_client,
    cuda_serving,
    double_config,
    open_folder,
    run,
)

pytestmark = pytest.mark.native
MIB = 1 << 20
CODE_BYTES = 3 * MIB
KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
LITTLE_BYTES = 64 << 10  # what a process sends that has no code to send

#: Loads the files of device code that it is told, and finds a kernel in each.
LOADER = """
import ctypes, sys
library, ref = ctypes.CDLL("libcudart.so.13"), ctypes.byref
for path in sys.argv[1:]:
    code, image, kernel = open(path, "rb").read(), ctypes.c_void_p(), ctypes.c_void_p()
    print(library.cudaLibraryLoadData(ref(image), code, None, None, 0, None, None, 0),
          library.cudaLibraryGetKernel(ref(kernel), image, b"vector_add"))
"""


@pytest.fixture(scope="module")
def client() -> Iterator[CudaClient]:
    with open_folder() as folder:
        yield compile_cuda_client(folder)


@pytest.fixture(scope="module")
def codes(client: CudaClient) -> list[Path]:
    """Files of device code, each another one."""
    kernels = (client.program.parent / "kernels.so").read_bytes()
    made = []
    for index in range(6):
        padding = random.Random(index).randbytes(CODE_BYTES - 16 - len(kernels))
        path = client.program.parent / f"code-{index}"
        path.write_bytes(device_code(kernels + padding))
        made.append(path)
    return made


@pytest.fixture
def vm() -> Iterator[str]:
    """The name of a VM that nobody else has; what is kept of it goes."""
    name = f"test-{os.getpid()}"
    yield name
    for path in (cache_dir() / IMAGES_NAME).glob(f"{name}*"):
        shutil.rmtree(path)


def kept(vm: str) -> list[Path]:
    """The files of a VM's kept code."""
    return sorted((cache_dir() / IMAGES_NAME / vm / STORE_NAME).glob("[0-9a-f]" * 64))


def loaded(environment: dict[str, str], folder: Path, *paths: Path) -> int:
    """The bytes that a process sends in order to load code."""
    stats = folder / "stats"
    stats.unlink(missing_ok=True)
    more = {**environment, "WORMHOLE_STATS": str(stats)}
    done = run([sys.executable, "-c", LOADER, *paths], more)
    assert done.stdout.splitlines() == ["0 0"] * len(paths), done.stderr
    counted = json.loads(stats.read_text(encoding="utf-8").splitlines()[-1])
    return int(counted["bytes_sent"])


def config_of(client: CudaClient, vm: str = "", images_mib: int | None = None) -> HostServerConfig:
    return replace(double_config(client), vm=vm, images_mib=images_mib)


@pytest.mark.parametrize("name", ["wormhole", "tcp-sync"])
def test_a_second_process_sends_a_digest(
    client: CudaClient, codes: list[Path], name: str, tmp_path: Path
) -> None:
    """Also before the first has ended, and where the server keeps nothing beyond its own life."""
    with cuda_serving(system(name), config_of(client), tmp_path) as (_, environment):
        assert loaded(environment, tmp_path, codes[0]) >= CODE_BYTES
        assert loaded(environment, tmp_path, codes[0]) < LITTLE_BYTES
        assert loaded(environment, tmp_path, codes[0], codes[1]) < CODE_BYTES + LITTLE_BYTES
    with cuda_serving(system(name), config_of(client), tmp_path) as (_, environment):
        assert loaded(environment, tmp_path, codes[0]) >= CODE_BYTES


def test_a_process_sends_the_same_code_once(
    client: CudaClient, codes: list[Path], tmp_path: Path
) -> None:
    config = config_of(client, images_mib=0)
    with cuda_serving(system("wormhole"), config, tmp_path) as (_, environment):
        sent = loaded(environment, tmp_path, codes[0], codes[0], codes[0])
        assert CODE_BYTES <= sent < CODE_BYTES + LITTLE_BYTES
        assert loaded(environment, tmp_path, codes[0]) >= CODE_BYTES


def test_the_next_run_of_a_vm_sends_a_digest_and_another_vm_the_code(
    client: CudaClient, codes: list[Path], vm: str, tmp_path: Path
) -> None:
    for name, crosses in ((vm, True), (vm, False), (f"{vm}-other", True)):
        config = config_of(client, name)
        with cuda_serving(system("wormhole"), config, tmp_path) as (_, environment):
            sent = loaded(environment, tmp_path, codes[0])
        assert (sent >= CODE_BYTES) == crosses, f"{name} sent {sent} bytes"
    folder = cache_dir() / IMAGES_NAME / vm
    assert folder.stat().st_mode & 0o777 == 0o700, "no other user may enter"


def test_damaged_code_is_refused_and_crosses_again(
    client: CudaClient, codes: list[Path], vm: str, tmp_path: Path
) -> None:
    config = config_of(client, vm)
    with cuda_serving(system("wormhole"), config, tmp_path) as (server, environment):
        assert loaded(environment, tmp_path, codes[0]) >= CODE_BYTES
        (path,) = kept(vm)
        with path.open("r+b") as file:
            file.seek(CODE_BYTES // 2)
            file.write(b"other code")
        assert loaded(environment, tmp_path, codes[0]) >= CODE_BYTES
        assert loaded(environment, tmp_path, codes[0]) < LITTLE_BYTES
        assert "is damaged: removed" in server.log.read_text(encoding="utf-8")
    assert [path.stat().st_size for path in kept(vm)] == [CODE_BYTES]


def test_no_more_is_kept_than_the_bound(
    client: CudaClient, codes: list[Path], vm: str, tmp_path: Path
) -> None:
    """What was used longest ago goes; a smaller bound of the next server counts at once."""
    config = config_of(client, vm, images_mib=10)
    with cuda_serving(system("wormhole"), config, tmp_path) as (_, environment):
        for code in codes:
            loaded(environment, tmp_path, code)
            assert sum(path.stat().st_size for path in kept(vm)) <= 10 * MIB
        assert loaded(environment, tmp_path, *codes[-3:]) < LITTLE_BYTES
        assert loaded(environment, tmp_path, codes[0]) >= CODE_BYTES
    config = replace(config, images_mib=4)
    with cuda_serving(system("wormhole"), config, tmp_path) as (_, environment):
        assert len(kept(vm)) == 1
        assert loaded(environment, tmp_path, codes[0]) < LITTLE_BYTES


def test_processes_at_once_load_the_same_code(
    client: CudaClient, codes: list[Path], vm: str, tmp_path: Path
) -> None:
    config = config_of(client, vm)
    with cuda_serving(system("wormhole"), config, tmp_path) as (_, environment):
        argv = [sys.executable, "-c", LOADER, *map(str, codes)]
        both = [
            subprocess.Popen(argv, env={**os.environ, **environment}, stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        said = [process.communicate(timeout=120)[0].decode().splitlines() for process in both]
        assert said == [["0 0"] * len(codes)] * 2
        assert loaded(environment, tmp_path, *codes) < LITTLE_BYTES
    left = {path.name for path in kept(vm)[0].parent.iterdir()} - {"lock"}
    assert left == {path.name for path in kept(vm)} and len(left) == len(codes)


def test_what_a_broken_in_worker_leaves_is_swept(tmp_path: Path) -> None:
    """A name of another's, a date ahead, blocks beyond the end, a moved place in the list."""
    store = ImageStore(tmp_path / "vm", bytes_max=1 << 20, alone=True)
    folder = tmp_path / "vm" / STORE_NAME
    mine, other = folder / f"new-{os.getpid()}-1", folder / "new-1-1"
    for path in (mine, other, folder / "left"):
        path.write_bytes(b"x")
    if os.getuid() == 0:  # as whom process 1 runs
        os.chown(other, 12345, -1)
    os.utime(other, (9e9, 9e9))
    small, large = folder / ("a" * 64), folder / ("b" * 64)
    small.write_bytes(b"x")
    beyond = (ctypes.c_long(0), ctypes.c_long(2 << 20))
    with large.open("wb") as file:
        if ctypes.CDLL(None).fallocate(file.fileno(), KEEP_SIZE, *beyond) != 0:
            file.write(b"x" * (2 << 20))
    os.utime(large, (1, 1))
    os.lseek(store.fd, 1 << 40, os.SEEK_SET)
    try:
        store.sweep()
        assert sorted(path.name for path in folder.iterdir()) == [small.name, mine.name]
    finally:
        store.close()
