"""QEMU's command line as a pure function of a VM's configuration.

The guest's hardware is the least that the testbed needs, so that it starts fast and nothing that
is not measured takes time: no display, no USB, one disk, one network card and, where TCP goes over
TAP, a second one for that, where a program uses the host's files, a second disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from testbed.errors import TestbedError
from testbed.machine.erofs import Tree
from testbed.machine.image import GuestImage
from testbed.machine.tap import GUEST_MAC, Tap

CONSOLE_NAME = "console.log"
QMP_SOCKET_NAME = "qmp.sock"
INITRD_NAME = "initrd"
DEVICE_ID = "wormhole0"
SHARE_SERIAL = "wormhole-share"  # by which the guest finds that disk
RECONNECT_MS = 200
# QEMU gives these up for good before the guest runs: old system calls, more privileges, other
# programs, its own priority and affinity.
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
MIB = 1 << 20

# What QEMU's user network gives every guest.
GUEST_ADDRESS = "10.0.2.15"
GUEST_NETMASK = "255.255.255.0"
HOST_ADDRESS = "10.0.2.2"
NAMESERVER_ADDRESS = "10.0.2.3"


class Qemu(Protocol):
    """A QEMU to start: its program and where its firmware lies."""

    @property
    def binary(self) -> Path: ...

    @property
    def data_dir(self) -> Path: ...


@dataclass(frozen=True)
class Region:
    """The wormhole device: the size of its shared region and its server's Unix socket.

    A socket that begins with `@` is an abstract one.  `ioeventfd` off makes the device count every
    notification exactly, at the price of a detour through the vCPU thread: for instrumented runs
    only.  `memory_fd` is a memfd of ours that holds the region, -1 one of QEMU's own.  `serves`
    tells the guest's driver that the region's clients are in another guest.
    """

    size_bytes: int
    device_socket: Path
    ioeventfd: bool = True
    memory_fd: int = -1
    serves: bool = False


@dataclass(frozen=True)
class VmConfig:
    """What can be chosen about a VM.

    `accelerator` "" takes what `probe.accelerator` finds.  `ssh_port` 0 takes a free one.  `tap`
    is an interface for a second network card, which the guest finds by its `GUEST_MAC`.
    `forwards` are pairs of a TCP port of the host's loopback address and one of the guest.
    `tsc_khz` is the rate of the counter that an emulated guest sees; 0 lets the guest guess.
    `share` is a disk of the host's files, to be read.
    """

    name: str = "guest"
    cpus: int = 2
    memory_mib: int = 1024
    region: Region | None = None
    accelerator: str = ""
    ssh_port: int = 0
    tap: Tap | None = None
    forwards: tuple[tuple[int, int], ...] = ()
    kernel_arguments: str = ""
    tsc_khz: int = 0
    share: Tree | None = None


def check_config(config: VmConfig) -> None:
    """Refuse, before anything is started, what QEMU or the guest would choke on later."""
    if config.accelerator not in ("", "kvm", "tcg"):
        raise TestbedError(
            f"unknown accelerator {config.accelerator!r}", "use kvm or tcg, or leave it out"
        )
    if not 1 <= config.cpus <= 255:
        raise TestbedError(f"a VM cannot have {config.cpus} CPUs", "use 1 to 255")
    if config.memory_mib < 128:
        raise TestbedError(
            f"a guest does not start in {config.memory_mib} MiB of memory", "use at least 128"
        )
    if not 0 <= config.ssh_port <= 65535:
        raise TestbedError(f"there is no TCP port {config.ssh_port}", "use 1024 to 65535, or 0")
    size_bytes = config.region.size_bytes if config.region else MIB
    if size_bytes < MIB or size_bytes & (size_bytes - 1):
        raise TestbedError(
            f"the shared region cannot have {size_bytes} bytes",
            "use a power of two of at least 1 MiB",
        )
    if "," in config.name or "=" in config.name or "/" in config.name:
        raise TestbedError(f"{config.name!r} is no name for a VM", "use letters, digits")


def qemu_argv(
    config: VmConfig,
    image: GuestImage,
    qemu: Qemu,
    accelerator: str,
    ssh_port: int,
    share_fd: int = -1,
) -> list[str]:
    """The argument list for one VM.

    QEMU runs in the VM's run directory: console, QMP socket and initrd are named relative to it,
    so that no path gets too long for a Unix socket.  `accelerator` is kvm or tcg.  `share_fd` is
    QEMU's descriptor of a connection to `config.share`.
    """
    return [
        str(qemu.binary),
        *("-L", str(qemu.data_dir)),
        *("-name", f"wormhole-{config.name},debug-threads=on"),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-sandbox", SANDBOX),
        *("-machine", "q35,sata=off,usb=off,smm=off,vmport=off,smbus=off,hpet=off"),
        *_accelerator_arguments(accelerator),
        *("-smp", f"{config.cpus},sockets=1,cores={config.cpus},threads=1"),
        *("-m", f"{config.memory_mib}M"),
        *("-kernel", str(image.kernel), "-initrd", INITRD_NAME),
        *("-append", kernel_arguments(config, accelerator)),
        *("-serial", f"file:{CONSOLE_NAME}"),
        *("-chardev", f"socket,id=qmp,path={QMP_SOCKET_NAME},server=on,wait=off"),
        *("-mon", "chardev=qmp,mode=control"),
        *_disk_arguments(image.root),
        *_share_arguments(share_fd),
        *_network_arguments(config, ssh_port),
        *_region_arguments(config.region),
    ]


def kernel_arguments(config: VmConfig, accelerator: str) -> str:
    """The guest kernel's command line."""
    words = ["console=ttyS0", "panic=-1", "rcupdate.rcu_expedited=1"]
    if accelerator == "tcg":
        # Emulated instructions are not open to speculation, and the detours cost much there.  The
        # kernel takes the slow start of emulated processors for unsynchronised time stamp counters,
        # which all come from one host clock, and each look at the clock would leave the guest.
        words += ["mitigations=off", "no_timer_check", "tsc=reliable"]
        if config.tsc_khz:
            # See host_clock.py: a guess made on a busy host can be wrong by a factor.
            words.append(f"tsc_early_khz={config.tsc_khz}")
    if config.kernel_arguments:
        words.append(config.kernel_arguments)
    return " ".join(words)


def _accelerator_arguments(accelerator: str) -> list[str]:
    if accelerator == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi", "-cpu", "max"]


def _disk_arguments(root: Path) -> list[str]:
    # snapshot=on: writes go to a file of QEMU's own that is unlinked at once, so that VMs share
    # nothing but the template's page cache and nothing is left when QEMU dies in whatever way.
    return [
        *("-drive", f"file={_escaped(root)},format=raw,if=none,id=root,snapshot=on"),
        *("-device", "virtio-blk-pci,drive=root"),
    ]


def _share_arguments(share_fd: int) -> list[str]:
    if share_fd < 0:
        return []
    node = "driver=nbd,node-name=share,read-only=on,server.type=fd"
    return [
        *("-blockdev", f"{node},server.str={share_fd}"),
        *("-device", f"virtio-blk-pci,drive=share,serial={SHARE_SERIAL}"),
    ]


def _network_arguments(config: VmConfig, ssh_port: int) -> list[str]:
    forwards = ((ssh_port, 22), *config.forwards)
    user = "user,id=net" + "".join(
        f",hostfwd=tcp:127.0.0.1:{outer}-:{inner}" for outer, inner in forwards
    )
    arguments = ["-netdev", user, "-device", "virtio-net-pci,netdev=net,romfile="]
    if config.tap is not None:
        tap = f"tap,id=tap,fd={config.tap.fd},vhost={_on(config.tap.vhost)}"
        device = f"virtio-net-pci,netdev=tap,mac={GUEST_MAC},romfile="
        arguments += ["-netdev", tap, "-device", device]
    return arguments


def _region_arguments(region: Region | None) -> list[str]:
    if region is None:
        return []
    memory = "memory-backend-memfd"
    if region.memory_fd >= 0:
        memory = f"memory-backend-file,mem-path=/proc/self/fd/{region.memory_fd}"
    name = str(region.device_socket)
    path = f"{name[1:]},abstract=on" if name.startswith("@") else _escaped(region.device_socket)
    device = f"virtio-wormhole-pci,id={DEVICE_ID},memdev=region,chardev=server"
    switches = f"ioeventfd={_on(region.ioeventfd)}"
    if region.serves:
        switches += ",serves=on"
    return [
        *("-object", f"{memory},id=region,size={region.size_bytes},share=on"),
        *("-chardev", f"socket,id=server,path={path},reconnect-ms={RECONNECT_MS}"),
        *("-device", f"{device},{switches}"),
    ]


def _on(value: bool) -> str:
    return "on" if value else "off"


def _escaped(path: Path) -> str:
    """A path as a value in one of QEMU's comma-separated options."""
    return str(path).replace(",", ",,")
