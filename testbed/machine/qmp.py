"""QEMU's monitor, synchronously and with a limit on every wait, over the qemu.qmp package."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from qemu.qmp import QMPClient, QMPError

from testbed.errors import TestbedError

CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 10.0
CONNECT_POLL_S = 0.02


class Qmp:
    """One connection to one QEMU; use it from one thread at a time."""

    def __init__(self, socket: Path, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Connect, waiting up to `timeout_s` for the socket.  Raises TestbedError."""
        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._client = QMPClient("wormhole")
        # Unix socket paths are short (107 bytes) and run directories are not: go by descriptor.
        directory = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._connect(f"/proc/self/fd/{directory}/{socket.name}", timeout_s)
        except BaseException:
            self._loop.close()
            raise
        finally:
            os.close(directory)

    def _connect(self, address: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                connecting = asyncio.wait_for(self._client.connect(address), max(left_s, 0.01))
                self._loop.run_until_complete(connecting)
                return
            except (QMPError, OSError, TimeoutError) as error:
                if left_s <= 0:
                    raise TestbedError(
                        f"QEMU's monitor at {self._socket} did not answer in {timeout_s:.0f} s:"
                        f" {error or type(error).__name__}",
                        "see QEMU's log beside it",
                    ) from error
                time.sleep(CONNECT_POLL_S)

    def execute(self, command: str, **arguments: object) -> Any:
        """Run one command and return its result.  Raises TestbedError if it fails."""
        try:
            return self._loop.run_until_complete(
                asyncio.wait_for(self._client.execute(command, arguments), COMMAND_TIMEOUT_S)
            )
        except (QMPError, OSError, TimeoutError, EOFError) as error:
            raise TestbedError(
                f"QEMU's monitor at {self._socket} refused {command} {arguments or ''}: "
                f"{error or type(error).__name__}",
                "see QEMU's log beside it",
            ) from error

    def status(self) -> str:
        """The run state: running, paused, shutdown ..."""
        return str(self.execute("query-status")["status"])

    def get(self, device: str, name: str) -> Any:
        """Read a property of a device by its id."""
        return self.execute("qom-get", path=device_path(device), property=name)

    def set(self, device: str, name: str, value: object) -> None:
        """Write a property of a device by its id."""
        self.execute("qom-set", path=device_path(device), property=name, value=value)

    def quit(self) -> None:
        """Ask QEMU to end now; its closing the connection is the answer."""
        try:
            self.execute("quit")
        except TestbedError as error:
            if not isinstance(error.__cause__, (QMPError, EOFError, OSError)):
                raise

    def close(self) -> None:
        """Close the connection; QEMU goes on."""
        if self._loop.is_closed():
            return
        try:
            self._loop.run_until_complete(asyncio.wait_for(self._client.disconnect(), 2.0))
        except (QMPError, OSError, TimeoutError, EOFError):
            pass  # QEMU is gone: so is the connection
        finally:
            self._loop.close()

    def __enter__(self) -> Qmp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def device_path(device: str) -> str:
    """The QOM path of a device that was given an id on the command line."""
    return f"/machine/peripheral/{device}"
