"""The life of a VM: start QEMU, wait for SSH, hand out the connection, leave nothing behind.

`boot` is for a caller that stays: the kernel kills QEMU when the caller dies in whatever way.
`boot_detached`, `detached_vms` and `stop_detached` are for VMs that outlive a command; their state
is a directory each under `state_dir()`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.machine.artifacts import cache_dir, last_lines
from testbed.machine.guest import Guest
from testbed.machine.host_clock import tsc_khz
from testbed.machine.image import GuestImage, guest_image, seed_archive
from testbed.machine.nbd import connect_disk
from testbed.machine.probe import accelerator
from testbed.machine.processes import CpuSeconds, cpu_seconds, thread_cpu_seconds
from testbed.machine.qemu_argv import (
    CONSOLE_NAME,
    GUEST_ADDRESS,
    GUEST_NETMASK,
    HOST_ADDRESS,
    INITRD_NAME,
    NAMESERVER_ADDRESS,
    QMP_SOCKET_NAME,
    Qemu,
    VmConfig,
    check_config,
    qemu_argv,
)
from testbed.machine.qmp import Qmp
from testbed.machine.ssh import KeyPair, Ssh, connect, generate_key_pair

QEMU_LOG_NAME = "qemu.log"
KEY_NAME = "ssh_key"
KNOWN_HOSTS_NAME = "known_hosts"
STATE_NAME = "state.json"
LOCK_NAME = "lock"
BOOT_TIMEOUT_S = {"kvm": 60.0, "tcg": 180.0}
QUIT_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 5.0
POLL_S = 0.05
PORT_TRIES = 5
SHELL_CONNECT_LIMIT_S = 60
SHELL_ALIVE_INTERVAL_S = 20
SHELL_ALIVE_COUNT = 3
SSH_READY_TEXT = b"Server listening on"
FAILED_TEXTS = (b"wormhole-init: FAILED", b"Kernel panic")
PORT_TAKEN_TEXT = "Could not set up host forwarding rule"
CONSOLE_LINES = 8

_SSHD_CONFIG = """\
HostKey /run/wormhole/ssh_host_key
AuthorizedKeysFile /run/wormhole/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
MaxSessions 100
MaxStartups 100
PrintMotd no
PidFile none
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class VmFacts:
    """What was started: for the records, and for finding a detached VM again."""

    name: str
    pid: int
    ssh_port: int
    accelerator: str
    run_dir: Path
    host_key: str
    boot_s: float
    argv: tuple[str, ...]


class Vm:
    """A running guest that answers over SSH."""

    def __init__(self, facts: VmFacts, key: KeyPair, ssh: Ssh, qmp: Qmp) -> None:
        self.facts = facts
        self.key = key
        self.ssh = ssh
        self.qmp = qmp
        self._guest: Guest | None = None

    @property
    def pid(self) -> int:
        """QEMU's process id, also that of its process group."""
        return self.facts.pid

    @property
    def console_log(self) -> Path:
        """The guest's console."""
        return self.facts.run_dir / CONSOLE_NAME

    @property
    def guest(self) -> Guest:
        """The agent in the guest; copied there on first use."""
        if self._guest is None:
            self._guest = Guest(self.ssh)
        return self._guest

    def cpu_seconds(self) -> CpuSeconds:
        """CPU time of QEMU with all its threads: the guest's processors and the emulation."""
        return cpu_seconds(self.pid)

    def exits(self) -> dict[str, int]:
        """KVM's own counters of the guest's processors, summed; empty under TCG, which has none."""
        answer = self.qmp.execute("query-stats", target="vcpu", providers=[{"provider": "kvm"}])
        totals: dict[str, int] = {}
        for processor in answer:
            for counter in processor["stats"]:
                value = counter["value"]
                if isinstance(value, int) and not isinstance(value, bool):
                    totals[counter["name"]] = totals.get(counter["name"], 0) + value
        return totals

    def vcpu_seconds(self) -> CpuSeconds:
        """CPU time of the threads alone that run the guest's processors."""
        threads = {int(cpu["thread-id"]) for cpu in self.qmp.execute("query-cpus-fast")}
        return thread_cpu_seconds(self.pid, threads)


@contextmanager
def boot(
    config: VmConfig,
    run_dir: Path,
    image: GuestImage | None = None,
    qemu: Qemu | None = None,
    timeout_s: float | None = None,
) -> Iterator[Vm]:
    """Start a VM, yield it when SSH answers, end it on leaving.

    `run_dir` gets the console and QEMU's log and keeps them; socket and initrd are removed.
    `timeout_s` (seconds, from start to SSH) defaults to `BOOT_TIMEOUT_S`.  Raises TestbedError with
    the console's last lines if the guest does not come up.
    """
    starter = _Starter(config, run_dir, image, qemu, timeout_s, dies_with_us=True)
    process, facts, key = starter.start()
    ssh: Ssh | None = None
    qmp: Qmp | None = None
    try:
        qmp = Qmp(run_dir / QMP_SOCKET_NAME)
        ssh = _connect(facts, key)
        yield Vm(facts, key, ssh, qmp)
    finally:
        if ssh is not None:
            ssh.close()
        _end(process, qmp)
        _clean(run_dir)


def state_dir() -> Path:
    """Where detached VMs have their directories."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "wormhole-testbed" if runtime else cache_dir() / "run"


def boot_detached(
    config: VmConfig, image: GuestImage | None = None, qemu: Qemu | None = None
) -> VmFacts:
    """Start a VM that goes on when this process ends.  Raises TestbedError if the name is taken."""
    check_config(config)
    run_dir = state_dir() / config.name
    run_dir.mkdir(parents=True, exist_ok=True)
    with _name_lock(run_dir):
        if _running(run_dir) is not None:
            raise TestbedError(
                f"a VM named {config.name} is running",
                f"use another name, or ./inv vm.stop --name {config.name}",
            )
        starter = _Starter(config, run_dir, image, qemu, None, dies_with_us=False)
        process, facts, key = starter.start()
        try:
            (run_dir / KEY_NAME).touch(mode=0o600)
            (run_dir / KEY_NAME).write_bytes(key.private)
            host = f"[127.0.0.1]:{facts.ssh_port} {facts.host_key}\n"
            (run_dir / KNOWN_HOSTS_NAME).write_text(host)
            partial = run_dir / f"{STATE_NAME}.partial"
            partial.write_text(json.dumps(_facts_to_json(facts)))
            partial.rename(run_dir / STATE_NAME)
        except BaseException:
            _end(process, None)
            shutil.rmtree(run_dir, ignore_errors=True)
            raise
    return facts


def detached_vms() -> list[VmFacts]:
    """The detached VMs that run; what dead ones left is removed."""
    found: list[VmFacts] = []
    for state in sorted(state_dir().glob(f"*/{STATE_NAME}")):
        facts = _running(state.parent)
        if facts is None:
            shutil.rmtree(state.parent, ignore_errors=True)
        else:
            found.append(facts)
    return found


def detached_vm(name: str) -> VmFacts:
    """The detached VM of this name.  Raises TestbedError if it does not run."""
    vms = {facts.name: facts for facts in detached_vms()}
    if name not in vms:
        raise TestbedError(
            f"no VM named {name} is running",
            f"running: {', '.join(vms)}" if vms else "start one with ./inv vm.boot",
        )
    return vms[name]


def shell_argv(facts: VmFacts, user: str = "wormhole", command: Sequence[str] = ()) -> list[str]:
    """The ssh command that opens a shell in a detached VM, or runs one command there.

    ssh joins its words and the guest's shell splits them again: so they go quoted.
    """
    return [
        *("ssh", "-i", str(facts.run_dir / KEY_NAME), "-p", str(facts.ssh_port)),
        *("-o", f"UserKnownHostsFile={facts.run_dir / KNOWN_HOSTS_NAME}"),
        *("-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes"),
        # A guest that hangs ends the command, which has no limit of its own.
        *("-o", f"ConnectTimeout={SHELL_CONNECT_LIMIT_S}"),
        *("-o", f"ServerAliveInterval={SHELL_ALIVE_INTERVAL_S}"),
        *("-o", f"ServerAliveCountMax={SHELL_ALIVE_COUNT}"),
        f"{user}@127.0.0.1",
        *(shlex.quote(word) for word in command),
    ]


@contextmanager
def attach(facts: VmFacts) -> Iterator[Vm]:
    """Connect to a detached VM; leaving closes the connections and nothing else."""
    key = KeyPair.from_private((facts.run_dir / KEY_NAME).read_bytes())
    with Qmp(facts.run_dir / QMP_SOCKET_NAME) as qmp, _connect(facts, key) as ssh:
        yield Vm(facts, key, ssh, qmp)


def stop_detached(name: str) -> None:
    """End a detached VM and remove its directory."""
    facts = detached_vm(name)
    with _name_lock(facts.run_dir):
        if _running(facts.run_dir) is not None:
            _end_group(facts.pid, lambda: _running(facts.run_dir) is None)
        shutil.rmtree(facts.run_dir, ignore_errors=True)


class _Starter:
    """What starting needs; the two ways to start share it."""

    def __init__(
        self,
        config: VmConfig,
        run_dir: Path,
        image: GuestImage | None,
        qemu: Qemu | None,
        timeout_s: float | None,
        dies_with_us: bool,
    ) -> None:
        check_config(config)
        self._config = config if config.tsc_khz else replace(config, tsc_khz=tsc_khz())
        self._run_dir = run_dir
        self._qemu = qemu if qemu is not None else _built_qemu()
        self._image = image if image is not None else guest_image()
        self._accelerator = config.accelerator or accelerator(self._qemu, self._image)
        self._timeout_s = timeout_s or BOOT_TIMEOUT_S[self._accelerator]
        self._dies_with_us = dies_with_us
        self._host_key = generate_key_pair()
        self._key = generate_key_pair()

    def start(self) -> tuple[subprocess.Popen[bytes], VmFacts, KeyPair]:
        """Start QEMU and wait until the guest's sshd listens."""
        try:
            self._run_dir.mkdir(parents=True, exist_ok=True)
            _clean(self._run_dir)
            self._write_initrd()
        except OSError as error:
            raise TestbedError(
                f"cannot prepare VM {self._config.name} in {self._run_dir}: {error}",
                "free some space, or choose another directory",
            ) from error
        for attempt in range(PORT_TRIES):
            port = self._config.ssh_port or free_port()
            started_s = time.monotonic()
            process, argv = self._spawn(port)
            try:
                self._wait_for_sshd(process, started_s + self._timeout_s)
            except _PortTakenError as error:
                if self._config.ssh_port or attempt + 1 == PORT_TRIES:
                    raise TestbedError(
                        f"TCP port {port} of 127.0.0.1 is in use",
                        "give another SSH port, or none to take a free one",
                    ) from error
                continue
            except BaseException:
                _end(process, None)
                _clean(self._run_dir)
                raise
            facts = VmFacts(
                name=self._config.name,
                pid=process.pid,
                ssh_port=port,
                accelerator=self._accelerator,
                run_dir=self._run_dir,
                host_key=self._host_key.public,
                boot_s=time.monotonic() - started_s,
                argv=tuple(argv),
            )
            return process, facts, self._key
        raise AssertionError("the loop above returns or raises")

    def _write_initrd(self) -> None:
        """The image's initramfs with this VM's keys and network behind it."""
        settings = {
            "hostname": self._config.name,
            "address": GUEST_ADDRESS,
            "netmask": GUEST_NETMASK,
            "gateway": HOST_ADDRESS,
            "nameserver": NAMESERVER_ADDRESS,
        }
        seed = {
            "settings": "".join(f"{key}={value}\n" for key, value in settings.items()).encode(),
            "sshd_config": _SSHD_CONFIG.encode(),
            "authorized_keys": f"{self._key.public}\n".encode(),
            "ssh_host_key": self._host_key.private,
        }
        initrd = self._run_dir / INITRD_NAME
        initrd.touch(mode=0o600)
        initrd.write_bytes(
            self._image.initrd.read_bytes() + seed_archive(seed, private=["ssh_host_key"])
        )

    def _spawn(self, port: int) -> tuple[subprocess.Popen[bytes], list[str]]:
        (self._run_dir / CONSOLE_NAME).unlink(missing_ok=True)
        with ExitStack() as stack:
            log = stack.enter_context((self._run_dir / QEMU_LOG_NAME).open("wb"))
            region, tap, share = self._config.region, self._config.tap, self._config.share
            passed = [region.memory_fd] if region is not None and region.memory_fd >= 0 else []
            passed += [tap.fd] if tap is not None else []
            share_fd = -1
            if share is not None:
                # One for each start: its other side is served until QEMU has ended.
                share_fd = stack.enter_context(connect_disk(share)).fileno()
                passed.append(share_fd)
            argv = qemu_argv(
                self._config, self._image, self._qemu, self._accelerator, port, share_fd
            )
            process = spawn(argv, self._run_dir, log.fileno(), self._dies_with_us, passed)
        return process, argv

    def _wait_for_sshd(self, process: subprocess.Popen[bytes], deadline_s: float) -> None:
        """Watch the console; a connection made before sshd listens would wait for a resent SYN."""
        console = self._run_dir / CONSOLE_NAME
        while True:
            text = console.read_bytes() if console.exists() else b""
            if SSH_READY_TEXT in text:
                return
            if process.poll() is not None:
                log = "\n".join(last_lines(self._run_dir / QEMU_LOG_NAME))
                if PORT_TAKEN_TEXT in log:
                    raise _PortTakenError
                raise self._failure(f"QEMU ended with status {process.returncode}", log)
            if any(failed in text for failed in FAILED_TEXTS):
                raise self._failure("the guest did not start", "")
            if time.monotonic() > deadline_s:
                raise self._failure(
                    f"the guest's sshd did not answer within {self._timeout_s:.0f} s", ""
                )
            time.sleep(POLL_S)

    def _failure(self, what: str, log: str) -> TestbedError:
        console = self._run_dir / CONSOLE_NAME
        lines = [*log.splitlines(), *last_lines(console, CONSOLE_LINES)]
        said = "".join(f"\n    {_printable(line)}" for line in lines[-CONSOLE_LINES:])
        return TestbedError(
            f"VM {self._config.name}: {what}{said or ' and said nothing'}",
            f"see {console} and {self._run_dir / QEMU_LOG_NAME}",
        )


class _PortTakenError(Exception):
    """Another program took the port between our look and QEMU's bind."""


# The kernel's "kill when the parent dies" means the parent *thread*: start from one that lives as
# long as this process does.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


def spawn(
    argv: list[str],
    cwd: Path,
    output: int,
    dies_with_us: bool = True,
    passed: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, killed with us if asked for.

    Its temporary files go to `cwd`; both outputs go to the descriptor `output`.  The descriptors
    `passed` are its own under the same numbers.
    """
    if dies_with_us:
        argv = ["setpriv", "--pdeathsig", "KILL", "--", *argv]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(cwd)},
            pass_fds=passed,
        )

    try:
        return _SPAWNER.submit(start).result()
    except OSError as error:
        raise TestbedError(
            f"cannot start {argv[0]}: {error.strerror or error}",
            "run ./inv doctor to see what is missing",
        ) from error


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _built_qemu() -> Qemu:
    from testbed.machine.qemu_build import qemu_bundle

    return qemu_bundle()


def _connect(facts: VmFacts, key: KeyPair) -> Ssh:
    def give_up() -> None:
        if not _is_alive(facts.pid):
            lines = last_lines(facts.run_dir / QEMU_LOG_NAME, CONSOLE_LINES)
            raise TestbedError(
                f"VM {facts.name}: QEMU has ended: {' | '.join(lines) or 'it said nothing'}"
            )

    return connect("127.0.0.1", facts.ssh_port, "root", key, facts.host_key, give_up=give_up)


def _end(process: subprocess.Popen[bytes], qmp: Qmp | None) -> None:
    """End QEMU: by its monitor, by a signal, by force."""
    if qmp is not None:
        try:
            qmp.quit()
            process.wait(QUIT_TIMEOUT_S)
        except (TestbedError, subprocess.TimeoutExpired):
            pass  # it is ended by other means below
        qmp.close()
    if process.poll() is None:
        _end_group(process.pid, lambda: process.poll() is not None)
    process.wait(KILL_TIMEOUT_S)


def _end_group(group: int, is_over: Callable[[], bool]) -> None:
    for number, grace_s in ((signal.SIGTERM, QUIT_TIMEOUT_S), (signal.SIGKILL, KILL_TIMEOUT_S)):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        deadline_s = time.monotonic() + grace_s
        while time.monotonic() < deadline_s:
            if is_over():
                return
            time.sleep(POLL_S)


def _clean(run_dir: Path) -> None:
    """Remove what is of no use once QEMU has ended; the logs stay."""
    for name in (QMP_SOCKET_NAME, INITRD_NAME):
        (run_dir / name).unlink(missing_ok=True)


def _facts_to_json(facts: VmFacts) -> dict[str, Any]:
    return {**facts.__dict__, "run_dir": str(facts.run_dir), "start": _start_ticks(facts.pid)}


def _running(run_dir: Path) -> VmFacts | None:
    """The facts of the VM whose state lies in `run_dir`, if that very process still runs."""
    try:
        state: dict[str, Any] = json.loads((run_dir / STATE_NAME).read_text())
        start = state.pop("start")
        facts = VmFacts(
            **{**state, "run_dir": Path(state["run_dir"]), "argv": tuple(state["argv"])}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A process id is used again sooner or later; id and start time together are not.
    return facts if _is_alive(facts.pid) and _start_ticks(facts.pid) == start else None


def _stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def _start_ticks(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[19] if fields else ""


@contextmanager
def _name_lock(run_dir: Path) -> Iterator[None]:
    """One starter or stopper of a name at a time; the others are told so at once."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    lock = run_dir.parent / f".{run_dir.name}.{LOCK_NAME}"
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TestbedError(
                f"another command is starting or stopping the VM {run_dir.name}",
                "wait for it, or use another name",
            ) from None
        yield


def _printable(line: str) -> str:
    """A console line without the control sequences that firmware and kernel send."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e]", "", line)
