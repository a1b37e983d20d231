"""Memory that client and server both see: natively, and where there is much, little or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.experiment.systems import PRESETS, System
from testbed.tests.clients import (
    SANITIZERS,
    SESSION_BYTES,
    compile_client,
    expect_ok,
    run_client,
    scenarios,
    serving,
)

pytestmark = [pytest.mark.native, pytest.mark.opencl]

NAME = "opencl_place"
LARGE, SMALL = SESSION_BYTES, 8 << 20
# In a small session some buffers find no room in the arena, and transfers go in pieces.
PLACES = (
    (System("wormhole", "shm"), LARGE),
    (System("wormhole", "shm"), SMALL),
    (System("shm-all-messages", "shm", oneway=False, local=False), SMALL),
    (System("tcp-sync", "tcp", oneway=False, local=False), LARGE),
    (System("tcp-oneway-local", "tcp"), LARGE),
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application, linked with the system's loader."""
    return compile_client(tmp_path_factory.mktemp("client"), NAME)


def _check(
    client: Path,
    chosen: System,
    session_bytes: int,
    folder: Path,
    build: str = "",
    **more: str,
) -> None:
    names = scenarios(client)
    with serving(chosen, folder, build, session_bytes) as environment:
        expect_ok(run_client([client, *names], environment | more), names)


def test_expectations_hold_natively(client: Path, tmp_path: Path) -> None:
    _check(client, PRESETS["native"], LARGE, tmp_path)


@pytest.mark.parametrize(
    ("chosen", "session_bytes"), PLACES, ids=lambda value: getattr(value, "name", str(value))
)
def test_scenarios(client: Path, chosen: System, session_bytes: int, tmp_path: Path) -> None:
    _check(client, chosen, session_bytes, tmp_path)


@pytest.mark.parametrize("session_bytes", [LARGE, SMALL])
def test_scenarios_under_sanitizers(session_bytes: int, tmp_path: Path) -> None:
    """Leaks are not looked for: objects in use at exit are no leak."""
    client = compile_client(tmp_path, NAME, *SANITIZERS)
    _check(client, PLACES[0][0], session_bytes, tmp_path, "address", ASAN_OPTIONS="detect_leaks=0")


@pytest.mark.parametrize(
    ("session_bytes", "moved"), [(LARGE, range(1 << 20)), (8 << 20, range(40 << 20, 90 << 20))]
)
def test_bytes_that_maps_of_an_image_move(
    client: Path, session_bytes: int, moved: range, tmp_path: Path
) -> None:
    """None where the image lies in the arena; where that has no room all of them, twice a map."""
    stats = tmp_path / "stats.jsonl"
    with serving(PLACES[0][0], tmp_path, session_bytes=session_bytes) as environment:
        environment |= {"WORMHOLE_STATS": str(stats)}
        expect_ok(run_client([client, "image_mapped_often"], environment), ["image_mapped_often"])
    counters = json.loads(stats.read_text(encoding="utf-8").splitlines()[-1])
    assert counters["bytes_sent"] + counters["bytes_received"] in moved


WRITES = ("writes_in_order", "writes_are_complete", "queue_ends_behind_write")


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(
    "chosen",
    [PRESETS["native"], *(place for place, _ in PLACES[::2])],
    ids=lambda chosen: chosen.name,
)
def test_writes_that_need_not_wait_look_as_if_they_had(
    client: Path, chosen: System, name: str, tmp_path: Path
) -> None:
    """Each in a session of its own: a second queue, or an event, ends the going ahead."""
    with serving(chosen, tmp_path) as environment:
        expect_ok(run_client([client, name], environment), [name])


def test_round_trips_of_writes_that_need_not_wait(client: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats.jsonl"
    with serving(PLACES[0][0], tmp_path) as environment:
        environment |= {"WORMHOLE_STATS": str(stats)}
        expect_ok(run_client([client, WRITES[0]], environment), [WRITES[0]])
    counters = json.loads(stats.read_text(encoding="utf-8").splitlines()[-1])
    # Of 200 one in 64 waits, and the first, which teaches the shape; the rest opens and builds.
    assert counters["round_trips"] < 100
