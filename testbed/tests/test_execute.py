"""Programs by hand: which library they find, how they end, what is said about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment.client import cleaned
from testbed.experiment.execute import execute


def test_nothing_of_the_environment_leads_elsewhere() -> None:
    leading = ("WORMHOLE_SERVER", "OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")
    assert cleaned({"PATH": "/bin", **dict.fromkeys(leading, "x")}) == {"PATH": "/bin"}


def test_status_of_a_native_program() -> None:
    assert execute([sys.executable, "-c", "raise SystemExit(7)"], "native", "process") == 7
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert execute([sys.executable, "-c", program], "native", "process") == 128 + 9


def test_an_unknown_backend_is_said() -> None:
    with pytest.raises(TestbedError, match="no backend 'vulkan'"):
        execute(["true"], "wormhole", "process", backend="vulkan")


def test_the_time_limit_ends_a_program(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    )
    argv = [sys.executable, "-c", program, str(pid_file)]
    assert execute(argv, "native", "process", timeout_s=2.0) == 124
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.parametrize(
    ("argv", "system", "placement", "words"),
    [
        ([], "native", "process", "no program"),
        (["/nonexistent/program"], "native", "process", "cannot start /nonexistent/program"),
        (["true"], "nativ", "process", "unknown system"),
        (["true"], "wormhole", "cloud", "unknown placement"),
        (["true"], "native", "guest", "native runs on the host"),
    ],
)
def test_what_cannot_be_run_is_said(
    argv: list[str], system: str, placement: str, words: str
) -> None:
    with pytest.raises(TestbedError, match=words):
        execute(argv, system, placement)


@pytest.mark.native
def test_a_program_reaches_a_worker(tmp_path: Path) -> None:
    from testbed.machine.native_build import native_build

    stats = tmp_path / "stats.jsonl"
    bench = [str(native_build().bench), "--calls", "100", "--blocks", "10"]
    assert execute(bench, "wormhole", "process", stats=stats, backend="null") == 0
    assert stats.stat().st_size > 0
