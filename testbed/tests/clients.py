"""The C clients of guest_agent/stub/opencl/tests: compiling them, what they list."""

from __future__ import annotations

import subprocess
from pathlib import Path

CLIENTS = Path(__file__).resolve().parents[2] / "guest_agent" / "stub" / "opencl" / "tests"
LIMIT_S = 120.0


def compile_client(folder: Path, name: str, *flags: str) -> Path:
    """A client by its source's name without suffix, linked with the system's loader."""
    program = folder / name
    argv = ["gcc", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", *flags]
    argv += ["-o", str(program), str(CLIENTS / f"{name}.c"), "-l:libOpenCL.so.1"]
    subprocess.run(argv, check=True, timeout=LIMIT_S)
    return program


def scenarios(client: Path) -> list[str]:
    """What a client runs when it is told to: the names that it prints without an argument."""
    done = subprocess.run([client], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return done.stdout.split()
