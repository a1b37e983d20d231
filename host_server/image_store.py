"""The folder in which the workers of one VM keep device code, so that it crosses only once.

Code that came is kept under its SHA-256; a later session of the same VM names the digest alone. A
folder belongs to one VM: who could ask for another's code, or see that it is there by the time an
answer takes, would learn what runs beside it. Nobody but the VM's workers reaches it: it lies in a
folder of ours that no other user may enter, and workers get it as an open descriptor. They write
and check the files (`worker/image_cache.c`); what a broken-in worker may have left is swept here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from pathlib import Path

STORE_NAME = "code"
NAME_LENGTH = 64
LOCK_NAME = "lock"
FILES_MAX = 4096
WRITING_S_MAX = 600.0  # as the workers' own limit


class ImageStore:
    """An open folder. `bytes_max` bounds what lies in it; its workers keep to that themselves."""

    def __init__(self, folder: Path, bytes_max: int, alone: bool) -> None:
        """`alone`: no other supervisor may use the folder meanwhile; BlockingIOError if one does.

        OSError where there can be no such folder.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self.fd = -1
        self.bytes_max = bytes_max
        try:
            if os.fstat(self._lock_fd).st_uid != os.getuid():
                raise PermissionError(f"{folder} is another user's")
            if alone:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._lock_fd, 0o700)
            with contextlib.suppress(FileExistsError):
                os.mkdir(STORE_NAME, dir_fd=self._lock_fd)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            self.fd = os.open(STORE_NAME, flags, dir_fd=self._lock_fd)
            # Every worker has a user of its own; the folder around it keeps all others out.
            os.fchmod(self.fd, 0o777)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the folder; what lies in it stays."""
        for fd in (self.fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self._lock_fd = -1

    def sweep(self) -> None:
        """Remove what is no kept code, and what is too much. For when a worker has ended."""
        kept: list[tuple[int, int, str]] = []
        total_bytes = 0
        # Not the descriptor that workers have: with it they share the place in the list.
        own_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.fd)
        with contextlib.suppress(OSError), os.scandir(own_fd) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    # Blocks may lie beyond a file's end.
                    status = os.stat(entry.name, dir_fd=self.fd, follow_symlinks=False)
                    size_bytes = max(status.st_size, status.st_blocks * 512)
                    if _is_code(entry.name) and stat.S_ISREG(status.st_mode):
                        kept.append((status.st_mtime_ns, size_bytes, entry.name))
                    elif _is_workers_own(entry.name, status):
                        total_bytes += size_bytes
                    else:
                        self._remove(entry)
        os.close(own_fd)
        kept.sort(reverse=True)
        for place, (_, size_bytes, name) in enumerate(kept):
            total_bytes += size_bytes
            if total_bytes > self.bytes_max or place >= FILES_MAX:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self.fd)

    def _remove(self, entry: os.DirEntry[str]) -> None:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.name, ignore_errors=True, dir_fd=self.fd)
        else:
            os.unlink(entry.name, dir_fd=self.fd)


def _is_code(name: str) -> bool:
    return len(name) == NAME_LENGTH and set(name) <= set("0123456789abcdef")


def _is_workers_own(name: str, status: os.stat_result) -> bool:
    """The lock, and what another worker is writing at this moment."""
    return stat.S_ISREG(status.st_mode) and (
        (name == LOCK_NAME and status.st_size == 0) or _is_being_written(name, status)
    )


def _is_being_written(name: str, status: os.stat_result) -> bool:
    """Young, and named after a live process of its owner: `new-PID-NUMBER`."""
    prefix, _, rest = name.partition("-")
    pid = rest.partition("-")[0]
    if prefix != "new" or not pid.isdecimal() or time.time() - status.st_ctime > WRITING_S_MAX:
        return False
    try:
        return Path(f"/proc/{pid}").stat().st_uid == status.st_uid
    except OSError:
        return False
