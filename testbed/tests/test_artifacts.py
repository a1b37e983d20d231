"""The artifact cache: keys, atomicity, locking, and what a failing command says."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.machine import artifacts


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("WORMHOLE_CACHE", str(directory))
    return directory


def write_marker(directory: Path) -> None:
    """Build the smallest artifact."""
    (directory / "marker").write_text("built")


def test_cache_dir_prefers_own_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORMHOLE_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/u")
    assert artifacts.cache_dir() == Path("/own")
    monkeypatch.delenv("WORMHOLE_CACHE")
    assert artifacts.cache_dir() == Path("/xdg/wormhole-testbed")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert artifacts.cache_dir() == Path("/home/u/.cache/wormhole-testbed")


def test_key_follows_labels_values_and_kinds(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("one")
    keys = [
        artifacts.artifact_key({"a": "one"}),
        artifacts.artifact_key({"b": "one"}),
        artifacts.artifact_key({"a": b"one"}),
        artifacts.artifact_key({"a": "one", "b": "two"}),
        artifacts.artifact_key({"a": file}),
    ]
    file.write_text("two")
    keys.append(artifacts.artifact_key({"a": file}))
    assert len(set(keys)) == len(keys)
    assert artifacts.artifact_key({"b": "2", "a": "1"}) == artifacts.artifact_key(
        {"a": "1", "b": "2"}
    )


def test_key_of_a_directory_follows_contents_and_names(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "f").write_text("1")
    before = artifacts.artifact_key({"t": tree})
    (tree / "sub" / "f").rename(tree / "sub" / "g")
    renamed = artifacts.artifact_key({"t": tree})
    (tree / "sub" / "g").write_text("2")
    assert len({before, renamed, artifacts.artifact_key({"t": tree})}) == 3


def test_missing_input_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="nowhere"):
        artifacts.artifact_key({"a": tmp_path / "nowhere"})


def test_built_once_then_found(cache: Path) -> None:
    calls: list[Path] = []

    def build(directory: Path) -> None:
        calls.append(directory)
        write_marker(directory)

    first = artifacts.artifact("thing", {"a": "1"}, build)
    second = artifacts.artifact("thing", {"a": "1"}, build)
    assert first == second == artifacts.artifact_path("thing", {"a": "1"})
    assert (first / "marker").read_text() == "built"
    assert len(calls) == 1
    assert calls[0] != first, "a build must not happen in the final place"


def test_failed_build_leaves_nothing_and_can_be_repeated(cache: Path) -> None:
    def fail(directory: Path) -> None:
        write_marker(directory)
        artifacts.run_logged(
            ["sh", "-c", "echo the-reason; exit 3"], artifacts.log_path("thing", {}), 10.0
        )

    with pytest.raises(TestbedError) as caught:
        artifacts.artifact("thing", {}, fail)
    assert "the-reason" in str(caught.value)
    assert str(artifacts.log_path("thing", {})) in str(caught.value)
    assert not artifacts.artifact_path("thing", {}).exists()
    assert not list(cache.glob(".*.partial"))
    assert (artifacts.artifact("thing", {}, write_marker) / "marker").exists()


def test_leftovers_of_killed_builders_are_removed(cache: Path) -> None:
    final = artifacts.artifact_path("thing", {})
    own = cache / f".{final.name}.dead.partial"
    other = cache / ".other-0123.dead.partial"
    in_use = cache / ".other-4567.live.partial"
    for directory in (own, other, in_use):
        directory.mkdir(parents=True)
    with (cache / ".other-4567.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        artifacts.artifact("thing", {}, write_marker)
    assert not own.exists()
    assert not other.exists()
    assert in_use.exists()


def test_what_nobody_uses_goes_when_something_is_built(cache: Path) -> None:
    kept, unused, locked, used = (
        artifacts.artifact(name, {}, write_marker) for name in ("kept", "unused", "locked", "used")
    )
    log = artifacts.log_path("unused", {})
    log.touch()
    for path in (kept, unused, locked, used):
        days = artifacts.UNUSED_DAYS + (-1 if path == kept else 1)
        then_s = time.time() - days * 86400
        os.utime(path, (then_s, then_s))
    other = cache / "pocl-seeds"
    other.mkdir()
    os.utime(other, (0, 0))
    assert artifacts.artifact("used", {}, write_marker) == used
    with (cache / f".{locked.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        artifacts.artifact("new", {}, write_marker)
    assert not unused.exists()
    assert not log.exists()
    assert not (cache / f".{unused.name}.lock").exists()
    assert all(path.is_dir() for path in (kept, locked, used, other))
    # It is built again when it is asked for again.
    assert (artifacts.artifact("unused", {}, write_marker) / "marker").exists()


def test_two_builders_build_once(cache: Path) -> None:
    calls: list[int] = []
    started = threading.Event()

    def build(directory: Path) -> None:
        calls.append(1)
        started.set()
        time.sleep(0.3)
        write_marker(directory)

    threads = [
        threading.Thread(target=artifacts.artifact, args=("thing", {}, build)) for _ in range(2)
    ]
    threads[0].start()
    assert started.wait(timeout=10)
    threads[1].start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    assert len(calls) == 1


def test_unusable_cache_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("WORMHOLE_CACHE", str(file / "below"))
    with pytest.raises(TestbedError, match="WORMHOLE_CACHE"):
        artifacts.artifact("thing", {}, write_marker)


def test_command_past_its_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {pid_file}; wait"
    with pytest.raises(TestbedError, match="limit of 1 s"):
        artifacts.run_logged(["sh", "-c", script], tmp_path / "log", 1.0)
    child = int(pid_file.read_text())
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s and _runs(child):
        time.sleep(0.05)
    assert not _runs(child)


def test_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="cannot start no-such-program"):
        artifacts.run_logged(["no-such-program"], tmp_path / "log", 1.0)


def test_command_gets_its_environment_and_directory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {"PATH": os.environ["PATH"], "COLOUR": "blue"}
    artifacts.run_logged(["sh", "-c", "echo $COLOUR; pwd"], log, 10.0, cwd=tmp_path, env=env)
    assert artifacts.last_lines(log, 2) == ["blue", str(tmp_path)]


def _runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("name", ["my cache", "c:ache"])
def test_cache_where_nothing_can_be_built_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / name))
    with pytest.raises(TestbedError, match="WORMHOLE_CACHE"):
        artifacts.cache_dir()
