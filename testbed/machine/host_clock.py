"""How fast the host's time stamp counter runs: emulated guests see that counter and must know.

A guest kernel finds the rate by itself with a timer that QEMU emulates.  On a busy host it was seen
to take 827 MHz for 2300 MHz and keep it, and then every time measured in the guest is wrong by that
factor.  So the host measures, and tells the kernel (`tsc_early_khz=`).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from collections.abc import Callable
from functools import cache

# rdtsc; shl rdx, 32; or rax, rdx; ret
_READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")
INTERVAL_S = 0.1
TRIES = 5


@cache
def tsc_khz() -> int:
    """The rate of the host's time stamp counter in kHz; 0 where it cannot be read.

    Of several tries the one counts whose clock readings enclosed the counter's most tightly.
    """
    if platform.machine() != "x86_64":
        return 0
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return 0  # a hardened host; the guest has to find out by itself
    code.write(_READ_COUNTER)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)
    rate_khz = min(_measure(counter) for _ in range(TRIES))[1]
    del counter  # before the memory that it runs in goes
    return round(rate_khz)


def _measure(counter: Callable[[], int]) -> tuple[int, float]:
    """Uncertainty in ns, and the rate in kHz over one interval."""
    first_width_ns, first_ns, first = _reading(counter)
    time.sleep(INTERVAL_S)
    last_width_ns, last_ns, last = _reading(counter)
    return first_width_ns + last_width_ns, (last - first) * 1e6 / (last_ns - first_ns)


def _reading(counter: Callable[[], int]) -> tuple[int, float, int]:
    """A reading of the counter, the middle of the clock readings around it and their distance."""
    before_ns = time.monotonic_ns()
    value = counter()
    after_ns = time.monotonic_ns()
    return after_ns - before_ns, (before_ns + after_ns) / 2, value
