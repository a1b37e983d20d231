"""Mixed calls from many threads, every result checked: the short form of `./inv drift`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testbed.experiment.client import client_environment
from testbed.experiment.drift import THREADS, drift
from testbed.experiment.systems import system
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build

CALLS = 60_000
PINGPONGS = 5_000
SEED = 3
RACE_CALLS = 20_000
LIMIT_S = 240.0


@pytest.mark.native
@pytest.mark.opencl
def test_every_result_is_right() -> None:
    done = list(drift(CALLS, PINGPONGS, SEED))
    assert sum(series.calls for series in done) >= CALLS + PINGPONGS
    # Too short to tell whether memory grows; ./inv drift does. Without sleepers it shows nothing.
    assert all(series.client_sleeps > 0 and series.worker_sleeps > 0 for series in done)


@pytest.mark.native
@pytest.mark.parametrize(
    ("preset", "spin_us"), [("wormhole", 50), ("wormhole", 0), ("tcp-sync", 0)]
)
def test_no_data_race_in_stub_and_worker(preset: str, spin_us: int, tmp_path: Path) -> None:
    build = native_build("thread")
    # The sanitizer needs more memory and files than the jail leaves.
    config = HostServerConfig(backend="null", unix=True, tcp=True, worker=build.worker, jail=False)
    with host_server(config, tmp_path / "server") as server:
        chosen = system(preset, [("spin_us", spin_us)])
        environment = client_environment(os.environ, chosen, server, tmp_path)
        words = [RACE_CALLS, THREADS, SEED, 50, 64]
        done = subprocess.run(
            [str(build.stress), *(str(word) for word in words)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        server.wait_sessions(1)
        # The worker ends without destructors: what it has to report is in the log.
        assert "ThreadSanitizer" not in server.log.read_text(encoding="utf-8")
