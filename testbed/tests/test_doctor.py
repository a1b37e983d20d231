"""What `./inv doctor` says of a GPU's device files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from testbed import doctor


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o666)
    return tmp_path


def test_open_device_files_are_well(devices: Path) -> None:
    (finding,) = doctor._gpu(devices)
    assert finding.ok is True
    assert "nvidia0" in finding.value


def test_a_missing_device_file_is_a_lack_with_its_remedy(devices: Path) -> None:
    (devices / "nvidia-uvm").unlink()
    (finding,) = doctor._gpu(devices)
    assert finding.ok is False
    assert "nvidia-uvm" in finding.value and "nvidiactl" not in finding.value
    assert "nvidia-modprobe" in finding.remedy


def test_a_closed_device_file_is_a_lack_with_its_mode(devices: Path) -> None:
    (devices / "nvidia0").chmod(0o600)
    (finding,) = doctor._gpu(devices)
    assert finding.ok is False
    assert "nvidia0 (600)" in finding.value


@pytest.mark.parametrize(
    ("mode", "group", "usable"),
    [(0o666, 0, True), (0o660, 44, True), (0o660, 0, False), (0o600, 44, False), (0o444, 0, False)],
)
def test_a_worker_gets_the_group_of_a_device_file(mode: int, group: int, usable: bool) -> None:
    status = os.stat_result((stat.S_IFCHR | mode, 0, 0, 1, 0, group, 0, 0, 0, 0))
    assert doctor.workers_may_use(status) is usable
