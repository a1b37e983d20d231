"""`./inv drift`: calls by the million from many threads, every result checked, nothing grows.

Two programs share the calls: one of the runtime's own functions, one of OpenCL. Each runs with the
usual spin bound, where pauses catch both sides on their way to sleep, and with none, where every
wait sleeps. A ping-pong with a pause after each message comes last.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.soak import compile_client, temporary_folder
from testbed.experiment.systems import DEFAULT_SPIN_US, system
from testbed.machine.host_server import HostServer, HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.progress import say

THREADS = 8
RUN_LIMIT_S = 4 * 3600.0
SAMPLE_S = 0.2
PAUSE_EVERY = 64
WARM_UP_S = 15.0  # the compiler's memory comes with the first kernels
#: A worker may grow by this much in the second half of a run: allocators keep what they were given.
GROWTH_KIB_MAX = 16 * 1024


@dataclass(frozen=True)
class Series:
    """One program's run. Memory is the worker's, in the middle of its life and at its end."""

    name: str
    spin_us: int
    calls: int
    seconds: float
    client_sleeps: int
    worker_sleeps: int
    notifications: int
    wakes: int
    rss_early_kib: int
    rss_late_kib: int

    @property
    def grown(self) -> bool:
        """Whether the worker's memory did not stay where it was; a short run is all warm-up."""
        if self.seconds < WARM_UP_S:
            return False
        return self.rss_late_kib - self.rss_early_kib > GROWTH_KIB_MAX


def run_drift(calls: int, pingpongs: int, seed: int, as_json: bool) -> None:
    """All series; TestbedError at the first wrong result, or if a worker grew."""
    done = []
    for series in drift(calls, pingpongs, seed):
        done.append(series)
        if not as_json:
            print(line(series), flush=True)
    if as_json:
        print(json.dumps([asdict(series) for series in done], indent=2))
    else:
        print(f"{sum(series.calls for series in done)} calls, every result right")
    grown = [series.name for series in done if series.grown]
    if grown:
        raise TestbedError(
            f"the worker's memory grew in {', '.join(grown)}",
            "give more --calls: what goes on growing is a leak",
        )


def line(series: Series) -> str:
    """One series as text."""
    return (
        f"{series.name:10} spin {series.spin_us:3} us: {series.calls} calls in "
        f"{series.seconds:.0f} s; slept: client {series.client_sleeps}, worker "
        f"{series.worker_sleeps}; notifications {series.notifications}, wakes {series.wakes}; "
        f"worker {series.rss_early_kib} -> {series.rss_late_kib} KiB"
    )


def drift(calls: int, pingpongs: int, seed: int) -> Iterator[Series]:
    """A quarter of the calls for each program and each spin bound, then the ping-pongs."""
    with temporary_folder() as folder:
        opencl = compile_client(folder)
        core = native_build().stress
        quarter = calls // 4
        for spin_us in (DEFAULT_SPIN_US, 0):
            words = [quarter, THREADS, seed, DEFAULT_SPIN_US]
            yield _run("core", [core, *words, PAUSE_EVERY], spin_us, folder)
            yield _run("OpenCL", [opencl, "mixed", *words], spin_us, folder)
        if pingpongs > 0:
            # The pauses lie around the bound: half of the messages find the worker asleep.
            words = [pingpongs, 1, seed, DEFAULT_SPIN_US, 1]
            yield _run("ping-pong", [core, *words], DEFAULT_SPIN_US, folder)


def _run(name: str, argv: list[object], spin_us: int, folder: Path) -> Series:
    build = native_build()
    chosen = system("wormhole", [("spin_us", spin_us)])
    stats = folder / "stats.jsonl"
    stats.unlink(missing_ok=True)
    config = HostServerConfig(unix=True, worker=build.worker)
    say(f"{name}, spin bound {spin_us} us")
    with host_server(config, folder / f"{name}-{spin_us}") as server:
        environment = client_environment(
            os.environ, chosen, server, vendor_folder(folder, build.library)
        )
        environment["WORMHOLE_STATS"] = str(stats)
        begin_s = time.monotonic()
        with _Sampler(server) as sampler:
            done = subprocess.run(
                [str(word) for word in argv],
                env=environment,
                capture_output=True,
                text=True,
                timeout=RUN_LIMIT_S,
                check=False,
            )
        if done.returncode != 0:
            raise TestbedError(f"{name}: status {done.returncode}", done.stderr[-500:])
        record = server.wait_sessions(1)[0]
    counters = json.loads(stats.read_text(encoding="utf-8").splitlines()[-1])
    early_kib, late_kib = sampler.memory()
    return Series(
        name=name,
        spin_us=spin_us,
        calls=int(done.stdout.split()[0]),
        seconds=time.monotonic() - begin_s,
        client_sleeps=counters["sleeps"],
        worker_sleeps=record["stats"]["sleeps"],
        notifications=counters["notifications_sent"],
        wakes=record["stats"]["wakes_sent"],
        rss_early_kib=early_kib,
        rss_late_kib=late_kib,
    )


class _Sampler:
    """Looks at the memory of a supervisor's one worker while a program runs."""

    def __init__(self, server: HostServer) -> None:
        self._children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        self._over = threading.Event()
        self._samples: list[int] = []
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def memory(self) -> tuple[int, int]:
        """KiB at the middle sample and at the last; zeros for a run too short to tell."""
        if not self._samples:
            return 0, 0
        return self._samples[len(self._samples) // 2], self._samples[-1]

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_S):
            for child in self._children.read_text().split():
                status = _status(child)
                if "wormhole-worker" in status.get("Name", "") and "VmRSS" in status:
                    self._samples.append(int(status["VmRSS"].split()[0]))


def _status(pid: str) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return {}
    return {
        name: value.strip() for name, _, value in (row.partition(":") for row in text.split("\n"))
    }
