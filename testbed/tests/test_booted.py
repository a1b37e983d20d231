"""An experiment in a real guest: replays are right, and counts agree with the device's."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.analysis.tables import Row
from testbed.experiment.conduct import Request
from testbed.experiment.reproduce import run_experiment

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

#: A session's opening and end are notified by the driver and the supervisor, not by the client.
SESSION_NOTIFICATIONS_LIMIT = 8


@pytest.mark.vm
@pytest.mark.native
@pytest.mark.opencl
def test_a_guest_replays_and_its_device_confirms_the_counts(tmp_path: Path) -> None:
    (tmp_path / "counting.yaml").write_text(EXPERIMENT)
    done = run_experiment(Request(str(tmp_path / "counting.yaml"), out=tmp_path / "out"))
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


def count(row: Row, metric: str) -> float:
    """A metric that must be there."""
    value = row.means[metric]
    assert value is not None, metric
    return value
