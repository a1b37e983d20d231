"""Running a host program: CPU time, limits, and nothing left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment.program import ProgramEnd, complaint_of, run_program


def run(folder: Path, code: str, timeout_s: float = 20.0, timed_lines: bool = False) -> ProgramEnd:
    return run_program(
        [sys.executable, "-c", code],
        {"PATH": os.environ["PATH"], "MARK": "set"},
        folder,
        folder / "out",
        folder / "err",
        timeout_s,
        timed_lines,
    )


def test_what_our_library_said_is_the_complaint(tmp_path: Path) -> None:
    path = tmp_path / "err"
    path.write_text("wormhole: the session is lost\nTraceback\nclFinish: -36\n\n")
    assert complaint_of(path) == "wormhole: the session is lost"
    path.write_text("\n")
    assert complaint_of(path) == complaint_of(tmp_path / "none") == ""


def test_outputs_status_environment_and_cpu_time(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "while time.process_time() < 0.3: pass\n"
        "print(os.environ['MARK'], 'HOME' in os.environ)\n"
        "print('went wrong', file=sys.stderr); sys.exit(3)"
    )
    end = run(tmp_path, code)
    assert (end.status, end.timed_out) == (3, False)
    assert (tmp_path / "out").read_text() == "set False\n"
    assert complaint_of(tmp_path / "err") == "went wrong"
    assert 0.3 <= end.user_s + end.system_s <= end.wall_s + 0.5
    assert end.max_rss_kib > 1000


def test_lines_are_timed_when_asked_for(tmp_path: Path) -> None:
    code = "import time\nfor _ in range(3): print(time.monotonic_ns(), flush=True)"
    end = run(tmp_path, code, timed_lines=True)
    assert len(end.lines) == 3
    # A line is noted after it was printed, and lines are noted in order.
    assert all(int(text) <= t_ns for t_ns, text in end.lines)
    assert [t_ns for t_ns, _ in end.lines] == sorted(t_ns for t_ns, _ in end.lines)
    assert (tmp_path / "out").read_text() == "".join(f"{text}\n" for _, text in end.lines)


def test_a_hung_program_and_its_children_are_ended_at_the_limit(tmp_path: Path) -> None:
    code = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        "print(child.pid, flush=True); time.sleep(100)"
    )
    end = run(tmp_path, code, timeout_s=1.0)
    assert (end.status, end.timed_out) == (-9, True)
    assert not alive(int((tmp_path / "out").read_text()))


def test_a_child_that_outlives_the_program_is_ended(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '100']).pid)"
    assert run(tmp_path, code).status == 0
    assert not alive(int((tmp_path / "out").read_text()))


def test_a_missing_program_is_a_status_with_its_name(tmp_path: Path) -> None:
    end = run_program(
        ["/no/such/program"],
        {"PATH": os.environ["PATH"]},
        tmp_path,
        tmp_path / "out",
        tmp_path / "err",
        5.0,
    )
    assert end.status == 127
    assert "/no/such/program" in complaint_of(tmp_path / "err")


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="cannot start true"):
        run_program(
            ["true"], {}, tmp_path / "none", tmp_path / "out", tmp_path / "err", timeout_s=5.0
        )


def alive(pid: int, limit_s: float = 5.0) -> bool:
    """Whether a process runs; one that was just killed gets a moment to disappear."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "ZX":
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("timed_lines", [False, True])
def test_a_program_that_prints_without_end_does_not_fill_the_disk(
    tmp_path: Path, timed_lines: bool
) -> None:
    code = "import sys\nfor n in range(100000): print(n)\nsys.stdout.flush()"
    end = run_program(
        [sys.executable, "-c", code],
        {"PATH": os.environ["PATH"]},
        tmp_path,
        tmp_path / "out",
        tmp_path / "err",
        30.0,
        timed_lines,
        file_limit_bytes=1000,
    )
    assert 900 < (tmp_path / "out").stat().st_size <= 1000
    # Into a file it fails, as on a full disk; a pipe is read to its end, and the rest dropped.
    assert (end.status == 0) is timed_lines
    assert sum(len(text) + 1 for _, text in end.lines) <= 1000
