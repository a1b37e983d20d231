"""Callbacks, events set by hand and what kernels print: natively, and under several systems."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from testbed.experiment.systems import PRESETS, System
from testbed.tests.clients import (
    SANITIZERS,
    compile_client,
    expect_ok,
    run_client,
    scenarios,
    serving,
)

pytestmark = [pytest.mark.native, pytest.mark.opencl]

SYSTEMS = (
    System("wormhole", "shm"),
    System("wormhole-notify", "shm", oneway=False, notifications="always"),
    System("tcp-sync", "tcp", oneway=False, local=False),
    System("tcp-oneway-local", "tcp"),
    System("shm-all-messages", "shm", local=False),
)
NATIVE = PRESETS["native"]
ENDINGS = ("ends_with_callbacks", "ends_in_callback")


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_client(tmp_path_factory.mktemp("client"), "opencl_callbacks")


@pytest.fixture(scope="module")
def printer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_client(tmp_path_factory.mktemp("client"), "opencl_print")


def _run(
    argv: Sequence[str | Path], chosen: System, folder: Path, build: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """A client's end, natively or forwarded."""
    with serving(chosen, folder, build) as environment:
        return run_client(argv, environment | more)


@pytest.mark.parametrize("chosen", [NATIVE, *SYSTEMS], ids=lambda chosen: chosen.name)
def test_callbacks(calls: Path, chosen: System, tmp_path: Path) -> None:
    names = scenarios(calls)
    expect_ok(_run([calls, *names], chosen, tmp_path), names)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("chosen", [NATIVE, SYSTEMS[0], SYSTEMS[2]], ids=lambda s: s.name)
def test_ends_with_callbacks_outstanding(
    calls: Path, chosen: System, ending: str, tmp_path: Path
) -> None:
    expect_ok(_run([calls, ending], chosen, tmp_path), [ending])


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[2]], ids=lambda chosen: chosen.name)
def test_waits_for_another_context_end_as_natively(
    calls: Path, chosen: System, tmp_path: Path
) -> None:
    native = _run([calls, "foreign_waits"], NATIVE, tmp_path)
    done = _run([calls, "foreign_waits"], chosen, tmp_path)
    assert (done.returncode, done.stdout) == (native.returncode, native.stdout)
    assert done.stdout.count("\n") > 10


@pytest.mark.parametrize(
    "chosen", [chosen for chosen in SYSTEMS if chosen.local], ids=lambda chosen: chosen.name
)
def test_a_call_that_went_one_way_fails_late(calls: Path, chosen: System, tmp_path: Path) -> None:
    expect_ok(_run([calls, "late_failure"], chosen, tmp_path), ["late_failure"])


def test_callbacks_under_sanitizers(tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak."""
    calls = compile_client(tmp_path, "opencl_callbacks", *SANITIZERS)
    names = scenarios(calls)
    options = {"ASAN_OPTIONS": "detect_leaks=0"}
    expect_ok(_run([calls, *names], SYSTEMS[0], tmp_path, "address", **options), names)


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[2]], ids=lambda chosen: chosen.name)
def test_kernels_print_as_natively(printer: Path, chosen: System, tmp_path: Path) -> None:
    with serving(chosen, tmp_path) as environment:
        for scenario in scenarios(printer):
            native = run_client([printer, scenario], os.environ)
            assert native.returncode == 0, native.stderr
            assert native.stdout.count("kernel") > 0
            done = run_client([printer, scenario], environment)
            assert done.returncode == 0, done.stderr
            assert done.stdout == native.stdout, scenario
            assert done.stderr == native.stderr, scenario


def test_a_hidden_printf_is_cut_with_one_line(printer: Path, tmp_path: Path) -> None:
    """No text that the stub sees says that it prints; it may lose lines, but nothing hangs."""
    done = _run([printer, "hidden"], SYSTEMS[0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kernel 0 ")
    assert done.stderr.count("bytes that kernels printed are lost") == 1


@pytest.mark.parametrize("chosen", [SYSTEMS[0], SYSTEMS[2]], ids=lambda chosen: chosen.name)
def test_who_needs_no_thread_has_none(calls: Path, chosen: System, tmp_path: Path) -> None:
    expect_ok(_run([calls, "own_threads"], chosen, tmp_path), ["own_threads"])
