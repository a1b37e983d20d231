"""The self-test for owners of KVM machines: its verdict, and its measurements in a TCG guest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment import selftest_kvm
from testbed.experiment.bench import CALLS
from testbed.machine.probe import Verdict


def quiet(_: str) -> None:
    pass


def test_without_kvm_the_file_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("qemu_bundle", "guest_image"):
        monkeypatch.setattr(selftest_kvm, name, lambda: None)
    verdict = Verdict(False, "there is no /dev/kvm")
    monkeypatch.setattr(selftest_kvm, "kvm_works", lambda qemu, image: verdict)
    out = tmp_path / "kvm.json"
    with pytest.raises(TestbedError, match="KVM does not work here: there is no /dev/kvm"):
        selftest_kvm.selftest_kvm(out, quiet)
    found = json.loads(out.read_text())
    assert (found["works"], found["reason"]) == (False, "there is no /dev/kvm")
    with pytest.raises(TestbedError, match="cannot write"):
        selftest_kvm.selftest_kvm(tmp_path / "no" / "kvm.json", quiet)


@pytest.mark.vm
def test_its_measurements_work_in_a_guest(tmp_path: Path) -> None:
    found = selftest_kvm.in_guest(tmp_path / "vm", "tcg", False, quiet)
    assert found["memory"]["memory_type"] == "write-back"
    assert set(found["exits"]) == set(CALLS)
    assert found["exits"]["wormhole"]["total"] == {}, "the kernel counts nothing under TCG"
    assert found["exits"]["wormhole"]["messages"] >= CALLS["wormhole"]
    # ioeventfd is off, so the device sees each notification.
    notify = found["device"]["wormhole-notify"]["control-notifications"]
    assert notify >= CALLS["wormhole-notify"]
