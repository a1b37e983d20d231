"""The agent on this machine: it needs no guest to run a program or to read sysfs."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from guest_agent import agent

AGENT = Path(agent.__file__)
LIMIT_S = 60


def run(argv: list[str], timeout_s: float = 30.0, **more: Any) -> list[dict[str, Any]]:
    """Run a program through the agent as the current user; the events it printed."""
    request = {"argv": argv, "timeout_s": timeout_s, "user": user_name(), "cwd": "/", **more}
    process = start(request)
    stdout, stderr = b"", b""
    assert process.stdout is not None and process.stderr is not None
    try:
        stdout = process.stdout.read()
        stderr = process.stderr.read()
        assert process.wait(LIMIT_S) == 0, stderr.decode()
    finally:
        finish(process)
    return [json.loads(line) for line in stdout.splitlines()]


def start(request: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the agent with its standard input left open, as SSH does."""
    process = subprocess.Popen(
        [sys.executable, "-I", str(AGENT), "run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return process


def finish(process: subprocess.Popen[bytes]) -> None:
    """Close every pipe and end the agent if it has not ended."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.kill()
    process.wait(LIMIT_S)


def user_name() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def is_running(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX"


def wait_until_gone(pid: int) -> bool:
    deadline_s = time.monotonic() + LIMIT_S
    while is_running(pid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def test_output_events_and_status_come_back() -> None:
    script = (
        'echo plain; echo \'{"event":"step","loss":1}\'; printf unfinished; echo no >&2; exit 3'
    )
    *events, end = run(["sh", "-c", script])
    assert {"event": "output", "stream": "stdout", "text": "plain"} in events
    assert {"event": "step", "loss": 1} in events
    assert {"event": "output", "stream": "stdout", "text": "unfinished"} in events
    assert {"event": "output", "stream": "stderr", "text": "no"} in events
    assert (end["event"], end["reason"], end["status"]) == ("exit", "ended", 3)


def test_a_program_cannot_forge_its_end() -> None:
    forged = '{"event":"exit","status":0}'
    *events, end = run(["sh", "-c", f"echo '{forged}'; exit 7"])
    assert events == [{"event": "output", "stream": "stdout", "text": forged}]
    assert end["status"] == 7


def test_large_output_is_complete() -> None:
    *events, _ = run(["sh", "-c", "seq 1 50000"])
    assert [event["text"] for event in events] == [str(number) for number in range(1, 50001)]


def test_cpu_time_counts_children() -> None:
    loop = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
    *_, end = run(["sh", "-c", f"sh -c '{loop}'"])
    assert end["user_s"] > 0
    assert end["max_rss_kib"] > 0


def test_time_limit_ends_the_whole_group() -> None:
    *events, end = run(["sh", "-c", "sleep 300 & echo $!; wait"], timeout_s=1.0)
    assert end["reason"] == "timeout"
    assert end["status"] < 0
    assert wait_until_gone(int(events[0]["text"]))


def test_a_child_that_keeps_the_pipe_open_does_not_hold_the_end_up() -> None:
    *events, end = run(["sh", "-c", "sleep 300 & echo $!; exit 0"])
    assert (end["reason"], end["status"]) == ("ended", 0)
    assert wait_until_gone(int(events[0]["text"]))


def test_a_daemon_does_not_outlive_the_program() -> None:
    script = "setsid sh -c 'echo $$; exec sleep 300' & sleep 0.5"
    *events, end = run(["sh", "-c", script])
    assert end["reason"] == "ended"
    assert wait_until_gone(int(events[0]["text"]))


def test_a_host_that_goes_away_ends_the_program() -> None:
    argv = ["sh", "-c", "echo $$; exec sleep 300"]
    process = start({"argv": argv, "timeout_s": 200, "user": user_name(), "cwd": "/"})
    assert process.stdout is not None and process.stdin is not None
    try:
        pid = int(json.loads(process.stdout.readline())["text"])
        assert is_running(pid)
        process.stdin.close()
        assert wait_until_gone(pid)
        end = json.loads(process.stdout.readline())
        assert end["reason"] == "host gone"
        assert process.wait(LIMIT_S) == 0
    finally:
        finish(process)


@pytest.mark.parametrize(
    ("request_line", "said"),
    [
        (b"not json\n", "not JSON"),
        (b"{}\n", "no argv"),
        (b"", "not one JSON line"),
        (b'{"argv": ["/no/such/program"], "user": "root", "cwd": "/"}\n', "cannot start"),
    ],
)
def test_bad_requests_are_one_line_errors(request_line: bytes, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(AGENT), "run"],
        input=request_line,
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 1
    assert said in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1


def test_memory_types_are_parsed() -> None:
    text = (
        "PAT memtype list:\n"
        "PAT: [mem 0x00000000fec00000-0x00000000fec01000] uncached-minus\n"
        "PAT: [mem 0x0000000800000000-0x0000000820000000] write-back\n"
    )
    assert agent.parse_memory_types(text) == [
        {"start": 0xFEC00000, "end": 0xFEC01000, "type": "uncached-minus"},
        {"start": 0x800000000, "end": 0x820000000, "type": "write-back"},
    ]


def test_the_region_is_found_with_its_memory_type(tmp_path: Path) -> None:
    device = tmp_path / "0000:00:03.0"
    device.mkdir()
    (device / "vendor").write_text("0x1af4\n")
    (device / "device").write_text("0x107f\n")
    (device / "resource").write_text(
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
        "0x00000000fe000000 0x00000000fe000fff 0x0000000000040200\n"
        "0x0000000800000000 0x000000081fffffff 0x000000000014220c\n"
    )
    other = tmp_path / "0000:00:01.0"
    other.mkdir()
    (other / "vendor").write_text("0x1af4\n")
    (other / "device").write_text("0x1042\n")
    types = [
        {"start": 0xFE000000, "end": 0xFE001000, "type": "uncached-minus"},
        {"start": 0x800000000, "end": 0x800001000, "type": "write-back"},
    ]
    assert agent.regions(tmp_path, types) == [
        {
            "pci": "0000:00:03.0",
            "address": 0x800000000,
            "bar_bytes": 0x20000000,
            "above_4_gib": True,
            "memory_types": ["write-back"],
        }
    ]
