"""A region whose clients are in another guest: what a supervisor inside a server guest serves.

The driver's node stands for the memfd and for the wake eventfd of a supervisor on a host, see
guest_agent/driver/serve.c. The other guest's driver is told of by events, not by a socket.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from host_server.device import NotifyWatch, Region
from host_server.sessions import Sessions
from host_server.worker_process import log
from testbed.errors import TestbedError

# From guest_agent/driver/wormhole_uapi.h.
_SERVE = struct.Struct("<QiI")
_PEER = struct.Struct("<I")
WH_IOC_SERVE = 3 << 30 | _SERVE.size << 16 | ord("w") << 8 | 4
WH_IOC_PEER = 2 << 30 | _PEER.size << 16 | ord("w") << 8 | 5


class ServingDevice:
    """The device of a server guest. Raises TestbedError if its node cannot be served."""

    def __init__(self, sessions: Sessions, node: Path) -> None:
        try:
            self._fd = os.open(node, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TestbedError(
                f"cannot serve {node}: {error.strerror}",
                "it is there in a guest with a wormhole device that has serves=on, for one process",
            ) from error
        self._notify_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        asked = fcntl.ioctl(self._fd, WH_IOC_SERVE, _SERVE.pack(0, self._notify_fd, 0))
        region_bytes = int(_SERVE.unpack(asked)[0])
        self._region = Region(sessions, os.dup(self._fd), os.dup(self._fd), region_bytes)
        self._changes = 0
        self._watch = NotifyWatch(sessions.loop, self._notified)
        self._watch.watch(self._notify_fd)
        self._notified()

    def close(self) -> None:
        """Leave the device; sessions are told to end."""
        self._watch.close()
        self._region.close("the supervisor ends")
        os.close(self._notify_fd)
        os.close(self._fd)

    def _notified(self) -> None:
        try:
            changes = _PEER.unpack(fcntl.ioctl(self._fd, WH_IOC_PEER, bytes(_PEER.size)))[0]
        except OSError as error:
            log(f"the device is gone: {error.strerror}")
            self._region.stop("the device is gone")
            return
        if changes == self._changes:
            self._region.scan()
            return
        self._changes = changes
        if changes % 2:
            self._region.start(os.dup(self._notify_fd))
        else:
            self._region.stop("the other guest's driver stopped")
            log("driver stopped")
