"""In a real guest: the host's own Python, over the share, against the double of a CUDA device."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.analysis.rundir import read_lines
from testbed.experiment import booted, execute
from testbed.experiment.client import guest_cuda_variables, guest_variables
from testbed.experiment.conduct import Request
from testbed.experiment.reproduce import run_experiment
from testbed.experiment.systems import system
from testbed.machine.double_build import ALLOWED
from testbed.machine.guest import GuestRun
from testbed.machine.host_python import GUEST_ROOT, python_paths, python_tree
from testbed.machine.host_server import HostServerConfig
from testbed.machine.native_build import native_build
from testbed.machine.qemu_argv import VmConfig
from testbed.machine.served_guest import ServedGuest, served_guest
from testbed.tests.cuda_double import CudaClient, compile_cuda_client, open_folder

pytestmark = [pytest.mark.vm, pytest.mark.native]

LIMIT_S = 240.0
#: Steps that send an array to the device and take it back; NumPy is the host's.
PROGRAM = """
import ctypes, json, os, struct, sys, time
import numpy
cuda = ctypes.CDLL("libcudart.so.13")
mark = ctypes.CDLL(os.environ["WORMHOLE_MARK_LIB"]).wormhole_mark
def check(status):
    assert status == 0, status
print(json.dumps({"event": "start", "python": sys.version, "numpy": numpy.__version__}))
memory = ctypes.c_void_p()
check(cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(1 << 18)))
mark(b"ready")
for number in range(int(sys.argv[1])):
    sent = numpy.arange(1 << 16, dtype="<f4") * (number + 1)
    back = numpy.zeros_like(sent)
    size = ctypes.c_size_t(sent.nbytes)
    check(cuda.cudaMemcpy(memory, ctypes.c_void_p(sent.ctypes.data), size, 1))
    check(cuda.cudaMemcpy(ctypes.c_void_p(back.ctypes.data), memory, size, 2))
    assert (sent == back).all()
    value = float(back[-1])
    t_ns = time.monotonic_ns()
    mark(b"step %d" % number)
    bits = struct.pack(">f", value).hex()
    step = {"event": "step", "step": number, "t_ns": t_ns, "loss": value, "loss_bits": bits}
    print(json.dumps(step))
check(cuda.cudaFree(memory))
print(json.dumps({"event": "end"}))
"""
WORKLOAD = """\
name: copies
doc: Copies by the host's own Python.
command:
  argv: [python3, "{dir}/copies.py", "{steps}"]
  files: [copies.py]
  api: cuda
  host_python: true
steps: 4
warmup_steps: 1
timeout_s: 60
"""
EXPERIMENT = """\
name: host-python
seed: 5
baseline: tcp-sync
systems: [wormhole, wormhole-notify, tcp-sync]
instrumented: true
restart_guest: part
trial_timeout_s: 240
parts:
  - form: application
    workloads: [%s]
    placements: [guest]
    rounds: 1
"""


@pytest.fixture(scope="module")
def cuda() -> Iterator[CudaClient]:
    with open_folder() as folder:
        yield compile_cuda_client(folder)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, cuda: CudaClient) -> Iterator[ServedGuest]:
    build = native_build()
    vm = VmConfig(name="host-python", share=python_tree(sys.executable))
    folder = tmp_path_factory.mktemp("guest")
    with served_guest(vm, double(cuda), build.library, folder) as guest:
        guest.vm.guest.install_cuda(build.cuda)
        yield guest


def double(cuda: CudaClient) -> HostServerConfig:
    return HostServerConfig(
        backend="cuda",
        tcp=True,
        worker=native_build().worker,
        cuda=(cuda.double,),
        environment=dict(ALLOWED),
    )


def on_host_python(served: ServedGuest, code: str, *words: str) -> GuestRun:
    argv = [sys.executable, "-c", code, *words]
    return served.vm.guest.run(argv, root=GUEST_ROOT, cwd="/tmp", timeout_s=LIMIT_S)


def test_a_program_has_the_hosts_python_and_packages(served: ServedGuest) -> None:
    code = "import sys, numpy, ssl; print(sys.version, sys.prefix, sys.path, numpy.__version__)"
    here = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    seen = on_host_python(served, code)
    assert (seen.status, seen.stdout) == (0, here.stdout), seen.stderr


def test_the_share_is_read_only_and_shows_no_secrets(served: ServedGuest) -> None:
    code = """
import errno, json, os, pathlib
print(json.dumps({"event": "seen", "root": sorted(os.listdir("/")), "user": os.getuid()}))
for act in (lambda: open("/usr/bin/new", "w"), lambda: os.remove("/usr/bin/env")):
    try:
        act()
    except OSError as error:
        assert error.errno in (errno.EROFS, errno.EACCES), error
    else:
        raise SystemExit("it could be changed")
pathlib.Path("/tmp/written").write_text("in the guest's own folder")
assert os.path.exists("/dev/wormhole0")
assert not os.path.exists("/etc/shadow")
"""
    seen = on_host_python(served, code)
    assert seen.status == 0, seen.stderr
    (event,) = seen.events
    assert event["user"] == 1000
    assert {"dev", "proc", "sys", "tmp", "usr"} <= set(event["root"])
    needed = {part for path in python_paths(sys.executable) for part in path.resolve().parts}
    assert not {"root", "home", "var", "boot"} & set(event["root"]) - needed
    assert served.vm.guest.run(["cat", "/tmp/written"]).stdout.startswith("in the guest's")


def test_large_files_are_as_on_the_host(served: ServedGuest) -> None:
    """Whole, from the middle, and mapped."""
    code = """
import hashlib, mmap, sys
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        file.seek(len(view) // 2)
        print(hashlib.sha256(view).hexdigest(), hashlib.sha256(file.read()).hexdigest())
"""
    real = str(Path(sys.executable).resolve())
    names = [real, *map(str, sorted(Path("/usr/lib/x86_64-linux-gnu").glob("libLLVM-*.so.1"))[:1])]
    here = subprocess.run(
        [sys.executable, "-c", code, *names],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    seen = on_host_python(served, code, *names)
    assert (seen.status, seen.stdout) == (0, here.stdout), seen.stderr


@pytest.mark.parametrize("name", ["wormhole", "tcp-sync"])
def test_it_reaches_the_device(served: ServedGuest, name: str) -> None:
    environment = {
        **guest_variables(system(name), served.server),
        **guest_cuda_variables(native_build().cuda),
        "WORMHOLE_MARK_LIB": "/opt/wormhole/lib/cuda/libwormhole_cuda.so",
    }
    argv = [sys.executable, "-c", PROGRAM, "3"]
    seen = served.vm.guest.run(argv, environment, root=GUEST_ROOT, cwd="/tmp", timeout_s=LIMIT_S)
    assert seen.status == 0, seen.stderr
    assert [event["event"] for event in seen.events] == ["start", *["step"] * 3, "end"]


def test_a_c_program_on_the_hosts_libraries_does_what_it_does_natively(
    served: ServedGuest, cuda: CudaClient
) -> None:
    cases = cuda.cases("fault", "sizes")
    program = "/opt/wormhole/programs/client"
    served.vm.ssh.put({program: cuda.program}, timeout_s=LIMIT_S)
    seen = served.vm.guest.run(
        [program, *cases],
        guest_cuda_variables(native_build().cuda),
        root=GUEST_ROOT,
        timeout_s=LIMIT_S,
    )
    assert seen.stdout.splitlines() == cuda.native(*cases).stdout.splitlines(), seen.stderr
    assert seen.status == 0


def test_a_program_that_is_not_there_is_said(served: ServedGuest) -> None:
    seen = served.vm.guest.run(["/nonexistent"], root=GUEST_ROOT, timeout_s=LIMIT_S)
    assert seen.status != 0
    assert "cannot start /nonexistent" in seen.stderr


def test_an_experiment_runs_on_it(
    cuda: CudaClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All systems, with the device's counts beside the senders'."""
    config = functools.partial(HostServerConfig, cuda=(cuda.double,), environment=dict(ALLOWED))
    monkeypatch.setattr(booted, "HostServerConfig", config)
    monkeypatch.setattr(booted, "MEMORY_MIB", 1024)
    (tmp_path / "copies.py").write_text(PROGRAM)
    workload = tmp_path / "copies.yaml"
    workload.write_text(WORKLOAD)
    (tmp_path / "host-python.yaml").write_text(EXPERIMENT % workload)
    done = run_experiment(Request(str(tmp_path / "host-python.yaml"), out=tmp_path / "out"))
    trials = read_lines(done.path / "trials.jsonl")
    assert [trial["status"] for trial in trials] == ["ok"] * 3, [t["detail"] for t in trials]
    metrics = {str(trial["system"]): trial["metrics"] for trial in trials}
    notify, adaptive = metrics["wormhole-notify"], metrics["wormhole"]
    assert notify["notifications_to_host_per_step"] == notify["messages_per_step"] >= 2
    assert 0 <= notify["device_notifications_to_host"] - notify["sent_notifications_to_host"] <= 8
    assert adaptive["notifications_to_host_per_step"] <= notify["notifications_to_host_per_step"]
    assert metrics["tcp-sync"]["device_notifications_to_host"] == 0
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["host_python"]["program"] == sys.executable


def test_by_hand(
    cuda: CudaClient,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    config = functools.partial(HostServerConfig, cuda=(cuda.double,), environment=dict(ALLOWED))
    monkeypatch.setattr(execute, "HostServerConfig", config)
    monkeypatch.setattr(execute, "MEMORY_MIB", 1024)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    code = PROGRAM.replace('os.environ["WORMHOLE_MARK_LIB"]', '"libwormhole_cuda.so"')
    stats = tmp_path / "stats.jsonl"
    argv = ["python3", "-c", code, "2"]
    status = execute.execute(
        argv, "wormhole", "guest", backend="cuda", stats=stats, host_python=True
    )
    printed = capfd.readouterr()
    assert status == 0, printed.err
    assert [json.loads(line)["event"] for line in printed.out.splitlines()][-1] == "end"
    assert stats.stat().st_size > 0
