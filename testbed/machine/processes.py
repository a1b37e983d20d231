"""What the kernel counts for a process of ours."""

from __future__ import annotations

import os
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
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError as error:
        raise TestbedError(f"process {pid} has ended: {error.strerror}") from error
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    return CpuSeconds(user_s=int(fields[11]) * tick_s, system_s=int(fields[12]) * tick_s)
