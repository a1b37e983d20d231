"""The cache of built things (QEMU, native code, the guest image), keyed by a hash of their inputs.

An artifact is a directory `<cache>/<name>-<key>/`.  It is built in a temporary directory beside its
final place and renamed when complete, so a directory with the final name is always whole; a file
lock makes a second builder wait for the first instead of building the same thing twice.

What nobody took for `UNUSED_DAYS` is removed when something new is built: changed inputs never come
back to the old key, and nothing else bounds the disk that the cache takes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import IO

from testbed.errors import TestbedError

KEY_LENGTH = 16
LOCK_TIMEOUT_S = 3600.0
LOCK_POLL_S = 0.2
UNUSED_DAYS = 14
LOG_TAIL_LINES = 12
LOG_LINE_LENGTH = 160
SHOWN_LENGTH = 80
FULL_DISK_BYTES = 16 << 20
KILL_GRACE_S = 5.0

Inputs = Mapping[str, str | bytes | Path]


def cache_dir() -> Path:
    """The cache directory: $WORMHOLE_CACHE, else the XDG cache directory's `wormhole-testbed`.

    Raises TestbedError for a path in which QEMU and kernel modules cannot be built: better at once
    than after what comes before them.
    """
    own = os.environ.get("WORMHOLE_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    if own:
        path = Path(own).expanduser().absolute()
    else:
        base = Path(xdg) if xdg else Path.home() / ".cache"
        path = base.absolute() / "wormhole-testbed"
    if any(letter.isspace() or letter == ":" for letter in str(path)):
        raise TestbedError(
            f"the cache directory {str(path)!r} has a space or colon in its path, "
            "where QEMU and kernel modules cannot be built",
            "set WORMHOLE_CACHE to a path without",
        )
    return path


def artifact_key(inputs: Inputs) -> str:
    """Hash the inputs: text and bytes by value, a file by content, a directory by its tree.

    Raises TestbedError if a path among the inputs does not exist.
    """
    total = hashlib.sha256()
    for label in sorted(inputs):
        digest = _digest(inputs[label])
        total.update(f"{label}\0{digest}\n".encode())
    return total.hexdigest()[:KEY_LENGTH]


def artifact_path(name: str, inputs: Inputs) -> Path:
    """Where `artifact` puts this artifact; it exists only when it is complete."""
    return cache_dir() / f"{name}-{artifact_key(inputs)}"


def log_path(name: str, inputs: Inputs) -> Path:
    """The log of this artifact's build."""
    return cache_dir() / "logs" / f"{name}-{artifact_key(inputs)}.log"


def artifact(name: str, inputs: Inputs, build: Callable[[Path], None]) -> Path:
    """Return the artifact's directory, calling `build(directory)` if it is not in the cache.

    `build` fills the empty directory it is given and writes what it has to say to
    `log_path(name, inputs)` (see `run_logged`).  Raises TestbedError, naming the log, if it fails.
    """
    final = artifact_path(name, inputs)
    if final.is_dir():
        with suppress(OSError):  # a cache that another user fills
            os.utime(final)
        return final
    log = log_path(name, inputs)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final.with_name(f".{final.name}.lock")):
            if not final.is_dir():
                _build(final, log, build)
                _remove_unused(final.parent)
    except OSError as error:
        raise TestbedError(
            f"building {name} in {cache_dir()} failed: {error}",
            "check free space and permissions there, or set WORMHOLE_CACHE to another directory",
        ) from error
    return final


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: its exit status and the time it took in seconds."""

    status: int
    wall_s: float


def run_logged(
    argv: Sequence[str | Path],
    log: Path,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a command with its output appended to `log`; at the limit kill its whole process group.

    `env` replaces the environment if given.  Raises TestbedError, with the log's last lines, if the
    command cannot be started, exits non-zero or passes its limit.
    """
    words = [str(word) for word in argv]
    shown = shorten(" ".join([Path(words[0]).name, *words[1:]]), SHOWN_LENGTH, placeholder=" ...")
    log.parent.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    with log.open("ab") as sink:
        sink.write(f"+ {' '.join(words)}\n".encode())
        sink.flush()
        try:
            process = subprocess.Popen(
                words,
                cwd=cwd,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise TestbedError(
                f"cannot start {words[0]}: {error.strerror or error}",
                "run ./inv doctor to see what is missing",
            ) from error
        try:
            status = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            raise TestbedError(
                f"`{shown}` was stopped at its limit of {timeout_s:.0f} s{_tail_text(log)}",
                f"the whole log is {log}",
            ) from None
        except BaseException:
            _kill_group(process)
            raise
    if status != 0:
        raise TestbedError(
            f"`{shown}` failed with exit status {status}{_tail_text(log)}",
            f"the whole log is {log}",
        )
    return CommandResult(status=status, wall_s=time.monotonic() - start_s)


def last_lines(log: Path, count: int = LOG_TAIL_LINES) -> list[str]:
    """The last non-empty lines of a log; empty if there is no log."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def _build(final: Path, log: Path, build: Callable[[Path], None]) -> None:
    """Build into a temporary directory beside `final` and rename it."""
    _remove_leftovers(final)
    log.unlink(missing_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".partial", dir=final.parent))
    try:
        try:
            build(partial)
        except TestbedError as error:
            # Compilers and packagers say this in many ways, if at all.
            if shutil.disk_usage(partial).free < FULL_DISK_BYTES:
                raise TestbedError(
                    f"the disk of {final.parent} is full, building {final.name} failed",
                    f"free space there or set WORMHOLE_CACHE to another place; the log is {log}",
                ) from error
            raise
        partial.chmod(0o755)
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_leftovers(final: Path) -> None:
    """Remove what killed builders left, of this artifact (the caller holds its lock) and others.

    A build tree can be half a gigabyte, and a changed input never comes back to the old key.
    """
    for path in final.parent.glob(".*.partial"):
        artifact_name = path.name.rsplit(".", 2)[0]
        if artifact_name == f".{final.name}" or _unlocked(path.with_name(f"{artifact_name}.lock")):
            shutil.rmtree(path, ignore_errors=True)


def _unlocked(lock: Path) -> bool:
    """Whether nobody is building under this lock now."""
    with lock.open("w") as handle:
        return _lock_now(lock, handle)


def _remove_unused(cache: Path) -> None:
    """Remove artifacts, logs and locks that nobody used for `UNUSED_DAYS`."""
    oldest_s = time.time() - UNUSED_DAYS * 86400
    for lock in cache.glob(".*-*.lock"):
        directory = lock.with_name(lock.name[1:].removesuffix(".lock"))
        with suppress(OSError), lock.open("a") as handle:  # opening to write would make it new
            if _last_used_s(directory, lock) < oldest_s and _lock_now(lock, handle):
                if directory.is_dir():
                    # Never half there under its name.
                    gone = lock.with_name(f".{directory.name}.unused.partial")
                    directory.rename(gone)
                    shutil.rmtree(gone, ignore_errors=True)
                (cache / "logs" / f"{directory.name}.log").unlink(missing_ok=True)
                lock.unlink()


def _last_used_s(directory: Path, lock: Path) -> float:
    """When an artifact was taken last, or when one that is not there was built last."""
    return (directory if directory.is_dir() else lock).stat().st_mtime


def _lock_now(lock: Path, handle: IO[str]) -> bool:
    """Take a lock if it is free; one that was removed meanwhile would keep nobody out."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(lock.stat(), os.fstat(handle.fileno()))
    except (BlockingIOError, FileNotFoundError):
        return False


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold an exclusive file lock; the kernel drops it if this process dies."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        with lock.open("w") as handle:
            if _lock_now(lock, handle):
                yield
                return
        if time.monotonic() > deadline_s:
            raise TestbedError(
                f"another process has held {lock} for {LOCK_TIMEOUT_S:.0f} s",
                f"see who it is with `fuser {lock}`",
            )
        time.sleep(LOCK_POLL_S)


def _digest(value: str | bytes | Path) -> str:
    if isinstance(value, str):
        return hashlib.sha256(b"text\0" + value.encode()).hexdigest()
    if isinstance(value, bytes):
        return hashlib.sha256(b"bytes\0" + value).hexdigest()
    return _digest_path(value)


def _digest_path(path: Path) -> str:
    if path.is_dir():
        total = hashlib.sha256(b"tree\0")
        for child in sorted(path.rglob("*")):
            if child.is_file() and "__pycache__" not in child.parts:
                mode = "x" if os.access(child, os.X_OK) else "-"
                name = child.relative_to(path).as_posix()
                total.update(f"{name}\0{mode}\0{_digest_path(child)}\n".encode())
        return total.hexdigest()
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise TestbedError(
            f"cannot read the build input {path}: {error.strerror or error}",
            "restore the file, or run from a complete checkout",
        ) from error


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process group: politely, then by force."""
    for number, grace_s in ((signal.SIGTERM, KILL_GRACE_S), (signal.SIGKILL, KILL_GRACE_S)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _tail_text(log: Path) -> str:
    # What commands said, not the commands: the one that failed is named beside.
    lines = [line for line in last_lines(log) if not line.startswith("+ ")]
    return "".join(["\n    " + shorten(line, LOG_LINE_LENGTH) for line in lines])
