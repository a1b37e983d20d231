"""Runs the work of ./inv under a janitor, so that even kill -9 leaves nothing running.

    ./inv            the process that the user sees: passes signals on, gives the exit status
      janitor        gets every process that loses its parent; ends what is left after a violent end
        work         imports the tasks and runs one; all that it starts is below the janitor

The three share process group and terminal.  If ./inv is killed, the janitor asks the work to end in
order; if the work is killed, the janitor ends what the work had started.  After an end by the
work's own decision nothing is killed: `vm.boot` leaves a guest on purpose.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from testbed.guard import ENDING_SIGNALS

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
END_LIMIT_S = 60.0
GRACE_S = 10.0
KILL_LIMIT_S = 10.0
POLL_S = 0.05


def run_watched(work: Callable[[], None]) -> NoReturn:
    """Run `work` in a process of its own and exit with its status.

    `work` gets the ending signals blocked; it unblocks them when it can take them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING_SIGNALS, signal.SIGCHLD})
    ours_read, ours_write = os.pipe()
    pid_read, pid_write = os.pipe()
    janitor = os.fork()
    if janitor == 0:
        os.close(ours_write)
        os.close(pid_read)
        _be_janitor(work, ours_read, pid_write)
    os.close(ours_read)
    os.close(pid_write)
    with os.fdopen(pid_read) as source:
        worker = int(source.readline() or 0)
    status = _pass_signals(janitor, worker)
    if status < 0:
        name = signal.Signals(-status).name
        print(
            f"error: the task was killed ({name}) - if nobody did that, memory ran out (see dmesg);"
            " what it had started has been ended; run the same command again",
            file=sys.stderr,
        )
    raise SystemExit(status if status >= 0 else 128 - status)


def _pass_signals(janitor: int, worker: int) -> int:
    """Pass signals on until the janitor ends; returns its status, negative for a signal."""
    while True:
        number = signal.sigwait({*ENDING_SIGNALS, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            # On Ctrl-C the terminal has told the work too; it takes the second for the first.
            if worker:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, number)
            continue
        pid, status = os.waitpid(janitor, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)


def _be_janitor(work: Callable[[], None], owner_fd: int, pid_fd: int) -> NoReturn:
    """Start the work, watch it and its owner, clear up; signals stay blocked here."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    janitor = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(owner_fd)
        os.close(pid_fd)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        if os.getppid() == janitor:
            work()
        raise SystemExit(0)
    status = -signal.SIGKILL
    try:
        os.write(pid_fd, f"{worker}\n".encode())
        os.close(pid_fd)
        status = _watch(worker, owner_fd)
    finally:
        # Nothing may leave this function: the caller's frames belong to the user's process.
        if status < 0:
            # End as the work did, so that our parent can tell a kill from an exit status.
            with contextlib.suppress(OSError):
                signal.signal(-status, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
            os.kill(os.getpid(), -status)
        os._exit(status if status >= 0 else 128 - status)


def _watch(worker: int, owner_fd: int) -> int:
    """Wait for the end of the work, or of its owner; returns the work's status as Popen does."""
    worker_fd = os.pidfd_open(worker)
    poll = select.poll()
    poll.register(worker_fd, select.POLLIN)
    poll.register(owner_fd, select.POLLHUP)
    ready = {fd for fd, _ in poll.poll()}
    owner_is_gone = worker_fd not in ready
    if owner_is_gone:
        poll.unregister(owner_fd)
        os.kill(worker, signal.SIGTERM)
        if not poll.poll(END_LIMIT_S * 1000):
            os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    if owner_is_gone or code < 0:
        _end_children()
    return code


def _end_children() -> None:
    """End what the work left.  Host servers notice its end and clear up themselves, in a moment."""
    deadline_s = time.monotonic() + GRACE_S
    while _children() and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    deadline_s = time.monotonic() + KILL_LIMIT_S
    while (left := _children()) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _children() -> list[int]:
    """Our children that still run; those that ended are collected."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    pid = os.getpid()
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
