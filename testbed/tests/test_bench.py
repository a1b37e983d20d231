"""The call bench: its arithmetic on made-up runs, and a small real run in `process` placement."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.experiment import bench


def made_up(shift: float) -> dict[str, Any]:
    return {
        "floor_samples_ns": [100.0 + shift, 101.0 + shift],
        "sync_samples_ns": [300.0 + shift, 302.0 + shift],
        "oneway_samples_ns": [50.0, 52.0],
        "notifications_per_call": 0.0,
        "wakes_per_call": 1.0,
        "sleeps_per_call": 0.5,
        "notifications_per_oneway": 0.25,
    }


def test_figures_are_medians_over_all_blocks() -> None:
    runs = {name: [made_up(0), made_up(10)] for name in ("wormhole", "wormhole-notify")}
    runs["tcp-sync"] = [{**made_up(0), "sync_samples_ns": [5000.0, 7000.0]}]
    figures = bench.summarise(runs)
    assert figures["floor_ns"] == 105.5
    assert figures["sync_ns"] == 306.0
    assert figures["oneway_ns"] == 51.0
    assert figures["tcp_sync_ns"] == 6000.0
    assert figures["quartiles_ns"]["tcp_sync"] == [5500.0, 6500.0]
    assert figures["per_call"]["wormhole"] == {"notifications": 0.0, "wakes": 1.0, "sleeps": 0.5}
    assert figures["notifications_per_oneway"] == 0.25
    assert figures["blocks"]["sync"] == 4
    shown = bench.table({"placement": "process", "spin_us": 50, "network": "loopback", **figures})
    assert "call that waits" in shown
    assert "306.0" in shown


def test_unknown_placement_is_refused() -> None:
    with pytest.raises(TestbedError, match="unknown placement 'moon'"):
        bench.bench_call("moon")


@pytest.mark.native
def test_real_run_counts_one_notification_each_way_only_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "BLOCKS", 2)
    # A bound that no wait outlasts, so that a busy machine sends no adaptive notification either.
    figures = bench.bench_call("process", spin_us=10_000_000)
    assert figures["per_call"]["wormhole"]["notifications"] == 0
    assert figures["per_call"]["wormhole"]["sleeps"] == 0
    assert figures["per_call"]["wormhole-notify"]["notifications"] == 1
    assert figures["per_call"]["wormhole-notify"]["wakes"] == 1
    assert figures["notifications_per_oneway"] == 0
    assert 0 < figures["floor_ns"] < figures["tcp_sync_ns"]
