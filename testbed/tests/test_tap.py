"""TAP: the probe's verdict is what the machine does, and an interface goes with its owner."""

from __future__ import annotations

import ipaddress
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from guest_agent import agent
from testbed.errors import TestbedError
from testbed.machine import tap as tap_module
from testbed.machine.tap import BLOCK, pair, tap, tap_problem, wants_tap
from testbed.tests.limits import within

LIMIT_S = 30.0
needs_tap = pytest.mark.skipif(bool(tap_problem()), reason=f"no TAP here: {tap_problem()}")

HOLDER = """
import signal
from testbed.machine.tap import tap
with tap() as made:
    print(made.name, flush=True)
    signal.pause()
"""


def names() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


@needs_tap
def test_an_interface_has_an_address_of_its_own_and_goes_with_the_context() -> None:
    with tap() as first, tap() as second:
        assert {first.name, second.name} <= names()
        assert first.host_address != second.host_address
        with socket.create_server((second.host_address, 0)) as server:
            assert server.getsockname()[0] == second.host_address
    assert not {first.name, second.name} & names()


@needs_tap
def test_nothing_is_left_of_an_owner_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            assert select.select([holder.stdout], [], [], LIMIT_S)[0], "it said nothing"
            name = holder.stdout.readline().decode().strip()
            assert name in names()
        finally:
            os.kill(holder.pid, signal.SIGKILL)
        holder.wait(LIMIT_S)
    assert name not in names()


@needs_tap
def test_a_host_that_takes_no_packet_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_module, "_PROBE_LIMIT_S", 0.1)
    monkeypatch.setattr(tap_module, "_datagram", lambda made, mac, port: bytes(60))
    assert "lets nothing in" in within(LIMIT_S, tap_problem)
    with pytest.raises(TestbedError, match="lets nothing in"):
        wants_tap("tap")
    assert not wants_tap("auto")


def test_without_the_device_auto_takes_the_user_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tap_module, "TUN_DEVICE", tmp_path / "none")
    assert not wants_tap("auto")
    assert not wants_tap("user")
    with pytest.raises(TestbedError, match="none") as caught:
        wants_tap("tap")
    assert "NET_ADMIN" in caught.value.remedy
    with pytest.raises(TestbedError, match="'slirp'"):
        wants_tap("slirp")


def test_pairs_lie_in_the_block_and_apart() -> None:
    pairs = [pair(index) for index in (1, 2, 3, 40000)]
    assert len({address for both in pairs for address in both}) == 8
    for host, guest in pairs:
        assert all(ipaddress.IPv4Address(address) in BLOCK for address in (host, guest))


@needs_tap
def test_the_agent_sets_a_cards_address() -> None:
    with tap() as made:
        mac = Path(f"/sys/class/net/{made.name}/address").read_text().strip()
        agent.set_address(mac, "198.19.255.253", "255.255.255.252")
        with socket.create_server(("198.19.255.253", 0)):
            pass
    with pytest.raises(agent.AgentError, match="no network card 52:54"):
        agent.set_address("52:54:00:00:00:99", "198.19.255.253", "255.255.255.252")
