"""The jail on this machine: as root, as root of a plain container, and without root."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

WORKER = Path(__file__).resolve().parent.parent / "worker"
LIMIT_S = 60.0
NOBODY = 65534
# What a container runtime leaves to root by default: no CAP_SYS_ADMIN, no CAP_NET_ADMIN.
CONTAINER_CAPABILITIES = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap"),
    *("net_bind_service", "net_raw", "sys_chroot", "mknod", "audit_write", "setfcap"),
)

pytestmark = pytest.mark.native
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="changes the user, which needs root")


def built(directory: Path, *flags: str) -> Path:
    """test_jail, where every user can execute it."""
    for parent in (directory, *directory.parents):
        if parent.is_relative_to("/tmp/") and parent != Path("/tmp"):
            parent.chmod(0o755)
    path = directory / "test_jail"
    argv = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{WORKER}"]
    argv += [*flags, "-o", str(path), str(WORKER / "tests/test_jail.c"), str(WORKER / "jail.c")]
    subprocess.run(argv, check=True, timeout=LIMIT_S)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("jail"))


def enter(program: Path, prefix: Sequence[str], owner: int) -> dict[str, dict[str, object]]:
    """Run test_jail behind a prefix command; returns the parts of its report."""
    home = program.parent / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    os.chown(home, owner, owner)
    secret = program.parent / "secret"
    secret.write_text("for everybody\n")
    result = subprocess.run(
        [*prefix, str(program), str(home), str(secret)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout.splitlines()[0])
    parts: dict[str, dict[str, object]] = report["parts"]
    assert set(parts) == {"user", "privileges", "network", "files", "syscalls", "limits"}
    return parts


@needs_root
def test_as_root(program: Path) -> None:
    parts = enter(program, [], 0)
    assert parts["user"]["reached"]
    assert parts["limits"]["reached"]


@needs_root
def test_in_a_plain_container(program: Path) -> None:
    capabilities = ",".join(f"+{name}" for name in CONTAINER_CAPABILITIES)
    parts = enter(program, ["setpriv", "--bounding-set", f"-all,{capabilities}"], 0)
    assert parts["user"]["reached"]
    # Without the right to a namespace the filter keeps the network away, and the report says so.
    assert parts["network"]["reached"]
    assert "own namespace: " in str(parts["network"]["how"])


def test_without_root(program: Path) -> None:
    prefix: list[str] = []
    if os.getuid() == 0:
        prefix = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    parts = enter(program, prefix, NOBODY if prefix else os.getuid())
    assert not parts["user"]["reached"]
    assert "not root" in str(parts["user"]["how"])
    assert parts["syscalls"]["reached"]


@needs_root
def test_with_a_gpu(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nodes like a driver's, but of /dev/null's kind."""
    folder = tmp_path_factory.mktemp("gpu")
    devices = folder / "dev"
    (devices / "nvidia-caps").mkdir(parents=True)
    modes = {
        "nvidia0": (0o666, 0),
        "nvidiactl": (0o660, 44),
        "nvidia-caps/nvidia-cap1": (0o444 | 0o222, 0),
        "nvidia-uvm": (0o600, 0),
        "other": (0o666, 0),
    }
    try:
        for name, (mode, group) in modes.items():
            os.mknod(devices / name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
            os.chown(devices / name, 0, group)
            (devices / name).chmod(mode)
        with (devices / "nvidia0").open("wb"):
            pass
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    program = built(folder, f'-DDEVICES="{devices}"')
    (folder / "home").mkdir()
    (folder / "secret").write_text("for everybody\n")
    done = subprocess.run(
        [str(program), str(folder / "home"), str(folder / "secret"), str(devices)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = str(json.loads(done.stdout.splitlines()[0])["devices"])
    open_ones, _, closed_ones = said.replace(f"{devices}/", "").partition("; no right to use ")
    assert set(open_ones.split()) == {"nvidia0", "nvidiactl", "nvidia-caps/nvidia-cap1"}
    assert closed_ones == "nvidia-uvm"
    # ptrace, socket and connect by their numbers, each once.
    assert done.stderr.splitlines() == [f"refused system call {call}" for call in (101, 41, 42)]
