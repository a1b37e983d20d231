"""What the kernel counts for a process of ours."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError


@dataclass(frozen=True)
class CpuSeconds:
    """CPU time a process has used so far, in seconds."""

    user_s: float
    system_s: float


def cpu_seconds(pid: int) -> CpuSeconds:
    """CPU time of a process so far, with all its threads, without its children.

    Raises TestbedError if it has ended.
    """
    return _cpu_seconds(Path(f"/proc/{pid}/stat"), f"process {pid}")


def thread_cpu_seconds(pid: int, threads: Iterable[int]) -> CpuSeconds:
    """CPU time of some threads of a process so far.  Raises TestbedError if one has ended."""
    times = [
        _cpu_seconds(Path(f"/proc/{pid}/task/{thread}/stat"), f"thread {thread}")
        for thread in threads
    ]
    return CpuSeconds(sum(t.user_s for t in times), sum(t.system_s for t in times))


def _cpu_seconds(path: Path, what: str) -> CpuSeconds:
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError as error:
        raise TestbedError(f"{what} has ended: {error.strerror}") from error
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    return CpuSeconds(user_s=int(fields[11]) * tick_s, system_s=int(fields[12]) * tick_s)
