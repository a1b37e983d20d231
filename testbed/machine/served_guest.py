"""A guest with an accelerator: server, VM with the wormhole device, driver and stub library.

Whatever runs in a guest - trials, replays, the bench, programs by hand - gets its guest here. The
server is a process of the host (`served_guest`) or in a guest of its own (`guest_of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from testbed.machine.host_python import GUEST_FOLDERS, GUEST_ROOT
from testbed.machine.host_server import HostServer, HostServerConfig, host_server
from testbed.machine.image import GuestImage, guest_image
from testbed.machine.native_build import native_build
from testbed.machine.qemu_argv import DEVICE_ID, SHARE_SERIAL, Qemu, Region, VmConfig
from testbed.machine.server_guest import ServerGuest, ServerParts, server_guest
from testbed.machine.tap import GUEST_MAC, NETMASK
from testbed.machine.vm import Vm, boot

Server = HostServer | ServerGuest

REGION_BYTES = 1 << 30
DEVICE_URL = "device:/dev/wormhole0"
GUEST_STATS_PATH = "/tmp/wormhole-stats.jsonl"  # of a client in a guest; copied out afterwards

#: What the device counts (documented with the device, in qemu_patches).
DEVICE_COUNTERS = ("control-notifications", "wakes", "wakes-dropped", "event-completions")


@dataclass(frozen=True)
class ServedGuest:
    """A running VM and the server behind its device."""

    vm: Vm
    server: Server

    def device_counts(self) -> dict[str, int]:
        """What the device has counted so far, by the names of `DEVICE_COUNTERS`."""
        return {name: int(self.vm.qmp.get(DEVICE_ID, name)) for name in DEVICE_COUNTERS}


@contextmanager
def served_guest(
    config: VmConfig,
    server_config: HostServerConfig,
    library: Path,
    run_dir: Path,
    image: GuestImage | None = None,
    qemu: Qemu | None = None,
    timeout_s: float | None = None,
    ioeventfd: bool = True,
    placement: str = "guest",
) -> Iterator[ServedGuest]:
    """Start a server and a VM that uses it, with driver and `library` in place; end both.

    The VM gets the device in addition to what `config` says, the server a socket for it.  The VM's
    files lie in `run_dir`, the server's in a folder `server` there.  `placement` server-vm has the
    server in a VM of its own, of which `server_config` chooses backend and TCP.  Else as `boot`.
    """
    if placement == "server-vm":
        with (
            server_guest(
                replace(config, name=f"{config.name}-server", share=None),
                server_parts(server_config),
                run_dir / "server",
                qemu,
                timeout_s,
                ioeventfd,
            ) as serving,
            guest_of(
                serving, config, library, run_dir, image, qemu, timeout_s, ioeventfd
            ) as served,
        ):
            yield served
        return
    image = image if image is not None else guest_image()
    server_config = replace(server_config, device=True)
    with (
        host_server(server_config, run_dir / "server") as server,
        guest_of(server, config, library, run_dir, image, qemu, timeout_s, ioeventfd) as served,
    ):
        yield served


@contextmanager
def guest_of(
    server: Server,
    config: VmConfig,
    library: Path,
    run_dir: Path,
    image: GuestImage | None = None,
    qemu: Qemu | None = None,
    timeout_s: float | None = None,
    ioeventfd: bool = True,
) -> Iterator[ServedGuest]:
    """As `served_guest`, for a server that is there already and stays when the guest ends."""
    image = image if image is not None else guest_image()
    if isinstance(server, ServerGuest):
        region = server.devices.region("client", ioeventfd)
    else:
        region = device_region(server, ioeventfd)
    config = replace(config, region=region, tap=server.tap)
    with boot(config, run_dir, image, qemu, timeout_s) as vm:
        equip(vm, image, library)
        if config.share is not None:
            vm.guest.mount_host(SHARE_SERIAL, GUEST_ROOT, GUEST_FOLDERS)
        if server.tap is not None:
            vm.guest.set_address(GUEST_MAC, server.tap.guest_address, NETMASK)
        yield ServedGuest(vm, server)


def server_parts(config: HostServerConfig) -> ServerParts:
    """What a server guest needs of what was chosen for a server on the host."""
    worker = config.worker if config.worker is not None else native_build().worker
    return ServerParts(worker, config.backend, config.tcp)


def device_region(server: HostServer, ioeventfd: bool = True) -> Region:
    """The wormhole device in front of a host server."""
    return Region(REGION_BYTES, server.device_socket, ioeventfd=ioeventfd)


def equip(vm: Vm, image: GuestImage, library: Path) -> None:
    """Load the driver and make `library` the guest's only OpenCL driver."""
    vm.guest.load_driver(image.driver)
    vm.guest.install_icd(library)


def guest_url(server: Server, transport: str) -> str:
    """WORMHOLE_SERVER for a client in the server's guest, by the transport's name (shm or tcp)."""
    return f"tcp:{server.guest_host}:{server.tcp_port}" if transport == "tcp" else DEVICE_URL
