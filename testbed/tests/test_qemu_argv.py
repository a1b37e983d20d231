"""QEMU's command line: what each setting changes, and what is refused."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.machine.image import GuestImage
from testbed.machine.qemu_argv import (
    SHARE_SERIAL,
    Region,
    VmConfig,
    check_config,
    kernel_arguments,
    qemu_argv,
)
from testbed.machine.tap import GUEST_MAC, Tap
from testbed.machine.vm import VmFacts, shell_argv

IMAGE = GuestImage(
    root=Path("/cache/root,1.ext4"),
    kernel=Path("/cache/vmlinuz"),
    initrd=Path("/cache/initrd"),
    kernel_release="6.1.0-1-cloud-amd64",
    packages_sha256="00",
    suite="bookworm",
    headers=Path("/cache/headers"),
)
REGION = Region(size_bytes=1 << 29, device_socket=Path("/run/server,1.sock"))


@dataclass(frozen=True)
class FakeQemu:
    binary: Path = Path("/q/bin/qemu")
    data_dir: Path = Path("/q/share")


def argv(config: VmConfig, accelerator: str = "tcg", port: int = 4022) -> list[str]:
    return qemu_argv(config, IMAGE, FakeQemu(), accelerator, port)


def values(arguments: list[str], option: str) -> list[str]:
    """What stands behind each occurrence of an option."""
    return [value for name, value in pairwise(arguments) if name == option]


def test_the_program_and_its_firmware() -> None:
    arguments = argv(VmConfig())
    assert arguments[0] == "/q/bin/qemu"
    assert values(arguments, "-L") == ["/q/share"]
    assert {"-nodefaults", "-no-reboot", "-no-user-config"} <= set(arguments)


def test_qemu_gives_up_what_it_does_not_need() -> None:
    (sandbox,) = values(argv(VmConfig(region=REGION)), "-sandbox")
    assert sandbox.split(",")[0] == "on"
    denied = {word.partition("=")[0] for word in sandbox.split(",") if word.endswith("=deny")}
    assert denied == {"obsolete", "elevateprivileges", "spawn", "resourcecontrol"}


def test_accelerators() -> None:
    assert values(argv(VmConfig(), "tcg"), "-accel") == ["tcg,thread=multi"]
    assert values(argv(VmConfig(), "kvm"), "-accel") == ["kvm"]
    assert values(argv(VmConfig(), "kvm"), "-cpu") == ["host"]


def test_mitigations_are_off_only_where_nothing_can_be_speculated_on() -> None:
    assert "mitigations=off" in kernel_arguments(VmConfig(), "tcg")
    assert "mitigations" not in kernel_arguments(VmConfig(), "kvm")


def test_the_shared_disk_is_never_written_and_commas_are_escaped() -> None:
    (drive,) = values(argv(VmConfig()), "-drive")
    assert "snapshot=on" in drive.split(",")
    assert "file=/cache/root,,1.ext4," in drive


def test_a_share_is_a_second_disk_that_is_only_read() -> None:
    arguments = qemu_argv(VmConfig(), IMAGE, FakeQemu(), "tcg", 4022, share_fd=9)
    (node,) = values(arguments, "-blockdev")
    assert {"driver=nbd", "read-only=on", "server.type=fd", "server.str=9"} <= set(node.split(","))
    disks = [word for word in values(arguments, "-device") if "virtio-blk" in word]
    assert [f"serial={SHARE_SERIAL}" in disk for disk in disks] == [False, True]
    assert "-blockdev" not in argv(VmConfig())


def test_without_a_region_there_is_no_device() -> None:
    assert not any("wormhole-pci" in word or "memfd" in word for word in argv(VmConfig()))


@pytest.mark.parametrize(("ioeventfd", "word"), [(True, "on"), (False, "off")])
def test_the_region(ioeventfd: bool, word: str) -> None:
    arguments = argv(VmConfig(region=replace(REGION, ioeventfd=ioeventfd)))
    (memory,) = values(arguments, "-object")
    assert memory == f"memory-backend-memfd,id=region,size={1 << 29},share=on"
    (device,) = [word for word in values(arguments, "-device") if "wormhole" in word]
    assert f"ioeventfd={word}" in device.split(",")
    assert "memdev=region" in device and "chardev=server" in device
    assert any("path=/run/server,,1.sock," in word for word in values(arguments, "-chardev"))


def test_ssh_is_reachable_from_this_machine_only() -> None:
    assert values(argv(VmConfig(), port=4022), "-netdev") == [
        "user,id=net,hostfwd=tcp:127.0.0.1:4022-:22"
    ]


@pytest.mark.parametrize(("vhost", "switch"), [(False, "off"), (True, "on")])
def test_tap_is_a_second_card_behind_the_one_for_ssh(vhost: bool, switch: str) -> None:
    tap = Tap(7, "wormhole0", "198.18.0.1", "198.18.0.2", vhost)
    arguments = argv(VmConfig(tap=tap))
    user, other = values(arguments, "-netdev")
    assert user == values(argv(VmConfig()), "-netdev")[0]
    assert other == f"tap,id=tap,fd=7,vhost={switch}"
    (card,) = [word for word in values(arguments, "-device") if "netdev=tap" in word]
    assert f"mac={GUEST_MAC}" in card


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (VmConfig(accelerator="xen"), "xen"),
        (VmConfig(cpus=0), "0 CPUs"),
        (VmConfig(memory_mib=64), "64 MiB"),
        (VmConfig(ssh_port=70000), "70000"),
        (VmConfig(region=replace(REGION, size_bytes=3 << 20)), str(3 << 20)),
        (VmConfig(region=replace(REGION, size_bytes=4096)), "4096"),
        (VmConfig(name="a,b"), "a,b"),
        (VmConfig(name="../x"), "../x"),
    ],
)
def test_bad_settings_are_refused_with_the_value(config: VmConfig, said: str) -> None:
    with pytest.raises(TestbedError, match=re.escape(said)):
        check_config(config)


def test_words_for_a_guest_arrive_as_they_were_given() -> None:
    facts = VmFacts("x", 1, 2222, "tcg", Path("/run/x"), "", 0.0, ())
    argv = shell_argv(facts, command=["bash", "-c", "echo 'a  b' $HOME"])
    assert shlex.split(" ".join(argv[-3:])) == ["bash", "-c", "echo 'a  b' $HOME"]
    assert shell_argv(facts)[-1] == "wormhole@127.0.0.1"
