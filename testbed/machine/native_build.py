"""Builds the native code: the ICD library, the worker, the replay client and the bench.

Everything needs libc alone, so the guest needs no packages.  The result is an artifact keyed by all
sources, the generated code and the compiler; sanitizer variants are artifacts of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.machine.artifacts import artifact, log_path, run_logged
from testbed.machine.prebuilt import prebuilt
from testbed.progress import say
from testbed.protocol.generate import generated_files, write_if_changed
from testbed.protocol.spec import (
    CUDA_NAMES,
    PROTOCOL_DIR,
    SPEC_NAMES,
    Library,
    load_api,
    spec_path,
)
from testbed.root import ROOT

STUB = Path("guest_agent/stub")
OPENCL_STUB = STUB / "opencl"
CUDA_STUB = STUB / "cuda"
BENCH = Path("guest_agent/bench")
BENCH_COPY = BENCH / "copy"
STRESS = Path("guest_agent/stress")
WORKER = Path("host_server/worker")
REPLAY = Path("host_server/replay")
FUZZ = Path("host_server/fuzz")
CODEC = Path("testbed/protocol/c")
UAPI = Path("guest_agent/driver/wormhole_uapi.h")

SPECS_FOLDER = "specs"  # of a build: what it was generated from, for its supervisor

CUDA_SHARED = "libwormhole_cuda.so"
COMPILER = "gcc"
OPENCL_HEADER = "CL/cl_icd.h"
COMPILE_LIMIT_S = 180.0
COMPILERS_MAX = 8
# The dispatch table has every function since OpenCL 1.0, also those now called deprecated.
OPENCL_DEFINES = tuple(
    f"-DCL_USE_DEPRECATED_OPENCL_{version}_APIS"
    for version in ("1_0", "1_1", "1_2", "2_0", "2_1", "2_2")
)
FUZZ_WRAPPED = ("wh_execute", "wh_core_whEcho", "wh_notice_wait", "nanosleep", "_exit")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
FLAGS = ("-g", "-std=gnu11", "-fvisibility=hidden", "-pthread", *OPENCL_DEFINES)
SANITIZERS: Mapping[str, tuple[str, ...]] = {
    "": ("-O2",),
    "address": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # It warns that it does not follow fences; release and acquire order the data here.
    "thread": ("-O1", "-fsanitize=thread", "-Wno-tsan"),
}


@dataclass(frozen=True)
class NativeBuild:
    """Paths of the built programs, all in one artifact directory."""

    directory: Path

    @property
    def library(self) -> Path:
        """The OpenCL vendor library that stands in for the accelerator's own."""
        return self.directory / "libwormhole_opencl.so"

    @property
    def cuda(self) -> Path:
        """The folder of the libraries that stand in for CUDA's, under the same names."""
        return self.directory / "cuda"

    @property
    def cuda_runtime(self) -> Path:
        """What those libraries share: the session, and the mark that programs call."""
        return self.cuda / CUDA_SHARED

    def cuda_libraries(self) -> list[Path]:
        """The libraries under CUDA's names, what they need first."""
        return [self.cuda / _soname(name) for name in CUDA_NAMES]

    @property
    def worker(self) -> Path:
        """The per-session process of the host server."""
        return self.directory / "wormhole-worker"

    @property
    def bench(self) -> Path:
        """The client of `bench.call`."""
        return self.directory / "wormhole-bench"

    @property
    def bench_copy(self) -> Path:
        """The client of `bench.copy`: an OpenCL program that loads whatever the loader finds."""
        return self.directory / "wormhole-bench-copy"

    @property
    def fuzz(self) -> Path:
        """The fuzzer; only in a build with tests."""
        return self.directory / "wormhole-fuzz"

    @property
    def stress(self) -> Path:
        """The client that checks calls of the runtime by the million."""
        return self.directory / "wormhole-stress"

    @property
    def replay(self) -> Path:
        """The client that replays a recorded call stream."""
        return self.directory / "wormhole-replay"

    def test_program(self, name: str) -> Path:
        """A C test program by the name of its source, without suffix."""
        return self.directory / name


@dataclass(frozen=True)
class _Unit:
    """A source file (relative to the repository, or generated) and where its includes are."""

    source: Path
    includes: tuple[Path, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Program:
    """One link."""

    name: str
    units: tuple[_Unit, ...]
    link: tuple[str, ...] = ()
    shared: bool = False
    needs: tuple[str, ...] = ()  # programs that are linked before: those have fewer needs


def native_build(sanitizer: str = "", tests: bool = False) -> NativeBuild:
    """The built programs, from the cache if nothing changed.

    `sanitizer` is "", "address" (with undefined behaviour) or "thread"; `tests` adds the C test
    programs.  Where OpenCL's headers are missing, what needs them is left out: the worker then has
    no OpenCL, and CUDA alone is forwarded.  Raises TestbedError without a compiler, or with the
    compiler's own last lines.
    """
    ready = prebuilt("native")
    if ready is not None and not sanitizer and not tests:
        return NativeBuild(ready)
    compiler = compiler_version()
    opencl = has_opencl_headers()
    if tests and not opencl:
        raise TestbedError(
            f"the tests of the native code need {OPENCL_HEADER}", "apt-get install opencl-headers"
        )
    generated = {str(name): text for name, text in generated_files().items()}
    specs = {name: spec_path(name).read_text(encoding="utf-8") for name in SPEC_NAMES}
    inputs: dict[str, str | bytes | Path] = {
        "compiler": compiler,
        "flags": " ".join((*WARNINGS, *FLAGS, *SANITIZERS[sanitizer])),
        "recipe": Path(__file__),
        "tests": str(tests),
        "opencl": str(opencl),
        **{f"generated/{name}": text for name, text in generated.items()},
        **{f"{SPECS_FOLDER}/{name}": text for name, text in specs.items()},
        **{str(path): ROOT / path for path in _all_sources()},
    }
    name = "native" + (f"-{sanitizer}" if sanitizer else "") + ("-tests" if tests else "")
    log = log_path(name, inputs)
    build = _builder(sanitizer, tests, opencl, generated, log)

    def build_with_specs(directory: Path) -> None:
        say(f"{name}: being built from {len(inputs)} sources (about 20 s)")
        for spec, text in specs.items():
            write_if_changed(directory / SPECS_FOLDER / f"{spec}.yaml", text)
        build(directory)

    return NativeBuild(artifact(name, inputs, build_with_specs))


def has_opencl_headers() -> bool:
    """Whether the compiler finds the headers of OpenCL with its dispatch table."""
    asked = subprocess.run(
        [COMPILER, "-E", "-x", "c", "-"],
        input=f"#include <{OPENCL_HEADER}>\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return asked.returncode == 0


def compiler_version() -> str:
    """First line of the compiler's version; TestbedError if there is none."""
    program = shutil.which(COMPILER)
    if program is None:
        raise TestbedError(
            f"building the native code needs {COMPILER}, which is not installed",
            "apt-get install gcc libc6-dev",
        )
    shown = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    return shown.stdout.split("\n", 1)[0]


def _builder(
    sanitizer: str, tests: bool, opencl: bool, generated: Mapping[str, str], log: Path
) -> Callable[[Path], None]:
    def build(directory: Path) -> None:
        generated_dir = directory / "generated"
        for name, text in generated.items():
            write_if_changed(generated_dir / name, text)
        programs = _programs(generated_dir, opencl)
        if tests:
            programs += _test_programs(generated_dir)
        objects_dir = directory / "objects"
        objects_dir.mkdir()
        (directory / "cuda").mkdir()
        units = sorted({unit for program in programs for unit in program.units}, key=str)
        objects = {unit: objects_dir / f"{n}-{unit.source.stem}.o" for n, unit in enumerate(units)}
        flags = (*WARNINGS, *FLAGS, *SANITIZERS[sanitizer], "-fPIC")

        def compile_unit(unit: _Unit) -> None:
            includes = (generated_dir / "include", CODEC, *unit.includes)
            argv: list[str | Path] = [COMPILER, *flags, *unit.flags]
            argv += [f"-I{path}" for path in includes]
            argv += ["-c", "-o", objects[unit], unit.source]
            run_logged(argv, log, COMPILE_LIMIT_S, cwd=ROOT)

        def link(program: _Program) -> None:
            argv: list[str | Path] = [COMPILER, *flags, "-shared" if program.shared else "-pie"]
            argv += ["-o", directory / program.name]
            argv += [*(objects[unit] for unit in program.units)]
            argv += [*(directory / need for need in program.needs), *program.link]
            run_logged(argv, log, COMPILE_LIMIT_S, cwd=ROOT)

        workers = max(1, min(len(os.sched_getaffinity(0)), COMPILERS_MAX))
        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(compile_unit, units):
                pass
            for count in range(max(len(program.needs) for program in programs) + 1):
                ready = [program for program in programs if len(program.needs) == count]
                for _ in pool.map(link, ready):
                    pass
        shutil.rmtree(objects_dir)

    return build


def _programs(generated: Path, with_opencl: bool) -> list[_Program]:
    runtime = _runtime(generated)
    worker = _worker(generated)
    if not with_opencl:
        return [
            _Program("wormhole-worker", tuple(filter(_is_without_opencl, worker)), ("-ldl",)),
            *_cuda_programs(generated),
        ]
    opencl = (
        *_units(OPENCL_STUB, (OPENCL_STUB, STUB)),
        *_generated(generated, "stub_opencl", (OPENCL_STUB, STUB)),
    )
    programs = [
        _Program(
            "libwormhole_opencl.so",
            (*runtime, *opencl),
            # The library has thread-exit handlers: it must outlive dlclose.
            (f"-Wl,--version-script={STUB / 'exports.map'}", "-Wl,-z,nodelete", "-Wl,-z,defs"),
            shared=True,
        ),
        _Program("wormhole-worker", worker, ("-ldl",)),
        _Program("wormhole-bench", (*_units(BENCH, (STUB,)), *runtime)),
        _Program("wormhole-bench-copy", _units(BENCH_COPY, ()), ("-ldl",)),
        _Program("wormhole-stress", (_Unit(STRESS / "core_stress.c", (STUB,)), *runtime)),
    ]
    programs += _cuda_programs(generated)
    if (ROOT / REPLAY).is_dir():
        replay = (
            *_units(REPLAY, (REPLAY, WORKER)),
            *_without_main(worker),
        )
        programs.append(_Program("wormhole-replay", replay, ("-ldl",)))
    return programs


def _is_without_opencl(unit: _Unit) -> bool:
    return "opencl" not in unit.source.name and unit.source.name != "skeleton_timed.c"


def _cuda_programs(generated: Path) -> list[_Program]:
    """The library that CUDA's share, and one for each that ours stand in for.

    The shared one is all visible, so that it can be; programs find none of it by chance, as its
    names all begin with our own prefix.
    """
    includes = (CUDA_STUB, STUB)
    visible = ("-fvisibility=default",)
    shared = [*_runtime(generated), *_units(CUDA_STUB, includes)]
    programs = [
        _Program(
            f"cuda/{CUDA_SHARED}",
            tuple(_Unit(unit.source, unit.includes, visible) for unit in shared),
            (f"-Wl,-soname,{CUDA_SHARED}", "-Wl,-z,nodelete", "-Wl,-z,defs"),
            shared=True,
        )
    ]
    for name in CUDA_NAMES:
        own = (CUDA_STUB / name, *includes)
        units = (*_units(CUDA_STUB / name, own), _Unit(generated / f"stub_cuda_{name}.c", own))
        link = (
            f"-Wl,-soname,{_soname(name)}",
            f"-Wl,--version-script={generated / f'cuda_{name}.map'}",
            "-Wl,-rpath,$ORIGIN",
            *("-Wl,-z,nodelete", "-Wl,-z,defs", "-ldl"),
        )
        needs = (f"cuda/{CUDA_SHARED}", *(f"cuda/{_soname(need)}" for need in _library(name).needs))
        programs.append(_Program(f"cuda/{_soname(name)}", units, link, True, needs))
    return programs


def _library(name: str) -> Library:
    library = load_api(name).library
    assert library is not None, name
    return library


def _soname(name: str) -> str:
    return _library(name).soname


def _test_programs(generated: Path) -> list[_Program]:
    runtime = _runtime(generated)
    worker = _without_main(_worker(generated))
    programs = [
        _Program(unit.source.stem, (unit, *runtime))
        for unit in _units(STUB / "tests", (STUB, UAPI.parent))
    ]
    programs += [
        _Program(unit.source.stem, (unit, *worker), ("-ldl",))
        for unit in _units(WORKER / "tests", (WORKER,))
    ]
    fuzz = (
        *_units(FUZZ, (FUZZ, WORKER)),
        *_generated(generated, "fuzz_", (FUZZ,)),
        *worker,
    )
    # The fuzzer counts what is executed, takes the waiting out of calls that only wait, and lets no
    # thread end the process while another reports.
    wrapped = tuple(f"-Wl,--wrap={name}" for name in FUZZ_WRAPPED)
    programs.append(_Program("wormhole-fuzz", fuzz, ("-ldl", *wrapped)))
    return programs


def _runtime(generated: Path) -> tuple[_Unit, ...]:
    return (*_units(STUB, (STUB,)), *_generated(generated, "stub_core", (STUB,)))


def _worker(generated: Path) -> tuple[_Unit, ...]:
    return (
        *_units(WORKER, (WORKER,)),
        *_generated(generated, "skeleton_", (WORKER,)),
        *_generated(generated, "opcode_names", (WORKER,)),
    )


def _without_main(units: tuple[_Unit, ...]) -> tuple[_Unit, ...]:
    return tuple(unit for unit in units if unit.source.name != "main.c")


def _units(directory: Path, includes: tuple[Path, ...]) -> tuple[_Unit, ...]:
    """C files of a repository directory."""
    found = sorted((ROOT / directory).glob("*.c"))
    return tuple(_Unit(path.relative_to(ROOT), includes) for path in found)


def _generated(generated: Path, prefix: str, includes: tuple[Path, ...]) -> tuple[_Unit, ...]:
    found = sorted(generated.glob(f"{prefix}*.c"))
    return tuple(_Unit(path, includes) for path in found)


def _all_sources() -> list[Path]:
    """Everything that can change the result besides the generated code."""
    directories = (
        *(STUB, OPENCL_STUB, STUB / "tests", BENCH, BENCH_COPY, STRESS),
        *(CUDA_STUB, *(CUDA_STUB / name for name in CUDA_NAMES)),
        *(WORKER, WORKER / "tests", REPLAY, FUZZ, CODEC),
    )
    found = [
        path.relative_to(ROOT)
        for directory in directories
        for path in sorted((ROOT / directory).glob("*"))
        if path.suffix in {".c", ".h", ".map"}
    ]
    exported = [(PROTOCOL_DIR / "exports" / f"{name}.txt").relative_to(ROOT) for name in CUDA_NAMES]
    return [*found, *exported, UAPI]
