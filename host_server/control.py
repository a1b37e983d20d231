"""The supervisor's control socket: whoever connects gets the live sessions as one line of JSON.

It lies in the supervisor's state directory, where `./inv top` looks for it; only the supervisor's
own user may connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket

from host_server.sessions import Sessions
from host_server.worker_process import log

CONTROL_NAME = "control"
ANSWER_BYTES_MAX = 1 << 20


class ControlServer:
    """Answers at once and hears nothing, so that nobody can hold the supervisor up."""

    def __init__(self, sessions: Sessions, listener: socket.socket) -> None:
        self._sessions = sessions
        self._listener = listener
        sessions.loop.watch(listener.fileno(), self._accept)

    def close(self) -> None:
        """Answer nobody any more."""
        self._sessions.loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                log(f"accepting on the control socket failed: {error.strerror}")
            return
        answer = {"pid": os.getpid(), "sessions": self._sessions.describe()}
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ANSWER_BYTES_MAX)
            connection.setblocking(False)
            connection.sendall(json.dumps(answer).encode() + b"\n")
