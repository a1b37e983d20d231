"""Runs one program on the host to its end or its limit; outputs go to files, CPU time is kept.

The program gets a process group of its own, of which nothing is left afterwards, and it dies with
us even if we are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError

POLL_S = 0.02
KILL_LIMIT_S = 5.0
TAIL_BYTES = 4096


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: exit status (negative: signal), CPU and wall time in seconds."""

    status: int
    timed_out: bool
    user_s: float
    system_s: float
    max_rss_kib: int
    wall_s: float


def run_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    stdout: Path,
    stderr: Path,
    timeout_s: float,
) -> ProgramEnd:
    """Run a program with exactly this environment; `folder` is its working directory.

    Raises TestbedError if it cannot be started.  CPU time is of the program and the children that
    it waited for.
    """
    begin_s = time.monotonic()
    deadline_s = begin_s + timeout_s
    with _started(argv, environment, folder, stdout, stderr) as process:
        timed_out = False
        while not _has_ended(process.pid):
            if time.monotonic() > deadline_s and not timed_out:
                timed_out = True
                _kill_group(process.pid)
            time.sleep(POLL_S)
        # Not collected yet, so its id is still its own: end what it started under it.
        _kill_group(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return ProgramEnd(
            status=process.returncode,
            timed_out=timed_out,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            max_rss_kib=usage.ru_maxrss,
            wall_s=time.monotonic() - begin_s,
        )


def last_line(path: Path) -> str:
    """The last non-empty line of a program's output, or an empty text."""
    try:
        with path.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - TAIL_BYTES))
            lines = source.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@contextmanager
def _started(
    argv: Sequence[str], environment: Mapping[str, str], folder: Path, stdout: Path, stderr: Path
) -> Iterator[subprocess.Popen[bytes]]:
    # setpriv makes the kernel kill the program when we die, in whatever way.
    words = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
    with stdout.open("wb") as out, stderr.open("wb") as err:
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise TestbedError(
                f"cannot start {argv[0]}: {error.strerror or error}",
                "run ./inv doctor to see what is missing",
            ) from error
    try:
        yield process
    finally:
        if process.returncode is None:
            _kill_group(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_LIMIT_S)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
