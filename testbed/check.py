"""`./inv check` and `./inv test`: linters, generated code, unit tests; then everything."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from testbed.errors import TestbedError
from testbed.progress import format_duration, say
from testbed.root import ROOT

# One limit for a linter and one for the whole test run: nothing here may hang.
LINTER_LIMIT_S = 300
UNIT_LIMIT_S = 600
TEST_LIMIT_S = 80 * 60


def c_sources() -> list[Path]:
    """C files that follow our layout (the QEMU patches follow QEMU's)."""
    found = [
        path
        for top in ("guest_agent", "host_server", "testbed", "workloads")
        for pattern in ("**/*.c", "**/*.h")
        for path in (ROOT / top).glob(pattern)
        # The driver is kernel code and follows the kernel's layout; golden files are generated.
        if "driver" not in path.parts and "golden" not in path.parts
    ]
    return sorted(found)


def run_check() -> None:
    """Linters, types, C layout, generated code and unit tests; no VM, under a minute."""
    _linters()
    _step(
        "unit tests",
        _pytest("-q", "-m", "not vm and not native and not opencl"),
        UNIT_LIMIT_S,
    )


def run_test(extra: list[str]) -> None:
    """The linters and every test, real guests among them. pytest's summary is the last line."""
    _linters()
    _step("all tests", _pytest("--durations=12", *extra), TEST_LIMIT_S)


def _linters() -> None:
    python = sys.executable
    _step("generated code", [python, "-m", "testbed.protocol.generate"], LINTER_LIMIT_S)
    _step("ruff check", [python, "-m", "ruff", "check", "-q", "."], LINTER_LIMIT_S)
    _step("ruff format", [python, "-m", "ruff", "format", "-q", "--check", "."], LINTER_LIMIT_S)
    _step("mypy", [python, "-m", "mypy", "--no-error-summary"], LINTER_LIMIT_S)
    files = [str(path) for path in c_sources()]
    # The version that pyproject.toml pins, beside the interpreter: layouts differ between versions.
    clang_format = str(Path(python).with_name("clang-format"))
    _step("clang-format", [clang_format, "--dry-run", "-Werror", *files], LINTER_LIMIT_S)


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def _step(name: str, argv: list[str], limit_s: int) -> None:
    begin_s = time.monotonic()
    try:
        done = subprocess.run(argv, cwd=ROOT, timeout=limit_s, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise TestbedError(
            f"check: {argv[0]} is not installed", f"apt-get install {argv[0]}"
        ) from None
    except subprocess.TimeoutExpired:
        raise TestbedError(f"check: {name} ran longer than {limit_s} s") from None
    if done.returncode != 0:
        raise TestbedError(
            f"check: {name} failed with status {done.returncode}", "mend what is printed above"
        )
    say(f"check: {name}: ok ({format_duration(time.monotonic() - begin_s)})")
