"""The host's side of the agent: what can be asked of a guest that SSH reaches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from testbed.errors import TestbedError
from testbed.machine.ssh import Ssh, Stream
from testbed.root import ROOT

AGENT_SOURCE = ROOT / "guest_agent" / "agent.py"
AGENT_PATH = "/opt/wormhole/agent.py"
CUDA_PATH = PurePosixPath("/opt/wormhole/lib/cuda")
DRIVER_PATH = "/opt/wormhole/wormhole.ko"
LIBRARY_PATH = "/opt/wormhole/lib/libwormhole_opencl.so"
LIBRARY_PREFIX = "wormhole: "  # of what our library prints
AGENT_TIMEOUT_S = 60.0
RUN_GRACE_S = 30.0  # what the agent gets beyond the program's own limit

Event = dict[str, Any]
OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class GuestRun:
    """How a program in the guest ended.

    `reason` is `ended` or `timeout`; `status` is negative for a signal; CPU times are in seconds
    and cover the program and the children it waited for.  `events` are its own event lines.
    """

    status: int
    reason: str
    stdout: str
    stderr: str
    events: list[Event]
    user_s: float
    system_s: float
    max_rss_kib: int
    wall_s: float

    @property
    def complaint(self) -> str:
        """The line of its standard error that says most about a failure, or an empty text."""
        return complaint_in(self.stderr)


def complaint_in(text: str) -> str:
    """Our library's last line, else the last that is not empty, else an empty text.

    What the library says is the cause; what the program made of it came later.
    """
    spoken = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in spoken if line.startswith(LIBRARY_PREFIX)]
    return (ours or spoken or [""])[-1]


@dataclass
class _Collector:
    """Cuts the agent's output into events as it arrives."""

    on_event: OnEvent | None
    on_line: Callable[[Stream, str], None] | None
    events: list[Event] = field(default_factory=list)
    text: dict[str, list[str]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    end: Event | None = None
    _rest: bytes = b""

    def take(self, stream: Stream, piece: bytes) -> None:
        """A piece of the agent's standard output; its standard error is its own."""
        if stream == "stderr":
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        event = json.loads(line)
        if event["event"] == "exit":
            self.end = event
        elif event["event"] == "output":
            self.text[event["stream"]].append(event["text"] + "\n")
            if self.on_line:
                self.on_line(event["stream"], event["text"])
        else:
            self.events.append(event)
            if self.on_event:
                self.on_event(event)


class Guest:
    """A guest with our agent in it."""

    def __init__(self, ssh: Ssh) -> None:
        """Copy the agent into the guest that `ssh` (as root) reaches."""
        self._ssh = ssh
        ssh.put({AGENT_PATH: AGENT_SOURCE})

    @property
    def ssh(self) -> Ssh:
        """The connection, for what needs no agent."""
        return self._ssh

    def info(self) -> dict[str, Any]:
        """The guest's facts; see agent.py."""
        facts: dict[str, Any] = json.loads(self._agent("info"))
        return facts

    def load_driver(self, module: Path) -> None:
        """Copy the kernel module and load it; the VM must have the device."""
        self._ssh.put({DRIVER_PATH: module})
        self._agent("load-driver", DRIVER_PATH)

    def install_icd(self, library: Path) -> None:
        """Copy the OpenCL stub library and make it the guest's only OpenCL driver."""
        self._ssh.put({LIBRARY_PATH: library})
        self._agent("install-icd", LIBRARY_PATH)

    def install_cuda(self, folder: Path) -> None:
        """Copy the libraries that stand in for CUDA's; programs find them by their variables."""
        libraries = sorted(folder.glob("*.so*"))
        self._ssh.put({str(CUDA_PATH / path.name): path for path in libraries})

    def mount_host(
        self, serial: str, root: PurePosixPath, folders: Sequence[PurePosixPath]
    ) -> None:
        """Mount the disk of host files at `root`, and the guest's own `folders` inside."""
        self._agent("mount-host", serial, str(root), *map(str, folders))

    def set_address(self, mac: str, address: str, netmask: str) -> None:
        """Give the network card with this hardware address its IPv4 address, and start it."""
        self._agent("set-address", mac, address, netmask)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: float = 60.0,
        user: str = "wormhole",
        root: PurePosixPath | None = None,
        on_event: OnEvent | None = None,
        on_line: Callable[[Stream, str], None] | None = None,
    ) -> GuestRun:
        """Run a program in the guest, ended with all its group at `timeout_s`.

        `root` is the folder that it has as its root.
        `on_event` gets the program's event lines, `on_line` its other output, as they come.
        Raises TestbedError if it cannot be started or the guest goes away; a program that fails or
        passes its limit is a result.
        """
        request = {
            "argv": list(argv),
            "env": dict(env or {}),
            "cwd": cwd,
            "timeout_s": timeout_s,
            "user": user,
            "root": str(root) if root is not None else None,
        }
        collector = _Collector(on_event, on_line)
        result = self._ssh.run(
            ["python3", "-I", "-u", AGENT_PATH, "run"],
            timeout_s=timeout_s + RUN_GRACE_S,
            on_output=collector.take,
            stdin=json.dumps(request).encode() + b"\n",
            keep_stdin=True,
        )
        end = collector.end
        if end is None:
            said = result.stderr.decode(errors="replace").strip().splitlines()
            raise TestbedError(
                f"running {argv[0]} in the guest failed: "
                f"{said[-1].removeprefix('agent: ') if said else 'the agent ended early'}",
                "see the guest's console log",
            )
        return GuestRun(
            status=int(end["status"]),
            reason=str(end["reason"]),
            stdout="".join(collector.text["stdout"]),
            stderr="".join(collector.text["stderr"]),
            events=collector.events,
            user_s=float(end["user_s"]),
            system_s=float(end["system_s"]),
            max_rss_kib=int(end["max_rss_kib"]),
            wall_s=float(end["wall_s"]),
        )

    def _agent(self, *words: str) -> str:
        argv = ["python3", "-I", AGENT_PATH, *words]
        result = self._ssh.run(argv, timeout_s=AGENT_TIMEOUT_S)
        if result.status != 0:
            said = result.stderr.decode(errors="replace").strip().splitlines()
            raise TestbedError(
                f"the guest's agent could not {words[0]}: "
                f"{said[-1].removeprefix('agent: ') if said else f'status {result.status}'}",
                "see the guest's console log",
            )
        return result.stdout.decode()
