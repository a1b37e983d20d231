"""Callbacks, events set by hand and what kernels print: natively, and under several systems."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from testbed.experiment.client import client_environment, vendor_folder
from testbed.experiment.systems import System
from testbed.machine.host_server import HostServerConfig, host_server
from testbed.machine.native_build import native_build
from testbed.tests.clients import compile_client, scenarios

pytestmark = [pytest.mark.native, pytest.mark.opencl]

LIMIT_S = 120.0
SYSTEMS = (
    System("wormhole", "shm"),
    System("wormhole-notify", "shm", oneway=False, notifications="always"),
    System("tcp-sync", "tcp", oneway=False, local=False),
    System("tcp-oneway-local", "tcp"),
    System("shm-all-messages", "shm", local=False),
)
NATIVE = System("native", "")
PRINTING = ("lines", "unbuffered", "much", "binary", "callback", "end")
ENDINGS = ("ends_with_callbacks", "ends_in_callback")


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_client(tmp_path_factory.mktemp("client"), "opencl_callbacks")


@pytest.fixture(scope="module")
def printer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_client(tmp_path_factory.mktemp("client"), "opencl_print")


@contextlib.contextmanager
def serving(chosen: System, folder: Path, build: str = "") -> Iterator[dict[str, str]]:
    """The environment of a client, native or with a server of its own."""
    if chosen is NATIVE:
        yield dict(os.environ)
        return
    built = native_build(build)
    tcp = chosen.transport == "tcp"
    # The sanitizers need /proc and more memory than the jail leaves.
    config = HostServerConfig(unix=not tcp, tcp=tcp, worker=built.worker, jail=not build)
    with host_server(config, folder / "server") as server:
        vendors = vendor_folder(folder, built.library)
        yield client_environment(os.environ, chosen, server, vendors)


def run_client(
    argv: Sequence[str | Path], chosen: System, folder: Path, build: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """A client's end, natively or forwarded; its standard output is a pipe."""
    with serving(chosen, folder, build) as environment:
        return _run(argv, environment | more)


def _run(
    argv: Sequence[str | Path], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def expect(done: subprocess.CompletedProcess[str], names: Sequence[str]) -> None:
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"{name} ok" for name in names]


@pytest.mark.parametrize("chosen", [NATIVE, *SYSTEMS], ids=lambda chosen: chosen.name)
def test_callbacks(calls: Path, chosen: System, tmp_path: Path) -> None:
    names = scenarios(calls)
    expect(run_client([calls, *names], chosen, tmp_path), names)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("chosen", [NATIVE, SYSTEMS[0], SYSTEMS[2]], ids=lambda s: s.name)
def test_ends_with_callbacks_outstanding(
    calls: Path, chosen: System, ending: str, tmp_path: Path
) -> None:
    expect(run_client([calls, ending], chosen, tmp_path), [ending])


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[2]], ids=lambda chosen: chosen.name)
def test_waits_for_another_context_end_as_natively(
    calls: Path, chosen: System, tmp_path: Path
) -> None:
    native = run_client([calls, "foreign_waits"], NATIVE, tmp_path)
    done = run_client([calls, "foreign_waits"], chosen, tmp_path)
    assert (done.returncode, done.stdout) == (native.returncode, native.stdout)
    assert done.stdout.count("\n") > 10


@pytest.mark.parametrize(
    "chosen", [chosen for chosen in SYSTEMS if chosen.local], ids=lambda chosen: chosen.name
)
def test_a_call_that_went_one_way_fails_late(calls: Path, chosen: System, tmp_path: Path) -> None:
    expect(run_client([calls, "late_failure"], chosen, tmp_path), ["late_failure"])


def test_callbacks_under_sanitizers(tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak."""
    calls = compile_client(
        tmp_path, "opencl_callbacks", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    )
    names = scenarios(calls)
    options = {"ASAN_OPTIONS": "detect_leaks=0"}
    expect(run_client([calls, *names], SYSTEMS[0], tmp_path, "address", **options), names)


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[2]], ids=lambda chosen: chosen.name)
def test_kernels_print_as_natively(printer: Path, chosen: System, tmp_path: Path) -> None:
    with serving(chosen, tmp_path) as environment:
        for scenario in PRINTING:
            native = _run([printer, scenario], dict(os.environ))
            assert native.returncode == 0, native.stderr
            assert native.stdout.count("kernel") > 0
            done = _run([printer, scenario], environment)
            assert done.returncode == 0, done.stderr
            assert done.stdout == native.stdout, scenario
            assert done.stderr == native.stderr, scenario


def test_a_hidden_printf_is_cut_with_one_line(printer: Path, tmp_path: Path) -> None:
    """No text that the stub sees says that it prints; it may lose lines, but nothing hangs."""
    done = run_client([printer, "hidden"], SYSTEMS[0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kernel 0 ")
    assert done.stderr.count("bytes that kernels printed are lost") == 1


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[2]], ids=lambda chosen: chosen.name)
def test_who_needs_no_thread_has_none(calls: Path, chosen: System, tmp_path: Path) -> None:
    expect(run_client([calls, "own_threads"], chosen, tmp_path), ["own_threads"])
