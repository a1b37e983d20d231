"""A network interface of the host's kernel (TAP) for a guest's TCP; else it is QEMU's user network.

The interface lives as long as the descriptor that made it: when the last process that has it ends,
in whatever way, the kernel removes interface, address and route.  Nothing is set up beforehand and
nothing is left over.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError

NETWORKS = ("auto", "tap", "user")
REMEDY = (
    "run as root with /dev/net/tun (a container needs --device /dev/net/tun and"
    " --cap-add NET_ADMIN); without it guests' TCP goes through QEMU's user network"
)

TUN_DEVICE = Path("/dev/net/tun")
VHOST_DEVICE = Path("/dev/vhost-net")
NAME_PATTERN = b"wormhole%d"
GUEST_MAC = "52:54:00:57:48:01"
NETMASK = "255.255.255.252"
# Kept for tests of network devices (RFC 2544), so no route of the host leads there.
BLOCK = ipaddress.IPv4Network("198.18.0.0/15")
PAIR_ADDRESSES = 4  # a /30: network, host, guest, broadcast

_TUNSETIFF = 0x400454CA
_IFF_TAP_WITH_HEADER = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCGIFHWADDR = 0x8927
_IFF_UP_RUNNING = 0x41
_VHOST_SET_OWNER = 0xAF01
_VNET_HEADER_BYTES = 10
_PROBE_LIMIT_S = 2.0


@dataclass(frozen=True)
class Tap:
    """An interface that is up: its descriptor is for QEMU.  `vhost` has the kernel move packets."""

    fd: int
    name: str
    host_address: str
    guest_address: str
    vhost: bool

    @property
    def kind(self) -> str:
        """The network path, as it is recorded."""
        return "tap+vhost" if self.vhost else "tap"


@contextmanager
def tap() -> Iterator[Tap]:
    """An interface with an address of its own while the context lasts.

    Guests use it one after the other.  Raises TestbedError where there can be none.
    """
    try:
        fd = os.open(TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise TestbedError(f"cannot open {TUN_DEVICE}: {error.strerror}", REMEDY) from error
    try:
        try:
            made = _bring_up(fd)
        except OSError as error:
            raise TestbedError(f"cannot make a TAP interface: {error.strerror}", REMEDY) from error
        yield made
    finally:
        os.close(fd)


def tap_problem() -> str:
    """Why TAP cannot be used here, or "": found out with an interface and a packet through it."""
    try:
        with tap() as made:
            return _unheard(made)
    except TestbedError as error:
        return error.what


def wants_tap(network: str) -> bool:
    """Whether a guest's TCP is to go over TAP: `auto` where that works, `tap`, or `user`.

    Raises TestbedError if it must and cannot.
    """
    if network not in NETWORKS:
        raise TestbedError(f"unknown network {network!r}", f"known: {', '.join(NETWORKS)}")
    if network == "user":
        return False
    problem = tap_problem()
    if problem and network == "tap":
        raise TestbedError(f"no TAP here: {problem}", f"{REMEDY}; or use network auto")
    return not problem


def pair(index: int) -> tuple[str, str]:
    """Host's and guest's address for the interface with this index, which no other has."""
    first = int(BLOCK.network_address) + index * PAIR_ADDRESSES % BLOCK.num_addresses
    return str(ipaddress.IPv4Address(first + 1)), str(ipaddress.IPv4Address(first + 2))


def _bring_up(fd: int) -> Tap:
    request = struct.pack("16sH22x", NAME_PATTERN, _IFF_TAP_WITH_HEADER)
    name = fcntl.ioctl(fd, _TUNSETIFF, request)[:16].rstrip(b"\0")
    text = name.decode()
    # Neighbours' and routers' discovery would only add packets to those that are measured.
    with suppress(OSError):
        Path(f"/proc/sys/net/ipv6/conf/{text}/disable_ipv6").write_text("1")
    host, guest = pair(socket.if_nametoindex(text))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for operation, address in ((_SIOCSIFADDR, host), (_SIOCSIFNETMASK, NETMASK)):
            value = struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, operation, value)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _IFF_UP_RUNNING))
    return Tap(fd, text, host, guest, _vhost_works())


def _vhost_works() -> bool:
    try:
        with VHOST_DEVICE.open("rb+", buffering=0) as device:
            fcntl.ioctl(device, _VHOST_SET_OWNER)
    except OSError:
        return False
    return True


def _unheard(made: Tap) -> str:
    """Send a datagram as the guest would: a firewall of the host may not let it in."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        heard.settimeout(_PROBE_LIMIT_S)
        heard.bind((made.host_address, 0))
        request = fcntl.ioctl(heard, _SIOCGIFHWADDR, struct.pack("16s24x", made.name.encode()))
        frame = _datagram(made, request[18:24], heard.getsockname()[1])
        try:
            os.write(made.fd, bytes(_VNET_HEADER_BYTES) + frame)
            heard.recv(16)
        except TimeoutError:
            return "the host lets nothing in from a TAP interface (a firewall?)"
        except OSError as error:
            return f"a TAP interface takes no packet: {os.strerror(error.errno or errno.EIO)}"
    return ""


def _datagram(made: Tap, host_mac: bytes, port: int) -> bytes:
    """An Ethernet frame with a UDP datagram from the guest's address to the host's."""
    payload = b"wormhole"
    udp = struct.pack("!HHHH", port, port, 8 + len(payload), 0) + payload
    addresses = socket.inet_aton(made.guest_address) + socket.inet_aton(made.host_address)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0)
    total = sum(struct.unpack("!10H", head + addresses))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    guest_mac = bytes.fromhex(GUEST_MAC.replace(":", ""))
    ethernet = host_mac + guest_mac + struct.pack("!H", 0x0800)
    return ethernet + head[:10] + struct.pack("!H", checksum) + addresses + udp
