"""The KVM probe: what it concludes from what it sees, and what overrides it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.machine import probe
from testbed.machine.image import GuestImage

IMAGE = GuestImage(
    root=Path("/none"),
    kernel=Path("/none/vmlinuz"),
    initrd=Path("/none"),
    kernel_release="6.1.0-1-cloud-amd64",
    packages_sha256="00",
    suite="bookworm",
    headers=Path("/none"),
)


@dataclass(frozen=True)
class FakeQemu:
    """A program in QEMU's place."""

    binary: Path
    data_dir: Path = Path("/none")


def fake_qemu(tmp_path: Path, script: str) -> FakeQemu:
    """A shell script that finds the console's file in $console and counts its starts."""
    binary = tmp_path / "qemu"
    starts = tmp_path / "starts"
    find = "for word; do case $word in file:*) console=${word#file:};; esac; done"
    binary.write_text(f"#!/bin/sh\necho start >> {starts}\n{find}\n{script}\n")
    binary.chmod(0o755)
    return FakeQemu(binary)


@pytest.fixture
def kvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a usable device file, an empty cache and no patience."""
    device = tmp_path / "kvm"
    device.write_text("")
    monkeypatch.setattr(probe, "KVM_DEVICE", device)
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 1.0)
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(probe.OVERRIDE, raising=False)


def test_nothing_is_concluded_while_the_kernel_may_still_come() -> None:
    assert probe.judge(b"", None, "", 0.5) is None
    assert probe.judge(b"[0.1] Linux version 6.1", None, "", 0.5) is None


@pytest.mark.usefixtures("kvm")
def test_a_kernel_that_comes_up_means_yes_and_is_remembered(tmp_path: Path) -> None:
    text = "[    0.9] VFS: Unable to mount root fs on unknown-block(0,0)"
    qemu = fake_qemu(tmp_path, f"echo '{text}' > $console; exec sleep 60")
    assert probe.kvm_works(qemu, IMAGE).works
    assert probe.accelerator(qemu, IMAGE) == "kvm"
    assert (tmp_path / "starts").read_text().count("start") == 1


@pytest.mark.usefixtures("kvm")
def test_a_kernel_that_hangs_means_no(tmp_path: Path) -> None:
    qemu = fake_qemu(tmp_path, "echo 'early text' > $console; exec sleep 60")
    verdict = probe.kvm_works(qemu, IMAGE)
    assert not verdict.works
    assert "hangs" in verdict.reason and "early text" in verdict.reason
    assert probe.accelerator(qemu, IMAGE) == "tcg"


@pytest.mark.usefixtures("kvm")
def test_a_qemu_that_refuses_means_no_with_its_reason(tmp_path: Path) -> None:
    qemu = fake_qemu(tmp_path, "echo 'failed to initialize kvm' >&2; exit 1")
    verdict = probe.kvm_works(qemu, IMAGE)
    assert not verdict.works
    assert "failed to initialize kvm" in verdict.reason


def test_no_device_is_no_try(tmp_path: Path) -> None:
    assert "there is no" in probe.kvm_is_unusable(tmp_path / "kvm")


@pytest.mark.parametrize("wanted", ["kvm", "tcg"])
def test_the_override_is_taken_without_a_try(
    wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(probe.OVERRIDE, wanted)
    qemu = fake_qemu(tmp_path, "exit 1")
    assert probe.accelerator(qemu, IMAGE) == wanted
    assert not (tmp_path / "starts").exists()


def test_a_wrong_override_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe.OVERRIDE, "yes")
    with pytest.raises(TestbedError, match="yes"):
        probe.accelerator(fake_qemu(tmp_path, ""), IMAGE)
