"""Real guests: start, run programs, end, and leave nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.machine import vm as vms
from testbed.machine.image import GuestImage, guest_image
from testbed.machine.processes import cpu_seconds
from testbed.machine.qemu_argv import DEVICE_ID, Region, VmConfig
from testbed.machine.ssh import connect, generate_key_pair
from testbed.machine.vm import Vm, boot

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def image() -> GuestImage:
    return guest_image()


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory, image: GuestImage) -> Iterator[Vm]:
    """A running guest that the tests of this file share; none changes it for another."""
    with boot(VmConfig(name="shared"), tmp_path_factory.mktemp("vm"), image) as started:
        yield started


def is_running(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX"


def wait_for(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true within a generous limit."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def guest_processes(vm: Vm, pattern: str) -> str:
    return vm.ssh.run(["pgrep", "-f", pattern]).stdout.decode()


def test_cpu_seconds_of_this_process_grow() -> None:
    before = cpu_seconds(os.getpid())
    total = 0
    while cpu_seconds(os.getpid()).user_s <= before.user_s:
        total += sum(range(10_000))
        assert total < 10**13, "no CPU time was counted"
    assert cpu_seconds(os.getpid()).system_s >= before.system_s


def test_cpu_seconds_of_a_dead_process_is_an_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait(LIMIT_S)
    with pytest.raises(TestbedError, match=str(process.pid)):
        cpu_seconds(process.pid)


@pytest.mark.vm
class TestGuest:
    """What can be done with a running guest."""

    def test_the_kernel_is_the_images(self, vm: Vm, image: GuestImage) -> None:
        facts = vm.guest.info()
        assert facts["kernel"] == image.kernel_release
        assert facts["cpus"] == 2
        assert facts["regions"] == []

    def test_qemu_answers(self, vm: Vm) -> None:
        assert vm.qmp.status() == "running"
        with pytest.raises(TestbedError, match="no-such-command"):
            vm.qmp.execute("no-such-command")
        assert vm.qmp.status() == "running", "an error must not spoil the connection"

    def test_programs_run_without_privileges(self, vm: Vm) -> None:
        run = vm.guest.run(["sh", "-c", "id -un; pwd; echo $X; exit 4"], env={"X": "a b"})
        assert (run.status, run.reason) == (4, "ended")
        assert run.stdout == "wormhole\n/home/wormhole\na b\n"
        assert run.user_s + run.system_s > 0

    def test_event_lines_arrive_as_events(self, vm: Vm) -> None:
        seen: list[object] = []
        line = json.dumps({"event": "step", "loss": 0.5})
        run = vm.guest.run(["echo", line], on_event=seen.append)
        assert seen == run.events == [{"event": "step", "loss": 0.5}]
        assert run.stdout == ""

    def test_a_program_past_its_limit_is_ended_with_its_children(self, vm: Vm) -> None:
        run = vm.guest.run(["sh", "-c", "sleep 4321 & wait"], timeout_s=1.0)
        assert run.reason == "timeout"
        assert guest_processes(vm, "^sleep 4321") == ""

    def test_a_program_that_does_not_exist(self, vm: Vm) -> None:
        with pytest.raises(TestbedError, match="cannot start /no/such"):
            vm.guest.run(["/no/such"])

    def test_a_lost_connection_ends_the_program(self, vm: Vm) -> None:
        # A process of its own holds the connection, so that it can be killed like a user's.
        request = json.dumps({"argv": ["sleep", "9876"], "timeout_s": 600, "cwd": "/"})
        assert vm.guest.info()["uptime_s"] > 0  # and thus the agent is there
        key = vm.facts.run_dir / "client_key"
        key.touch(mode=0o600)
        key.write_bytes(vm.key.private)
        client = subprocess.Popen(
            [
                *("ssh", "-i", str(key), "-p", str(vm.facts.ssh_port), "root@127.0.0.1"),
                *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
                "python3 -I /opt/wormhole/agent.py run",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert client.stdin is not None
            client.stdin.write(request.encode() + b"\n")
            client.stdin.flush()
            assert wait_for(lambda: guest_processes(vm, "^sleep 9876") != "")
        finally:
            client.kill()
            client.wait(LIMIT_S)
        assert wait_for(lambda: guest_processes(vm, "^sleep 9876") == "")

    def test_files_go_both_ways(self, vm: Vm, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "__pycache__").mkdir(parents=True)
        (tree / "__pycache__" / "x.pyc").write_bytes(b"no")
        (tree / "tool").write_text("#!/bin/sh\necho it runs\n")
        (tree / "tool").chmod(0o700)
        content = os.urandom(3 << 20)
        vm.ssh.put({"/opt/t/tree": tree, "/opt/t/blob": content})
        assert vm.ssh.get("/opt/t/blob") == content
        assert vm.guest.run(["/opt/t/tree/tool"]).stdout == "it runs\n"
        assert vm.ssh.run(["ls", "-A", "/opt/t/tree"]).stdout == b"tool\n"

    def test_ssh_run_has_a_limit_and_shows_failures(self, vm: Vm) -> None:
        with pytest.raises(TestbedError, match="limit of 1 s"):
            vm.ssh.run(["sleep", "60"], timeout_s=1.0)
        with pytest.raises(TestbedError, match=r"exit status 2: .*no-such-file"):
            vm.ssh.run(["ls", "/no-such-file"], check=True)
        assert vm.ssh.run(["true"]).status == 0, "the connection must survive both"

    def test_another_host_key_is_refused(self, vm: Vm) -> None:
        with pytest.raises(TestbedError, match="another host key"):
            connect("127.0.0.1", vm.facts.ssh_port, "root", vm.key, generate_key_pair().public)

    def test_another_users_key_is_refused(self, vm: Vm) -> None:
        with pytest.raises(TestbedError, match="refused our key"):
            connect(
                *("127.0.0.1", vm.facts.ssh_port, "root", generate_key_pair()),
                vm.facts.host_key,
            )

    def test_the_emulator_uses_cpu_time(self, vm: Vm) -> None:
        used = cpu_seconds(vm.pid)
        assert used.user_s + used.system_s > 0

    def test_exits_are_counted_under_kvm_alone(self, vm: Vm) -> None:
        assert (vm.exits().get("exits", 0) > 0) == (vm.facts.accelerator == "kvm")

    def test_the_guests_processors_are_a_part_of_it(self, vm: Vm) -> None:
        vcpus, whole = vm.vcpu_seconds(), vm.cpu_seconds()
        assert 0 < vcpus.user_s + vcpus.system_s <= whole.user_s + whole.system_s


@pytest.mark.vm
def test_the_region_is_cacheable_and_above_4_gib(image: GuestImage, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))  # the device only needs someone to connect to
        server.listen()
        config = VmConfig(region=Region(64 << 20, tmp_path / "s"))
        with boot(config, tmp_path / "run", image) as started:
            started.guest.load_driver(image.driver)
            facts = started.guest.info()
            assert facts["devices"] == ["/dev/wormhole0"]
            (region,) = facts["regions"]
            assert region["above_4_gib"]
            assert region["memory_types"] == ["write-back"]
            assert started.qmp.get(DEVICE_ID, "control-notifications") == 0
            # Spinning with a bound reads the clock all the time: it must not leave the guest.
            clock = started.ssh.get(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource"
            )
            assert clock in (b"tsc\n", b"tsc-early\n", b"kvm-clock\n")


@pytest.mark.vm
def test_a_driver_without_device_says_so(vm: Vm, image: GuestImage) -> None:
    with pytest.raises(TestbedError, match="does the VM have the device"):
        vm.guest.load_driver(image.driver)


@pytest.mark.vm
class TestEnds:
    """Starts that fail and the ends of those that do not."""

    def test_two_guests_share_nothing_and_leave_nothing(
        self, vm: Vm, image: GuestImage, tmp_path: Path
    ) -> None:
        before = image.root.stat().st_mtime_ns
        with boot(VmConfig(name="second"), tmp_path, image) as second:
            pid = second.pid
            second.ssh.run(["sh", "-c", "echo mine > /root/mark; sync"], check=True)
            assert vm.ssh.run(["cat", "/root/mark"]).status != 0
        assert not is_running(pid)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["console.log", "qemu.log"]
        assert image.root.stat().st_mtime_ns == before

    def test_an_error_inside_ends_the_guest(self, image: GuestImage, tmp_path: Path) -> None:
        pids: list[int] = []
        with pytest.raises(KeyboardInterrupt), boot(VmConfig(), tmp_path, image) as started:
            pids.append(started.pid)
            raise KeyboardInterrupt
        assert not is_running(pids[0])

    def test_a_killed_parent_takes_its_guest_along(self, tmp_path: Path) -> None:
        script = (
            "import sys, time\nfrom pathlib import Path\n"
            "from testbed.machine.vm import VmConfig, boot\n"
            "with boot(VmConfig(), Path(sys.argv[1])) as vm:\n"
            "    print(vm.pid, flush=True)\n"
            "    time.sleep(600)\n"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
        )
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert is_running(pid)
        finally:
            parent.send_signal(signal.SIGKILL)
            parent.wait(LIMIT_S)
            assert parent.stdout is not None
            parent.stdout.close()
        assert wait_for(lambda: not is_running(pid))

    def test_a_guest_that_panics_shows_its_console(self, image: GuestImage, tmp_path: Path) -> None:
        empty = tmp_path / "empty"
        empty.write_bytes(b"")
        run_dir = tmp_path / "run"
        with (
            pytest.raises(TestbedError, match=r"(?s)VM broken: .*panic.*console.log"),
            boot(VmConfig(name="broken"), run_dir, replace(image, initrd=empty)),
        ):
            pass
        assert not (run_dir / "qmp.sock").exists()

    def test_a_guest_that_is_too_slow_is_ended(self, image: GuestImage, tmp_path: Path) -> None:
        with (
            pytest.raises(TestbedError, match="did not answer within 0 s"),
            boot(VmConfig(name="slow"), tmp_path, image, timeout_s=0.3),
        ):
            pass
        assert sorted(path.name for path in tmp_path.iterdir()) == ["console.log", "qemu.log"]

    def test_a_run_directory_that_cannot_be_made(self, image: GuestImage, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        run_dir = tmp_path / "file" / "run"
        with (
            pytest.raises(TestbedError, match=f"cannot prepare VM guest in {run_dir}"),
            boot(VmConfig(), run_dir, image),
        ):
            pass

    def test_a_port_in_use_is_named(self, image: GuestImage, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with (
                pytest.raises(TestbedError, match=f"port {port} of 127.0.0.1 is in use"),
                boot(VmConfig(ssh_port=port), tmp_path, image),
            ):
                pass

    def test_bad_qemu_arguments_show_qemus_own_words(
        self, image: GuestImage, tmp_path: Path
    ) -> None:
        with (
            pytest.raises(TestbedError, match=r"(?s)QEMU ended with status 1.*no-such-kernel"),
            boot(VmConfig(), tmp_path, replace(image, kernel=Path("/no-such-kernel"))),
        ):
            pass

    def test_a_dead_qemu_is_an_error_not_a_hang(self, image: GuestImage, tmp_path: Path) -> None:
        with boot(VmConfig(), tmp_path, image) as started:
            os.kill(started.pid, signal.SIGKILL)
            with pytest.raises(TestbedError, match="sleep"):
                started.ssh.run(["sleep", "60"], timeout_s=LIMIT_S)
            with pytest.raises(TestbedError, match="monitor"):
                started.qmp.status()


@pytest.mark.vm
def test_detached_guests_are_found_used_and_stopped(
    image: GuestImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    facts = vms.boot_detached(VmConfig(name="by-hand"), image)
    try:
        assert [found.name for found in vms.detached_vms()] == ["by-hand"]
        assert (facts.run_dir / "ssh_key").stat().st_mode & 0o777 == 0o600
        with pytest.raises(TestbedError, match="by-hand is running"):
            vms.boot_detached(VmConfig(name="by-hand"), image)
        with vms.attach(facts) as attached:
            assert attached.ssh.run(["hostname"]).stdout == b"by-hand\n"
            assert attached.qmp.status() == "running"
        said = subprocess.run(
            [*vms.shell_argv(facts), "id", "-un"],
            capture_output=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
        assert said.stdout == b"wormhole\n"
        with pytest.raises(TestbedError, match=r"no VM named other.*by-hand"):
            vms.stop_detached("other")
    finally:
        vms.stop_detached("by-hand")
    assert not is_running(facts.pid)
    assert vms.detached_vms() == []
    assert not facts.run_dir.exists()


@pytest.mark.vm
def test_what_a_dead_detached_guest_left_is_removed(
    image: GuestImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    facts = vms.boot_detached(VmConfig(name="doomed"), image)
    os.kill(facts.pid, signal.SIGKILL)
    assert wait_for(lambda: not is_running(facts.pid))
    assert vms.detached_vms() == []
    assert not facts.run_dir.exists()


@pytest.mark.vm
def test_a_shell_in_a_guest_that_hangs_ends(
    image: GuestImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(vms, "SHELL_ALIVE_INTERVAL_S", 2)
    facts = vms.boot_detached(VmConfig(name="hangs"), image)
    try:
        shell = subprocess.Popen(
            vms.shell_argv(facts, command=["sh", "-c", "echo in; sleep 600"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert shell.stdout is not None
            assert shell.stdout.readline() == b"in\n"
            os.kill(facts.pid, signal.SIGSTOP)
            assert b"not responding" in shell.communicate(timeout=LIMIT_S)[1]
        finally:
            shell.kill()
            shell.wait(LIMIT_S)
        assert shell.returncode == 255
        monkeypatch.setattr(vms, "SHELL_CONNECT_LIMIT_S", 3)
        late = subprocess.run(
            vms.shell_argv(facts, command=["true"]),
            capture_output=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
        assert late.returncode == 255
    finally:
        vms.stop_detached("hangs")
    assert vms.detached_vms() == []
