"""The host's time stamp counter, and that a guest's clock keeps pace with the host's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from testbed.machine.host_clock import tsc_khz
from testbed.machine.image import guest_image
from testbed.machine.qemu_argv import VmConfig, kernel_arguments
from testbed.machine.vm import Vm, boot


def test_the_rate_is_plausible_and_measured_once() -> None:
    assert 100_000 < tsc_khz() < 20_000_000
    assert tsc_khz() == tsc_khz()


def test_emulated_guests_are_told_the_rate() -> None:
    told = VmConfig(tsc_khz=2_300_000)
    assert "tsc_early_khz=2300000" in kernel_arguments(told, "tcg").split()
    assert "tsc_early_khz" not in kernel_arguments(told, "kvm")
    assert "tsc_early_khz" not in kernel_arguments(VmConfig(), "tcg")


@pytest.mark.vm
def test_a_guest_clock_keeps_pace_with_the_host(tmp_path: Path) -> None:
    """Wide bounds: reading over SSH takes a while, but a wrong rate was wrong by a factor."""
    with boot(VmConfig(), tmp_path / "run", guest_image()) as vm:
        host_s, guest_s = _both_clocks(vm)
        time.sleep(5.0)
        later_host_s, later_guest_s = _both_clocks(vm)
        assert 0.8 < (later_guest_s - guest_s) / (later_host_s - host_s) < 1.25


def _both_clocks(vm: Vm) -> tuple[float, float]:
    text = vm.ssh.get("/proc/uptime").decode()
    return time.monotonic(), float(text.split()[0])
