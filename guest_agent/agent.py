"""The agent: the testbed's hands inside the guest.  Python standard library only, run as root.

Started over SSH, once for each request, with the request's name as argument:

    agent.py info                   facts about kernel, processors and the shared region, as JSON
    agent.py load-driver FILE       load the kernel module and wait for its device node
    agent.py install-icd LIBRARY    make LIBRARY the OpenCL driver of this guest
    agent.py set-address MAC A M    start the network card MAC with IPv4 address A and netmask M
    agent.py mount-host SERIAL ROOT FOLDER...
                                    mount the disk of host files at ROOT, the FOLDERs inside
    agent.py run                    run a program; the request is a JSON line on standard input
    agent.py enter JSON             (from `run`) become a program that has another root

`run` prints JSON lines: the program's own event lines as they are, every other line it prints as
{"event": "output", "stream": ..., "text": ...}, and last {"event": "exit", ...}.  The program and
all that it started are ended when it ends, at the time limit, and also when standard input ends,
which is how the agent learns that the host has gone away.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

SYS_FINIT_MODULE = 313  # x86_64
SIOCSIFFLAGS = 0x8914
SIOCSIFADDR = 0x8916
SIOCSIFNETMASK = 0x891C
IFF_UP_RUNNING = 0x41
PR_SET_CHILD_SUBREAPER = 36
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC = 1, 2, 4, 4096, 16384
# Page-ins of libraries are hundreds of megabytes, and each request leaves the guest.
READ_AHEAD_KIB = 1024
ICD_FILE = Path("/etc/OpenCL/vendors/wormhole.icd")
DEVICE_PATTERN = "wormhole*"
SERVE_PREFIX = "wormhole-serve"
DEVICE_WAIT_S = 5.0
POLL_S = 0.02
KILL_GRACE_S = 2.0
STRAY_ROUNDS_MAX = 100
REQUEST_BYTES_MAX = 1 << 20
READ_BYTES = 65536
LINE_BYTES_MAX = 1 << 20
VIRTIO_VENDOR = "0x1af4"
WORMHOLE_PCI_DEVICE = "0x107f"  # 0x1040 + virtio id 63
RESERVED_EVENTS = ("output", "exit")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class AgentError(Exception):
    """A failure that the host shows to its user as one line."""


def main(arguments: list[str]) -> int:
    """Carry out one request; the exit status is 0 unless the request itself failed."""
    try:
        if arguments == ["info"]:
            print(json.dumps(info()))
        elif arguments == ["run"]:
            return Runner(read_request(sys.stdin.buffer)).run()
        elif len(arguments) == 2 and arguments[0] == "load-driver":
            load_driver(Path(arguments[1]))
        elif len(arguments) == 2 and arguments[0] == "install-icd":
            install_icd(Path(arguments[1]))
        elif len(arguments) >= 3 and arguments[0] == "mount-host":
            mount_host(arguments[1], *map(Path, arguments[2:]))
        elif len(arguments) == 2 and arguments[0] == "enter":
            enter(json.loads(arguments[1]))
        elif len(arguments) == 4 and arguments[0] == "set-address":
            set_address(*arguments[1:])
        else:
            raise AgentError(f"unknown request {arguments!r}")
    except (AgentError, OSError) as error:
        print(f"agent: {error}", file=sys.stderr)
        return 1
    return 0


def info() -> dict[str, Any]:
    """Kernel, processors, memory and, if the device is there, how its region is mapped."""
    system = os.uname()
    return {
        "kernel": system.release,
        "kernel_version": system.version,
        "command_line": _read("/proc/cmdline").strip(),
        "cpus": os.cpu_count(),
        "cpu_model": _first(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo")),
        "memory_kib": int(_first(r"^MemTotal:\s*(\d+)", _read("/proc/meminfo")) or 0),
        "python": sys.version.split()[0],
        "uptime_s": float(_read("/proc/uptime").split()[0]),
        "driver_loaded": Path("/sys/module/wormhole").is_dir(),
        "devices": sorted(str(path) for path in Path("/dev").glob(DEVICE_PATTERN)),
        "regions": regions(Path("/sys/bus/pci/devices"), _memory_types()),
    }


def regions(pci: Path, memory_types: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The largest address range of each wormhole device, with the memory types inside it.

    The region begins at `address`; `bar_bytes` may be more than the region's size.
    """
    found: list[dict[str, Any]] = []
    for device in sorted(pci.glob("*")):
        vendor = _read(str(device / "vendor")).strip()
        identity = _read(str(device / "device")).strip()
        if (vendor, identity) != (VIRTIO_VENDOR, WORMHOLE_PCI_DEVICE):
            continue
        ranges = [
            (int(start, 16), int(end, 16))
            for start, end, _ in (
                line.split() for line in _read(str(device / "resource")).splitlines()[:6]
            )
            if int(end, 16) > 0
        ]
        if not ranges:
            raise AgentError(f"{device.name} has no address range: the kernel placed none")
        start, end = max(ranges, key=lambda pair: pair[1] - pair[0])
        found.append(
            {
                "pci": device.name,
                "address": start,
                "bar_bytes": end - start + 1,
                "above_4_gib": start >= 1 << 32,
                "memory_types": sorted(
                    {
                        str(entry["type"])
                        for entry in memory_types
                        if entry["start"] <= end and entry["end"] > start
                    }
                ),
            }
        )
    return found


def parse_memory_types(text: str) -> list[dict[str, Any]]:
    """Lines such as `PAT: [mem 0x00000000fec00000-0x00000000fec01000] uncached-minus`."""
    pattern = r"\[mem 0x([0-9a-f]+)-0x([0-9a-f]+)\]\s+(\S+)"
    return [
        {"start": int(match[1], 16), "end": int(match[2], 16), "type": match[3]}
        for match in re.finditer(pattern, text)
    ]


def _memory_types() -> list[dict[str, Any]]:
    return parse_memory_types(_read("/sys/kernel/debug/x86/pat_memtype_list"))


def load_driver(module: Path) -> None:
    """Load the module, unless it is, and wait until the device node can be opened by anyone."""
    if not Path("/sys/module/wormhole").is_dir():
        descriptor = os.open(module, os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.syscall(SYS_FINIT_MODULE, descriptor, b"", 0) != 0:
                reason = os.strerror(ctypes.get_errno())
                raise AgentError(f"the kernel refused {module}: {reason}; see the console log")
        finally:
            os.close(descriptor)
    deadline_s = time.monotonic() + DEVICE_WAIT_S
    while not (nodes := sorted(Path("/dev").glob(DEVICE_PATTERN))):
        if time.monotonic() > deadline_s:
            raise AgentError(
                f"the driver is loaded, but no /dev/{DEVICE_PATTERN} appeared in"
                f" {DEVICE_WAIT_S:.0f} s: does the VM have the device?"
            )
        time.sleep(POLL_S)
    for node in nodes:
        if node.name.startswith(SERVE_PREFIX):
            continue  # for the supervisor alone
        node.chmod(0o666)  # there is no udev here that would follow the driver's wish


def install_icd(library: Path) -> None:
    """Tell the OpenCL loader about the stub library, and about nothing else."""
    if not library.is_file():
        raise AgentError(f"there is no library {library}")
    ICD_FILE.parent.mkdir(parents=True, exist_ok=True)
    for other in ICD_FILE.parent.glob("*.icd"):
        other.unlink()
    ICD_FILE.write_text(f"{library}\n")


def mount_host(serial: str, root: Path, *folders: Path) -> None:
    """Mount the disk with this serial number, to be read, and the guest's own folders in it."""
    names = [
        path.parent.name
        for path in sorted(Path("/sys/block").glob("*/serial"))
        if _read(str(path)).strip() == serial
    ]
    if not names:
        raise AgentError(f"there is no disk {serial}")
    Path(f"/sys/block/{names[0]}/queue/read_ahead_kb").write_text(f"{READ_AHEAD_KIB}\n")
    root.mkdir(parents=True, exist_ok=True)
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV
    _mount(f"/dev/{names[0]}", root, "erofs", flags)
    for number, folder in enumerate(folders):
        place = root / folder.relative_to("/")
        shown = [entry.name for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)]
        aside = root.parent / f"{root.name}-{number}"
        if shown:
            aside.mkdir(exist_ok=True)
            _mount(str(place), aside, "", MS_BIND)
        # What lies below /dev and its like comes along; the disk itself, in one of them, must not.
        inside = MS_BIND if root.is_relative_to(folder) else MS_BIND | MS_REC
        _mount(str(folder), place, "", inside)
        # What the disk shows in there, beside what the guest has.
        for name in shown:
            (place / name).mkdir(exist_ok=True)
            _mount(str(aside / name), place / name, "", MS_BIND)


def _mount(source: str, target: Path, kind: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (source.encode(), str(target).encode(), kind.encode())
    if libc.mount(*words, ctypes.c_ulong(flags), None) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise AgentError(f"cannot mount {source} at {target}: {reason}")


def enter(request: dict[str, Any]) -> None:
    """Become the program: its root, folder, account and variables, all at once."""
    account = pwd.getpwnam(request["user"])
    os.chroot(request["root"])
    os.chdir(request["cwd"])
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    try:
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        raise AgentError(f"cannot start {request['argv'][0]}: {error.strerror}") from error


def set_address(mac: str, address: str, netmask: str, cards: str = "/sys/class/net") -> None:
    """What `ip address add` and `ip link set up` do, which the guest has not."""
    names = [
        path.parent.name
        for path in sorted(Path(cards).glob("*/address"))
        if _read(str(path)).strip() == mac
    ]
    if not names:
        raise AgentError(f"there is no network card {mac}")
    name = names[0].encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for operation, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, netmask)):
            packed = struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(control, operation, packed)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", name, IFF_UP_RUNNING))


def read_request(stream: IO[bytes]) -> dict[str, Any]:
    """One JSON object on one line: argv, and optionally env, cwd, timeout_s, user, root."""
    # Unbuffered, as the same descriptor is watched for its end later.
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(stream.fileno(), 1)
        if not piece or len(line) > REQUEST_BYTES_MAX:
            raise AgentError("the request on standard input is not one JSON line")
        line += piece
    try:
        request = json.loads(line)
    except ValueError as error:
        raise AgentError(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict) or not request.get("argv"):
        raise AgentError("the request has no argv")
    return request


class Runner:
    """One run of one program."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._argv = [str(word) for word in request["argv"]]
        self._timeout_s = float(request.get("timeout_s", 60.0))
        self._account = pwd.getpwnam(str(request.get("user", "wormhole")))
        self._root = request.get("root")
        # Another root has no home for the guest's users.
        home = self._account.pw_dir if self._root is None else "/tmp"
        self._cwd = str(request.get("cwd") or home)
        self._env = {
            "PATH": DEFAULT_PATH,
            "HOME": home,
            "USER": self._account.pw_name,
            "LANG": "C.UTF-8",
            **{str(key): str(value) for key, value in (request.get("env") or {}).items()},
        }
        self._lines: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def run(self) -> int:
        """Run it; the exit status of the agent is 0 whatever the program's was."""
        adopt_orphans()
        started_s = time.monotonic()
        try:
            process = subprocess.Popen(
                **self._program(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise AgentError(f"cannot start {self._argv[0]}: {error}") from error
        try:
            reason = self._follow(process, started_s + self._timeout_s)
            wall_s = time.monotonic() - started_s
        finally:
            kill_group(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        kill_strays()
        for stream in self._lines:
            self._take(stream, b"", last=True)
        _print(
            {
                "event": "exit",
                "reason": reason,
                "status": process.returncode,
                "user_s": usage.ru_utime,
                "system_s": usage.ru_stime,
                "max_rss_kib": usage.ru_maxrss,
                "wall_s": wall_s,
            }
        )
        return 0

    def _program(self) -> dict[str, Any]:
        """Popen's arguments for the program; with a root of its own we start as ourselves.

        Its variables might name libraries of its root, which this root has not.
        """
        if self._root is None:
            return {"args": self._argv, "cwd": self._cwd, "env": self._env, **self._identity()}
        request = {
            "argv": self._argv,
            "cwd": self._cwd,
            "env": self._env,
            "root": self._root,
            "user": self._account.pw_name,
        }
        return {"args": [sys.executable, "-I", __file__, "enter", json.dumps(request)]}

    def _identity(self) -> dict[str, Any]:
        """Popen's arguments for becoming the account; none if we are it already."""
        if self._account.pw_uid == os.geteuid():
            return {}
        return {
            "user": self._account.pw_uid,
            "group": self._account.pw_gid,
            "extra_groups": [],
        }

    def _follow(self, process: subprocess.Popen[bytes], deadline_s: float) -> str:
        """Pass output on until the program ends, its time is over or the host has gone."""
        assert process.stdout is not None and process.stderr is not None
        exited = os.pidfd_open(process.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, "stdout")
            selector.register(process.stderr, selectors.EVENT_READ, "stderr")
            selector.register(sys.stdin.buffer, selectors.EVENT_READ, "host")
            selector.register(exited, selectors.EVENT_READ, "exited")
            try:
                while True:
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0:
                        return "timeout"
                    reason = self._serve(selector.select(left_s), selector)
                    if reason:
                        return reason
            finally:
                os.close(exited)

    def _serve(
        self,
        ready: list[tuple[selectors.SelectorKey, int]],
        selector: selectors.DefaultSelector,
    ) -> str:
        """Take what is ready; the reason to stop, or ""."""
        sources = {str(key.data): key.fd for key, _ in ready}
        for stream in ("stdout", "stderr"):
            if stream in sources:
                piece = os.read(sources[stream], READ_BYTES)
                if piece:
                    self._take(stream, piece)
                else:
                    selector.unregister(sources[stream])
        if "host" in sources and not os.read(sources["host"], READ_BYTES):
            return "host gone"
        # The program's end counts only when its output has been taken: children of its may hold
        # the pipes for ever, so nothing waits for those.
        if set(sources) == {"exited"}:
            return "ended"
        return ""

    def _take(self, stream: str, piece: bytes, last: bool = False) -> None:
        """Cut output into lines and print each."""
        buffer = self._lines[stream]
        buffer += piece
        *lines, rest = buffer.split(b"\n")
        if rest and (last or len(rest) > LINE_BYTES_MAX):
            lines.append(rest)
            rest = bytearray()
        self._lines[stream] = bytearray(rest)
        for line in lines:
            _print(as_event(stream, line.decode("utf-8", "replace")))


def as_event(stream: str, text: str) -> dict[str, Any]:
    """A program's event line as it is; anything else wrapped."""
    if stream == "stdout" and text.startswith("{"):
        try:
            event = json.loads(text)
        except ValueError:
            event = None
        name = event.get("event") if isinstance(event, dict) else None
        if isinstance(name, str) and name not in RESERVED_EVENTS:
            return dict(event)
    return {"event": "output", "stream": stream, "text": text}


def kill_group(group: int) -> None:
    """End a process group: politely, then by force; no error if it is gone.

    The leader is not waited for here, so that its resource usage can be read afterwards.
    """
    if not _signal_group(group, signal.SIGTERM):
        return
    deadline_s = time.monotonic() + KILL_GRACE_S
    while time.monotonic() < deadline_s and _group_runs(group):
        time.sleep(POLL_S)
    _signal_group(group, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of what the program leaves behind, so that it can be found and ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise AgentError(f"prctl: {os.strerror(ctypes.get_errno())}")


def kill_strays() -> None:
    """End what left the program's group, daemons for instance.

    Children of those become ours when they die: hence the rounds, bounded against a fork bomb.
    """
    for _ in range(STRAY_ROUNDS_MAX):
        strays = _children(os.getpid())
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in strays:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children(parent: int) -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = _read(str(stat)).rpartition(")")[2].split()
        if len(fields) > 1 and int(fields[1]) == parent:
            children.append(int(stat.parent.name))
    return children


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _group_runs(group: int) -> bool:
    """Whether a process of the group is more than a zombie."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = _read(str(stat)).rpartition(")")[2].split()
        if len(fields) > 2 and int(fields[2]) == group and fields[0] not in "ZX":
            return True
    return False


def _print(event: dict[str, Any]) -> None:
    """One line for the host; a host that has gone is noticed elsewhere."""
    try:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        pass


def _read(path: str) -> str:
    """A small file's text, "" if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
