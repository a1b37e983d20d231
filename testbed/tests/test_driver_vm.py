"""The guest driver in a real guest, against a host double that can be told to misbehave.

What the cases do inside the guest stands in guest_agent/driver/tests/driver_test.c.
"""

from __future__ import annotations

import errno
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.machine.image import guest_image
from testbed.machine.qemu_argv import Region, VmConfig
from testbed.machine.ssh import SshResult
from testbed.machine.vm import Vm, boot
from testbed.protocol.generate import generate
from testbed.protocol.wire import constant
from testbed.root import ROOT
from testbed.tests.driver_host import HostDouble

pytestmark = pytest.mark.vm

DRIVER = ROOT / "guest_agent" / "driver"
MODULE = "/opt/wormhole/wormhole.ko"
PROGRAM = "/opt/wormhole/driver_test"
NODE = "/sys/class/misc/wormhole0"
REGION_BYTES = 64 << 20
SESSION_COUNT = 8
CASE_TIMEOUT_S = 120.0


def build_program(directory: Path) -> Path:
    """Compile the guest side of the cases."""
    program = directory / "driver_test"
    generate(directory / "generated")
    argv = ["gcc", "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    source = DRIVER / "tests" / "driver_test.c"
    subprocess.run(
        [*argv, f"-I{DRIVER}", f"-I{directory}/generated/include", str(source), "-o", str(program)],
        check=True,
        timeout=60.0,
    )
    return program


class DrivenVm:
    """A guest with the driver loaded and the cases' program in it."""

    def __init__(self, vm: Vm, socket: Path) -> None:
        self.vm = vm
        self.socket = socket

    def case(self, name: str, number: int = 0, user: str = "wormhole") -> None:
        """Run a case and fail with what it says."""
        result = self.start(name, number, user)
        assert result.status == 0, result.stdout.decode() + result.stderr.decode()
        assert f"ok {name}" in result.stdout.decode()

    def start(self, name: str, number: int = 0, user: str = "wormhole") -> SshResult:
        """Run a case and return how it ended."""
        argv = [PROGRAM, name, str(number)]
        if user != "root":
            argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *argv]
        return self.vm.ssh.run(argv, timeout_s=CASE_TIMEOUT_S)

    def attribute(self, name: str) -> str:
        """One of the driver's files in sysfs."""
        result = self.vm.ssh.run(["cat", f"{NODE}/{name}"], check=True)
        return result.stdout.decode().strip()

    def shell(self, script: str) -> str:
        """Standard output of a shell script run as root."""
        return self.vm.ssh.run(["sh", "-c", script], check=True).stdout.decode()


class Background:
    """A case that runs beside the test; `said(text)` waits for a line of its output."""

    def __init__(self, driven: DrivenVm, name: str, number: int = 0) -> None:
        self._text = ""
        self._changed = threading.Condition()
        self.status: int | None = None

        def run() -> None:
            result = driven.vm.ssh.run(
                [PROGRAM, name, str(number)], timeout_s=CASE_TIMEOUT_S, on_output=self._take
            )
            self.status = result.status

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def _take(self, stream: str, piece: bytes) -> None:
        with self._changed:
            self._text += piece.decode(errors="replace")
            self._changed.notify_all()

    def said(self, text: str, timeout_s: float = 30.0) -> str:
        """All output so far, once `text` is in it."""
        with self._changed:
            assert self._changed.wait_for(lambda: text in self._text, timeout_s), self._text
            return self._text

    def end(self) -> int:
        """The exit status; fails if the case does not end."""
        self._thread.join(timeout=CASE_TIMEOUT_S)
        assert self.status is not None, self._text
        return self.status

    @property
    def text(self) -> str:
        """All output so far."""
        return self._text


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenVm]:
    """A booted guest whose device socket nobody serves yet."""
    directory = tmp_path_factory.mktemp("driver")
    socket = directory / "device.sock"
    program = build_program(directory)
    image = guest_image()
    config = VmConfig(name="driver", region=Region(REGION_BYTES, socket))
    with boot(config, directory / "vm", image) as vm:
        vm.guest.load_driver(image.driver)
        vm.ssh.put({PROGRAM: program})
        vm.ssh.run(["chmod", "755", PROGRAM], check=True)
        driven = DrivenVm(vm, socket)
        yield driven
        log = driven.shell("dmesg")
        for trouble in ("BUG:", "WARNING:", "Oops", "general protection", "hung task", "rcu_sched"):
            assert trouble not in log, log[-4000:]


@pytest.fixture
def host(driven: DrivenVm) -> Iterator[HostDouble]:
    """A server that answers, and that must have nothing open in the end."""
    with serve(driven) as double:
        yield double
        assert double.wait_for(lambda: double.live() == 0), "sessions are left at the host"
        assert driven.attribute("slots_held") == "0"


def serve(driven: DrivenVm) -> HostDouble:
    """Start a double and wait until it has taken the region over."""
    double = HostDouble(driven.socket, session_count=SESSION_COUNT)
    if not double.wait_for(lambda: double.ready):
        double.die()
        raise AssertionError("the device did not connect")
    return double


def test_no_server(driven: DrivenVm) -> None:
    driven.case("open-fails", errno.ENODEV)


def test_region_is_write_back_and_high(driven: DrivenVm) -> None:
    address = int(driven.attribute("region_address"), 16)
    assert address >= 4 << 30
    assert int(driven.attribute("region_bytes")) == REGION_BYTES
    assert driven.attribute("memory_type") == "write-back"
    listed = driven.shell(
        "mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug;"
        "cat /sys/kernel/debug/x86/pat_memtype_list"
    )
    types = [
        line.split()[-1]
        for line in listed.splitlines()
        if (match := re.search(r"\[mem (0x[0-9a-f]+)-(0x[0-9a-f]+)\]", line))
        and int(match[1], 16) <= address < int(match[2], 16)
    ]
    assert types == ["write-back"], listed


def test_downgraded_memory_type_is_told(driven: DrivenVm) -> None:
    """The guest's own MTRRs make the region uncached, as firmware does to low memory."""
    address = int(driven.attribute("region_address"), 16)
    driven.shell("rmmod wormhole")
    driven.shell(
        f"echo 'base={address:#x} size={REGION_BYTES:#x} type=uncachable' > /proc/mtrr;"
        f"insmod {MODULE}"
    )
    try:
        assert driven.attribute("memory_type") == "not write-back"
        assert "is not mapped write-back" in driven.shell("dmesg")
    finally:
        driven.shell(
            "rmmod wormhole;"
            f"register=$(grep -n {address:x} /proc/mtrr | cut -d: -f2);"
            'echo "disable=${register#reg}" > /proc/mtrr;'
            f"insmod {MODULE}"
        )
    assert driven.attribute("memory_type") == "write-back"


def test_unprivileged_round_trips(driven: DrivenVm, host: HostDouble) -> None:
    before = int(driven.attribute("notifications_sent"))
    driven.case("round-trip", 1000)
    assert host.opened == 1
    line = host.lines[0]
    user_id = int(driven.shell("id -u wormhole"))
    assert line["uid"] == user_id != 0
    assert line["spin_us"] == 7
    assert bytes(line["name"]).rstrip(b"\0") == b"driver_test"
    # one each call, one each for open and close
    assert int(driven.attribute("notifications_sent")) - before == 1002


def test_whole_memory(driven: DrivenVm, host: HostDouble) -> None:
    driven.case("whole")


def test_a_thousand_sessions(driven: DrivenVm, host: HostDouble) -> None:
    memory = "awk '/^(Slab|Percpu|VmallocUsed|PageTables)/ {s += $2} END {print s}' /proc/meminfo"
    driven.case("churn", 50)
    before_kib = int(driven.shell(memory))
    driven.case("churn", 1000)
    grown_kib = int(driven.shell(memory)) - before_kib
    assert host.opened == 1050
    assert host.wait_for(lambda: host.closed == 1050)
    # a leak of one page a session would be 4000 KiB
    assert grown_kib < 2500, f"kernel memory grew by {grown_kib} KiB"


def test_slots_run_out(driven: DrivenVm, host: HostDouble) -> None:
    driven.case("exhaust", SESSION_COUNT)


def test_misuse(driven: DrivenVm, host: HostDouble) -> None:
    driven.case("errors")
    driven.case("wait-limits")


@pytest.mark.parametrize("name", ["child-close", "close-mapped", "unmap-ends"])
def test_ends(driven: DrivenVm, host: HostDouble, name: str) -> None:
    driven.case(name)


def test_close_during_a_copy(driven: DrivenVm, host: HostDouble) -> None:
    driven.case("close-race", 100)


def test_sigkill_releases(driven: DrivenVm, host: HostDouble) -> None:
    case = Background(driven, "hold")
    case.said("holding")
    assert host.live() == 1
    driven.shell("pkill -KILL driver_test")
    assert host.wait_for(lambda: host.live() == 0)
    case.end()


def test_fifty_killed_at_work(driven: DrivenVm, host: HostDouble) -> None:
    # killed anywhere from before the open to the middle of a copy
    driven.shell(
        f"for i in $(seq 50); do {PROGRAM} busy & sleep 0.0$((i % 10)); kill -KILL $!; done; wait"
    )
    assert host.opened >= 25
    assert host.wait_for(lambda: host.live() == 0)
    driven.case("churn", 2 * SESSION_COUNT)


def test_owner_dies_while_its_child_lives(driven: DrivenVm, host: HostDouble) -> None:
    case = Background(driven, "fork")
    child = int(re.findall(r"child (\d+)", case.said("child "))[0])
    try:
        assert host.wait_for(lambda: host.live() == 0)
        fds = driven.shell(f"ls -l /proc/{child}/fd")
        assert "/dev/wormhole0" in fds, "the child no longer holds the descriptor"
    finally:
        driven.shell(f"kill -KILL {child}")
    assert case.end() == 0, case.text


def test_refusal_and_silence(driven: DrivenVm, host: HostDouble) -> None:
    host.policy = "refuse"
    driven.case("refused")
    host.policy = "silent"
    driven.case("open-fails", errno.ETIMEDOUT)
    host.policy = "answer"
    driven.case("exhaust", SESSION_COUNT)


def test_worker_dies(driven: DrivenVm, host: HostDouble) -> None:
    case = Background(driven, "worker-dies")
    case.said("waiting")
    host.kill_session(0)
    assert case.end() == 0, case.text


def test_server_dies_and_another_comes(driven: DrivenVm) -> None:
    first = serve(driven)
    case = Background(driven, "server-dies", 8)
    try:
        case.said("waiting")
    finally:
        first.die()
    case.said("ended")
    with serve(driven) as second:
        assert case.end() == 0, case.text
        assert second.wait_for(lambda: second.live() == 0)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("session_count", constant("session_count_max") + 1, errno.EIO),
        ("session_count", 0, errno.EIO),
        ("session_bytes", 0, errno.EIO),
        ("session_bytes", 1 << 63, errno.EIO),
        ("session_bytes", REGION_BYTES, errno.EIO),
        ("session_bytes", 4097, errno.EIO),
        ("table_offset", REGION_BYTES, errno.EIO),
        ("table_offset", 0, errno.EIO),
        ("sessions_offset", 1 << 63, errno.EIO),
        ("sessions_offset", 4096, errno.EIO),
        ("magic", 0, errno.EIO),
        ("version", 99, errno.EPROTO),
        ("spec_hash", 1, errno.EPROTO),
    ],
)
def test_malformed_region(driven: DrivenVm, field: str, value: int, error: int) -> None:
    double = HostDouble(driven.socket, session_count=SESSION_COUNT)
    double.header_changes = {field: value}
    with double:
        assert double.wait_for(lambda: double.ready)
        driven.case("open-fails", error)


def test_reload_with_open_files(driven: DrivenVm, host: HostDouble) -> None:
    case = Background(driven, "hold")
    case.said("holding")
    assert driven.vm.ssh.run(["rmmod", "wormhole"]).status != 0, "unloaded under an open file"
    driven.shell("pkill -KILL driver_test")
    case.end()
    stops = host.stops
    driven.shell("rmmod wormhole")
    assert host.wait_for(lambda: host.stops > stops)
    driven.shell(f"insmod {MODULE}")
    driven.case("exhaust", SESSION_COUNT)


def test_device_goes_while_a_process_waits(driven: DrivenVm) -> None:
    """The device is taken from the driver: waiters get EPIPE, and it can be given back."""
    with serve(driven):
        case = Background(driven, "server-dies", 4)
        case.said("waiting")
        device = Path(driven.shell(f"readlink -f {NODE}/device").strip()).name
        driven.shell(f"echo {device} > /sys/bus/virtio/drivers/wormhole/unbind")
        case.said("ended")
        driven.shell(f"echo {device} > /sys/bus/virtio/drivers/wormhole/bind")
        assert case.end() == 0, case.text  # the old file stays dead, a new one works
        driven.case("round-trip", 10)
