#!/usr/bin/env python3
"""A worker for tests of the supervisor: takes the real command line and behaves as told.

The client's command name says how: `ok` serves until told to end, `refuse` says why it cannot,
`silent` never says anything, `crash` ends right after it was ready, `stay` ignores the request to
end, `orphan` leaves a process behind, `noise` prints without end.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time


def main() -> int:
    """Run; the exit status is 0 unless told to crash."""
    parser = argparse.ArgumentParser()
    for name in ("transport", "backend", "jail"):
        parser.add_argument(f"--{name}", default="")
    for name in ("control-fd", "stats-fd", "region-fd", "offset", "size", "notify-fd", "wake-fd"):
        parser.add_argument(f"--{name}", type=int, default=-1)
    for name in ("spin-us", "notify-always", "socket-fd", "status-fd"):
        parser.add_argument(f"--{name}", type=int, default=-1)
    arguments = parser.parse_args()
    manner = os.environ.get("FAKE_MANNER", "ok")
    control = socket.socket(fileno=arguments.control_fd)
    if manner == "silent":
        time.sleep(600)
    if manner == "refuse":
        control.sendall(b'{"ready": false, "error": "no device"}\n')
        return 1
    if arguments.transport == "shm":
        region = mmap.mmap(arguments.region_fd, 0)
        page = bytes(region[arguments.offset : arguments.offset + 64])
        print("header", page.hex(), flush=True)
        # An unmistakable mark: after the session it must be gone.
        region[arguments.offset + 4096 : arguments.offset + 4104] = b"LEFTOVER"
    if manner == "orphan":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    ready = {"ready": True, "jail": {"level": "none"}, "environment": dict(os.environ)}
    control.sendall(json.dumps(ready).encode() + b"\n")
    if manner == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while manner == "noise":
        os.write(1, b"x" * 1000 + b"\n")
    connections = []
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 4)
        if not data:
            break
        connections += fds
    while manner == "stay":
        time.sleep(1)
    os.write(arguments.stats_fd, json.dumps({"connections": len(connections)}).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
