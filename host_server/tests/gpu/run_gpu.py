"""CUDA on a real GPU, natively and forwarded, compared: `python3 -m host_server.tests.gpu.run_gpu`.

For machines with a GPU and CUDA's compiler; no network, no QEMU, nothing built before. Steps go
from small to large, each with a limit of its own, and go on after a failure: one run tells all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from host_server.cuda_libraries import cuda_libraries
from testbed.experiment.client import host_variables
from testbed.experiment.systems import system
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.protocol.spec import CUDA_NAMES, load_api
from testbed.root import ROOT

CODEC = ROOT / "testbed/protocol/c"
TESTS = ROOT / "guest_agent/stub/cuda/tests"
CASES = (
    *("null_outputs", "vector_add", "sizes", "pageable_async", "registered_order", "read_backs"),
    "callbacks",
    "full_queue",
    *("threads", "forking", "bad_handles", "stickiness", "layout", "events", "mapped", "symbols"),
    *("rectangles", "fault"),
)
# Memory that a kernel and the program both see; over TCP the two have none, and are told so.
SHARED_MEMORY_CASES = ("mapped",)
REFUSED = "cudaHostGetDevicePointer((void **)&device, pinned, 0): 801 (cudaErrorNotSupported)"
BREADTH = (
    *("graph_nodes", "graph_structure", "graph_memory", "graph_captured", "capture_memory"),
    *("graph_update", "graph_lives", "graph_errors", "boxes", "pools", "registered", "functions"),
    *("occupancy", "launches", "priorities", "callback_order", "peers"),
)
DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")
PROGRAMS = Path(__file__).parent
TRAIN_PROGRAM = ROOT / "workloads/programs/train_torch.py"
SMALL_STEPS = ("import", "tensors", "matmul", "linear", "conv", "copies")
MODELS = ("lenet", "resnet18", "lstm", "transformer", "alexnet", "resnet50")
# The driver's API is what these use; tinygrad and Triton must be there.
DRIVER_STEPS = {
    "tinygrad_ptx": "tinygrad_steps.py",
    "tinygrad_nvrtc": "tinygrad_steps.py",
    "triton": "triton_steps.py",
    "descriptors": "triton_steps.py",
    "compile": "torch_steps.py",
}
MODULE_FORMS = ("fatbin", "ptx", "cubin")
OPTIMISER_STEPS = 5  # in a step of the program's
TRAINED_STEPS = ("10", "2")


class Build:
    """Our libraries and worker, and the test program with the GPU's kernels."""

    def __init__(self, folder: Path) -> None:
        self._native = native_build()
        self.cuda = self._native.cuda
        self.worker = self._native.worker
        self._folder = folder
        self.driver = folder / "driver"

    def compile_client(self, name: str) -> Path:
        """A test program with the GPU's kernels."""
        generated = self._native.directory / "generated/include"
        include = [f"-I{path}" for path in (generated, CODEC, TESTS)]
        words: list[str | Path] = ["nvcc", "-O1", "-cudart", "shared", *include]
        program = self._folder / name
        words += ["-o", program, TESTS / f"{name}.c", TESTS / "kernels.cu", "-lpthread"]
        _must(words)
        return program

    def compile_driver(self) -> dict[str, Path]:
        """The driver's test program, and its kernels in every form that a program can load."""
        generated = self._native.directory / "generated/include"
        include = [f"-I{path}" for path in (generated, CODEC, TESTS)]
        ours = [self.cuda / "libcuda.so.1", self.cuda / "libcudart.so.13"]
        # Only names are taken from these libraries: which ones a run has its environment says.
        words: list[str | Path] = ["gcc", "-std=gnu11", *include, "-o", self.driver]
        _must([*words, TESTS / "driver.c", *ours, "-Wl,--allow-shlib-undefined", "-lpthread"])
        modules = {form: self.driver.with_suffix(f".{form}") for form in MODULE_FORMS}
        for form, path in modules.items():
            _must(["nvcc", f"-{form}", "-arch=native", "-o", path, TESTS / "module.cu"])
        return modules


def _must(words: Sequence[str | Path]) -> None:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        print(" ".join(map(str, words))[:300], "\n", done.stdout[-1500:], done.stderr[-3000:])
        done.check_returncode()


def _steady(lines: Sequence[str]) -> str:
    """What an optimiser step of the latter half took: calls, messages; by function, if measured."""
    events = [json.loads(line) for line in lines]
    marks = [event for event in events if event["event"] == "mark"]
    if len(marks) < 4:
        return lines[-1]
    first = len(marks) // 2
    steps = (len(marks) - 1 - first) * OPTIMISER_STEPS
    names = ("api_calls", "local_answers", "messages", "round_trips", "oneway", "sleeps")
    text = " ".join(
        f"{name} {(marks[-1][name] - marks[first][name]) / steps:.2f}" for name in names
    )
    known = {f.opcode: f.name for name in CUDA_NAMES for f in load_api(name).functions}
    times = [event for event in events if event["event"] == "times"]
    if len(times) == len(marks):
        before = {row[0]: row for row in times[first]["client"]}
        for row in times[-1]["client"]:
            waits, sends = (row[i] - before.get(row[0], [0] * 9)[i] for i in (4, 7))
            if waits + sends > 0:
                name = known.get(row[0], hex(row[0]))
                text += f"\n   {name}: waits {waits / steps:.2f} sends {sends / steps:.2f}"
    return f"an optimiser step: {text}"


def _driver_folders(*more: str) -> str:
    """Where libcuda lies, if not where the loader looks: a worker has an environment of its own."""
    folders = [path for path in DRIVER_FOLDERS if (Path(path) / "libcuda.so.1").exists()]
    return ":".join([*folders, *more, os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")


class Runs:
    """Native and forwarded runs of programs, and what came of them."""

    def __init__(self, build: Build, jail: bool) -> None:
        self._build = build
        self._jail = jail
        self.instrument = False
        self.failed: list[str] = []

    def native(self, argv: Sequence[str], limit_s: float) -> tuple[int, str, str]:
        """Run with the machine's own libraries."""
        return _run(argv, {**os.environ, "LD_LIBRARY_PATH": _driver_folders()}, limit_s)

    def forwarded(
        self, argv: Sequence[str], limit_s: float, name: str = "wormhole", log: str = "1"
    ) -> tuple[int, str, str]:
        """Run with ours in front, and a server of its own."""
        chosen = system(name, [])
        tcp = chosen.transport == "tcp"
        config = HostServerConfig(
            backend="cuda",
            unix=not tcp,
            tcp=tcp,
            worker=self._build.worker,
            cuda=tuple(cuda_libraries()),
            jail=self._jail,
            environment={"WORMHOLE_CUDA_LOG": log, "LD_LIBRARY_PATH": _driver_folders()},
        )
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wormhole-gpu-")))
            server = stack.enter_context(host_server(config, folder / "server"))
            libraries = sorted(self._build.cuda.glob("*.so*"))
            environment = {
                **os.environ,
                **host_variables(chosen, server),
                "LD_LIBRARY_PATH": str(self._build.cuda),
                "LD_PRELOAD": ":".join(map(str, libraries)),
                "WORMHOLE_STATS": str(folder / "stats"),
                "WORMHOLE_INSTRUMENT": "1" if self.instrument else "0",
                "WORMHOLE_MARK_LIB": str(self._build.cuda / "libwormhole_cuda.so"),
            }
            status, out, err = _run(argv, environment, limit_s)
            time.sleep(0.3)
            said = server.log.read_text(encoding="utf-8", errors="replace")
            stats = folder / "stats"
            if stats.exists():
                err += "\nSTATS " + _steady(stats.read_text(encoding="utf-8").strip().split("\n"))
            return status, out, err + "\nSERVER " + said[-2500:]


def _run(argv: Sequence[str], environment: dict[str, str], limit_s: float) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            list(argv),
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        out, err = (_text(part) for part in (error.stdout, error.stderr))
        return 124, out, err + f"\nended at its limit of {limit_s:.0f} s"
    return done.returncode, done.stdout, done.stderr


def _text(part: bytes | str | None) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part or ""


@contextlib.contextmanager
def _step(name: str) -> Iterator[None]:
    begin_s = time.monotonic()
    try:
        yield
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        print(f"STEP {name}: {type(error).__name__}: {error}", flush=True)
    print(f"STEP {name}: {time.monotonic() - begin_s:.1f} s", flush=True)


def _show_machine() -> None:
    for words in (
        ["nvidia-smi", "--query-gpu=name,driver_version,memory.used", "--format=csv"],
        ["nvcc", "--version"],
        ["sh", "-c", "which gdb cuda-gdb gcc python3; ldd --version | head -1; nproc"],
    ):
        with contextlib.suppress(OSError):
            done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
            print(done.stdout.strip())
    print("CUDA libraries:", *cuda_libraries(), flush=True)


def _cases(runs: Runs, program: Path, cases: Sequence[str], name: str) -> None:
    for case in cases:
        argv = [str(program), case]
        native = runs.native(argv, 60)
        forwarded = runs.forwarded(argv, 60, name)
        same = native[:2] == forwarded[:2]
        if case in SHARED_MEMORY_CASES and system(name, []).transport == "tcp":
            same = native[0] == 0 and REFUSED in forwarded[1]
        print(f"CASE {case} {name}: native {native[0]} {'same' if same else 'DIFFERENT'}")
        if not same:
            runs.failed.append(f"{case} {name}")
            print("  native:", native[1][-1200:], native[2][-300:])
            print("  forwarded:", forwarded[0], forwarded[1][-1500:], forwarded[2][-1500:])
        elif native[0] != 0:
            print(f"  {native[1][-1000:]}")
        sys.stdout.flush()


def _together(runs: Runs, program: Path, cases: Sequence[str], name: str) -> None:
    """All cases in one process: their lines are compared case by case."""
    argv = [str(program), *cases]
    native = runs.native(argv, 120)
    forwarded = runs.forwarded(argv, 120, name)
    for case in cases:
        ours, theirs = (
            [line for line in text.splitlines() if line.startswith(f"{case}:")]
            for text in (forwarded[1], native[1])
        )
        right = bool(theirs) and theirs[-1] == f"{case}: passed"
        same = ours == theirs and right
        print(f"CASE {case} {name}: {'same' if same else 'DIFFERENT' if right else 'WRONG TEST'}")
        if not same:
            runs.failed.append(f"{case} {name}")
            print("  native:", *theirs, sep="\n    ")
            print("  forwarded:", *ours, sep="\n    ")
    if native[0] != 0 or forwarded[0] != 0:
        print(
            f"  ended with {native[0]} and {forwarded[0]}", native[2][-800:], forwarded[2][-2500:]
        )


def _torch(runs: Runs, steps: Sequence[str], names: Sequence[str], deadline_s: float) -> None:
    for step in steps:
        if time.monotonic() > deadline_s:
            print(f"TORCH {step}: no time left")
            runs.failed.append(f"torch {step} (no time)")
            continue
        argv = [sys.executable, "-X", "faulthandler", *_program(step)]
        native = runs.native(argv, 90)
        print(f"TORCH {step} native {native[0]}: {native[1].strip()[-300:]}")
        if native[0] != 0:
            print("  ", native[2][-600:])
        for name in names:
            got = runs.forwarded(argv, 120, name)
            same = _results(native[1]) == _results(got[1]) and got[0] == 0
            print(
                f"TORCH {step} {name} {got[0]} {'same' if same else 'DIFFERENT'}: "
                f"{got[1].strip()[-400:]}"
            )
            if not same:
                runs.failed.append(f"torch {step} {name}")
                print("  ", got[2][-3000:])
                again = runs.forwarded(argv, 60, name, "2")
                print("  LAST CALLS", again[2][-2500:])
            else:
                print("  ", got[2].partition("STATS")[2].partition("SERVER")[0][:3000])
            sys.stdout.flush()


def _program(step: str) -> list[str]:
    if step in MODELS:
        return [str(TRAIN_PROGRAM), step, *TRAINED_STEPS]
    return [str(PROGRAMS / DRIVER_STEPS.get(step, "torch_steps.py")), step]


def _driver(runs: Runs, build: Build, names: Sequence[str]) -> None:
    """The driver's test program, which knows every right value, with each form of code."""
    for form, path in build.compile_driver().items():
        argv = [str(build.driver), str(path)]
        found = _driver_folders(*map(str, cuda_libraries()))
        native = _run([*argv, "common"], {**os.environ, "LD_LIBRARY_PATH": found}, 60)
        print(f"DRIVER {form} native {native[0]}: {native[1].strip()[-1500:]}{native[2][-500:]}")
        ends = {name: runs.forwarded(argv, 60, name) for name in names}
        for name, got in ends.items():
            print(f"DRIVER {form} {name} {got[0]}: {got[1].strip()[-1500:]}")
            if got[0] != 0:
                print("  ", got[2][-2500:])
        runs.failed += [f"driver {form} {name}" for name, got in ends.items() if got[0] != 0]
        runs.failed += [f"driver {form} native"] if native[0] != 0 else []
        sys.stdout.flush()


def _results(text: str) -> list[str]:
    """What must be the same: lines that say so, and losses bit for bit."""
    found = [line for line in text.split("\n") if line.startswith("result")]
    return [*found, *re.findall(r'"loss_bits": "[0-9a-f]+"', text)]


def main() -> int:
    """Entry point; 0 if everything was the same natively and forwarded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="cases,breadth,torch", help="some of these, or driver")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--breadth", default=",".join(BREADTH))
    parser.add_argument("--together", action="store_true", help="cases in one process")
    parser.add_argument(
        "--torch", default=",".join((*SMALL_STEPS, *MODELS)), help=f"also: {' '.join(DRIVER_STEPS)}"
    )
    parser.add_argument("--systems", default="wormhole")
    jail = argparse.BooleanOptionalAction
    parser.add_argument("--jail", action=jail, default=True, help="workers in their jail")
    parser.add_argument("--instrument", action="store_true", help="messages by function")
    parser.add_argument("--limit-s", type=float, default=420.0)
    arguments = parser.parse_args()
    deadline_s = time.monotonic() + arguments.limit_s
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _show_machine()
    with tempfile.TemporaryDirectory(prefix="wormhole-gpu-build-") as folder:
        with _step("build"):
            build = Build(Path(folder))
        runs = Runs(build, arguments.jail)
        runs.instrument = arguments.instrument
        names = arguments.systems.split(",")
        for step, program, cases in (
            ("cases", "client", arguments.cases),
            ("breadth", "breadth", arguments.breadth),
        ):
            if step not in arguments.steps:
                continue
            with _step(program):
                compiled = build.compile_client(program)
            for name in names:
                with _step(f"{step} {name}"):
                    judge = _together if arguments.together else _cases
                    judge(runs, compiled, cases.split(","), name)
        if "driver" in arguments.steps:
            with _step("driver"):
                _driver(runs, build, names)
        if "torch" in arguments.steps:
            with _step("torch"):
                _torch(runs, arguments.torch.split(","), names, deadline_s)
    print("FAILED:" if runs.failed else "ALL THE SAME", *runs.failed)
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
