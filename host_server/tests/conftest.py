"""Fixtures: a supervisor with a worker that behaves as told, in a directory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from testbed.machine.host_server import HostServer, HostServerConfig, host_server

FAKE_WORKER = Path(__file__).parent / "fake_worker.py"

StartServer = Callable[..., HostServer]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts supervisors that end with the test: start_server(manner="ok", unix=True, ...)."""
    with ExitStack() as stack:
        count = 0

        def start(manner: str = "ok", **settings: Any) -> HostServer:
            nonlocal count
            count += 1
            settings.setdefault("worker", FAKE_WORKER)
            settings.setdefault("session_bytes", 4 << 20)
            config = HostServerConfig(
                backend="null", environment={"FAKE_MANNER": manner}, **settings
            )
            return stack.enter_context(host_server(config, tmp_path / f"run{count}"))

        yield start
