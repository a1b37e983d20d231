"""Programs and kernels: the forwarded library answers what the real one does, line by line."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from testbed.experiment.systems import System
from testbed.tests.clients import (
    SANITIZERS,
    compile_client,
    expect_success,
    run_client,
    scenarios,
    serving,
)

pytestmark = [pytest.mark.native, pytest.mark.opencl]

NAME = "opencl_programs"
SYSTEMS = (
    System("wormhole", "shm"),
    System("tcp-sync", "tcp", oneway=False, local=False),
)
# Every kernel costs the compiler time, so the program with 500 of them runs once, forwarded.
MANY = "many"
# Needs a header that the host alone has: testbed/tests/test_guest_path.py.
GUEST_ONLY = "absent"
SANITIZED = ("compiles", "binaries", "includes")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, linked with the system's loader."""
    return compile_client(tmp_path_factory.mktemp("client"), NAME)


@pytest.fixture(scope="module")
def native(client: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the real library answers, by scenario."""
    folder = tmp_path_factory.mktemp("native")
    environment = os.environ | {"POCL_CACHE_DIR": str(folder / "pocl")}
    names = [name for name in scenarios(client) if name not in (MANY, GUEST_ONLY)]
    return _answers(client, names, environment, folder)


def _answers(
    client: Path, names: Sequence[str], environment: dict[str, str], folder: Path
) -> dict[str, list[str]]:
    done = run_client([client, *names], environment, folder)
    expect_success(done)
    parts = done.stdout.split("\n== ")[1:]
    answers = {part.split("\n")[0]: part.splitlines()[1:] for part in parts}
    assert list(answers) == list(names)
    return answers


def _forwarded(
    client: Path, names: Sequence[str], chosen: System, folder: Path, build: str = "", **more: str
) -> dict[str, list[str]]:
    with serving(chosen, folder, build) as environment:
        return _answers(client, names, environment | more, folder)


def _expect_same(native: dict[str, list[str]], forwarded: dict[str, list[str]]) -> None:
    for name, lines in forwarded.items():
        changes = difflib.unified_diff(native[name], lines, "native", "forwarded", n=2, lineterm="")
        assert native[name] == lines, f"{name}: " + "\n".join(list(changes)[:40])


def test_the_real_library_builds_and_runs(native: dict[str, list[str]]) -> None:
    assert native["compiles"].count("one leaves 42") == 3  # compiled apart and linked
    assert "current directory: 0, leaves 1" in native["includes"]
    assert "next: 0, leaves 52" in native["includes"]


@pytest.mark.parametrize("chosen", SYSTEMS, ids=lambda chosen: chosen.name)
def test_answers_are_those_of_the_real_library(
    client: Path, native: dict[str, list[str]], chosen: System, tmp_path: Path
) -> None:
    _expect_same(native, _forwarded(client, list(native), chosen, tmp_path))


def test_round_trips_do_not_grow_with_the_kernels(client: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats.jsonl"
    answers = _forwarded(client, [MANY], SYSTEMS[0], tmp_path, WORMHOLE_STATS=str(stats))
    assert "500 kernels" in answers[MANY]
    assert "400 is k400" in answers[MANY]
    assert "k77 leaves 77" in answers[MANY]
    (line,) = stats.read_text(encoding="utf-8").splitlines()
    # 500 names are asked for, one a kernel; all else is the same for any number of kernels.
    assert json.loads(line)["round_trips"] < 500 + 80


def test_answers_under_sanitizers(native: dict[str, list[str]], tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak."""
    client = compile_client(tmp_path, NAME, *SANITIZERS)
    no_leaks = {"ASAN_OPTIONS": "detect_leaks=0"}
    _expect_same(native, _forwarded(client, SANITIZED, SYSTEMS[0], tmp_path, "address", **no_leaks))
