"""Experiments in real guests: replays are right, counts agree with the device's, none hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import paramiko
import pytest

from testbed.analysis.rundir import read_lines
from testbed.analysis.tables import Row
from testbed.experiment import booted
from testbed.experiment.booted import BootedGuest
from testbed.experiment.conduct import Request
from testbed.experiment.reproduce import run_experiment
from testbed.experiment.subject import Subject
from testbed.tests.ends import command_line, descendants
from testbed.tests.limits import within

EXPERIMENT = """\
name: counting
seed: 1
baseline: wormhole
systems: [wormhole, wormhole-notify, tcp-sync]
instrumented: true
restart_guest: part
trial_timeout_s: 300
parts:
  - form: replay
    workloads: [lenet-digits]
    placements: [guest]
    rounds: 1
"""

TWO_ROUNDS = """\
name: hung
seed: 1
baseline: wormhole
systems: [wormhole]
restart_guest: part
trial_timeout_s: 240
parts:
  - form: replay
    workloads: [lenet-digits]
    placements: [guest]
    rounds: 2
"""
DEPLOY_LIMIT_S = 15.0
RUN_LIMIT_S = 480.0

#: A session's opening and end are notified by the driver and the supervisor, not by the client.
SESSION_NOTIFICATIONS_LIMIT = 8


@pytest.mark.vm
@pytest.mark.native
@pytest.mark.opencl
def test_a_guest_replays_and_its_device_confirms_the_counts(tmp_path: Path) -> None:
    (tmp_path / "counting.yaml").write_text(EXPERIMENT)
    done = run_experiment(Request(str(tmp_path / "counting.yaml"), out=tmp_path / "out"))
    assert done.report is not None
    assert done.summary.by_status == {"ok": 3}, done.report.text
    (comparison,) = done.report.comparisons
    rows = {row.system: row for row in comparison.rows}
    assert all(row.speed is None for row in comparison.rows)
    for name in ("wormhole", "wormhole-notify"):
        for sent, device in (
            ("sent_notifications_to_host", "device_notifications_to_host"),
            ("sent_wakes", "device_wakes"),
        ):
            surplus = count(rows[name], device) - count(rows[name], sent)
            assert 0 <= surplus <= SESSION_NOTIFICATIONS_LIMIT, (name, sent, done.report.text)
    notify = rows["wormhole-notify"]
    assert count(notify, "notifications_to_host_per_step") == count(notify, "messages_per_step")
    assert count(notify, "notifications_to_client_per_step") == count(
        notify, "round_trips_per_step"
    )
    assert count(rows["wormhole"], "round_trips_per_step") < 3
    assert count(rows["tcp-sync"], "device_notifications_to_host") == 0


@pytest.mark.vm
@pytest.mark.native
@pytest.mark.opencl
def test_a_guest_that_hangs_between_request_and_answer_fails_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[bool] = []
    deploy, exec_command = BootedGuest.deploy, paramiko.Channel.exec_command

    def deploy_first(guest: BootedGuest, subject: Subject, form: str) -> None:
        stops.append(not stops)
        limit_s = DEPLOY_LIMIT_S if stops[-1] else RUN_LIMIT_S
        monkeypatch.setattr(booted, "DEPLOY_TIMEOUT_S", limit_s)
        deploy(guest, subject, form)

    def stop_and_exec(channel: paramiko.Channel, command: str | bytes) -> None:
        if stops and stops[-1]:
            for pid in descendants():
                if "qemu-system-x86_64" in command_line(pid):
                    os.kill(pid, signal.SIGSTOP)
            stops[-1] = False
        exec_command(channel, command)

    monkeypatch.setattr(BootedGuest, "deploy", deploy_first)
    monkeypatch.setattr(paramiko.Channel, "exec_command", stop_and_exec)
    (tmp_path / "hung.yaml").write_text(TWO_ROUNDS)
    request = Request(str(tmp_path / "hung.yaml"), out=tmp_path / "out")
    done = within(RUN_LIMIT_S, lambda: run_experiment(request))
    first, second = read_lines(done.path / "trials.jsonl")
    assert first["status"] == "failed"
    assert f"did not answer for {DEPLOY_LIMIT_S:.0f} s" in str(first["detail"])
    assert second["status"] == "ok", second
    assert stops == [False, False], "the second trial has a guest of its own"


def count(row: Row, metric: str) -> float:
    """A metric that must be there."""
    value = row.means[metric]
    assert value is not None, metric
    return value
