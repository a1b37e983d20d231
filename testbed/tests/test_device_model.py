"""The device model, driven register by register through QEMU's qtest protocol: no guest boots.

The test plays both neighbours of the device: the guest's driver (PCI configuration, virtqueues in
guest memory) and the host server (the Unix socket, the descriptors that come through it).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.machine.qemu_build import QemuBundle, qemu_bundle
from testbed.machine.qmp import Qmp

pytestmark = pytest.mark.vm

MIB = 1 << 20
GIB = 1 << 30
REGION_BYTES = 64 * MIB
LIMIT_S = 20.0
HELLO, START, STOP, PEER = 1, 2, 3, 4
WAKE, DISCONNECTED, CONNECTED, PEER_STOPPED, PEER_STARTED = 0, 1, 2, 3, 4
CONTROL, EVENT = 0, 1
DRIVER_OK = 4
DEVICE_PATH = "/machine/peripheral/wormhole0"
SLOT = 3
BARS = {1: 0xFE000000, 2: 0x400000000, 4: 0x800000000}
QUEUE_MEMORY = {CONTROL: 1 * MIB, EVENT: 2 * MIB}
BUFFERS = 3 * MIB
MESSAGE = struct.Struct("<IHHQII")


@pytest.fixture(scope="session")
def bundle() -> QemuBundle:
    """The patched QEMU."""
    return qemu_bundle()


@dataclass(frozen=True)
class Message:
    """A message of the device with the descriptors that came with it."""

    type: int
    region_bytes: int
    flags: int
    descriptors: list[int]


class Server:
    """The host server's side of the socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener: socket.socket | None = None
        self.connection: socket.socket | None = None
        self._opened: list[int] = []

    def listen(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        self._listener.listen(1)
        self._listener.settimeout(LIMIT_S)

    def accept(self) -> None:
        assert self._listener is not None
        self.connection, _ = self._listener.accept()
        self.connection.settimeout(LIMIT_S)

    def receive(self, wanted: int) -> Message:
        """The next message, which must be of the wanted type."""
        assert self.connection is not None
        data, descriptors, _, _ = socket.recv_fds(self.connection, MESSAGE.size, 4)
        assert len(data) == MESSAGE.size
        magic, version, kind, region_bytes, flags, reserved = MESSAGE.unpack(data)
        self._opened += descriptors
        assert (magic, version, reserved) == (0x4B4E4857, 1, 0)
        assert kind == wanted
        return Message(kind, region_bytes, flags, descriptors)

    def introduce(self, peer: int | None) -> None:
        """Tell the device of another machine's notify eventfd, or that it has gone."""
        assert self.connection is not None
        message = MESSAGE.pack(0x4B4E4857, 1, PEER, REGION_BYTES, 0, 0)
        # In pieces, as a stream may bring it; the descriptor comes with the first byte.
        socket.send_fds(self.connection, [message[:5]], [] if peer is None else [peer])
        self.connection.sendall(message[5:])

    def silent(self) -> bool:
        """Whether the device has nothing more to say."""
        assert self.connection is not None
        return not select.select([self.connection], [], [], 0.2)[0]

    def hang_up(self) -> None:
        for end in (self.connection, self._listener):
            if end is not None:
                end.close()
        self.connection = self._listener = None

    def close(self) -> None:
        self.hang_up()
        for descriptor in self._opened:
            os.close(descriptor)
        self._opened = []


class Qtest:
    """QEMU's qtest protocol: ports and memory of a machine whose CPUs do nothing."""

    def __init__(self, path: Path) -> None:
        self._socket = connect(path)
        self._lines = self._socket.makefile("r")

    def __call__(self, command: str) -> str:
        self._socket.sendall(f"{command}\n".encode())
        for line in self._lines:
            if line.startswith("IRQ "):
                continue
            assert line.startswith("OK"), f"{command}: {line}"
            return line[3:].strip()
        raise AssertionError(f"QEMU died at: {command}")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def write(self, address: int, data: bytes) -> None:
        self(f"write {address:#x} {len(data):#x} 0x{data.hex()}")

    def read(self, address: int, size: int) -> bytes:
        return bytes.fromhex(self(f"read {address:#x} {size:#x}")[2:])

    def read_number(self, address: int, size: int) -> int:
        """One access of 1, 2, 4 or 8 bytes."""
        return int(
            self(f"read{dict(zip((1, 2, 4, 8), 'bwlq', strict=True))[size]} {address:#x}"), 0
        )

    def write_number(self, address: int, size: int, value: int) -> None:
        letter = dict(zip((1, 2, 4, 8), "bwlq", strict=True))[size]
        self(f"write{letter} {address:#x} {value:#x}")

    def config_read(self, offset: int) -> int:
        """Four bytes of the device's PCI configuration."""
        self(f"outl 0xcf8 {0x80000000 | SLOT << 11 | offset:#x}")
        return int(self("inl 0xcfc"), 0)

    def config_write(self, offset: int, value: int) -> None:
        self(f"outl 0xcf8 {0x80000000 | SLOT << 11 | offset:#x}")
        self(f"outl 0xcfc {value:#x}")


@dataclass
class Driver:
    """The guest's side: finds the device's structures and runs its two virtqueues."""

    qtest: Qtest
    structures: dict[int, int] = field(default_factory=dict)
    region: tuple[int, int, int] = (0, 0, 0)  # id, address, size in bytes
    notify_multiplier: int = 0
    posted: dict[int, int] = field(default_factory=lambda: {CONTROL: 0, EVENT: 0})

    def probe(self) -> None:
        """Place the BARs and read the virtio capabilities."""
        for bar, address in BARS.items():
            self.qtest.config_write(0x10 + 4 * bar, address & 0xFFFFFFFF)
            if bar != 1:
                self.qtest.config_write(0x14 + 4 * bar, address >> 32)
        self.qtest.config_write(4, 6)
        capability = self.qtest.config_read(0x34) & 0xFF
        while capability:
            head = self.qtest.config_read(capability)
            if head & 0xFF == 9:
                self._note(capability, head >> 24)
            capability = head >> 8 & 0xFF

    def _note(self, capability: int, kind: int) -> None:
        bar, number = self.qtest.config_read(capability + 4).to_bytes(4, "little")[:2]
        offset = self.qtest.config_read(capability + 8)
        length = self.qtest.config_read(capability + 12)
        if kind == 2:
            self.notify_multiplier = self.qtest.config_read(capability + 16)
        if kind == 8:
            offset |= self.qtest.config_read(capability + 16) << 32
            length |= self.qtest.config_read(capability + 20) << 32
            self.region = (number, BARS[bar] + offset, length)
        elif kind in (1, 2, 3, 4):
            self.structures[kind] = BARS[bar] + offset

    def bar_size(self, bar: int) -> int:
        """The size of a 64-bit BAR in bytes, found as an operating system does."""
        for part in (0, 4):
            self.qtest.config_write(0x10 + 4 * bar + part, 0xFFFFFFFF)
        mask = self.qtest.config_read(0x10 + 4 * bar) & ~0xF
        mask |= self.qtest.config_read(0x14 + 4 * bar) << 32
        self.qtest.config_write(0x10 + 4 * bar, BARS[bar] & 0xFFFFFFFF)
        self.qtest.config_write(0x14 + 4 * bar, BARS[bar] >> 32)
        return (1 << 64) - mask

    def common(self, offset: int, size: int, value: int | None = None) -> int:
        """Read or write a field of the common configuration."""
        if value is None:
            return self.qtest.read_number(self.structures[1] + offset, size)
        self.qtest.write_number(self.structures[1] + offset, size, value)
        return value

    def start(self, event_buffers: int = 4) -> None:
        """Initialise, post event buffers, set DRIVER_OK."""
        self.negotiate()
        for queue in (CONTROL, EVENT):
            self.set_up_queue(queue)
        for _ in range(event_buffers):
            self.post(EVENT)
        self.common(20, 1, 0xB | DRIVER_OK)
        assert self.common(20, 1) & DRIVER_OK

    def negotiate(self) -> None:
        self.reset()
        self.common(20, 1, 3)
        self.common(8, 4, 1)
        self.common(12, 4, 1)
        self.common(20, 1, 0xB)
        assert self.common(20, 1) == 0xB, "the device refused VIRTIO_F_VERSION_1"

    def set_up_queue(self, queue: int) -> None:
        base = QUEUE_MEMORY[queue]
        self.qtest.write(base, bytes(3 * 4096))
        self.posted[queue] = 0
        self.common(22, 2, queue)
        for part, offset in enumerate((32, 40, 48)):
            self.common(offset, 4, base + part * 4096)
            self.common(offset + 4, 4, 0)
        self.common(28, 2, 1)

    def reset(self) -> None:
        self.common(20, 1, 0)
        assert self.common(20, 1) == 0

    def notify(self, queue: int) -> None:
        self.common(22, 2, queue)
        offset = self.common(30, 2) * self.notify_multiplier
        self.qtest.write_number(self.structures[2] + offset, 2, queue)

    def post(self, queue: int, size: int = 8) -> None:
        """Post one buffer (device-writable), without a notification."""
        base, count = QUEUE_MEMORY[queue], self.posted[queue]
        number = count % 16
        buffer = BUFFERS + queue * MIB + number * 64
        self.qtest.write(buffer, bytes([0xEE] * 64))
        self.qtest.write(base + 16 * number, struct.pack("<QIHH", buffer, size, 2, 0))
        self.qtest.write(base + 4096 + 4 + 2 * (count % self.queue_size(queue)), bytes([number, 0]))
        self.posted[queue] += 1
        self.qtest.write(base + 4096 + 2, struct.pack("<H", self.posted[queue]))

    def queue_size(self, queue: int) -> int:
        return {CONTROL: 16, EVENT: 64}[queue]

    def used(self, queue: int) -> list[tuple[int, bytes]]:
        """Buffers that came back: the length that was reported and the first 8 bytes."""
        base = QUEUE_MEMORY[queue] + 2 * 4096
        (count,) = struct.unpack("<H", self.qtest.read(base + 2, 2))
        found = []
        for index in range(count):
            place = base + 4 + 8 * (index % self.queue_size(queue))
            number, length = struct.unpack("<II", self.qtest.read(place, 8))
            found.append((length, self.qtest.read(BUFFERS + queue * MIB + number * 64, 8)))
        return found

    def events(self) -> list[tuple[int, int]]:
        """Events delivered so far: type and sequence."""
        return [struct.unpack("<II", data) for _, data in self.used(EVENT)]

    def wants_notifications(self, queue: int) -> bool:
        """Whether the device asks to be told of buffers posted to a queue."""
        return not self.qtest.read(QUEUE_MEMORY[queue] + 2 * 4096, 1)[0] & 1


@dataclass
class Machine:
    """QEMU with the device, and everything around it."""

    process: subprocess.Popen[bytes]
    qmp: Qmp
    qtest: Qtest
    driver: Driver
    server: Server

    def get(self, name: str) -> int:
        """A property of the device."""
        return int(self.qmp.execute("qom-get", path=DEVICE_PATH, property=name))

    def counters(self) -> dict[str, int]:
        names = ("control-notifications", "wakes", "wakes-dropped", "event-completions", "resets")
        return {name: self.get(name) for name in names}

    def alive(self) -> bool:
        return bool(self.qmp.execute("query-status")["status"]) and self.process.poll() is None


Start = Callable[..., Machine]


@pytest.fixture
def start(bundle: QemuBundle, tmp_path: Path) -> Iterator[Start]:
    """Start a machine; `connect=False` leaves the server out."""
    with ExitStack() as stack:

        def start_machine(
            ioeventfd: str = "on", with_server: bool = True, properties: str = ""
        ) -> Machine:
            server = Server(tmp_path / "server.sock")
            stack.callback(server.close)
            if with_server:
                server.listen()
            log = stack.enter_context((tmp_path / "qemu.log").open("wb"))
            process = subprocess.Popen(
                [
                    *base_argv(bundle, tmp_path),
                    *("-chardev", f"socket,id=s,path={tmp_path / 'server.sock'},reconnect-ms=50"),
                    *("-object", f"memory-backend-memfd,id=r,size={REGION_BYTES},share=on"),
                    "-device",
                    f"virtio-wormhole-pci,id=wormhole0,memdev=r,chardev=s,addr={SLOT},ioeventfd={ioeventfd}"
                    + properties,
                ],
                stdout=log,
                stderr=log,
            )
            stack.callback(end, process)
            qmp = Qmp(tmp_path / "qmp.sock")
            stack.callback(qmp.close)
            qtest = Qtest(tmp_path / "qtest.sock")
            stack.callback(qtest.close)
            driver = Driver(qtest)
            driver.probe()
            if with_server:
                server.accept()
            return Machine(process, qmp, qtest, driver, server)

        yield start_machine


def base_argv(bundle: QemuBundle, directory: Path) -> list[str]:
    """A q35 whose CPUs do nothing, with monitor and qtest sockets."""
    return [
        str(bundle.binary),
        *("-L", str(bundle.data_dir)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-m", "64M"),
        *("-machine", "q35,sata=off,usb=off,smm=off", "-accel", "qtest"),
        *("-qtest", f"unix:{directory / 'qtest.sock'},server=on,wait=off"),
        *("-qtest-log", "none"),
        *("-qmp", f"unix:{directory / 'qmp.sock'},server=on,wait=off"),
    ]


def connect(path: Path) -> socket.socket:
    """Connect to a Unix socket that is about to appear."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.settimeout(LIMIT_S)
        try:
            end.connect(str(path))
            return end
        except OSError:
            end.close()
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(timeout=LIMIT_S)


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether a condition becomes true within the limit."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def drained(descriptor: int) -> int:
    """The value of an eventfd, 0 if it is not readable."""
    if not select.select([descriptor], [], [], 0)[0]:
        return 0
    return int.from_bytes(os.read(descriptor, 8), "little")


def wake(descriptor: int, count: int = 1) -> None:
    os.write(descriptor, count.to_bytes(8, "little"))


# ---- what is refused ----

GOOD_MEMORY = "memory-backend-memfd,id=r,size=64M,share=on"
GOOD_SOCKET = "socket,id=s,path=/nonexistent/server.sock,reconnect-ms=1000"


@pytest.mark.parametrize(
    ("memory", "chardev", "properties", "message"),
    [
        (GOOD_MEMORY, GOOD_SOCKET, "chardev=s", "needs the property 'memdev'"),
        (GOOD_MEMORY, GOOD_SOCKET, "memdev=r", "needs the property 'chardev'"),
        (GOOD_MEMORY.replace("=on", "=off"), GOOD_SOCKET, "memdev=r,chardev=s", "share=on"),
        (GOOD_MEMORY.replace("64M", "96M"), GOOD_SOCKET, "memdev=r,chardev=s", "power of two"),
        (
            "memory-backend-ram,id=r,size=64M,share=off",
            GOOD_SOCKET,
            "memdev=r,chardev=s",
            "no file descriptor",
        ),
        (GOOD_MEMORY, "null,id=s", "memdev=r,chardev=s", "must be a Unix socket"),
        (GOOD_MEMORY, GOOD_SOCKET, "memdev=nothing,chardev=s", "nothing"),
        (GOOD_MEMORY, GOOD_SOCKET, "memdev=r,chardev=nothing", "nothing"),
    ],
)
def test_bad_configuration_is_refused(
    bundle: QemuBundle, tmp_path: Path, memory: str, chardev: str, properties: str, message: str
) -> None:
    argv = [
        *base_argv(bundle, tmp_path),
        *("-object", memory, "-chardev", chardev),
        *("-device", f"virtio-wormhole-pci,{properties}"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1, done.stderr
    assert message in done.stderr


def test_a_backend_serves_one_device(bundle: QemuBundle, tmp_path: Path) -> None:
    device = ["-device", "virtio-wormhole-pci,memdev=r,chardev="]
    argv = [
        *base_argv(bundle, tmp_path),
        *("-object", GOOD_MEMORY, "-chardev", GOOD_SOCKET),
        *("-chardev", GOOD_SOCKET.replace("id=s", "id=t")),
        *(device[0], device[1] + "s", device[0], device[1] + "t"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert "already in use" in done.stderr


# ---- what the guest sees ----


def test_identity_features_and_configuration(start: Start) -> None:
    machine = start()
    driver = machine.driver
    assert machine.qtest.config_read(0) == 0x107F1AF4
    assert driver.common(18, 2) == 2
    features = []
    for word in (0, 1, 2):
        driver.common(0, 4, word)
        features.append(driver.common(4, 4))
    assert features == [0, 1, 0], "nothing but VIRTIO_F_VERSION_1"
    assert struct.unpack("<II", machine.qtest.read(driver.structures[4], 8)) == (1, 0)


def test_region_is_the_memfd_and_its_bar_fits_nowhere_below_4_gib(start: Start) -> None:
    machine = start()
    hello = machine.server.receive(HELLO)
    number, address, size = machine.driver.region
    assert (number, size) == (0, REGION_BYTES) == (0, hello.region_bytes)
    assert machine.driver.bar_size(4) >= 4 * GIB
    assert os.fstat(hello.descriptors[0]).st_size == REGION_BYTES
    with mmap.mmap(hello.descriptors[0], REGION_BYTES) as region:
        region[REGION_BYTES - 8 :] = b"to guest"
        assert machine.qtest.read(address + size - 8, 8) == b"to guest"
        machine.qtest.write(address, b"to host!")
        assert region[:8] == b"to host!"
    machine.qtest.write(address + size, b"nothing is here!")
    assert machine.alive()


# ---- the server's connection ----


def test_hello_start_stop_in_a_drivers_life(start: Start) -> None:
    machine = start()
    hello = machine.server.receive(HELLO)
    assert len(hello.descriptors) == 2
    assert machine.server.silent(), "no driver, no START"
    for _ in range(2):
        machine.driver.start()
        assert len(machine.server.receive(START).descriptors) == 1
        assert machine.get("driver-started") == 1
        machine.driver.reset()
        assert machine.server.receive(STOP).descriptors == []
        assert machine.get("driver-started") == 0
    assert machine.server.silent()


def test_server_that_comes_late_or_again(start: Start) -> None:
    machine = start(with_server=False)
    machine.driver.start()
    for sequence in (0, 2):
        machine.server.listen()
        machine.server.accept()
        assert len(machine.server.receive(HELLO).descriptors) == 2
        assert len(machine.server.receive(START).descriptors) == 1
        assert machine.driver.events()[sequence] == (CONNECTED, sequence)
        machine.server.hang_up()
        assert eventually(lambda: machine.get("server-connected") == 0)
        assert machine.driver.events()[-1][0] == DISCONNECTED
    machine.driver.notify(CONTROL)
    assert machine.alive()


@pytest.mark.parametrize("data", [bytes(MESSAGE.size), os.urandom(MIB)], ids=["zeroes", "noise"])
def test_a_server_that_breaks_the_protocol_loses_its_connection(start: Start, data: bytes) -> None:
    machine = start()
    machine.server.receive(HELLO)
    machine.driver.start()
    assert machine.server.connection is not None
    with contextlib.suppress(OSError):
        machine.server.connection.sendall(data)
    assert eventually(lambda: (DISCONNECTED, 0) in machine.driver.events())
    assert machine.alive()


# ---- a server in another machine's guest ----


@pytest.fixture
def peer() -> Iterator[int]:
    """What the other machine's guest signals."""
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("ioeventfd", ["on", "off"])
def test_a_peers_notification_is_an_event(start: Start, peer: int, ioeventfd: str) -> None:
    machine = start(ioeventfd)
    machine.server.receive(HELLO)
    machine.driver.start()
    machine.server.introduce(peer)
    assert eventually(lambda: machine.driver.events() == [(PEER_STARTED, 0)])
    wake(peer, 2)
    assert eventually(lambda: machine.driver.events()[1:] == [(WAKE, 1)])
    assert machine.get("wakes") == 2
    assert not os.get_blocking(peer), "the other machine reads it, too"
    machine.server.introduce(None)
    assert eventually(lambda: machine.driver.events()[2:] == [(PEER_STOPPED, 2)])
    wake(peer)
    assert machine.alive()
    assert machine.get("wakes") == 2


def test_a_peer_is_lost_with_the_connection(start: Start, peer: int) -> None:
    machine = start()
    machine.server.receive(HELLO)
    machine.driver.start()
    machine.server.introduce(peer)
    assert eventually(lambda: machine.driver.events() == [(PEER_STARTED, 0)])
    machine.server.hang_up()
    assert eventually(lambda: len(machine.driver.events()) >= 3)
    assert {kind for kind, _ in machine.driver.events()[1:3]} == {PEER_STOPPED, DISCONNECTED}


def test_peers_replace_each_other(start: Start, peer: int) -> None:
    machine = start()
    machine.server.receive(HELLO)
    machine.driver.start()
    last = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        for descriptor in (peer, last):
            machine.server.introduce(descriptor)
        assert eventually(lambda: len(machine.driver.events()) == 2)
        wake(peer)
        wake(last)
        assert eventually(lambda: machine.get("wakes") == 1)
        assert drained(peer) == 1, "nobody else reads it any more"
    finally:
        os.close(last)


def test_a_serving_guest_is_told_so(start: Start) -> None:
    machine = start(properties=",serves=on")
    place = machine.driver.structures[4]
    assert struct.unpack("<II", machine.qtest.read(place, 8)) == (1, 1)


def test_a_server_that_does_not_read_loses_its_connection(start: Start) -> None:
    machine = start()
    machine.driver.negotiate()
    for _ in range(3000):
        machine.driver.common(20, 1, 0xF)
        machine.driver.common(20, 1, 0)
        if machine.get("server-connected") == 0:
            break
    assert machine.get("server-connected") == 0
    machine.driver.start()
    assert machine.get("driver-started") == 1


# ---- notifications ----


@pytest.mark.parametrize("ioeventfd", ["on", "off"])
def test_notifications_reach_the_servers_eventfd(start: Start, ioeventfd: str) -> None:
    machine = start(ioeventfd)
    machine.server.receive(HELLO)
    machine.driver.start()
    message = machine.server.receive(START)
    (notify,) = message.descriptors
    assert message.flags == (1 if ioeventfd == "on" else 0)
    drained(notify)
    for count in (1, 5):
        for _ in range(count):
            machine.driver.notify(CONTROL)
        assert drained(notify) == count
    trapped = 6 if ioeventfd == "off" else 0
    assert machine.get("control-notifications") == trapped
    assert machine.get("control-notifications-exact") == (ioeventfd == "off")
    assert machine.driver.wants_notifications(CONTROL)


def test_control_buffers_come_back_empty(start: Start) -> None:
    machine = start("off")
    machine.driver.start()
    for _ in range(3):
        machine.driver.post(CONTROL)
    machine.driver.notify(CONTROL)
    assert machine.driver.used(CONTROL) == [(0, bytes([0xEE] * 8))] * 3


@pytest.mark.parametrize("ioeventfd", ["on", "off"])
def test_a_wake_completes_one_buffer(start: Start, ioeventfd: str) -> None:
    machine = start(ioeventfd)
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    machine.driver.start()
    wake(wake_fd, 3)
    assert eventually(lambda: machine.get("wakes") == 3)
    wake(wake_fd)
    assert eventually(lambda: machine.get("wakes") == 4)
    assert machine.driver.events() == [(WAKE, 0), (WAKE, 1)]
    assert machine.get("event-completions") == machine.get("event-interrupts") == 2
    assert machine.get("wakes-dropped") == 0


@pytest.mark.parametrize("ioeventfd", ["on", "off"])
def test_a_wake_without_a_buffer_is_kept(start: Start, ioeventfd: str) -> None:
    machine = start(ioeventfd)
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    machine.driver.start(event_buffers=0)
    machine.driver.notify(EVENT)
    assert eventually(lambda: not machine.driver.wants_notifications(EVENT)), "nothing is kept"
    for count in (1, 2):
        wake(wake_fd)
        assert eventually(lambda count=count: machine.get("wakes") == count)  # type: ignore[misc]
    assert machine.get("wakes-dropped") == 2
    assert machine.driver.events() == []
    assert machine.driver.wants_notifications(EVENT)
    for _ in range(3):
        machine.driver.post(EVENT)
    machine.driver.notify(EVENT)
    assert machine.driver.events() == [(WAKE, 0)], "kept once, however many wakes there were"
    assert not machine.driver.wants_notifications(EVENT), "posting costs no exit in normal life"


def test_a_short_event_buffer_gets_what_fits(start: Start) -> None:
    machine = start()
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    machine.driver.start(event_buffers=0)
    machine.driver.post(EVENT, size=4)
    wake(wake_fd)
    assert eventually(lambda: machine.get("event-completions") == 1)
    assert machine.driver.used(EVENT) == [(4, bytes(4) + bytes([0xEE] * 4))]


def test_wakes_without_a_driver_are_dropped(start: Start) -> None:
    machine = start()
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    wake(wake_fd)
    assert eventually(lambda: machine.get("wakes-dropped") == 1)
    machine.driver.start()
    machine.driver.notify(EVENT)
    assert machine.driver.events() == []


def test_reset_forgets_kept_events(start: Start) -> None:
    machine = start()
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    machine.driver.start(event_buffers=0)
    wake(wake_fd)
    assert eventually(lambda: machine.get("wakes-dropped") == 1)
    machine.driver.start(event_buffers=2)
    machine.driver.notify(EVENT)
    assert machine.driver.events() == []


def test_a_stopped_machine_does_not_change(start: Start) -> None:
    machine = start()
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    machine.driver.start()
    machine.server.receive(START)
    machine.qmp.execute("stop")
    machine.server.receive(STOP)
    wake(wake_fd)
    assert machine.server.silent()
    assert machine.driver.events() == []
    machine.qmp.execute("cont")
    (notify,) = machine.server.receive(START).descriptors
    assert eventually(lambda: machine.driver.events() == [(WAKE, 0)])
    drained(notify)
    machine.driver.notify(CONTROL)
    assert drained(notify) == 1


def test_counters_are_reset_together(start: Start) -> None:
    machine = start("off")
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    machine.driver.start(event_buffers=1)
    machine.driver.notify(CONTROL)
    for count in (1, 2):
        wake(wake_fd)
        assert eventually(lambda count=count: machine.get("wakes") == count)  # type: ignore[misc]
    assert all(machine.counters().values()), machine.counters()
    machine.qmp.execute("qom-set", path=DEVICE_PATH, property="counters-reset", value=True)
    assert not any(machine.counters().values()), machine.counters()
    machine.driver.notify(CONTROL)
    assert machine.get("control-notifications") == 1


# ---- what the device survives ----


def test_it_cannot_be_migrated(start: Start) -> None:
    machine = start()
    with pytest.raises(TestbedError, match="wormhole"):
        machine.qmp.execute("migrate", uri="exec:cat > /dev/null")


def test_a_driver_without_queues(start: Start) -> None:
    machine = start("off")
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    machine.driver.negotiate()
    machine.driver.common(20, 1, 0xF)
    machine.driver.notify(CONTROL)
    machine.driver.notify(EVENT)
    wake(wake_fd)
    assert eventually(lambda: machine.get("wakes-dropped") == 1)
    assert machine.alive()


@pytest.mark.parametrize(
    "descriptor",
    [
        struct.pack("<QIHH", 1 << 62, 8, 2, 0),  # outside memory
        struct.pack("<QIHH", BUFFERS, 0, 2, 0),  # empty
        struct.pack("<QIHH", BUFFERS, 0xFFFFFFFF, 2, 0),  # longer than memory
        struct.pack("<QIHH", BUFFERS, 8, 3, 0),  # a chain that is a loop
        struct.pack("<QIHH", BUFFERS, 8, 3, 60000),  # a chain that leaves the table
        struct.pack("<QIHH", BUFFERS, 8, 0, 0),  # readable only
        struct.pack("<QIHH", BUFFERS, 16, 4, 0),  # indirect, which was not negotiated
        struct.pack("<QIHH", BARS[2], 8, 2, 0),  # the device's own registers
    ],
)
@pytest.mark.parametrize("queue", [CONTROL, EVENT])
def test_hostile_descriptors(start: Start, queue: int, descriptor: bytes) -> None:
    machine = start("off")
    wake_fd = machine.server.receive(HELLO).descriptors[1]
    machine.driver.start(event_buffers=0)
    machine.driver.post(queue)
    machine.qtest.write(QUEUE_MEMORY[queue], descriptor)
    machine.driver.notify(queue)
    wake(wake_fd)
    assert eventually(lambda: machine.get("wakes") == 1)
    assert machine.alive()
    machine.driver.start()
    wake(wake_fd)
    assert eventually(lambda: machine.driver.events() == [(WAKE, 0)]), "works again after a reset"


def test_hostile_ring_index(start: Start) -> None:
    machine = start("off")
    machine.driver.start(event_buffers=0)
    for queue in (CONTROL, EVENT):
        machine.qtest.write(QUEUE_MEMORY[queue] + 4096 + 2, struct.pack("<H", 40000))
        machine.driver.notify(queue)
    assert machine.alive()
