"""The systems as presets of independent switches."""

from __future__ import annotations

import itertools

import pytest

from testbed.errors import TestbedError
from testbed.experiment.systems import DEFAULT_SPIN_US, PRESETS, SwitchValue, system

UNIX = "unix:/run/socket"
TCP = "tcp:127.0.0.1:5000"


def test_presets_are_those_of_the_paper() -> None:
    switches = {name: preset.switches() for name, preset in PRESETS.items()}
    ours = ["wormhole", "wormhole-sync", "wormhole-notify", "tcp-sync"]
    assert list(switches) == ["native", *ours, "gvirtus"]
    assert switches["native"] == switches["gvirtus"] == {}
    common = {"spin_us": DEFAULT_SPIN_US}
    assert switches["wormhole"] == {
        **common,
        "transport": "shm",
        "oneway": True,
        "local": True,
        "notifications": "adaptive",
    }
    # Each ablation differs from its predecessor in one switch, so a difference has one cause.
    ladder = ("wormhole", "wormhole-sync", "wormhole-notify")
    for before, after in itertools.pairwise(ladder):
        changed = [key for key, value in switches[before].items() if switches[after][key] != value]
        assert len(changed) == 1, (before, after, changed)
    assert switches["tcp-sync"] == {
        **common,
        "transport": "tcp",
        "oneway": False,
        "local": False,
        "notifications": "adaptive",
    }


def test_environment_names_every_switch() -> None:
    assert PRESETS["native"].environment("") == {}
    assert PRESETS["wormhole-notify"].environment(UNIX) == {
        "WORMHOLE_SERVER": UNIX,
        "WORMHOLE_ONEWAY": "0",
        "WORMHOLE_LOCAL": "1",
        "WORMHOLE_SPIN_US": str(DEFAULT_SPIN_US),
        "WORMHOLE_NOTIFICATIONS": "always",
    }
    environment = PRESETS["tcp-sync"].environment(TCP, "ab" * 32)
    assert environment["WORMHOLE_TOKEN"] == "ab" * 32
    assert PRESETS["wormhole"].environment("device:/dev/wormhole0")["WORMHOLE_LOCAL"] == "1"


@pytest.mark.parametrize(("name", "server"), [("wormhole", TCP), ("tcp-sync", UNIX)])
def test_a_server_of_the_other_transport_is_refused(name: str, server: str) -> None:
    with pytest.raises(TestbedError, match=server):
        PRESETS[name].environment(server)


def test_every_switch_can_be_changed_alone() -> None:
    changes: list[tuple[str, SwitchValue]] = [
        ("transport", "tcp"),
        ("oneway", False),
        ("local", False),
        ("notifications", "always"),
        ("spin_us", 0),
    ]
    base = PRESETS["wormhole"].switches()
    for switch, value in changes:
        changed = system("wormhole", [(switch, value)], "variant")
        assert changed.name == "variant"
        assert changed.switches() == {**base, switch: value}


@pytest.mark.parametrize(
    ("preset", "overrides", "words"),
    [
        ("wormhol", [], "unknown system 'wormhol'"),
        ("native", [("oneway", True)], "native has no switches"),
        ("wormhole", [("colour", 1)], "unknown switch 'colour'"),
        ("wormhole", [("transport", "none")], "transport cannot be 'none'"),
        ("wormhole", [("oneway", 1)], "oneway cannot be 1"),
        ("wormhole", [("spin_us", -1)], "spin_us -1"),
        ("wormhole", [("spin_us", True)], "spin_us True"),
    ],
)
def test_wrong_systems_are_refused(
    preset: str, overrides: list[tuple[str, SwitchValue]], words: str
) -> None:
    with pytest.raises(TestbedError, match=words):
        system(preset, overrides)
