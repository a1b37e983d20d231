"""Where things lie in a region and in a session slot, and the few words that the supervisor writes.

Nothing here trusts what a guest wrote: words are read once, as integers, and compared.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from dataclasses import dataclass

from testbed.errors import TestbedError
from testbed.protocol.wire import constant, enum, hash_of_specs, view

PAGE_BYTES = constant("page_bytes")
TABLE_BYTES = PAGE_BYTES
SESSION_BYTES_MIN = 2 << 20
SESSION_BYTES_MAX = 1 << 32
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
CLEAR_BYTES = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


@dataclass(frozen=True)
class RegionLayout:
    """A VM's region: header page, table page, equal session slots. Offsets in bytes."""

    region_bytes: int
    session_bytes: int
    session_count: int

    @property
    def table_offset(self) -> int:
        """Start of the session table."""
        return PAGE_BYTES

    @property
    def sessions_offset(self) -> int:
        """Start of slot 0."""
        return PAGE_BYTES + TABLE_BYTES

    def slot_offset(self, index: int) -> int:
        """Start of a session slot."""
        return self.sessions_offset + index * self.session_bytes

    def guest_line(self, index: int) -> int:
        """Table line that the guest driver writes."""
        return self.table_offset + index * 2 * constant("line_bytes")

    def host_line(self, index: int) -> int:
        """Table line that the supervisor writes."""
        return self.guest_line(index) + constant("line_bytes")


def region_layout(region_bytes: int, session_bytes: int, session_count: int) -> RegionLayout:
    """Cut a region into at most `session_count` slots of at most `session_bytes`, whole pages.

    The slots shrink so that all of them fit. Raises TestbedError if a slot would be too small.
    """
    count = min(session_count, constant("session_count_max"))
    share_bytes = (region_bytes - PAGE_BYTES - TABLE_BYTES) // max(count, 1)
    slot_bytes = min(session_bytes, share_bytes) // PAGE_BYTES * PAGE_BYTES
    if count < 1 or slot_bytes < SESSION_BYTES_MIN:
        raise TestbedError(
            f"a region of {region_bytes} bytes cannot hold {session_count} sessions "
            f"of {SESSION_BYTES_MIN} bytes or more",
            "make the region larger or allow fewer sessions",
        )
    return RegionLayout(region_bytes, slot_bytes, count)


def check_session_bytes(session_bytes: int) -> int:
    """The size if it is usable for a session slot; raises TestbedError else."""
    if (
        session_bytes % PAGE_BYTES != 0
        or not SESSION_BYTES_MIN <= session_bytes <= SESSION_BYTES_MAX
    ):
        raise TestbedError(
            f"session size {session_bytes} bytes is not usable",
            f"give whole pages between {SESSION_BYTES_MIN} and {SESSION_BYTES_MAX} bytes",
        )
    return session_bytes


def session_header(session_bytes: int) -> bytes:
    """The constant first line of a session slot and zeroes for the words that change."""
    ring_offset = PAGE_BYTES
    slots_offset = ring_offset + constant("ring_bytes")
    arena_offset = slots_offset + constant("slot_count") * constant("slot_bytes")
    return view("session_header").pack(
        magic=constant("magic"),
        version=constant("protocol_version"),
        slot_count=constant("slot_count"),
        spec_hash=hash_of_specs(),
        session_bytes=session_bytes,
        ring_offset=ring_offset,
        slots_offset=slots_offset,
        arena_offset=arena_offset,
        arena_bytes=session_bytes - arena_offset,
    )


class Mapping:
    """A memfd, or a server guest's device, mapped shared.

    Words and pairs are read and written with one aligned access each.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self._map = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._bytes = memoryview(self._map)
        self.gives_back = stat.S_ISREG(os.fstat(fd).st_mode)
        self._words = self._bytes.cast("I")
        self._pairs = self._bytes[: size_bytes // 8 * 8].cast("Q")

    def word(self, offset: int) -> int:
        """A u32 at a byte offset that is a multiple of four."""
        return self._words[offset // 4]

    def store_word(self, offset: int, value: int) -> None:
        """Store a u32; x86 keeps earlier stores before it."""
        self._words[offset // 4] = value & 0xFFFFFFFF

    def pair(self, offset: int) -> tuple[int, int]:
        """Two u32 that belong together, at a byte offset that is a multiple of eight."""
        value = self._pairs[offset // 8]
        return value & 0xFFFFFFFF, value >> 32

    def store_pair(self, offset: int, low: int, high: int) -> None:
        """Store two u32 at once, so that nobody sees one without the other."""
        self._pairs[offset // 8] = (high & 0xFFFFFFFF) << 32 | (low & 0xFFFFFFFF)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """A copy of some bytes."""
        return bytes(self._bytes[offset : offset + size_bytes])

    def write(self, offset: int, data: bytes) -> None:
        """Copy bytes into the mapping."""
        self._bytes[offset : offset + len(data)] = data

    def clear(self, offset: int, size_bytes: int) -> None:
        """Make the range read as zeroes; the memory is given back where the region is a file."""
        if not self.gives_back:
            for start in range(offset, offset + size_bytes, CLEAR_BYTES):
                piece = min(CLEAR_BYTES, offset + size_bytes - start)
                self._bytes[start : start + piece] = bytes(piece)
            return
        flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
        if _libc.fallocate(self.fd, flags, offset, size_bytes) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"clearing {size_bytes} bytes at {offset}: {os.strerror(number)}")

    def close(self) -> None:
        """Unmap and close the descriptor."""
        self._words.release()
        self._pairs.release()
        self._bytes.release()
        self._map.close()
        os.close(self.fd)


class SessionMemory:
    """One session slot inside a mapping, as the supervisor uses it.

    Where memory cannot be given back, what is known not to have been used is not cleared either:
    that would take memory for all slots at once.
    """

    def __init__(self, mapping: Mapping, offset: int, size_bytes: int, used: bool = True) -> None:
        self.mapping = mapping
        self.offset = offset
        self.size_bytes = size_bytes
        self._used = used or mapping.gives_back

    def initialise(self) -> None:
        """Zero the slot and write its header; the worker then stores READY."""
        self.clear()
        self._used = True
        self.mapping.write(self.offset, session_header(self.size_bytes))

    def mark_dead(self, error: int) -> None:
        """Tell everyone who waits on the session that its worker is gone."""
        header = view("session_header")
        self.mapping.store_word(self.offset + header.offset("host_error"), error)
        self.mapping.store_word(
            self.offset + header.offset("host_state"), enum("host_state")["dead"]
        )

    def clear(self) -> None:
        """Let nothing of a session be left."""
        if self._used:
            self.mapping.clear(self.offset, self.size_bytes)
            self._used = self.mapping.gives_back
