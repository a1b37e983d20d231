"""The page in which a worker shows its counters while it runs; no guest can reach it.

The worker's main thread writes it twice a second, so looking costs a session nothing. What a worker
writes there is believed as little as anything else it says: it is numbers to show.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

PAGE_BYTES = 4096
#: In the order of the page's 64-bit words; the worker's main.c has the same order.
COUNTERS = (
    "at_ns",  # CLOCK_MONOTONIC, when the others were written; 0 never
    "messages",
    "replies",
    "sleeps",
    "wakes_sent",
    "bytes_received",
    "bytes_sent",
)
_WORDS = struct.Struct(f"={len(COUNTERS)}Q")
# Linux's numbers; Python's fcntl names them only from 3.13 on.
_F_ADD_SEALS = 1033
_ALL_SIZE_SEALS = 1 | 2 | 4  # no more seals, no shrinking, no growing


class StatusPage:
    """One worker's page; `fd` is for the worker."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("wormhole-status", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, PAGE_BYTES)
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _ALL_SIZE_SEALS)
            self._map = mmap.mmap(self.fd, PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        except BaseException:
            os.close(self.fd)
            raise

    def counters(self) -> dict[str, int]:
        """What the worker counted up to `at_ns`."""
        return dict(zip(COUNTERS, _WORDS.unpack_from(self._map), strict=True))

    def close(self) -> None:
        """Give the page up."""
        self._map.close()
        os.close(self.fd)
