"""The supervisor's temporary directory, and the janitor that removes it even after kill -9.

The directory lies where every session's own user can reach its part. It is locked as long as the
supervisor or its janitor lives, so that a later supervisor can tell leftovers from neighbours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from pathlib import Path

NAME_PREFIX = "wormhole-state-"
KILL_ROUNDS_MAX = 20


class StateDir:
    """Context manager: makes and locks the directory, starts the janitor, removes everything."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())
        self.path = Path()
        self._lock_fd = -1
        self._janitor_pid = 0
        self._lifeline_fd = -1

    def __enter__(self) -> StateDir:
        remove_leftovers(self._parent)
        self.path, self._lock_fd = _make_locked(self._parent)
        self._start_janitor()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the janitor do its work, which is little after an orderly end, and wait for it."""
        os.close(self._lifeline_fd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._janitor_pid, 0)
        os.close(self._lock_fd)

    @property
    def janitor_pid(self) -> int:
        """Process id of the janitor."""
        return self._janitor_pid

    def remove_later(self, path: Path) -> None:
        """Tell the janitor of a file outside the directory that must not stay either."""
        os.write(self._lifeline_fd, os.fsencode(path) + b"\0")

    def _start_janitor(self) -> None:
        read_fd, self._lifeline_fd = os.pipe()
        self._janitor_pid = os.fork()
        if self._janitor_pid == 0:
            # Nothing may leave this branch: the child must never run the supervisor's code.
            try:
                os.close(self._lifeline_fd)
                _be_janitor(read_fd, self.path, self._lock_fd)
            finally:
                os._exit(0)
        os.close(read_fd)


def remove_leftovers(parent: Path) -> None:
    """Remove directories of supervisors that died together with their janitor."""
    for path in parent.glob(f"{NAME_PREFIX}*"):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear(path)
        except OSError:
            continue
        finally:
            os.close(fd)


def _make_locked(parent: Path) -> tuple[Path, int]:
    """A new directory that is locked; tried again if a neighbour swept it before it was locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=NAME_PREFIX, dir=parent))
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        if path.is_dir() and path.stat().st_ino == os.fstat(fd).st_ino:
            path.chmod(0o711)
            return path, fd
        os.close(fd)


def _be_janitor(read_fd: int, path: Path, lock_fd: int) -> None:
    """Wait for the supervisor's end, then remove what it left."""
    # A group of its own in the supervisor's session: a stopped one goes on when that ends.
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null_fd = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null_fd, fd)
    keep = {0, 1, 2, read_fd, lock_fd}
    for fd in sorted(int(name.name) for name in Path("/proc/self/fd").iterdir()):
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)
    told = b""
    while data := os.read(read_fd, 4096):
        told += data
    for name in filter(None, told.split(b"\0")):
        Path(os.fsdecode(name)).unlink(missing_ok=True)
    _clear(path)


def _clear(path: Path) -> None:
    """End processes of the sessions' own users, then remove the directory."""
    if os.getuid() == 0:
        with contextlib.suppress(OSError):
            for child in path.iterdir():
                owner = child.lstat().st_uid
                if owner != 0:
                    kill_user(owner)
    shutil.rmtree(path, ignore_errors=True)


def kill_user(uid: int) -> None:
    """Kill every process of a session's own user. Needs root; `uid` must not be 0."""
    if uid == 0:
        raise ValueError("refusing to kill root's processes")
    for _ in range(KILL_ROUNDS_MAX):
        pid = os.fork()
        if pid == 0:
            # As that user kill(-1) reaches its processes and no others, without a race.
            try:
                os.setresuid(uid, uid, uid)
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                os._exit(1)
            except OSError:
                os._exit(2)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            return
