"""Wakes a client by its eventfd, which the client shares: whatever it did to it, we never wait."""

from __future__ import annotations

import contextlib
import os
import signal

TRY_LIMIT_S = 0.05


def wake(fd: int) -> None:
    """Add one to an eventfd. Main thread only.

    The client may make the descriptor blocking and its counter full at any moment, also between a
    look of ours and the write: so the write is interrupted by a timer. A full counter wakes, too.
    """
    previous = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, TRY_LIMIT_S, TRY_LIMIT_S)
    try:
        with contextlib.suppress(OSError):
            os.eventfd_write(fd, 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
