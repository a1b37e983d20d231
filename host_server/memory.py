"""The limit on a session's memory: looked at from outside, for the worker runs the guest's code.

Counted is what a session's processes hold and nothing else gives back: anonymous memory, and
shared memory beyond the session's own slot. A limit on address space would hit honest programs:
they reserve far more than they touch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from host_server.loop import Loop, Timer
from host_server.worker_process import Worker, log

LOOK_S = 0.5
# Processes that a worker has started are looked for this many times less often.
SEARCH_EVERY = 4
DEFAULT_SHARE = 0.75
MIB = 1 << 20


def default_limit_bytes() -> int:
    """Three quarters of the machine's memory: a session may be the only one, and is no more."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(pages * DEFAULT_SHARE)


def held_bytes(pid: int, slot_bytes: int) -> int:
    """Memory of a process that counts; 0 if it has ended."""
    anonymous = shared = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                anonymous = int(line.split()[1]) * 1024
            elif line.startswith("RssShmem:"):
                shared = int(line.split()[1]) * 1024
    return anonymous + max(0, shared - slot_bytes)


def processes_by_user(users: set[int]) -> dict[int, list[int]]:
    """Process ids of some users."""
    found: dict[int, list[int]] = {user: [] for user in users}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                owner = entry.stat().st_uid
                if owner in users:
                    found[owner].append(int(entry.name))
    return found


class MemoryWatch:
    """Ends sessions that hold more than the limit. Sleeps while there are none."""

    def __init__(
        self,
        loop: Loop,
        limit_bytes: int,
        slot_bytes: int,
        workers: Callable[[], Iterable[Worker]],
    ) -> None:
        self._loop = loop
        self._limit_bytes = limit_bytes
        self._slot_bytes = slot_bytes
        self._workers = workers
        self._timer: Timer | None = None
        self._looks = 0

    def wake(self) -> None:
        """A session has begun."""
        if self._timer is None and self._limit_bytes > 0:
            self._timer = self._loop.after(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._looks += 1
        workers = list(self._workers())
        users = {worker.uid for worker in workers if worker.uid}
        search = users and self._looks % SEARCH_EVERY == 0
        others = processes_by_user(users) if search else {}
        for worker in workers:
            pids = {worker.pid, *others.get(worker.uid, ())}
            held = sum(held_bytes(pid, self._slot_bytes) for pid in pids)
            if held > self._limit_bytes:
                reason = (
                    f"it held {held // MIB} MiB of memory, the limit is {self._limit_bytes // MIB}"
                )
                log(f"session {worker.session} is ended: {reason} MiB")
                worker.end(reason)
                worker.kill()
        if workers:
            self.wake()
