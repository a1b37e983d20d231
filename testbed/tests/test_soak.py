"""Clients that come, work, and are killed leave nothing: the short form of `./inv soak`."""

from __future__ import annotations

import dataclasses

import pytest

from testbed.experiment.soak import RSS, RSS_SLACK_KIB, Soak, soak_guest, soak_process
from testbed.experiment.systems import PRESETS

CLIENTS = 24
GUEST_CLIENTS = 8
SEED = 5


def check(soak: Soak, clients: int) -> None:
    assert (soak.completed, soak.killed) == (clients - clients // 2, clients // 2)
    assert not soak.leaks(), soak


@pytest.mark.native
@pytest.mark.opencl
@pytest.mark.parametrize("name", ["wormhole", "tcp-sync"])
def test_host_clients_leave_nothing(name: str) -> None:
    check(soak_process(PRESETS[name], CLIENTS, SEED), CLIENTS)


@pytest.mark.vm
@pytest.mark.native
@pytest.mark.opencl
def test_guest_clients_leave_nothing() -> None:
    soak = soak_guest(PRESETS["wormhole"], GUEST_CLIENTS, SEED)
    check(soak, GUEST_CLIENTS)
    assert soak.after["guest_slots_held"] == 0


def test_what_is_left_is_named() -> None:
    figures = {"workers": 0, RSS: 100}
    soak = Soak("x", 1, 1, 0, 1, figures, figures)
    assert soak.leaks() == []
    more = {"workers": 1, RSS: 101 + RSS_SLACK_KIB}
    assert dataclasses.replace(soak, after=more).leaks() == ["workers 0 -> 1", f"{RSS} 100 -> 4197"]
