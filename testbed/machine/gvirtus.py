"""A GVirtuS installation of this machine: found, checked, started for a phase, and ended.

The project neither contains nor builds GVirtuS. What is used is the layout of its installation:
`bin/gvirtus-backend`, which takes a configuration file; libraries in `lib/`, those under CUDA's
names in `lib/frontend/`; and `etc/properties.json`. A phase gets a backend of its own, on a port of
its own, with logging off: debug logs halve its speed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.machine.artifacts import last_lines
from testbed.machine.processes import CpuSeconds, cpu_seconds
from testbed.machine.vm import free_port

HOME_VARIABLE = "GVIRTUS_HOME"
USUAL_HOMES = ("/usr/local/gvirtus", "/opt/GVirtuS", "/opt/gvirtus")
LOG_NAME = "gvirtus-backend.log"
CONFIG_NAME = "gvirtus.json"
ADDRESS = "127.0.0.1"
LOG_LEVEL_OFF = "60000"  # of log4cplus
START_LIMIT_S = 20.0
STOP_LIMIT_S = 5.0
POLL_S = 0.05
CLIENT_POLL_S = 0.2


@dataclass(frozen=True)
class GVirtuS:
    """An installation. `frontends` are the names of its libraries under CUDA's names."""

    home: Path
    plugins: tuple[str, ...]
    frontends: tuple[str, ...]

    @property
    def backend(self) -> Path:
        """The program that executes what applications forward."""
        return self.home / "bin" / "gvirtus-backend"

    @property
    def cuda_versions(self) -> tuple[str, ...]:
        """CUDA's major versions for which it has a runtime library."""
        found = (re.fullmatch(r"libcudart\.so\.(\d+).*", name) for name in self.frontends)
        return tuple(sorted({match[1] for match in found if match}))

    def facts(self) -> dict[str, Any]:
        """What a record says of it; a hash tells builds apart, which have no other number."""
        return {
            "home": str(self.home),
            "backend_sha256": hashlib.sha256(self.backend.read_bytes()).hexdigest(),
            "cuda": list(self.cuda_versions),
            "plugins": list(self.plugins),
        }


def find_gvirtus(environment: Mapping[str, str] = os.environ) -> GVirtuS:
    """The installation that $GVIRTUS_HOME names, or one in a usual place.

    Raises TestbedError if there is none, or if a file that is needed is missing, naming it.
    """
    named = environment.get(HOME_VARIABLE, "")
    places = [Path(named)] if named else [Path(text) for text in USUAL_HOMES]
    home = next((path for path in places if path.is_dir()), None)
    if home is None:
        raise TestbedError(
            f"there is no GVirtuS here: {', '.join(str(path) for path in places)} is no folder",
            f"install GVirtuS and set {HOME_VARIABLE} to where it lies",
        )
    frontend = home / "lib" / "frontend"
    frontends = tuple(sorted(path.name for path in frontend.glob("lib*.so*")))
    found = GVirtuS(home.absolute(), (), frontends)
    if not os.access(found.backend, os.X_OK):
        raise TestbedError(f"{found.backend} is no program", _incomplete(home))
    if not found.cuda_versions:
        raise TestbedError(f"{frontend} has no libcudart.so.N", _incomplete(home))
    return GVirtuS(found.home, _plugins(_read_config(home)), frontends)


def _incomplete(home: Path) -> str:
    return f"complete the installation in {home}: make install of a build for CUDA 12 or 13"


def _read_config(home: Path) -> dict[str, Any]:
    path = home / "etc" / "properties.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        config["communicator"][0]["endpoint"].items()
        return config
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise TestbedError(f"{path} cannot be used: {error!r}", _incomplete(home)) from error


def _plugins(config: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(name) for name in config["communicator"][0].get("plugins", ()))


class Backend:
    """A running backend."""

    def __init__(
        self, install: GVirtuS, process: subprocess.Popen[bytes], run_dir: Path, port: int
    ) -> None:
        self._install = install
        self._process = process
        self._run_dir = run_dir
        self._port = port
        self._used = threading.Event()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="gvirtus clients", daemon=True)

    @property
    def log(self) -> Path:
        """What it printed; with logging off, only what went wrong."""
        return self._run_dir / LOG_NAME

    def client_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """A program's environment in which CUDA's libraries are those of the front end.

        OpenCL finds nothing: GVirtuS does not forward it, and a program that ran natively instead
        would be taken for one that was forwarded.
        """
        library = self._install.home / "lib"
        own = base.get("LD_LIBRARY_PATH", "")
        path = f"{library / 'frontend'}:{library}" + (f":{own}" if own else "")
        return {
            **base,
            HOME_VARIABLE: str(self._install.home),
            "GVIRTUS_CONFIG": str(self._run_dir / CONFIG_NAME),
            "GVIRTUS_LOGLEVEL": LOG_LEVEL_OFF,
            "LD_LIBRARY_PATH": path,
            "OCL_ICD_VENDORS": f"{self._run_dir}/none/",
        }

    def check_used(self) -> None:
        """Raises TestbedError if no program connected: then CUDA's own libraries were used."""
        self._look()
        if not self._used.is_set():
            raise TestbedError(
                "the program never connected to GVirtuS's backend",
                "it must load CUDA's libraries by the names in lib/frontend (CUDA "
                f"{', '.join(self._install.cuda_versions)}), and not by a path of its own (RPATH)",
            )

    def _look(self) -> None:
        if has_client(self._port, _sockets()):
            self._used.set()

    def _watch(self) -> None:
        """Look for a first client; a connection that was reset leaves no trace afterwards."""
        while not self._used.is_set() and not self._over.wait(CLIENT_POLL_S):
            self._look()

    def wait_until_listening(self) -> None:
        """Ask the kernel, not the port: a connection would be a client.  Raises TestbedError."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while not is_listening(self._port, _sockets()):
            self.check_alive()
            if time.monotonic() > deadline_s:
                raise TestbedError(
                    f"GVirtuS's backend did not listen within {START_LIMIT_S:.0f} s",
                    f"see {self.log}; it listens by its configuration's tcp endpoint",
                )
            time.sleep(POLL_S)
        self._watcher.start()

    def stop_looking(self) -> None:
        """End the look-out for clients."""
        self._over.set()

    def cpu_seconds(self) -> CpuSeconds:
        """CPU time of the backend so far.  Raises TestbedError if it has ended."""
        self.check_alive()
        return cpu_seconds(self._process.pid)

    def check_alive(self) -> None:
        """Raises TestbedError, with its last words, if the backend has ended."""
        status = self._process.poll()
        if status is not None:
            said = (last_lines(self.log, 1) or ["it said nothing"])[0]
            raise TestbedError(
                f"GVirtuS's backend ended with status {status}: {said}", f"see {self.log}"
            )


@contextlib.contextmanager
def gvirtus_backend(install: GVirtuS, run_dir: Path) -> Iterator[Backend]:
    """Run a backend on a free port of the loopback address while the context lasts.

    Its configuration is the installation's own with another endpoint.  Raises TestbedError if it
    does not listen within `START_LIMIT_S`.
    """
    run_dir = run_dir.absolute()
    (run_dir / "none").mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = _read_config(install.home)
    config["communicator"][0]["endpoint"] = {
        "suite": "tcp/ip",
        "protocol": "tcp",
        "server_address": ADDRESS,
        "port": str(port),
    }
    path = run_dir / CONFIG_NAME
    path.write_text(json.dumps({**config, "communicator": config["communicator"][:1]}, indent=1))
    with (run_dir / LOG_NAME).open("wb") as log:
        process = _start(install, path, log.fileno())
    backend = Backend(install, process, run_dir, port)
    try:
        backend.wait_until_listening()
        yield backend
    finally:
        backend.stop_looking()
        _stop(process)


def _start(install: GVirtuS, config: Path, log: int) -> subprocess.Popen[bytes]:
    own = os.environ.get("LD_LIBRARY_PATH", "")
    library = str(install.home / "lib")
    environment = {
        **os.environ,
        HOME_VARIABLE: str(install.home),
        "GVIRTUS_LOGLEVEL": LOG_LEVEL_OFF,
        "LD_LIBRARY_PATH": f"{library}:{own}" if own else library,
    }
    try:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", str(install.backend), str(config)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        raise TestbedError(
            f"cannot start {install.backend}: {error.strerror}", _incomplete(install.home)
        ) from error


def _sockets() -> str:
    return Path("/proc/net/tcp").read_text(encoding="ascii")


def has_client(port: int, table: str) -> bool:
    """Whether /proc/net/tcp has a connection to this port, open or ended a moment ago."""
    # From the end of its handshake (01) to some time after its own (06), of whichever side is left.
    any_end, this_end = r"[0-9A-F]{8}:[0-9A-F]{4}", rf"[0-9A-F]{{8}}:{port:04X}"
    ends = f"{this_end} {any_end}|{any_end} {this_end}"
    pattern = rf"^\s*\d+: (?:{ends}) 0[14568B] "
    return re.search(pattern, table, re.MULTILINE) is not None


def is_listening(port: int, table: str) -> bool:
    """Whether /proc/net/tcp has a listening socket (state 0A) of this port."""
    pattern = rf"^\s*\d+: [0-9A-F]{{8}}:{port:04X} [0-9A-F]{{8}}:0000 0A "
    return re.search(pattern, table, re.MULTILINE) is not None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the backend and what it started for its clients."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT_S)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
