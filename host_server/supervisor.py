"""The supervisor: serves one VM's device, another guest, processes over a Unix socket, or TCP.

    python -m host_server.supervisor --run-dir DIR --worker PROGRAM --backend opencl --unix PATH

It prints one JSON line when it listens and ends on SIGTERM, SIGINT, or when its lifeline closes.
Nothing remains then: workers, sockets and directories go, after kill -9 too (see state_dir.py).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from host_server.clients import TcpServer, UnixServer, listen_tcp, listen_unix
from host_server.control import CONTROL_NAME, ControlServer
from host_server.cuda_libraries import CUDA_VARIABLE, cuda_libraries
from host_server.device import DeviceServer
from host_server.image_store import ImageStore
from host_server.layout import check_session_bytes
from host_server.loop import Loop
from host_server.memory import MIB, default_limit_bytes
from host_server.serving import ServingDevice
from host_server.sessions import Limits, Sessions
from host_server.state_dir import StateDir
from host_server.vendors import SYSTEM_VENDORS, library_directories, real_vendors, wants_gpu
from host_server.worker_process import END_GRACE_S, WorkerSettings, log, spare_child
from testbed.errors import TestbedError
from testbed.protocol.wire import constant, hash_of_specs

DEFAULT_SESSION_BYTES = 2 << 30  # touched as used; in a region at most an equal share of it
DEFAULT_SESSION_COUNT = 8
DEFAULT_UID_BASE = 61184
DEFAULT_IMAGES_MIB = 1024
END_LIMIT_S = END_GRACE_S + 3.0
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

Server = UnixServer | TcpServer | DeviceServer | ServingDevice | ControlServer


@dataclass(frozen=True)
class Options:
    """The command line, checked."""

    run_dir: Path
    worker: Path
    backend: str
    unix: str
    device: str
    serve: Path | None
    tcp: tuple[str, int] | None
    token_file: Path | None
    log: Path | None
    lifeline_fd: int
    limits: Limits
    vendors: Path
    cache_seed: Path | None
    state_parent: Path | None
    uid_base: int
    jail: bool
    gpu: str
    report_refused: bool
    cuda: tuple[Path, ...]
    images: Path | None
    images_bytes: int
    environment: dict[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a supervisor; returns the exit status."""
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        return serve(options)
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: supervisor: {error}", file=sys.stderr)
        return 1


def parse(argv: Sequence[str]) -> Options:
    """Read the command line. Raises TestbedError for values that cannot work."""
    parser = argparse.ArgumentParser(prog="host_server.supervisor", description=__doc__)
    add = parser.add_argument
    add("--run-dir", type=Path, required=True, help="where sessions.jsonl is written")
    add("--worker", type=Path, required=True, help="the wormhole-worker program")
    add("--backend", choices=("opencl", "cuda", "null"), required=True)
    add("--unix", default="", help="socket for host processes; `auto` makes and announces a path")
    add("--device-socket", default="", help="socket for QEMU's device; a path or `auto`")
    add("--serve", type=Path, help="the device node of a guest that serves another guest")
    add("--tcp", help="HOST:PORT, port 0 takes any")
    add("--token-file", type=Path, help="the TCP secret as hex; made if missing")
    add("--log", type=Path, help="file instead of standard error")
    add("--lifeline-fd", type=int, default=-1, help="end when this descriptor reaches its end")
    add("--session-bytes", type=int, default=DEFAULT_SESSION_BYTES)
    add("--session-count", type=int, default=DEFAULT_SESSION_COUNT)
    add(
        "--session-memory-mib",
        type=int,
        default=default_limit_bytes() // MIB,
        help="memory that a session's processes may hold, 0 for no limit "
        "(default: three quarters of the machine's)",
    )
    add("--opencl-vendors", type=Path, default=SYSTEM_VENDORS, help="directory or .icd file")
    add(
        "--pocl-cache-seed",
        type=Path,
        help="kernel cache that each session gets a copy of; it may be a link, followed anew for "
        "each session, and may be missing",
    )
    add("--state-parent", type=Path, help="where the temporary directory is made")
    add("--uid-base", type=int, default=DEFAULT_UID_BASE, help="first user id for sessions")
    add("--no-jail", action="store_true", help="for debugging only")
    add(
        "--gpu",
        choices=("auto", "on", "off"),
        default="auto",
        help="keep GPU device files reachable for workers (auto: if what they load is a GPU's)",
    )
    add("--report-refused", action="store_true", help="workers say which system calls are refused")
    add(
        "--cuda-libraries",
        default="",
        help="directories of CUDA's own libraries, with colons between (default: found)",
    )
    add(
        "--images",
        type=Path,
        help="folder of this VM alone in which its programs' device code is kept for its next run "
        "(default: one that ends with the supervisor)",
    )
    add(
        "--images-mib",
        type=int,
        default=DEFAULT_IMAGES_MIB,
        help="how much of it is kept, 0 for none",
    )
    add("--worker-env", action="append", default=[], metavar="NAME=VALUE")
    got = parser.parse_args(argv)
    if not (got.unix or got.device_socket or got.serve or got.tcp):
        raise TestbedError("nothing to listen on", "give --unix, --device-socket, --serve or --tcp")
    if got.tcp and not got.token_file:
        raise TestbedError("--tcp needs --token-file", "give a path; the file is made if missing")
    if not os.access(got.worker, os.X_OK):
        raise TestbedError(f"{got.worker} is not a program", "give the path of wormhole-worker")
    if not 1 <= got.session_count <= constant("session_count_max"):
        raise TestbedError(
            f"{got.session_count} sessions are not possible",
            f"give 1 to {constant('session_count_max')}",
        )
    return Options(
        run_dir=got.run_dir.absolute(),
        worker=got.worker.absolute(),
        backend=got.backend,
        unix=got.unix,
        device=got.device_socket,
        serve=got.serve,
        tcp=_address(got.tcp) if got.tcp else None,
        token_file=got.token_file,
        log=got.log,
        lifeline_fd=got.lifeline_fd,
        limits=Limits(
            check_session_bytes(got.session_bytes),
            got.session_count,
            memory_bytes=max(got.session_memory_mib, 0) * MIB,
        ),
        vendors=got.opencl_vendors,
        cache_seed=got.pocl_cache_seed,
        state_parent=got.state_parent,
        uid_base=got.uid_base,
        jail=not got.no_jail,
        gpu=got.gpu,
        report_refused=got.report_refused,
        cuda=_cuda_libraries(got.cuda_libraries),
        images=got.images,
        images_bytes=max(got.images_mib, 0) * MIB,
        environment=dict(_assignment(text) for text in got.worker_env),
    )


def _cuda_libraries(chosen: str) -> tuple[Path, ...]:
    return tuple(cuda_libraries({CUDA_VARIABLE: chosen} if chosen else os.environ))


def serve(options: Options) -> int:
    """Listen, say so on standard output, run until told to end, leave nothing."""
    options.run_dir.mkdir(parents=True, exist_ok=True)
    vendors = real_vendors(options.vendors) if options.backend == "opencl" else {}
    _name_process()
    if options.log is not None:
        _log_to(options.log)
    with contextlib.ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        state = stack.enter_context(StateDir(options.state_parent))
        listeners: dict[str, socket.socket] = {}
        places = (("unix", options.unix), ("device", options.device), (CONTROL_NAME, "auto"))
        for name, wanted in places:
            if wanted:
                path = state.path / name if wanted == "auto" else Path(wanted).absolute()
                listeners[name] = listen_unix(path)
                stack.callback(_remove, listeners[name], path)
                state.remove_later(path)
        if options.tcp is not None:
            listeners["tcp"] = listen_tcp(*options.tcp)
            stack.callback(listeners["tcp"].close)
        spare_child(state.janitor_pid)
        images = _images(options, state.path)
        if images is not None:
            stack.callback(images.close)
        settings = WorkerSettings(
            program=options.worker,
            backend=options.backend,
            state_dir=state.path,
            uid_base=options.uid_base,
            jail=options.jail,
            gpu=options.gpu == "on"
            or (options.gpu == "auto" and wants_gpu(options.backend, vendors)),
            report_refused=options.report_refused,
            library_directories=library_directories(vendors, options.backend),
            cuda=options.cuda,
            vendors=vendors,
            cache_seed=options.cache_seed,
            images=images,
            environment=options.environment,
        )
        sessions = Sessions(loop, settings, options.limits, options.run_dir)
        servers = _servers(options, sessions, listeners)
        stack.callback(_end, loop, sessions, servers)
        _watch_signals(loop)
        if options.lifeline_fd >= 0:
            os.set_inheritable(options.lifeline_fd, False)
            loop.watch(options.lifeline_fd, lambda: _lifeline(loop, options.lifeline_fd))
        print(json.dumps(_announcement(options, listeners)), flush=True)
        loop.run()
    return 0


def _images(options: Options, state: Path) -> ImageStore | None:
    """Where device code is kept: the VM's folder, or one for our time where that cannot be had."""
    if options.backend != "cuda" or options.images_bytes == 0:
        return None
    one_vm = bool(options.device or options.serve)
    if options.images is not None:
        try:
            store = ImageStore(options.images, options.images_bytes, alone=one_vm)
            store.sweep()
        except OSError as error:
            why = "another server uses it" if isinstance(error, BlockingIOError) else str(error)
            log(f"device code is not kept in {options.images}: {why}")
        else:
            return store
    return ImageStore(state / "images", options.images_bytes, alone=one_vm)


def _remove(listener: socket.socket, path: Path) -> None:
    listener.close()
    path.unlink(missing_ok=True)


def _servers(
    options: Options, sessions: Sessions, listeners: dict[str, socket.socket]
) -> list[Server]:
    servers: list[Server] = [ControlServer(sessions, listeners[CONTROL_NAME])]
    if "unix" in listeners:
        servers.append(UnixServer(sessions, listeners["unix"]))
    if "device" in listeners:
        servers.append(DeviceServer(sessions, listeners["device"]))
    if options.serve is not None:
        servers.append(ServingDevice(sessions, options.serve))
    if "tcp" in listeners and options.token_file is not None:
        token = read_token(options.token_file)
        servers.append(TcpServer(sessions, listeners["tcp"], token))
    return servers


def _announcement(options: Options, listeners: dict[str, socket.socket]) -> dict[str, object]:
    tcp = None
    if "tcp" in listeners:
        host, port = listeners["tcp"].getsockname()[:2]
        tcp = f"{host}:{port}"
    return {
        "event": "listening",
        "pid": os.getpid(),
        "unix": _path_of(listeners, "unix"),
        "device": _path_of(listeners, "device"),
        "tcp": tcp,
        "token_file": str(options.token_file) if tcp else None,
        "protocol_version": constant("protocol_version"),
        "spec_hash": f"{hash_of_specs():016x}",
    }


def _path_of(listeners: dict[str, socket.socket], name: str) -> str | None:
    return str(listeners[name].getsockname()) if name in listeners else None


def read_token(path: Path) -> bytes:
    """The TCP secret from its file; a missing file is made with a random one, readable by us."""
    size_bytes = constant("token_bytes")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(size_bytes) + "\n")
    try:
        token = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError as error:
        raise TestbedError(f"{path} does not hold a token in hex", "delete it") from error
    if len(token) != size_bytes:
        raise TestbedError(
            f"the token in {path} has {len(token)} bytes, expected {size_bytes}", "delete it"
        )
    return token


def _end(loop: Loop, sessions: Sessions, servers: list[Server]) -> None:
    """End all sessions and wait, with a limit, until their workers are collected."""
    for server in servers:
        server.close()
    sessions.end_all("the supervisor ends")
    over: list[bool] = []
    loop.after(END_LIMIT_S, lambda: over.append(True))
    while sessions.count and not over:
        loop.step()


def _watch_signals(loop: Loop) -> None:
    """SIGTERM, SIGINT and SIGHUP end the loop at its next step."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)

    def stop(*_: object) -> None:
        loop.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    signal.set_wakeup_fd(write_fd)
    loop.watch(read_fd, lambda: _drain(read_fd))


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 64)


def _lifeline(loop: Loop, fd: int) -> None:
    if not os.read(fd, 64):
        log("the owner is gone")
        loop.unwatch(fd)
        loop.stopping = True


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 2)
    os.close(fd)


def _name_process() -> None:
    """A name for `ps`, and leftovers of sessions become our children so that they can be ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, b"wormhole-super", 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise TestbedError(f"{text!r} is not HOST:PORT", "for example 127.0.0.1:0")
    return host.strip("[]"), int(port)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise TestbedError(f"{text!r} is not NAME=VALUE", "for example POCL_MAX_PTHREAD_COUNT=2")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
