"""However a run with guests ends: one clear line, an honest status, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.experiment.kept_guest import listing
from testbed.tests.ends import RUN_LIMIT_S, WORKER, Ends, Running, wait_until, watching
from testbed.tests.test_ends import run_directory, trials

pytestmark = [pytest.mark.vm, pytest.mark.native, pytest.mark.opencl]

EXPERIMENT = """\
name: ends
seed: 11
baseline: tcp-sync
systems: [wormhole, tcp-sync]
restart_guest: round
trial_timeout_s: 240
boot_timeout_s: {boot_timeout_s}
parts:
  - form: replay
    workloads: [lenet-digits]
    placements: [guest]
    rounds: 2
"""
LONG_LIMIT_S = 900.0
QEMU = "qemu-system-x86_64"


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with watching(tmp_path) as started:
        yield started


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "ends.yaml"
    path.write_text(EXPERIMENT.format(boot_timeout_s=240))
    return path


def boots(ends: Ends) -> None:
    """Wait until QEMU runs."""
    wait_until(lambda: bool(ends.processes(QEMU)), "QEMU", RUN_LIMIT_S)


def trial_runs(ends: Ends, running: Running) -> None:
    """Wait until a trial's client in the guest has its worker."""
    running.wait_for("guest for ")  # workers before that one record or prepare
    wait_until(lambda: bool(ends.processes(WORKER)), "a worker", RUN_LIMIT_S)


def test_ctrl_c_while_a_guest_boots(ends: Ends, experiment: Path) -> None:
    running = ends.start("run", experiment, "--out", experiment.parent / "out")
    boots(ends)
    running.signal_group(signal.SIGINT)
    assert "SIGINT" in running.end().error()


def test_ctrl_c_while_a_guest_is_filled(ends: Ends, experiment: Path) -> None:
    running = ends.start("run", experiment, "--out", experiment.parent / "out")
    running.wait_for("guest for ")
    running.signal_group(signal.SIGINT)
    assert "SIGINT" in running.end().error()


def test_sigterm_in_a_trial_in_a_guest(ends: Ends, experiment: Path) -> None:
    running = ends.start("run", experiment, "--out", experiment.parent / "out")
    trial_runs(ends, running)
    running.process.send_signal(signal.SIGTERM)
    assert "SIGTERM" in running.end().error()


def test_kill_9_with_a_guest_up(ends: Ends, experiment: Path) -> None:
    running = ends.start("run", experiment, "--out", experiment.parent / "out")
    trial_runs(ends, running)
    running.process.kill()
    running.end()


def test_a_killed_qemu_fails_its_trial_and_the_next_round_boots_anew(
    ends: Ends, experiment: Path
) -> None:
    out = experiment.parent / "out"
    running = ends.start("run", experiment, "--out", out)
    trial_runs(ends, running)
    for pid in ends.processes(QEMU):
        os.kill(pid, signal.SIGKILL)
    ended = running.end()
    ended.error()
    statuses = [str(trial["status"]) for trial in trials(run_directory(out))]
    assert statuses[0] == "failed", ended
    assert statuses[2:] == ["ok", "ok"], ended


def test_a_hung_guest_fails_its_trials_at_their_limits(ends: Ends, experiment: Path) -> None:
    out = experiment.parent / "out"
    text = EXPERIMENT.format(boot_timeout_s=240)
    experiment.write_text(text.replace("trial_timeout_s: 240", "trial_timeout_s: 90"))
    running = ends.start("run", experiment, "--out", out)
    trial_runs(ends, running)
    for pid in ends.processes(QEMU):
        os.kill(pid, signal.SIGSTOP)
    ended = running.end(LONG_LIMIT_S)
    ended.error()
    statuses = [str(trial["status"]) for trial in trials(run_directory(out))]
    assert statuses[0] in ("failed", "timeout"), ended
    assert statuses[2:] == ["ok", "ok"], ended


def test_a_guest_that_does_not_come_up(ends: Ends, experiment: Path) -> None:
    experiment.write_text(EXPERIMENT.format(boot_timeout_s=1))
    out = experiment.parent / "out"
    error = ends.run("run", experiment, "--out", out).error()
    assert "within 1 s" in error and "console.log" in error
    assert [trial["status"] for trial in trials(run_directory(out))] == ["failed"] * 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_a_guest_to_keep_boots(
    ends: Ends, tmp_path: Path, number: signal.Signals
) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    running = ends.start("vm.boot", "--name", "ends", environment=environment)
    boots(ends)
    if number is signal.SIGKILL:
        running.process.kill()
        running.end()
    else:
        running.signal_group(number)
        running.end().error()
    wait_until(lambda: not ends.descendants(), "the end of the guest", RUN_LIMIT_S)
    listed = ends.run("vm.list", environment=environment)
    assert (listed.status, listed.out.strip()) == (0, listing([]))
