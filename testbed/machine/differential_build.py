"""Builds the differential program: cases from the spec and by hand, linked with OpenCL's loader."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import TestbedError
from testbed.machine.artifacts import artifact, log_path, run_logged
from testbed.machine.native_build import (
    COMPILE_LIMIT_S,
    COMPILER,
    OPENCL_DEFINES,
    OPENCL_STUB,
    WARNINGS,
    compiler_version,
)
from testbed.protocol.case_baselines import BASELINES
from testbed.protocol.emit_cases import cases_source
from testbed.protocol.spec import load_api
from testbed.root import ROOT

SOURCES = OPENCL_STUB / "tests" / "differential"
HEADER = Path("/usr/include/CL/cl.h")
FLAGS = ("-g", "-O1", "-std=gnu11", "-pthread", *WARNINGS, *OPENCL_DEFINES)
LIBRARIES = ("-l:libOpenCL.so.1", "-ldl")


def differential_program() -> Path:
    """The built program.  Raises TestbedError without compiler or headers."""
    if not HEADER.is_file():
        raise TestbedError(f"there is no {HEADER}", "apt-get install opencl-headers")
    cases = cases_source(load_api("opencl"), HEADER.read_text(encoding="utf-8"), BASELINES)
    sources = sorted((ROOT / SOURCES).glob("*.[ch]"))
    inputs: dict[str, str | bytes | Path] = {
        "compiler": compiler_version(),
        "flags": " ".join((*FLAGS, *LIBRARIES)),
        "cases": cases,
        **{path.name: path for path in sources},
    }
    log = log_path("differential", inputs)

    def build(directory: Path) -> None:
        generated = directory / "cases.c"
        generated.write_text(cases, encoding="utf-8")
        argv: list[str | Path] = [COMPILER, *FLAGS, f"-I{ROOT / SOURCES}"]
        argv += ["-o", directory / "differential", generated]
        argv += [*(path for path in sources if path.suffix == ".c"), *LIBRARIES]
        run_logged(argv, log, COMPILE_LIMIT_S)

    return artifact("differential", inputs, build) / "differential"
