"""How quiet the host was: load, steal, throttling and foreign processor time around each trial.

The rule that marks a trial noisy is fixed here and copied into every manifest (`RULE`).  A noisy
trial is kept and counted, never dropped: dropping what looks slow would bias the result.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

QUIET_SAMPLE_S = 0.25
BUSY_BEFORE_LIMIT_CORES = 0.25
BUSY_BEFORE_GUEST_LIMIT_CORES = 0.5
STEAL_LIMIT_SHARE = 0.02
FOREIGN_LIMIT_SHARE = 0.10

#: What the manifest says about the marking of noisy trials.
RULE = {
    "text": (
        "a trial is noisy if, in the quarter second before it, the processors were busier than "
        f"{BUSY_BEFORE_LIMIT_CORES} cores ({BUSY_BEFORE_GUEST_LIMIT_CORES} with an idle guest), or "
        f"if during it more than {STEAL_LIMIT_SHARE:.0%} of the processor time was stolen by the "
        f"hypervisor, more than {FOREIGN_LIMIT_SHARE:.0%} was used by foreign processes, or a core "
        "was throttled because it was hot (where the kernel counts that); "
        "noisy trials are marked and counted, not dropped"
    ),
    "busy_before_limit_cores": BUSY_BEFORE_LIMIT_CORES,
    "busy_before_guest_limit_cores": BUSY_BEFORE_GUEST_LIMIT_CORES,
    "steal_limit_share": STEAL_LIMIT_SHARE,
    "foreign_limit_share": FOREIGN_LIMIT_SHARE,
}

_PROC_STAT = Path("/proc/stat")
_CORES = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class CpuTimes:
    """Processor seconds since boot, summed over the cores that we may use."""

    busy_s: float
    idle_s: float
    steal_s: float

    @property
    def total_s(self) -> float:
        return self.busy_s + self.idle_s + self.steal_s


@dataclass(frozen=True)
class Noise:
    """The host around one trial; shares are of all cores that we may use."""

    busy_before_cores: float
    load_before: float
    load_after: float
    steal_share: float
    foreign_share: float
    throttled: int | None
    reasons: tuple[str, ...]

    @property
    def noisy(self) -> bool:
        return bool(self.reasons)

    def to_json(self) -> dict[str, object]:
        return {
            "busy_before_cores": round(self.busy_before_cores, 3),
            "load_before": self.load_before,
            "load_after": self.load_after,
            "steal_share": round(self.steal_share, 4),
            "foreign_share": round(self.foreign_share, 4),
            "throttled": self.throttled,
            "noisy": self.noisy,
            "reasons": list(self.reasons),
        }


def parse_cpu_times(text: str, cores: frozenset[int], ticks_per_s: int) -> CpuTimes:
    """Sum the `cpuN` lines of /proc/stat over `cores`."""
    busy = idle = steal = 0
    for line in text.splitlines():
        words = line.split()
        if not words or not words[0].startswith("cpu") or not words[0][3:].isdigit():
            continue
        if int(words[0][3:]) not in cores:
            continue
        # user nice system idle iowait irq softirq steal (guest time is within user)
        ticks = [int(word) for word in words[1:9]]
        ticks += [0] * (8 - len(ticks))
        busy += ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]
        idle += ticks[3] + ticks[4]
        steal += ticks[7]
    return CpuTimes(busy / ticks_per_s, idle / ticks_per_s, steal / ticks_per_s)


def cpu_times() -> CpuTimes:
    """Processor times now."""
    return parse_cpu_times(
        _PROC_STAT.read_text(encoding="ascii", errors="replace"),
        frozenset(os.sched_getaffinity(0)),
        os.sysconf("SC_CLK_TCK"),
    )


def throttle_count(cores: Path = _CORES) -> int | None:
    """How often cores were throttled since boot; None where the kernel does not count it."""
    found = list(cores.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    try:
        counts = [int(path.read_text(encoding="ascii")) for path in found]
    except (OSError, ValueError):
        return None
    return sum(counts) if counts else None


def busy_cores(before: CpuTimes, after: CpuTimes, core_count: int) -> float:
    """How many cores were busy on average between two readings."""
    total_s = after.total_s - before.total_s
    return core_count * (after.busy_s - before.busy_s) / total_s if total_s > 0 else 0.0


def judge(
    *,
    busy_before_cores: float,
    load_before: float,
    load_after: float,
    before: CpuTimes,
    after: CpuTimes,
    own_cpu_s: float | None,
    with_guest: bool,
    throttled: int | None = None,
) -> Noise:
    """Apply RULE to what was measured; None: our share, or the throttling, is not known."""
    total_s = max(after.total_s - before.total_s, 1e-9)
    steal_share = (after.steal_s - before.steal_s) / total_s
    foreign_share = 0.0
    if own_cpu_s is not None:
        foreign_share = max(0.0, (after.busy_s - before.busy_s - own_cpu_s) / total_s)
    limit = BUSY_BEFORE_GUEST_LIMIT_CORES if with_guest else BUSY_BEFORE_LIMIT_CORES
    reasons = []
    if busy_before_cores > limit:
        reasons.append(f"{busy_before_cores:.2f} cores busy before")
    if steal_share > STEAL_LIMIT_SHARE:
        reasons.append(f"{steal_share:.1%} stolen")
    if foreign_share > FOREIGN_LIMIT_SHARE:
        reasons.append(f"{foreign_share:.0%} used by others")
    if throttled:
        reasons.append(f"cores throttled {throttled} times")
    return Noise(
        busy_before_cores=busy_before_cores,
        load_before=load_before,
        load_after=load_after,
        steal_share=steal_share,
        foreign_share=foreign_share,
        throttled=throttled,
        reasons=tuple(reasons),
    )


class NoiseWatch:
    """Reads the host before and after a trial: make it, run the trial, then ask `result`."""

    def __init__(self, with_guest: bool) -> None:
        self._with_guest = with_guest
        first = cpu_times()
        time.sleep(QUIET_SAMPLE_S)
        self._before = cpu_times()
        cores = len(os.sched_getaffinity(0))
        self._busy_before_cores = busy_cores(first, self._before, cores)
        self._load_before = os.getloadavg()[0]
        self._throttled_before = throttle_count()

    def result(self, own_cpu_s: float | None) -> Noise:
        """Judge the trial that ended now; `own_cpu_s` is what our own processes used."""
        throttled = throttle_count()
        if throttled is not None and self._throttled_before is not None:
            throttled -= self._throttled_before
        return judge(
            busy_before_cores=self._busy_before_cores,
            load_before=self._load_before,
            load_after=os.getloadavg()[0],
            before=self._before,
            after=cpu_times(),
            own_cpu_s=own_cpu_s,
            with_guest=self._with_guest,
            throttled=throttled,
        )
