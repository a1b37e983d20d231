"""Who waits costs nothing: a client that is blocked for long, its worker, and the supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.systems import PRESETS
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.machine.processes import cpu_seconds

pytestmark = [pytest.mark.native, pytest.mark.opencl]

SETTLE_S = 1.0
WATCHED_S = 2.0
CPU_SHARE_MAX = 0.1  # of one processor, for all of them together; spinning would be 1

#: Waits for an event that nobody will complete.
CLIENT = """
import ctypes
cl = ctypes.CDLL("libOpenCL.so.1")
for name in ("clCreateContext", "clCreateUserEvent"):
    getattr(cl, name).restype = ctypes.c_void_p
platform, device, error = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
cl.clGetPlatformIDs(1, ctypes.byref(platform), None)
cl.clGetDeviceIDs(platform, ctypes.c_ulong(0xFFFFFFFF), 1, ctypes.byref(device), None)
context = cl.clCreateContext(None, 1, ctypes.byref(device), None, None, ctypes.byref(error))
event = cl.clCreateUserEvent(ctypes.c_void_p(context), ctypes.byref(error))
print("waits", error.value, flush=True)
cl.clWaitForEvents(1, ctypes.byref(ctypes.c_void_p(event)))
"""


def used_s(pids: list[int]) -> float:
    """CPU time of these processes so far."""
    used = [cpu_seconds(pid) for pid in pids]
    return sum(one.user_s + one.system_s for one in used)


@pytest.mark.parametrize("name", ["wormhole", "tcp-sync"])
def test_a_blocked_client_costs_nothing(name: str, tmp_path: Path) -> None:
    build = native_build()
    chosen = PRESETS[name]
    tcp = chosen.transport == "tcp"
    config = HostServerConfig(unix=not tcp, tcp=tcp, worker=build.worker)
    with host_server(config, tmp_path / "server") as server:
        vendors = vendor_folder(tmp_path, build.library)
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env=client_environment(os.environ, chosen, server, vendors),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "waits 0\n"
            time.sleep(SETTLE_S)
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
            pids = [client.pid, server.pid, *(int(child) for child in children)]
            before_s, begin_s = used_s(pids), time.monotonic()
            time.sleep(WATCHED_S)
            passed_s = time.monotonic() - begin_s
            assert used_s(pids) - before_s < CPU_SHARE_MAX * passed_s
            assert client.poll() is None
        finally:
            client.kill()
            client.communicate()
