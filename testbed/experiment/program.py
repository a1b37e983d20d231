"""Runs one program on the host to its end or its limit; outputs go to files, CPU time is kept.

The program gets a process group of its own, of which nothing is left afterwards, and it dies with
us even if we are killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from testbed.errors import TestbedError
from testbed.machine.guest import complaint_in

KILL_LIMIT_S = 5.0
TAIL_BYTES = 4096
LINES_LIMIT = 2_000_000
LINE_LIMIT_BYTES = 1 << 20  # a longer line is taken for several


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: exit status (negative: signal), CPU and wall time in seconds.

    `lines` are its output with the time (CLOCK_MONOTONIC, ns) of each line, where asked for.
    """

    status: int
    timed_out: bool
    user_s: float
    system_s: float
    max_rss_kib: int
    wall_s: float
    lines: tuple[tuple[int, str], ...] = ()


def run_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    stdout: Path,
    stderr: Path,
    timeout_s: float,
    timed_lines: bool = False,
    file_limit_bytes: int | None = None,
) -> ProgramEnd:
    """Run a program with exactly this environment; `folder` is its working directory.

    With `timed_lines` its output is read as it comes, for programs that do not say when a step
    ended.  Otherwise it goes straight to the file, which disturbs the program less.  A program that
    makes a file larger than `file_limit_bytes`, its output among them, is ended by SIGXFSZ.

    Raises TestbedError if it cannot be started.  CPU time is of the program and the children that
    it waited for.
    """
    begin_s = time.monotonic()
    with (
        _Timed(stdout, file_limit_bytes) if timed_lines else stdout.open("wb") as out,
        _started(_limited(argv, file_limit_bytes), environment, folder, out, stderr) as process,
    ):
        # Sleep until it ends: looking again and again would take time from what is measured.
        timed_out = not _ends_within(process.pid, timeout_s)
        # Not collected yet, so its id is still its own: end what it started under it.
        _kill_group(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - begin_s
        return ProgramEnd(
            status=process.returncode,
            timed_out=timed_out,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            max_rss_kib=usage.ru_maxrss,
            wall_s=wall_s,
            lines=out.finish() if isinstance(out, _Timed) else (),
        )


class _Timed:
    """The writing end of a pipe whose lines are noted with their time and kept in a file."""

    def __init__(self, path: Path, limit_bytes: int | None) -> None:
        self._reading, self._writing = os.pipe()
        self._lines: list[tuple[int, str]] = []
        self._thread = threading.Thread(target=self._read, args=(path, limit_bytes), daemon=True)
        self._thread.start()

    def __enter__(self) -> _Timed:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def fileno(self) -> int:
        """What the program gets as its standard output."""
        return self._writing

    def finish(self) -> tuple[tuple[int, str], ...]:
        """Close our copy of the writing end, so that the reader sees the end; return the lines."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        self._thread.join(KILL_LIMIT_S)
        return tuple(self._lines)

    def _read(self, path: Path, limit_bytes: int | None) -> None:
        written = 0
        with os.fdopen(self._reading, "rb") as source, path.open("wb") as copy:
            while line := source.readline(LINE_LIMIT_BYTES):
                now_ns = time.monotonic_ns()
                written += len(line)
                if limit_bytes is not None and written > limit_bytes:
                    continue  # read on, so that the program does not wait for us
                copy.write(line)
                if len(self._lines) < LINES_LIMIT:
                    self._lines.append((now_ns, line.decode("utf-8", errors="replace").rstrip()))


def _limited(argv: Sequence[str], file_limit_bytes: int | None) -> list[str]:
    if file_limit_bytes is None:
        return list(argv)
    return ["prlimit", f"--fsize={file_limit_bytes}", "--", *argv]


def complaint_of(path: Path) -> str:
    """What a program's standard error, in a file, says about a failure; see `complaint_in`."""
    try:
        with path.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - TAIL_BYTES))
            return complaint_in(source.read().decode("utf-8", errors="replace"))
    except OSError:
        return ""


@contextmanager
def _started(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    out: IO[bytes] | _Timed,
    stderr: Path,
) -> Iterator[subprocess.Popen[bytes]]:
    # setpriv makes the kernel kill the program when we die, in whatever way.
    words = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
    with stderr.open("wb") as err:
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out.fileno(),
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


def _ends_within(pid: int, limit_s: float) -> bool:
    """Wait for a child to end without collecting it."""
    fd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(limit_s * 1000))
    finally:
        os.close(fd)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
