"""The library loaded and unloaded by the application, and what that leaves on both sides."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.soak import RSS, RSS_SLACK_KIB, Figures, host_figures
from testbed.experiment.systems import PRESETS, System
from testbed.machine.host_server import HostServer, HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.tests.clients import LIMIT_S, compile_client, expect_ok, run_client, scenarios, serving

pytestmark = [pytest.mark.native, pytest.mark.opencl]

FORWARDED = [PRESETS["wormhole"], PRESETS["tcp-sync"]]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application; it is not linked with the loader, but loads it."""
    folder = tmp_path_factory.mktemp("client")
    return compile_client(folder, "opencl_unload", "-Wl,--as-needed")


@pytest.mark.parametrize("chosen", [PRESETS["native"], *FORWARDED], ids=lambda chosen: chosen.name)
def test_objects_outlive_the_library(client: Path, chosen: System, tmp_path: Path) -> None:
    names = scenarios(client)
    with serving(chosen, tmp_path) as environment:
        expect_ok(run_client([client, *names], environment), names)


@pytest.mark.parametrize("chosen", FORWARDED, ids=lambda chosen: chosen.name)
def test_a_thousand_loads_leave_nothing(client: Path, chosen: System, tmp_path: Path) -> None:
    built = native_build()
    config = HostServerConfig(unix=True, tcp=chosen.transport == "tcp", worker=built.worker)
    with host_server(config, tmp_path / "server") as server:
        environment = client_environment(
            os.environ, chosen, server, vendor_folder(tmp_path, built.library)
        )
        with subprocess.Popen(
            [client, "reload"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                figures = [_figures_at(process, server, label) for label in ("warm", "done")]
                _, _ = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
        assert process.returncode == 0
    before, after = figures
    assert before["workers"] == 1
    for name, value in after.items():
        slack = RSS_SLACK_KIB if name in (RSS, "worker_rss_kib") else 0
        assert value <= before[name] + slack, (name, before, after)


def _figures_at(process: subprocess.Popen[str], server: HostServer, label: str) -> Figures:
    """What supervisor and worker hold when the client says so; the client may go on then."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == f"{label}\n"
    figures = host_figures(server)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(encoding="utf-8")
    for word in children.split():
        child = Path(f"/proc/{word}")
        if (child / "comm").read_text(encoding="utf-8") == "wormhole-worker\n":
            status = (child / "status").read_text(encoding="utf-8").splitlines()
            fields = dict(line.split(":", 1) for line in status)
            figures["worker_rss_kib"] = int(fields["VmRSS"].split()[0])
            figures["worker_threads"] = int(fields["Threads"])
            figures["worker_descriptors"] = sum(1 for _ in (child / "fd").iterdir())
    process.stdin.write("\n")
    process.stdin.flush()
    return figures
