"""The list of kept guests: every figure of the JSON in a table, a word where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.experiment import kept_guest
from testbed.machine.vm import VmFacts


def facts(name: str, pid: int) -> VmFacts:
    return VmFacts(name, pid, 2222, "tcg", Path("/run/w") / name, "key", 21.04, ("qemu",))


def test_guests_are_listed_with_what_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [facts("one", 7), facts("a-longer-name", 123456)]
    monkeypatch.setattr(kept_guest, "detached_vms", lambda: found)
    rows = kept_guest.rows()
    assert rows[0] == {
        "name": "one",
        "pid": 7,
        "ssh_port": 2222,
        "accelerator": "tcg",
        "boot_s": 21.0,
        "log": "/run/w/one/console.log",
    }
    head, *lines = kept_guest.listing(rows).splitlines()
    assert head.split() == list(rows[0])
    assert [line.split() for line in lines] == [[str(v) for v in row.values()] for row in rows]
    assert {line.index("2222") for line in lines} == {head.index("ssh_port")}


def test_without_a_guest_it_says_how_to_get_one() -> None:
    assert "./inv vm.boot" in kept_guest.listing([])
