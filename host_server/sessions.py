"""What the placements share: starting workers within limits and recording how sessions ended."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_server.loop import Loop
from host_server.memory import MemoryWatch
from host_server.worker_process import SessionOrder, Worker, WorkerSettings, log
from testbed.protocol.wire import constant, enum, hash_of_specs

NAME_CHARACTERS_MAX = 16


class RateLimit:
    """A token bucket: `rate` starts a second, at most `burst` at once."""

    def __init__(self, rate: float, burst: int, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._seen_s = now_s

    def delay_s(self, now_s: float) -> float:
        """Zero and one token less, or how long to wait for the next token."""
        gained = (now_s - self._seen_s) * self._rate
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._seen_s = now_s
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self._rate


@dataclass(frozen=True)
class Limits:
    """Bounds of one supervisor."""

    session_bytes: int
    session_count: int
    start_rate: float = 50.0
    start_burst: int = 32
    memory_bytes: int = 0  # of one session's processes; 0: no limit


class Sessions:
    """All live workers of a supervisor."""

    def __init__(self, loop: Loop, settings: WorkerSettings, limits: Limits, run_dir: Path) -> None:
        self.loop = loop
        self.limits = limits
        self._settings = settings
        self._records = run_dir / "sessions.jsonl"
        self._workers: set[Worker] = set()
        self._rate = RateLimit(limits.start_rate, limits.start_burst, time.monotonic())
        self._memory = MemoryWatch(
            loop, limits.memory_bytes, limits.session_bytes, lambda: self._workers
        )

    @property
    def count(self) -> int:
        """Workers that have not been collected yet."""
        return len(self._workers)

    def describe(self) -> list[dict[str, Any]]:
        """The live sessions, oldest first."""
        found = [worker.describe() for worker in self._workers]
        return sorted(found, key=lambda one: -float(one["age_s"]))

    def start_delay_s(self) -> float:
        """Zero: a worker may be started now. Else: try again after so many seconds."""
        return self._rate.delay_s(time.monotonic())

    def full(self) -> bool:
        """Whether another session would pass the limit."""
        return len(self._workers) >= self.limits.session_count

    def start(
        self,
        order: SessionOrder,
        on_ready: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> Worker:
        """Start a worker. `on_ready("")` when it is ready, else with the error; `on_end` last.

        Raises TestbedError or OSError if it could not even be started.
        """
        workers: list[Worker] = []

        def ended(record: dict[str, Any]) -> None:
            self._workers.discard(workers[0])
            self._record(record)
            on_end()

        worker = Worker(self.loop, self._settings, order, on_ready, ended)
        workers.append(worker)
        self._workers.add(worker)
        self._memory.wake()
        return worker

    def end_all(self, reason: str) -> None:
        """Ask every worker to end."""
        for worker in list(self._workers):
            worker.end(reason)

    def _record(self, record: dict[str, Any]) -> None:
        """Append one line; a full disk costs the record and not the supervisor."""
        log(
            f"session {record['session']} ended: {record['reason']}, status {record['exit_status']}"
        )
        line = json.dumps(record, sort_keys=True) + "\n"
        try:
            fd = os.open(self._records, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError as error:
            log(f"cannot append to {self._records}: {error.strerror}")


def new_session_name() -> int:
    """A random session id that cannot be guessed; never zero."""
    return secrets.randbits(63) + 1


def clean_name(name: bytes) -> str:
    """A client's command name as printable text."""
    text = name.split(b"\0", 1)[0].decode("ascii", errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)[:NAME_CHARACTERS_MAX]


def clean_spin_us(spin_us: int) -> int:
    """A client's spin bound, cut to what a worker accepts (microseconds)."""
    return min(spin_us, constant("spin_us_max"))


def wants_notify_always(switches: int) -> bool:
    """Whether the client asked for a notification on every message."""
    return bool(switches & enum("switch_flag")["notify_always"])


def mismatch(magic: int, version: int, spec_hash: int) -> tuple[str, str] | None:
    """Name of the hello status and a message with both values, or None if the peer fits."""
    if magic != constant("magic"):
        return "bad_magic", f"magic is {magic:#x}, expected {constant('magic'):#x}"
    ours = constant("protocol_version")
    if version != ours:
        return "version", f"client has protocol version {version}, server {ours}"
    if spec_hash != hash_of_specs():
        return "spec", f"client has spec hash {spec_hash:016x}, server {hash_of_specs():016x}"
    return None
