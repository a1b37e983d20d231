"""One worker process: how it is started, what it is given, and how it is made to end.

A worker executes what its client sends, so the supervisor takes nothing from it on trust: its
lines are bounded, its directory is removed without following links, its processes are killed.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_server.cuda_libraries import CUDA_VARIABLE
from host_server.image_store import ImageStore
from host_server.loop import Loop, Timer
from host_server.state_dir import kill_user
from host_server.status_page import StatusPage
from host_server.vendors import write_vendors
from testbed.errors import TestbedError

START_LIMIT_S = 30.0
END_GRACE_S = 2.0
# Where the worker runs, and compilers look first: nothing but the client's own headers is there.
WORK_FOLDER = "work"
KERNEL_SUFFIXES = (".bc", ".so")  # beside them PoCL leaves temporary files and times of use
LINE_BYTES_MAX = 16384
STATS_BYTES_MAX = 65536
OUTPUT_BYTES_MAX = 1 << 20
OUTPUT_PAUSE_S = 0.1
PROCESSES_MAX = 512
FILES_MAX = 1024
UID_COUNT = 256
REAP_ROUNDS_MAX = 20
REAP_PAUSE_S = 0.005


@dataclass(frozen=True)
class WorkerSettings:
    """What all workers of a supervisor have in common."""

    program: Path
    backend: str
    state_dir: Path
    uid_base: int
    jail: bool
    gpu: bool
    report_refused: bool
    cuda: tuple[Path, ...]
    vendors: Mapping[str, str]
    library_directories: Sequence[Path]
    cache_seed: Path | None
    images: ImageStore | None
    environment: Mapping[str, str]


@dataclass(frozen=True)
class SessionOrder:
    """What one session needs: its descriptors, its place in the region, the client's switches."""

    session: str
    placement: str
    client: Mapping[str, Any]
    transport: str
    spin_us: int
    notify_always: bool
    region_fd: int = -1
    offset: int = 0
    size_bytes: int = 0
    notify_fd: int = -1
    wake_fd: int = -1
    socket_fd: int = -1


class UserLease:
    """A user id that no other session of this machine uses, held by an abstract socket name."""

    def __init__(self, uid: int, holder: socket.socket) -> None:
        self.uid = uid
        self._holder = holder

    def release(self) -> None:
        """Let another session have the id."""
        self._holder.close()


def lease_user(uid_base: int) -> UserLease:
    """Lease a free user id of the range; raises TestbedError if there is none."""
    taken = _users_with_processes()
    for uid in range(uid_base, uid_base + UID_COUNT):
        if uid in taken or _has_account(uid):
            continue
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0wormhole-session-user-{uid}")
        except OSError:
            holder.close()
            continue
        return UserLease(uid, holder)
    raise TestbedError(
        f"none of the user ids {uid_base}..{uid_base + UID_COUNT - 1} is free for a session",
        "end other sessions or choose another range with --uid-base",
    )


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _users_with_processes() -> set[int]:
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.add(entry.stat().st_uid)
    return found


def _copy_kernels(seed: Path, target: Path) -> None:
    """Copy a kernel cache that others may be filling: what vanishes meanwhile is not needed.

    Cheaper than `shutil.copytree`, because every session waits for it: no times, modes or sorting,
    and none of the files that are no kernels.
    """
    target.mkdir(mode=0o700)
    with contextlib.suppress(OSError), os.scandir(seed) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _copy_kernels(Path(entry.path), target / entry.name)
            elif entry.name.endswith(KERNEL_SUFFIXES) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    shutil.copyfile(entry.path, target / entry.name)


class Worker:
    """A started worker. `on_ready(error)` comes once, `on_end(record)` comes last."""

    def __init__(
        self,
        loop: Loop,
        settings: WorkerSettings,
        order: SessionOrder,
        on_ready: Callable[[str], None],
        on_end: Callable[[dict[str, Any]], None],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._order = order
        self._on_ready: Callable[[str], None] | None = on_ready
        self._on_end = on_end
        self._started_ns = time.monotonic_ns()
        self._line = b""
        self._output_bytes = 0
        self._reason = ""
        self._jail: Any = None
        self._timers: list[Timer] = []
        self._lease: UserLease | None = None
        self._home = settings.state_dir / f"session-{order.session}"
        self._open_fds: list[int] = []
        self._status = StatusPage()
        try:
            self._start()
        except BaseException:
            self._discard()
            raise

    @property
    def pid(self) -> int:
        """Process id, also the process group's."""
        return self._process.pid

    @property
    def uid(self) -> int:
        """The session's own user id; 0 if it has none."""
        return self._lease.uid if self._lease else 0

    @property
    def session(self) -> str:
        """The session's name."""
        return self._order.session

    def describe(self) -> dict[str, Any]:
        """What is known of the session while it lives; see `./inv top`."""
        return {
            "session": self._order.session,
            "placement": self._order.placement,
            "transport": self._order.transport,
            "client": dict(self._order.client),
            "spin_us": self._order.spin_us,
            "notify_always": self._order.notify_always,
            "worker_pid": self._process.pid,
            "age_s": (time.monotonic_ns() - self._started_ns) / 1e9,
            "counters": self._status.counters(),
        }

    def pass_connection(self, connection: socket.socket) -> None:
        """Hand one more connection of the session to the worker."""
        rights = array.array("i", [connection.fileno()])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        self._control.sendmsg([b"c"], ancillary, socket.MSG_DONTWAIT)

    def end(self, reason: str) -> None:
        """Ask the worker to end; it is killed when the grace is over. The first reason counts."""
        if self._reason:
            return
        self._reason = reason
        self._report_ready(f"ended before it was ready: {reason}")
        # Closing the control socket is the request to end.
        self._loop.unwatch(self._control.fileno())
        self._control.close()
        self._timers.append(self._loop.after(END_GRACE_S, self.kill))

    def kill(self) -> None:
        """Kill the worker's process group now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)

    def _start(self) -> None:
        if os.getuid() == 0 and self._settings.jail:
            self._lease = lease_user(self._settings.uid_base)
        self._make_home()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stats_read, stats_write = os.pipe()
        output_read, output_write = os.pipe()
        self._stats_fd, self._output_fd = stats_read, output_read
        self._open_fds = [stats_read, output_read]
        passed = [
            fd
            for fd in (
                self._order.region_fd,
                self._order.notify_fd,
                self._order.wake_fd,
                self._order.socket_fd,
                theirs.fileno(),
                stats_write,
                self._status.fd,
                self._settings.images.fd if self._settings.images is not None else -1,
            )
            if fd >= 0
        ]
        try:
            self._process = subprocess.Popen(
                self._argv(theirs.fileno(), stats_write),
                pass_fds=passed,
                env=self._environment(),
                cwd=self._home / WORK_FOLDER,
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                start_new_session=True,
            )
        except OSError as error:
            self._control.close()
            raise TestbedError(
                f"cannot start the worker {self._settings.program}: {error.strerror}",
                "build it with ./inv reproduce, or give its path with --worker",
            ) from error
        finally:
            theirs.close()
            os.close(stats_write)
            os.close(output_write)
        spare_child(self._process.pid)
        self._pid_fd = os.pidfd_open(self._process.pid)
        self._open_fds.append(self._pid_fd)
        os.set_blocking(stats_read, False)
        os.set_blocking(output_read, False)
        self._control.setblocking(False)
        self._loop.watch(self._pid_fd, self._ended)
        self._loop.watch(self._control.fileno(), self._heard)
        self._loop.watch(output_read, self._said)
        self._timers.append(self._loop.after(START_LIMIT_S, self._start_late))

    def _argv(self, control_fd: int, stats_fd: int) -> list[str]:
        order = self._order
        argv = [
            str(self._settings.program),
            "--transport",
            order.transport,
            "--control-fd",
            str(control_fd),
            "--stats-fd",
            str(stats_fd),
            "--status-fd",
            str(self._status.fd),
            "--backend",
            self._settings.backend,
            "--spin-us",
            str(order.spin_us),
            "--notify-always",
            "1" if order.notify_always else "0",
            "--jail",
            self._jail_text(),
        ]
        images = self._settings.images
        if images is not None:
            argv += ["--images-fd", str(images.fd), "--images-bytes", str(images.bytes_max)]
        if order.transport == "tcp":
            return [*argv, "--socket-fd", str(order.socket_fd)]
        return [
            *argv,
            "--region-fd",
            str(order.region_fd),
            "--offset",
            str(order.offset),
            "--size",
            str(order.size_bytes),
            "--notify-fd",
            str(order.notify_fd),
            "--wake-fd",
            str(order.wake_fd),
        ]

    def _jail_text(self) -> str:
        if not self._settings.jail:
            return "off"
        uid = self._lease.uid if self._lease else 0
        words = [f"uid={uid}", f"gid={uid}", f"home={self._home}"]
        readable = [*self._settings.library_directories]
        readable += [path for path in self._settings.cuda if not path.is_relative_to("/usr")]
        words += [f"read={path}" for path in dict.fromkeys(readable)]
        words += [f"gpu={int(self._settings.gpu)}", f"files={FILES_MAX}"]
        words += [f"report={int(self._settings.report_refused)}"]
        words += [f"processes={PROCESSES_MAX if uid else 0}"]
        return ",".join(words)

    def _environment(self) -> dict[str, str]:
        """Nothing of the supervisor's own environment reaches a worker."""
        environment = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self._home),
            "TMPDIR": str(self._home / "tmp"),
            "POCL_CACHE_DIR": str(self._home / "pocl"),
            "XDG_CACHE_HOME": str(self._home / "cache"),
        }
        if self._settings.gpu:
            # NVIDIA's compilers keep their kernels here; shared, it would be code injection.
            environment["CUDA_CACHE_PATH"] = str(self._home / "cache" / "nv")
        if self._settings.library_directories:
            directories = (str(path) for path in self._settings.library_directories)
            environment["LD_LIBRARY_PATH"] = ":".join(directories)
        if self._settings.vendors:
            environment["OCL_ICD_VENDORS"] = str(self._home / "vendors") + "/"
        if self._settings.cuda:
            environment[CUDA_VARIABLE] = ":".join(map(str, self._settings.cuda))
        environment.update(self._settings.environment)
        return environment

    def _make_home(self) -> None:
        """The session's private directory: temporary files and its own layer of the kernel cache.

        The cache is copied, not shared: a cache that two tenants write is code injection.
        """
        self._home.mkdir(mode=0o700)
        for name in ("tmp", "cache", WORK_FOLDER):
            (self._home / name).mkdir(mode=0o700)
        seed = self._settings.cache_seed
        if seed is not None and seed.is_dir():
            # Followed once: the link may be pointed elsewhere while we copy.
            _copy_kernels(seed.resolve(), self._home / "pocl")
        else:
            (self._home / "pocl").mkdir(mode=0o700)
        if self._lease is not None:
            uid = self._lease.uid
            for directory, _, files in os.walk(self._home):
                os.chown(directory, uid, uid)
                for name in files:
                    os.chown(Path(directory) / name, uid, uid)
        if self._settings.vendors:
            write_vendors(dict(self._settings.vendors), self._home / "vendors")

    def _heard(self) -> None:
        """The worker's one line: ready with its jail report, or what went wrong."""
        try:
            data = self._control.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._line += data
        if data and b"\n" not in self._line and len(self._line) < LINE_BYTES_MAX:
            return
        # Whatever else it sends is never read.
        self._loop.unwatch(self._control.fileno())
        try:
            message = json.loads(self._line.split(b"\n", 1)[0])
            ready = message["ready"] is True
            self._jail = message.get("jail")
            error = "" if ready else str(message.get("error", "no reason given"))[:500]
        except (ValueError, KeyError, TypeError, AttributeError):
            error = "it ended without saying why" if not data else "its first line is not valid"
        self._report_ready(error)
        if error:
            self.end(f"worker not ready: {error}")

    def _report_ready(self, error: str) -> None:
        callback, self._on_ready = self._on_ready, None
        if callback is not None:
            callback(error)

    def _start_late(self) -> None:
        if self._on_ready is not None:
            self.end(f"worker was not ready within {START_LIMIT_S:.0f} s")
            self.kill()

    def _said(self) -> None:
        """Copy what the worker prints to our log, up to a limit; drop the rest slowly."""
        try:
            data = os.read(self._output_fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self._loop.unwatch(self._output_fd)
            return
        if self._output_bytes < OUTPUT_BYTES_MAX:
            text = data.decode("utf-8", errors="replace")
            for line in text.splitlines():
                log(f"session {self._order.session}: {line}")
        elif self._on_ready is None:
            self._loop.unwatch(self._output_fd)
            self._timers.append(self._loop.after(OUTPUT_PAUSE_S, self._listen_again))
        self._output_bytes += len(data)

    def _listen_again(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._loop.watch(self._output_fd, self._said)

    def _ended(self) -> None:
        """The process is gone: collect its figures, end what it left, report."""
        # Its group goes before the process is collected: until then nobody else can get the number.
        self.kill()
        _, status, usage = os.wait4(self._process.pid, 0)
        _known_children.discard(self._process.pid)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if not self._reason:
            self._reason = "the worker ended by itself"
        self._said()
        record = {
            "session": self._order.session,
            "placement": self._order.placement,
            "transport": self._order.transport,
            "backend": self._settings.backend,
            "client": dict(self._order.client),
            "spin_us": self._order.spin_us,
            "notify_always": self._order.notify_always,
            "pid": self._process.pid,
            "started_ns": self._started_ns,
            "ended_ns": time.monotonic_ns(),
            "reason": self._reason,
            "exit_status": self._process.returncode,
            "user_s": usage.ru_utime,
            "system_s": usage.ru_stime,
            "max_rss_kib": usage.ru_maxrss,
            "jail": self._jail,
            "stats": self._read_stats(),
        }
        self._report_ready(f"worker ended with status {self._process.returncode}")
        self._discard()
        if self._settings.images is not None:
            self._settings.images.sweep()
        self._on_end(record)

    def _read_stats(self) -> Any:
        try:
            data = os.read(self._stats_fd, STATS_BYTES_MAX)
            return json.loads(data) if data.strip() else None
        except (BlockingIOError, ValueError):
            return None

    def _discard(self) -> None:
        """Release everything that the session held on the host."""
        for timer in self._timers:
            timer.cancel()
        control = getattr(self, "_control", None)
        if control is not None and control.fileno() >= 0:
            self._loop.unwatch(control.fileno())
            control.close()
        for fd in self._open_fds:
            self._loop.unwatch(fd)
            os.close(fd)
        self._open_fds = []
        self._status.close()
        reap_orphans(self._lease.uid if self._lease else 0)
        shutil.rmtree(self._home, ignore_errors=True)
        if self._lease is not None:
            self._lease.release()
            self._lease = None


_known_children: set[int] = set()


def spare_child(pid: int) -> None:
    """Mark a child of the supervisor that is not a leftover of a session (worker, janitor)."""
    _known_children.add(pid)


def reap_orphans(uid: int) -> None:
    """Kill and collect processes that an ended session left; they became our children.

    Those of the session's own user (uid not 0) go, and those of ours, which nobody else can be:
    every child of ours that is neither a worker nor the janitor.
    """
    mine = {uid, os.getuid()}
    for _ in range(REAP_ROUNDS_MAX):
        orphans = [pid for pid in _children() if pid not in _known_children and _owner(pid) in mine]
        if not orphans:
            return
        if uid != 0:
            kill_user(uid)
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            _collect(pid)


def _collect(pid: int) -> None:
    """Wait a little for a killed child; the next session's end tries again if it hangs."""
    for _ in range(REAP_ROUNDS_MAX):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(REAP_PAUSE_S)
                continue
        return


def _owner(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return -1


def _children() -> list[int]:
    pid = os.getpid()
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def log(line: str) -> None:
    """One line of the supervisor's log (its standard error)."""
    stamp = time.strftime("%H:%M:%S", time.gmtime())
    shown = "".join(c if c.isprintable() else "?" for c in line)
    os.write(2, f"{stamp} {shown}\n".encode(errors="replace"))
